"""The command line as a user sees it: help, messages, exit status, files."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest

from operant import DQN, Agent, __version__
from operant.agents.base.agent_spec import parse_agent
from operant.agents.table import AGENTS, config_class
from operant.cli import main, parse, tables
from operant.cli.tables import switched
from operant.cli.training import Extra
from operant.errors import SpecError, UsageError
from operant.execution.play import PlayConfig
from operant.spec import default, options, presets
from operant.spec.run import ProcessConfig, RunConfig
from operant.tracking import read_history
from operant.training import signals
from operant.training.train import measured_settings, resumed

TINY = [
    "--n-envs",
    "2",
    "--n-steps",
    "8",
    "--mini-batches",
    "2",
    "--ppo-epochs",
    "1",
    "--seed",
    "1",
    "--quiet",
]
NET = ["--model", '[{"type": "dense", "size": 8}]']


def fails(capsys, *arguments):
    status = main(arguments)
    out, err = capsys.readouterr()
    assert status == 2
    assert all(line.endswith(" ...") for line in out.splitlines())  # what went on
    assert "Traceback" not in err
    return err


def test_output_that_its_encoding_lacks(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["train", "ppo"]) == 0


def test_a_folder_and_json_that_are_none_are_told(capsys):
    assert "There is no folder 'runs/nope'. Give a run's folder" in fails(capsys, "play", "runs/nope")
    model = '[{"type": "lstm", "size": 64'
    message = fails(capsys, "train", "ppo", "--env", "CartPole-v1", "--model", model)
    assert "--model must be JSON where it begins with [ or {" in message
    assert "line 1 column 29" in message


def test_base_help(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"operant {__version__}\n\nUsage:\n    operant <command> <agent> [options] [args]\n"
    )
    assert "    train      Train given an agent and environment\n" in out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == out


def help_of(capsys, *arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("agent", AGENTS)
def test_agent_help_lists_every_flag(agent, capsys, monkeypatch):
    configs = [config_class(agent), RunConfig, ProcessConfig, Extra]
    names = {name: switched(config, name) for config in configs for name in options(config)}
    flags = {tables.flag(name).replace("--", "--[no-]" if both else "--") for name, both in names.items()}
    for columns, begins in (("80", "  "), ("120", "| ")):
        monkeypatch.setenv("COLUMNS", columns)
        out = help_of(capsys, "train", agent, "--help-all")
        shown = [line for line in out.splitlines() if line.startswith(f"{begins}--")]
        assert {line.split()[0 if begins == "  " else 1] for line in shown} == flags
        assert all(len(line) <= int(columns) for line in out.splitlines())
        assert "hp_type" not in out
        short = help_of(capsys, "train", agent)
        assert help_of(capsys, "train", agent, "--help") == short
        assert len(short.splitlines()) < 0.7 * len(out.splitlines())
        assert f"\nAll flags: operant train {agent} --help-all\n" in short
    assert {"--env", "--max-steps", "--resume"} <= set(short.split())


def test_help_stands_in_groups_and_names_what_else_an_option_is_called(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(capsys, "train", "ppo", "--help-all").splitlines()
    groups, group = {}, None
    for line in lines[lines.index("Algorithm:") :]:
        if line.startswith("  --"):
            group.append(line.split()[0])
        elif line.endswith(":") and not line.startswith(" "):
            group = groups.setdefault(line, [])
    assert list(groups) == [
        "Algorithm:", "Run:", "Environment:", "Checkpoints and evaluation:", "Several machines:"
    ]  # fmt: skip
    assert "--[no-]clip-value" in groups["Algorithm:"] and "--seed" in groups["Run:"]
    assert "--n-envs" in groups["Environment:"] and "--coordinator" in groups["Several machines:"]
    assert "--eval-frequency" in groups["Checkpoints and evaluation:"]
    text = " ".join(" ".join(lines).split())
    assert "--lam [default: 0.95] GAE-Lambda for advantage estimation (also --gae-lambda)" in text
    assert "(also --clip-range, --clip-coef)" in text and "(also --discount)" in text
    monkeypatch.setenv("COLUMNS", "120")
    assert "| default | hp_type " in help_of(capsys, "tune", "ppo")


def test_help_of_a_command_can_be_asked_for_before_it(capsys):
    for command in (["train", "ppo"], ["play"], ["tune", "dqn"], ["list"], ["serve"]):
        assert help_of(capsys, "help", *command) == help_of(capsys, *command, "--help")


def test_help_fits_the_terminal_and_wraps():
    table = tables.table(
        "x", ("flags", "help", "default", "hp_type"), [["--a", "word " * 40, "1", "-"]], width=80
    )
    assert all(len(line) <= 80 for line in table.splitlines())
    assert len(table.splitlines()) > 6


@pytest.mark.parametrize("command", [["train", "ppo"], ["list", "presets"], ["run"]])
def test_in_a_narrow_terminal_help_stands_below(command, capsys, monkeypatch):
    shown = {}
    for columns in ("60", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(command) == 0
        shown[columns] = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 60 for line in shown["60"] if not line.startswith("    operant"))
    assert not any(line.startswith("|") for line in shown["60"])


def test_where_no_terminal_is_a_row_is_a_line(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)  # tests may be run on a terminal
    assert main(["list", "presets", "mountaincar"]) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert (
        row.startswith("| ppo --preset mountaincar-default") and "a negative control, these settings" in row
    )


def test_claims_of_presets_are_not_folded_into_a_narrow_column(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", "presets", "trpo"]) == 0
    measured = [line for line in capsys.readouterr().out.splitlines() if " steps, " in line]
    assert measured and all(" after " in line and "seeds" in line for line in measured)


def test_help_below_its_flag():
    rows = [["-l, --lr", "Learning rate of the optimizer, or a schedule of it", "0.001", "log_uniform"]]
    assert tables.table(
        "train ppo", ("flags", "help", "default", "hp_type"), rows, width=56
    ).splitlines() == [
        "train ppo:",
        "  -l, --lr  [default: 0.001]  [hp_type: log_uniform]",
        "      Learning rate of the optimizer, or a schedule of",
        "      it",
    ]


@pytest.mark.parametrize("agent", AGENTS)
def test_light_config_is_the_algorithms_own(agent):
    """The class read for help without JAX has the fields of the one that trains."""
    light, own = config_class(agent), type(parse_agent(agent).config)
    assert options(light) == options(own)
    assert [default(light, n) for n in options(light)] == [default(own, n) for n in options(own)]


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize(
    ("command", "rest"), [("list", ["envs"]), ("list", ["runs", "runs"]), ("completion", ["bash"])]
)
def test_help_is_given_behind_other_words(command, rest, word, capsys):
    assert main([command]) == 0
    shown = capsys.readouterr().out
    assert main([command, *rest, word]) == 0
    assert capsys.readouterr().out == shown


def test_the_overview_says_all_that_can_be_listed(capsys):
    assert main([]) == 0
    assert "List agents, environments, presets or runs\n" in capsys.readouterr().out


SHARED = {  # the tables of the seed document
    "gamma": (0.99, "log_uniform"),
    "lr": (0.0007, "log_uniform"),
    "beta1": (0.9, "log_uniform"),
    "beta2": (0.999, "log_uniform"),
    "opt_epsilon": (1e-07, "log_uniform"),
}
REPLAY = {
    "buffer_batch_size": (32, "categorical"),
    "buffer_initial_size": (None, "int"),
    "buffer_max_size": (10000, "int"),
}
ACTOR_CRITIC = {
    "entropy_coef": (0.01, "log_uniform"),
    "grad_norm": (0.5, "log_uniform"),
    "value_loss_coef": (0.5, "log_uniform"),
}
GAE = {
    "advantage_epsilon": (1e-8, "log_uniform"),
    "clip_norm": (0.1, "log_uniform"),
    "mini_batches": (4, "categorical"),
    "ppo_epochs": (4, "categorical"),
}
NOISE = {
    "gradient_steps": (None, "int"),
    "step_noise_coef": (0.1, "log_uniform"),
    "tau": (0.005, "log_uniform"),
}
SEED_DEFAULTS = {
    "a2c": {**SHARED, **ACTOR_CRITIC, "n_steps": (5, "categorical")},
    "acer": {
        **SHARED,
        **REPLAY,
        **ACTOR_CRITIC,
        "delta": (1, "log_uniform"),
        "ema_alpha": (0.99, "log_uniform"),
        "epsilon": (1e-06, "log_uniform"),
        "grad_norm": (10, "log_uniform"),
        "importance_c": (10.0, "log_uniform"),
        "n_steps": (20, "categorical"),
        "replay_ratio": (4, "categorical"),
        "trust_region": (True, None),
        "buffer_batch_size": (1, "categorical"),
    },
    "ddpg": {**SHARED, **REPLAY, **NOISE},
    "dqn": {
        **SHARED,
        **REPLAY,
        "double": (False, None),
        "epsilon_decay_steps": (150000, "int"),
        "epsilon_end": (0.02, "log_uniform"),
        "epsilon_start": (1.0, "log_uniform"),
        "target_sync_steps": (1000, "int"),
    },
    "ppo": {**SHARED, **ACTOR_CRITIC, **GAE, "lam": (0.95, "log_uniform"), "n_steps": (128, "categorical")},
    "td3": {
        **SHARED,
        **REPLAY,
        **NOISE,
        "noise_clip": (0.5, "log_uniform"),
        "policy_delay": (2, "categorical"),
        "policy_noise_coef": (0.2, "log_uniform"),
    },
    "trpo": {
        **SHARED,
        **ACTOR_CRITIC,
        **GAE,
        "actor_iterations": (10, "int"),
        "cg_damping": (0.001, "log_uniform"),
        "cg_iterations": (10, None),
        "cg_residual_tolerance": (1e-10, "log_uniform"),
        "critic_iterations": (3, "int"),
        "entropy_coef": (0, "log_uniform"),
        "fvp_n_steps": (5, "int"),
        "lam": (1.0, "log_uniform"),
        "max_kl": (0.001, "log_uniform"),
        "n_steps": (512, "categorical"),
    },
}
SEED_RUN_DEFAULTS = {
    "checkpoints": ((), None),
    "display_precision": (2, None),
    "divergence_monitoring_steps": (None, None),
    "early_stop_patience": (3, None),
    "history_checkpoint": (None, None),
    "log_frequency": (None, None),
    "plateau_reduce_factor": (0.9, None),
    "plateau_reduce_patience": (10, None),
    "quiet": (False, None),
    "reward_buffer_size": (100, None),
    "seed": (None, None),
    "max_frame": (False, "categorical"),
    "n_envs": (1, "categorical"),
    "preprocess": (False, None),
    "weights": ((), None),
    "max_steps": (None, None),
    "monitor_session": (None, None),
    "target_reward": (None, None),
}
SEED_PLAY_DEFAULTS = {
    "action_idx": (0, None),
    "frame_delay": (0, None),
    "frame_dir": (None, None),
    "frame_frequency": (1, None),
    "render": (False, None),
    "video_dir": (None, None),
}


@pytest.mark.parametrize(
    ("config", "documented"),
    [
        *((config_class(agent), defaults) for agent, defaults in SEED_DEFAULTS.items()),
        (RunConfig, SEED_RUN_DEFAULTS),
        (PlayConfig, SEED_PLAY_DEFAULTS),
    ],
    ids=[*SEED_DEFAULTS, "run", "play"],
)
def test_defaults_are_the_documented_ones(config, documented):
    assert {name: (default(config, name), options(config)[name].search) for name in documented} == documented


def test_list(capsys):
    assert main(["list", "agents"]) == 0
    assert "| ppo " in capsys.readouterr().out
    assert main(["list", "presets"]) == 0
    out = capsys.readouterr().out
    assert all(f"{p.agent} --preset {p.name}" in out for p in presets.every())
    assert main(["list", "envs", "cartpole"]) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1" in out and "jax:CartPole-v1" in out and "Pendulum" not in out


def test_presets_are_legal():
    from operant.spec.run import RunConfig

    known = options(RunConfig)
    for preset in presets.every():
        run = {k: v for k, v in preset.settings.items() if k in known}
        own = {k: v for k, v in preset.settings.items() if k not in known}
        RunConfig.from_dict(run)
        parse_agent(preset.agent, **own)
        assert preset.score and "to be" not in preset.score
        assert preset.control == ("negative control" in preset.score)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "Unknown command 'trian'. Did you mean 'train'?"),
        (["replay", "run"], "Unknown command 'replay'. Use: operant reproduce run\n"),
        (["train", "ppoo", "--env", "x"], "Unknown agent 'ppoo'. Did you mean 'ppo'?"),
        (["train", "ppo", "--evn", "x"], "Unknown flag '--evn' for train ppo. Did you mean '--env'?"),
        (["train", "dqn", "--exploration-fraction", "1"], "Did you mean '--epsilon-decay-steps'?\n"),
        (["train", "ppo", "--eval-freq=9"], "for train ppo. Did you mean '--eval-frequency'?\n"),
        (["train", "acer", "--learning-starts", "9"], "Did you mean '--buffer-initial-size'?\n"),
        (
            ["train", "ppo", "--learning-starts", "9"],
            "Unknown flag '--learning-starts' for train ppo. `operant train ppo --help-all` lists them.\n",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1"],
            "train requires --target-reward or --max-steps: without them it would not end.\n",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--lr", "inf"],
            "--lr must be a finite number. Received: --lr inf.",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--seed", "1e10"],
            "at most 4294967295. Received: --seed 10000000000.",
        ),
        (["train", "ppo", "--max-steps", "10"], "env must be given"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "x"],
            "--max-steps must be a whole number. Received: 'x'.",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--gamma", "2"],
            "--gamma must be at least 0 and at most 1. Received: --gamma 2.0.",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--n-envs", "0"],
            "--n-envs must be at least 1. Received: --n-envs 0.",
        ),
        (["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "stray"], "Unknown argument 'stray'"),
        (
            ["train", "ppo", "--preset", "cartpol", "--max-steps", "10"],
            "There is no preset 'cartpol' for ppo. Did you mean 'cartpole'?",
        ),
        (
            ["train", "double_dqn", "--preset", "cartpole-500", "--max-steps", "10"],
            "There is no preset 'cartpole-500' for ddqn. Did you mean 'cartpole-500k'?",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--n-steps", "1"],
            "--mini-batches must be at most 1",
        ),
        (["train", "ppo", "--env", "CartPol-v1", "--max-steps", "10"], "CartPole-v1"),
        (["train", "dqn", "--env", "Pendulum-v1", "--max-steps", "10"], "dqn"),
        (["train", "dqn", "--env", "jax:Pendulum-v1", "--max-steps", "10"], "dqn"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--checkpoints", "a", "b"],
            "--checkpoints must be 1 path(s)",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--weights", "none.tf"],
            "The weights 'none.tf' do not exist.",
        ),
        (
            ["train", "ppo", "--env", "x", "--env-kwargs", "slippery"],
            "must be NAME=VALUE ..., or a JSON object. Received: 'slippery'.",
        ),
        (
            ["train", "ppo", "--env", "x", "--env-kwargs", '{"a":', "True}"],
            "inside, use double quotes, true, false and null.\n",
        ),
        (
            ["train", "ppo", "--env", "x", "--max-steps", "9", "--env-kwargs", "render_mode=human"],
            "--env-kwargs must be without 'render_mode', which operant sets itself. Received: "
            "render_mode='human'. Watch a policy with",
        ),
        (
            ["train", "ppo", "--env", "FrozenLake-v1", "--max-steps", "9", "--env-kwargs", "slippery=no"],
            "'FrozenLake-v1' takes no argument 'slippery'. Did you mean 'is_slippery'?\n",
        ),
        (
            ["train", "ppo", "--env", "x", "--env-kwargs", "g=1", "m=2", "g=3"],
            "--env-kwargs was given g twice: g=1 m=2 g=3.\n",
        ),
        (
            ["train", "ppo", "--env", "x", "--max-steps", "9", "--env-kwargs", "g=nan"],
            "--env-kwargs must be plain data: finite numbers,",
        ),
        (
            ["train", "ppo", "--env", "FrozenLake-v1", "--max-steps", "9", "--env-kwargs", "map_name=9x9"],
            "cannot be made: it raised KeyError: '9x9' (",
        ),
        (
            ["train", "ppo", "--env", "string", "--max-steps", "9"],
            "The module 'string' must define one class of an environment. It defines: none. Name what is "
            "meant, too: string:Name.\n",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "9", "--eval-frequency", "10"],
            "--eval-frequency must be at most --max-steps 9, or nothing is evaluated. Received: "
            "--eval-frequency 10.\n",
        ),
        (
            ["train", "ppo", "--env", "jax:CartPole-v1", "--max-steps", "9", "--env-kwargs", "gravity=1"],
            "'jax:CartPole-v1' takes no argument 'gravity'. Known: sutton_barto_reward.\n",
        ),
        (["train", "ppo", "--resume", "nowhere"], "There is no run to resume in 'nowhere'"),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--model", '[{"type": "dens"}]'],
            "dense",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-steps", "10", "--run-dir", __file__ + "/x"],
            "--run-dir must be in a folder: ",
        ),
        (
            ["train", "ppo", "--env", "x", "--model", "a.cfg", "b.cfg"],
            "Unknown argument 'b.cfg' for train ppo. --model takes one value. Received: --model a.cfg "
            "b.cfg.\n",
        ),
        (
            ["train", "ppo", "--n-seeds", "2", "--seed", "1", "2"],
            "Unknown argument '2' for train ppo. --seed takes one value. Received: --seed 1 2.\n",
        ),
        (
            ["train", "ppo", "--seed", "2", "2"],
            "Unknown argument '2' for train ppo. --seed takes one value. Received: --seed 2 2.\n",
        ),
        (
            ["train", "ppo", "--seed", "2", "--model=a.cfg", "2"],
            "Unknown argument '2' for train ppo. --model takes one value. Received: --model=a.cfg 2.\n",
        ),
        (
            ["tune", "ppo", "--n-steps", "1", "2", "--seed", "3", "2"],
            "so it takes one value. Received: --seed 3 2.\n",
        ),
        (
            ["tune", "ppo", "--n-trials", "3", "--model=a.cfg", "b.cfg"],
            "for tune ppo. --model is not tuned (it has no hp_type), so it takes one value. Received: "
            "--model=a.cfg b.cfg.\n",
        ),
        (
            ["tune", "ppo", "--separate", "true", "false"],
            "Unknown argument 'true' for tune ppo. --separate is not tuned (it has no hp_type), so it takes "
            "no value. Received: --separate true. Say --separate alone.\n",
        ),
        (
            ["tune", "dqn", "--double", "true", "false"],
            "for tune dqn. --double is not tuned (it has no hp_type), so it takes no value. Received: "
            "--double true. Say --double alone.\n",
        ),
        (
            ["train", "ppo", "--separate", "true"],
            "for train ppo. --separate takes no value. Received: --separate true. Say --separate alone.\n",
        ),
        (
            ["train", "ppo", "--quiet", "yes"],
            "'yes' for train ppo. --quiet takes no value. Received: --quiet yes. Say --quiet alone.\n",
        ),
        (
            ["train", "ppo", "--env", "CartPole-v1", "--max-step", "10"],
            "Unknown flag '--max-step' for train ppo. Did you mean '--max-steps'?\n",
        ),
        (
            ["train", "ppo", "--max", "400"],
            "Unknown flag '--max' for train ppo. Did you mean one of --max-episode-timesteps, --max-frame, "
            "--max-steps?\n",
        ),
        (
            ["train", "ppo", "--no-sep"],
            "Unknown flag '--no-sep' for train ppo. Did you mean '--no-separate'?\n",
        ),
        *(
            (
                [*command, "--env", "x", name, "1"],
                f"Unknown flag '{name}' for {command[0]} ppo. It is a flag of `operant train`: leave it "
                "out.\n",
            )
            for command, names in (
                (["play", "ppo"], ["--n-envs", "--log-frequency"]),
                (["tune", "ppo"], ["--target-reward", "--run-dir"]),
            )
            for name in names
        ),
        (
            ["play", "ppo", "--env", "x", "--checkpoints", "1"],
            "Unknown flag '--checkpoints' for play ppo. What it writes is read by --weights.\n",
        ),
        (
            ["play", "ppo", "--episode=3"],
            "Unknown flag '--episode=3' for play ppo. Did you mean '--episodes'?\n",
        ),
        (["tune", "ppo", "--trial-step", "9"], "Did you mean '--trial-steps'?\n"),
        (["run", "--episod", "9"], "Did you mean '--episodes'?\n"),
        (["plot", "x", "--aggreg"], "Did you mean '--aggregate'?\n"),
        (["serve", "--leve", "x"], "Did you mean '--level'?\n"),
        (
            ["train", "dqn", "--distributional"],
            "operant: --distributional: expected one argument. Give one of: none, c51, quantile.\n",
        ),
        (
            ["train", "ppo", "--separate=true"],
            "operant: --separate takes no value. Received: true. Say --separate alone.\n",
        ),
        (
            ["train", "dqn", "--no-save-memory=1"],
            "operant: --no-save-memory takes no value. Received: 1. Say --no-save-memory alone.\n",
        ),
        (["train", "dqn", "--no-save-memory=0"], "Received: 0. Say --save-memory.\n"),
        (["train", "ppo", "--separate", "no"], "Received: --separate no. Say --no-separate.\n"),
        (["run", "-e"], "operant: --environment: expected one argument.\n"),
        (["train", "ppo", "--lr"], "operant: --lr: expected one argument.\n"),
        (["train", "ppo", "stray", "--quiet"], "Unknown argument 'stray' for train ppo.\n"),
        (["train", "ppo", "lr", "--quiet"], "Unknown argument 'lr' for train ppo. Did you mean '--lr'?\n"),
        (["play", "ppo", ".", "--episodes", "2"], "'.' brings its agent. Leave ppo out: operant play .\n"),
        (["play", "ppo", "nowhere"], "There is neither an agent nor a folder 'nowhere'."),
        (["play", "nosuchrun"], "There is neither an agent nor a folder 'nosuchrun'. `operant list agents`"),
        (["play", "ppoo"], "There is neither an agent nor a folder 'ppoo'. Did you mean 'ppo'? "),
        (["list", "agnets"], "operant cannot list 'agnets'. Did you mean 'agents'?"),
    ],
)
def test_refusals_say_what_is_wrong_and_leave_nothing_behind(
    arguments, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (
            ("mine", "b"),
            "checkpoints must be new paths, or weights that were written before. Received: "
            "--checkpoints 'mine'",
        ),
        (("file", "b"), "Received: --checkpoints 'file'. Something else is there, which would be lost."),
        (("file.npz", "b"), "Received: --checkpoints 'file.npz'. Something else is there, which"),
        (
            ("file/a", "b"),
            "checkpoints must be in a folder: 'file' is a file. Received: --checkpoints 'file/a'.",
        ),
        (("a/b:model.tf", "b"), "checkpoints must be paths whose last part is made of letters, digits"),
        (
            ("b", "ddpg#gae.tf"),
            "with a letter or digit in front. Received: --checkpoints 'ddpg#gae.tf'.",
        ),
        (("b", "."), "Received: --checkpoints '.'."),
        (("b", ".."), "Received: --checkpoints '..'."),
        (("b", "/"), "Received: --checkpoints '/'."),
        (("b", ""), "Received: --checkpoints ''."),
        (("a", "a"), "checkpoints must be different paths, none inside another, one for each model"),
        (("a", "x/../a"), "Received: --checkpoints ['a', 'x/../a']."),
        (("a", "a/b"), "checkpoints must be different paths"),
        (("a", "runs"), "Received: --checkpoints 'runs'."),
        (("a", "runs/a/checkpoints/b"), "Received: --checkpoints 'runs/a/checkpoints/b'."),
        (("a", "b" * 221), "with a letter or digit in front. Received: --checkpoints 'bbb"),
        (("a", "h.parquet"), "checkpoints must be paths other than 'h.parquet'"),
    ],
)
def test_places_of_weights_are_checked_before_training(paths, message, capsys, tmp_path, monkeypatch):
    """DDPG has two models; its weights would be written in the midst of training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("text")
    (tmp_path / "file.npz").write_text("text")
    before = sorted(tmp_path.rglob("*"))
    command = ["train", "ddpg", "--env", "Pendulum-v1", "--max-steps", "10", "--run-dir", "runs/a"]
    small = [
        "--actor-model",
        '[{"type": "dense", "size": 2}]',
        "--critic-model",
        '[{"type": "dense", "size": 2}]',
    ]
    history = ["--history-checkpoint", "h.parquet"]
    assert message in fails(capsys, *command, *small, *history, "--checkpoints", *paths)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (
            ["a=1", "b=True", "c=.5", "d=8x8", "e=[1, 2]", "f=x=y", "g=none"],
            {"a": 1, "b": True, "c": 0.5, "d": "8x8", "e": [1, 2], "f": "x=y", "g": None},
        ),
        (['{"a": [1, {"b": null}]}'], {"a": [1, {"b": None}]}),
        (["{}"], {}),
        (["none"], None),
    ],
)
def test_arguments_of_environments_are_words_or_json(words, value):
    given = parse.parse([RunConfig], ["--quiet", "--env-kwargs", *words, "--n-envs", "2"], "train")
    assert given == {"quiet": True, "env_kwargs": value, "n_envs": 2}


@pytest.mark.parametrize(
    ("agent", "words", "found"),
    [
        ("ppo", ["--separate"], {"separate": True}),
        ("ppo", ["--no-separate", "--no-clip-value"], {"separate": False, "clip_value": False}),
        (
            "modular",
            ["--no-estimate-advantage", "--predict-horizon-values"],
            {"estimate_advantage": False, "predict_horizon_values": True},
        ),
        ("ppo", [], {}),
    ],
)
def test_switches_that_are_on_by_default_or_undecided_can_be_turned_off(agent, words, found):
    assert parse.parse([config_class(agent)], words, f"train {agent}") == found


LATE = {"buffer_initial_size": 100, "epsilon_decay_steps": 1000}


@pytest.mark.parametrize(
    ("agent", "options", "steps", "told"),
    [
        (
            "dqn",
            LATE,
            100,
            [
                "begins after 100 random steps (buffer_initial_size), and the run has 100",
                "ε reaches 0.02 at step 1,100 (epsilon_decay_steps), and is 1.00 at the run's last, 100",
            ],
        ),
        ("dqn", LATE, 600, ["is 0.51 at the run's last, 600"]),
        ("dqn", LATE, 1100, []),
        ("dqn", {"buffer_initial_size": 100, "noisy": True}, 600, []),
        ("dqn", {**LATE, "epsilon_start": 0.02}, 600, []),
        ("dqn", LATE, None, []),
        (
            "pqn",
            {"epsilon_decay_steps": 1000},
            500,
            ["ε reaches 0.02 at step 1,000 (epsilon_decay_steps), and is 0.51"],
        ),
        ("td3", {}, 10_000, ["begins after 10,000 random steps"]),
        ("td3", {}, 10_001, []),
        ("ppo", {}, 1, []),
        ("random", {}, 1, []),
        (
            "acer",
            {"buffer_initial_size": 2000},
            2000,
            [
                "Nothing is replayed: replay begins after 2,000 steps (buffer_initial_size), and the run "
                "has 2,000"
            ],
        ),
        (
            "dqn",
            {**LATE, "noisy": True, "epsilon_end": 0.1},
            None,
            ["epsilon_end=0.1 has no effect: something else explores", "epsilon_decay_steps=1000"],
        ),
        (
            "dqn",
            {"noisy_std": 0.3, "value_max": 5, "atoms": 7, "distributional": "quantile"},
            None,
            [
                "value_max=5.0 has no effect without distributional='c51'",
                "noisy_std=0.3 has no effect without noisy=True",
            ],
        ),
        ("dqn", {"noisy_std": 0.3, "noisy": True, "value_max": 5, "distributional": "c51"}, None, []),
    ],
)
def test_what_has_no_effect_in_a_run_is_told(agent, options, steps, told):
    found = parse_agent(agent, **options).remarks(steps)
    assert len(found) == len(told)
    for text, part in zip(found, told, strict=True):
        assert part in text


def test_presets_have_no_options_without_effect():
    for preset in presets.every():
        given = {k: v for k, v in preset.settings.items() if k in options(config_class(preset.agent))}
        assert parse_agent(preset.agent, **given).remarks(preset.settings.get("max_steps")) == [], preset


@pytest.mark.slow
def test_a_run_too_short_for_its_options_says_so(capsys, tmp_path):
    words = ["--buffer-initial-size", "50", "--buffer-max-size", "50", "--run-dir", str(tmp_path / "run")]
    words += ["--seed", "1"]  # of which an episode ends after step 10: the history counts on from there
    assert main(["train", "dqn", "--env", "jax:CartPole-v1", "--max-steps", "40", *words]) == 0
    assert "Nothing is learnt: learning begins after 50 random steps" in capsys.readouterr().out
    agent = DQN("jax:CartPole-v1", buffer_max_size=50)
    agent.fit(max_steps=40)
    assert "Nothing is learnt: learning begins after 50 random steps" in capsys.readouterr().out
    agent.fit(max_steps=80)
    assert "Nothing is learnt" not in capsys.readouterr().out
    words += ["--history-checkpoint", str(tmp_path / "run" / "history.parquet")]
    words[words.index("--run-dir") + 1] = str(tmp_path / "other")
    assert main(["train", "dqn", "--env", "jax:CartPole-v1", "--max-steps", "60", *words]) == 0
    assert "and the run has" in capsys.readouterr().out  # the steps of the history are not its own


def test_a_flag_of_the_library_before_is_understood():
    assert parse.parse([RunConfig], ["--n-env", "16"], "train") == {"n_envs": 16}
    assert parse.parse([RunConfig], ["--n-env", "16", "32"], "tune", several=True) == {"n_envs": [16, 32]}
    with pytest.raises(UsageError, match="Unknown flag '--n-en' for train.*--n-env"):
        parse.parse([RunConfig], ["--n-en", "16"], "train")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--env", "CartPole-v1"], "--preset cartpole or --preset cartpole-500k"),
        (["--env", "CartPole"], "Settings measured on CartPole-v1: --preset cartpole or"),
        (["--env", "CartPole-v1", "--gamma", "0.9"], "--preset cartpole or --preset cartpole-500k"),
        (["--env", "Acrobot-v1"], None),
        (["--env", "MountainCar-v0"], None),  # of which the only preset is one that must fail
        (["--preset", "cartpole"], None),
        (["--preset", "cartpole", "--lr", "1e-3"], None),
    ],
)
@pytest.mark.slow
def test_who_trains_with_other_settings_is_told_of_presets(words, told, capsys, tmp_path):
    assert main(["train", "ppo", *words, "--max-steps", "8", "--run-dir", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert ("Settings measured" in said) == (told is not None)
    assert told is None or told in said
    env = json.loads((tmp_path / "run" / "run.json").read_text())["run"]["env"]
    assert env == {"CartPole": "CartPole-v1", "cartpole": "CartPole-v1"}.get(words[1], words[1])
    if words[0] == "--env":  # said once more when it is resumed
        assert resumed(tmp_path / "run", {"env": words[1]}).run.env == env


@pytest.mark.slow
def test_of_several_seeds_it_is_told_once(capsys, tmp_path):
    words = ["--n-seeds", "2", "--max-steps", "8", "--run-dir", str(tmp_path / "run")]
    assert main(["train", "ppo", "--env", "CartPole-v1", *words]) == 0
    assert capsys.readouterr().out.count("Settings measured on CartPole-v1: --preset cartpole or") == 1


@pytest.mark.parametrize("agent", ["a2c", "acer", "dqn", "ppo", "trpo"])
def test_the_documents_commands_on_pong_name_settings_that_won_it(agent):
    (said,) = measured_settings(agent, "PongNoFrameskip-v4")
    own = "" if agent == "dqn" else "operant train dqn "
    assert said.startswith(f"Settings measured on PongNoFrameskip-v4: {own}--preset pong-1m (")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1e3", -1e3),
        ("-.5e-3", -5e-4),
        ("-2.E+2", -200.0),
        ("-1_000", -1000.0),
        ("-7", -7.0),
        ("-0.5", -0.5),
    ],
)
def test_a_negative_number_may_have_every_form(text, value):
    given = parse.parse([RunConfig], ["--target-reward", text, "--quiet"], "train")
    assert given == {"target_reward": value, "quiet": True}
    several = parse.parse([config_class("ppo")], ["--lr", text, text], "tune", several=True)
    assert several == {"lr": [value, value]}


@pytest.mark.parametrize("text", ["-inf", "-Infinity"])
def test_a_negative_infinity_is_a_number_too(capsys, text):
    assert "--target-reward must be" in fails(
        capsys, "train", "ppo", "--env", "CartPole-v1", "--target-reward", text
    )
    err = fails(capsys, "train", "ppo", "--env", "CartPole-v1", "--target-reward", "-1e3", text)
    assert f"--target-reward takes one value. Received: --target-reward -1e3 {text}." in err


def test_an_id_without_version_is_that_of_the_latest():
    from operant.envs.catalog import full_id

    assert full_id("CartPole") == "CartPole-v1"
    for name in ("CartPole-v0", "jax:CartPole-v1", "my_env:Line", "my_env.Line", "env.json", "Nothing", ""):
        assert full_id(name) == name


@pytest.mark.slow
def test_train_writes_a_run_that_an_agent_loads_and_that_resumes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    command = [
        "train",
        "ppo",
        "--env",
        "jax:CartPole-v1",
        "--max-steps",
        "256",
        "--run-dir",
        "run",
        *TINY,
        *NET,
    ]
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert sorted(p.name.partition(".tfevents.")[0] for p in run.iterdir()) == [
        "checkpoints",
        "events.out",
        "history.parquet",
        "metrics.jsonl",
        "run.json",
    ]
    saved = json.loads((run / "run.json").read_text())
    assert saved["agent"]["type"] == "ppo" and saved["agent"]["n_steps"] == 8
    assert saved["run"]["seed"] == 1
    agent = Agent.load(directory=run)
    assert agent.timesteps > 230
    assert agent.act(states=[0.0, 0.0, 0.0, 0.0], independent=True) in (0, 1)
    first = read_history(run / "history.parquet")
    assert main(["train", "--resume", "run", "--max-steps", "512", "--quiet"]) == 0
    second = read_history(run / "history.parquet")
    assert len(second["step"]) > len(first["step"])
    assert (second["step"][: len(first["step"])] == first["step"]).all()
    whole = tmp_path / "whole"
    command[command.index("256")], command[command.index("run")] = "512", "whole"
    assert main(command) == 0
    history = read_history(whole / "history.parquet")
    assert (history["episode_reward"] == second["episode_reward"]).all()
    err = fails(capsys, "train", "--resume", "run", "--max-steps", "600", "--n-steps", "16")
    assert (
        "--n-steps cannot change when a run is resumed" in err
        and "numbers that updates use, such as lr" in err
    )
    err = fails(capsys, "train", "--resume", "run", "--max-steps", "600", "--n-envs", "16")
    assert "--n-envs cannot change when a run is resumed" in err
    err = fails(capsys, "train", "--resume", "run", "--max-steps", "600", "--lr", "-1")
    assert "--lr must be" in err
    before = (run / "run.json").read_text()
    for steps in ("512", "300"):
        err = fails(capsys, "train", "--resume", "run", "--max-steps", steps)
        assert re.search(
            rf"The run in 'run' has [45]\d\d steps already. Received: --max-steps {steps}. Give more", err
        )
    for flags in ([], ["--target-reward", "1e9"]):
        err = fails(capsys, "train", "--resume", "run", *flags)
        assert "has reached its 512 steps: nothing is left to do. Give --max-steps" in err
    assert (run / "run.json").read_text() == before
    assert "Unknown flag '--lrr'" in fails(capsys, "train", "--resume=run", "--lrr", "1")
    err = fails(capsys, "train", "dqn", "--resume", "run")
    assert "trains ppo, not dqn" in err
    err = fails(capsys, *command)
    assert "--run-dir must be a new or empty folder" in err and "operant train --resume whole (in" in err


OWN_AGENT = """
from operant.agents import random
from operant.spec import option


class Config(random.Config):
    width: int = option(1, "How wide it is", low=1, search="categorical")


class Mine(random.Random):
    \'\'\'Mine alone.\'\'\'
"""
OWN_ENVS = """
import dataclasses

import gymnasium

from operant.envs.native.classic import CartPole


class Gym(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        return self.observation_space.sample() * 0, 1.0, True, False, {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Native(CartPole):
    max_episode_timesteps: int | None = 7


NATIVE = Native()
NUMBER = 3


def native():
    return NATIVE


def gym():
    return Gym()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with modules of the user's, which is searched only if a command line says so.

    Call it to forget them.
    """
    (tmp_path / "my_agent.py").write_text(OWN_AGENT)
    (tmp_path / "my_env.py").write_text(OWN_ENVS)
    monkeypatch.chdir(tmp_path)
    path = [*sys.path]

    def forget():
        monkeypatch.setattr(sys, "path", [*path])
        for name in ("my_agent", "my_env"):
            sys.modules.pop(name, None)

    forget()
    yield forget
    forget()


@pytest.mark.slow
def test_an_agent_and_an_environment_of_the_users(own, capsys):
    assert main(["train", "my_agent:Mine"]) == main(["tune", "my_agent:Mine"]) == 0
    out = capsys.readouterr().out
    assert out.count("Mine alone.") == len(re.findall(r"^(\| |  )--width ", out, re.MULTILINE)) == 2
    told = ["--width", "3", "--n-envs", "2", "--max-steps", "40", "--seed", "1"]
    command = ["train", "my_agent:Mine", "--env", "my_env:Native", *told]
    assert main([*command, "--run-dir", "run"]) == 0
    assert "compiled with the agent" in capsys.readouterr().out
    with open("run/run.json") as file:
        saved = json.load(file)
    assert saved["agent"]["type"] == "my_agent:Mine" and saved["agent"]["width"] == 3
    again = ["--env", "my_env:Native"]
    for words in (
        ["train", "my_agent:Mine", "--resume", "run", "--max-steps", "300", "--quiet"],
        ["reproduce", "my_agent:Mine", "run", "--quiet"],
        ["play", "my_agent:Mine", "run"],
    ):
        own()
        without = fails(capsys, *(word for word in words if word != "my_agent:Mine"))
        assert (
            "cannot be imported: No module named 'my_" in without
            or "Give its class, if you trust it" in without
        )
        assert main([*words, *again]) == 0
        out = capsys.readouterr().out
        assert words[0] != "reproduce" or "Identical" in out
    assert "'run' brings its agent" in fails(capsys, "play", "ppo", "run")
    assert "is 'my_agent:Mine'. Received: --agent 'ppo'" in fails(capsys, "reproduce", "operant:PPO", "run")
    assert "env cannot change" in fails(capsys, "train", "--resume", "run", "--env", "my_env:Gym")
    assert "cannot be rendered" in fails(capsys, "play", "my_agent:Mine", "run", *again, "--video-dir", "v")
    assert main([*command, "--n-seeds", "2", "--run-dir", "two"]) == 0
    assert "2 seeds at once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "native"), [("Native", True), ("NATIVE", True), ("native", True), ("Gym", False), ("gym", False)]
)
def test_environments_of_the_users_own(name, native, own):
    from operant.spec.run import RunConfig
    from operant.training.environments import host_vector, make_environments

    run = RunConfig.from_dict({"env": f"my_env:{name}", "max_steps": 1})
    with pytest.raises(SpecError, match="No module named 'my_env'.*current folder"):
        make_environments(run)
    parse.search_here(run.env)
    made = make_environments(run)
    assert (made.native is not None) == native
    made.close()
    with host_vector(run, 2) as vector:
        assert len(next(iter(vector.reset(seed=1).values()))) == 2


def test_only_a_command_line_that_names_a_module_searches_the_folder(own):
    from operant.training.train import resuming

    for name in ("jax:CartPole-v1", "brax:ant", "pettingzoo:a", "CartPole-v1", "my_env.Gym", "ppo", None):
        parse.search_here(name)
    assert os.getcwd() not in sys.path
    assert resuming("r", "ppo", "jax:CartPole-v1") == "operant train --resume r"
    assert (
        resuming("r", "my_agent:Mine", "my_env:Gym")
        == "operant train my_agent:Mine --resume r --env my_env:Gym"
    )
    parse.search_here("my_env:Gym-v0")
    parse.search_here("my_env:Gym")
    assert sys.path.count(os.getcwd()) == 1 and sys.path[-1] == os.getcwd()


@pytest.mark.parametrize(
    ("agent", "env", "message"),
    [
        (
            "nowhere:Mine",
            "x",
            "No module named 'nowhere'. It is not in the current folder either. Install it, or",
        ),
        (
            "my_agent.py:Mine",
            "x",
            "is a file, and is named by its module. Write: my_agent:Mine",
        ),
        ("my_agent:Min", "x", "module 'my_agent' has no attribute 'Min'"),
        ("my_agent:Min", "x", "my_agent.py). Did you mean 'Mine'?"),
        ("my_agent.Mine", "x", "A class of your own is given as module:Name."),
        (
            "my_env:Gym",
            "x",
            "Gym is not an algorithm: it must have the methods of one, and its module, my_env,",
        ),
        ("my_env:NUMBER", "x", "An agent must be a name"),
        ("ppo", "my_env:Nativ", "Did you mean 'Native'?"),
        ("ppo", "my_env:NUMBER", "'my_env:NUMBER' must be an Environment, a gymnasium.Env or a NativeEnv,"),
        ("ppo", "my_agent:Mine", "Received: the class Mine."),
    ],
)
def test_what_is_not_of_the_users_modules_is_told(agent, env, message, own, capsys):
    assert message in fails(capsys, "train", agent, "--env", env, "--max-steps", "8")


@pytest.mark.slow
def test_checkpoints_hold_the_best_weights_and_weights_start_from_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["train", "ppo", "--env", "jax:CartPole-v1", *TINY, *NET]
    assert (
        main(
            [
                *common,
                "--max-steps",
                "512",
                "--run-dir",
                "a",
                "--checkpoints",
                "weights/ppo.tf",
                "--log-frequency",
                "1",
            ]
        )
        == 0
    )
    assert (tmp_path / "weights" / "ppo.tf" / "manifest.json").exists()
    assert (
        main([*common, "--max-steps", "16", "--run-dir", "b", "--weights", "weights/ppo.tf", "--lr", "0"])
        == 0
    )
    from operant import checkpoint

    agent = Agent.load(directory="b")
    saved = checkpoint.load("weights/ppo.tf")[0]
    import jax
    import numpy as np

    own = {
        jax.tree_util.keystr(k): v
        for k, v in jax.tree_util.tree_leaves_with_path(agent._engine.train.state.variables)
    }
    assert own.keys() == saved.keys()
    assert all(np.array_equal(own[k], saved[k]) for k in own)


def test_tables_break_paths_at_slashes_and_names_have_room(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert tables.wrap("Url (default: studies/STUDY/study.db)", 15) == [
        "Url (default:",
        "studies/STUDY/",
        "study.db)",
    ]
    assert tables.wrap("studies/STUDY/study.db", 22) == ["studies/STUDY/study.db"]
    assert tables.wrap("a/bb/cc dd", 6) == ["a/bb/", "cc dd"] and tables.wrap("", 9) == [""]
    lines = tables.name_lines({"ppo": "word " * 12, "dueling_dqn": "text"})
    assert lines[0].startswith("    ppo         word") and lines[-1] == "    dueling_dqn text"
    assert lines[1].startswith(" " * 16 + "word") and max(map(len, lines)) <= 60


def test_what_the_system_refuses_is_told_in_a_line(capsys, monkeypatch):
    def refuse(error):
        def run(arguments):
            raise error

        monkeypatch.setattr("operant.cli.listing.run", run)

    for error, message in (
        (PermissionError(13, "Permission denied", "runs/x"), "operant: Permission denied: 'runs/x'\n"),
        (OSError(28, "No space left on device"), "operant: No space left on device\n"),
        (OSError("full"), "operant: full\n"),
    ):
        refuse(error)
        assert main(["list", "agents"]) == 1
        assert capsys.readouterr().err == message
    refuse(ValueError("a fault of operant"))
    with pytest.raises(ValueError, match="a fault of operant"):
        main(["list", "agents"])


def run_process(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "operant", *arguments], capture_output=True, text=True, **kwargs
    )


def test_help_loads_neither_jax_nor_keras():
    code = (
        "import sys, operant.cli as c; c.main(['train', 'ppo', '--help']); c.main(['list', 'presets']);"
        "print([m for m in ('jax', 'keras', 'gymnasium', 'optax', 'matplotlib', 'pyarrow') if m in "
        "sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("module", ["operant.errors", "operant.training.signals", "operant.cli.listing"])
def test_an_interrupt_while_modules_load_is_told_in_a_line(module):
    code = f"""if True:
        import sys
        class Pressed:
            def find_spec(self, name, *rest):
                if name == {module!r}:
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Pressed())
        from operant.cli import main
        sys.argv = ["operant", "list", "agents"]
        main()
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "operant: interrupted\n")


def test_a_command_begins_without_modules_that_take_time():
    code = "import sys; before = {*sys.modules}; import operant.cli; print(*sorted({*sys.modules} - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "inspect", "operant.errors"} & {*result.stdout.split()}
    assert "operant.cli" in result.stdout.split()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_command_that_was_asked_to_terminate_says_so(command, number, status, monkeypatch, capsys):
    def asked(*_):
        with signals.orderly(lambda: None):
            signal.raise_signal(number)
        return types.SimpleNamespace(failed=0)

    monkeypatch.setattr(
        {"train": "operant.training.train.train", "tune": "operant.tuning.tune.tune"}[command], asked
    )
    given = [command, "ppo", "--env", "CartPole-v1", *(["--max-steps", "64"] if command == "train" else [])]
    given += ["--trial-steps", "64", "--n-trials", "2", "--lr", "1e-4", "1e-3"] if command == "tune" else []
    try:
        ended = main(given)
    except SystemExit as end:
        ended = end.code
    assert ended == status, capsys.readouterr().err


@pytest.mark.slow
def test_interrupt_saves_and_says_how_to_continue(tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "operant",
            "train",
            "ppo",
            "--env",
            "jax:CartPole-v1",
            "--max-steps",
            "100000000",
            "--run-dir",
            "run",
            *[a for a in TINY if a != "--quiet"],
            *NET,
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    assert process.stdout is not None
    while "steps/s" not in (line := process.stdout.readline()):
        assert line and time.monotonic() < deadline
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "Interrupted" in rest and "Continue:    operant train --resume run" in rest
    assert Agent.load(directory=tmp_path / "run").timesteps > 0
