"""The documentation: tables are those of the code, links lead somewhere, examples run."""

import inspect
import json
import pydoc
import re
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from operant import Agent, Environment, Runner
from operant.agents.table import AGENTS, AgentEntry, config_class
from operant.cli import main
from operant.spec import presets

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]


@pytest.mark.parametrize("module", sorted({entry.module for entry in AGENTS.values()}))
def test_agent_page_has_the_table_of_options(module):
    page = ROOT / "docs" / "agents" / f"{module}.md"
    text = page.read_text()
    assert runpy.run_path(str(ROOT / "scripts" / "agent_pages"))["written"](module, text) == text, (
        "run scripts/agent_pages"
    )


def test_scores_of_presets_are_those_of_the_results():
    rows = json.loads((ROOT / "benchmarks" / "results" / "learning.json").read_text())["rows"]
    measured = {row["preset"]: row for row in rows}
    scores = {f"{p.agent}:{p.name}": p.score for p in presets.every() if not p.score.startswith("not ")}
    assert scores.keys() == measured.keys()
    for name, score in scores.items():
        mean = [x for x in measured[name]["mean"] if x is not None]  # a single seed has no interval
        numbers = [float(x) for x in re.findall(r"-?[\d.]+", score)[: len(mean)]]
        np.testing.assert_allclose(numbers, mean, atol=0.06, err_msg=name)
        seeds = len(measured[name]["seeds"])
        assert f"{seeds} seed{'s' if seeds > 1 else ''}," in score


def test_the_table_of_layers_is_that_of_the_code():
    text = (ROOT / "docs" / "models.md").read_text()
    assert runpy.run_path(str(ROOT / "scripts" / "layer_table"))["written"](text) == text, (
        "run scripts/layer_table"
    )


def test_the_page_of_metrics_is_that_of_the_code():
    page = runpy.run_path(str(ROOT / "scripts" / "metrics_page"))["written"]()
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page, "run scripts/metrics_page"


def test_the_table_of_speed_is_that_of_the_measurements():
    page = runpy.run_path(str(ROOT / "benchmarks" / "speed" / "table.py"))["page"]()
    assert (ROOT / "benchmarks" / "results" / "speed.md").read_text(encoding="utf-8") == page, (
        "run benchmarks/speed/table.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


LINKED = [
    ROOT / page for page in sorted(set(re.findall(r"\]\(([\w/-]+\.md)", (ROOT / "README.md").read_text())))
]


def test_the_readme_links_every_page_and_titles_tell_them_apart():
    assert {*ROOT.glob("docs/**/*.md")} <= {*LINKED}
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in PAGES]
    assert all(title.startswith("# ") for title in titles)
    assert len({*titles}) == len(titles), sorted(titles)


@pytest.mark.parametrize(
    "word",
    [
        "custom Gymnasium environment", "early stopping", "fine-tuning", "transfer learning",
        "frame stacking", "vectorized environments", "deploy", "multi-agent", "self-play", "reward shaping",
        "troubleshooting", "feature extractors", "which algorithm", "normalization", "TensorBoard",
        "callbacks", "resuming", "GPU", "hyperparameter tuning", "remote environments",
        "distributed training", "action masks", "reproducibility", "compilation cache", "schedules",
        "several seeds", "evaluate", "Atari", "recurrent networks",
    ],
)  # fmt: skip
def test_a_heading_one_click_from_the_readme_has_the_word_of_the_field(word):
    headings = "\n".join(
        line
        for page in LINKED
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    )
    assert word.lower() in headings.lower()


def gone(text, folder=ROOT):
    """Yield the modules (`operant.x.y`) and source files (`x/y.py`) that a page names and that do not exist.

    A file may be named from the root, from the page, or from a package.
    """
    for name in sorted(set(re.findall(r"\boperant(?:\.[a-zA-Z_]\w*)+", text))):
        if "reinforce" not in name and pydoc.locate(name) is None:  # the reader writes reinforce.py
            yield name
    for path in sorted(set(re.findall(r"(?<![\w/.-])(?:\w+/)+\w+\.py\b", text))):
        near = any((place / path).exists() for place in (ROOT, ROOT / "src", folder))
        if "reinforce" not in path and not near and not any((ROOT / "src" / "operant").rglob(path)):
            yield path


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_name_modules_that_exist(page):
    assert list(gone(page.read_text(encoding="utf-8"), page.parent)) == []


def test_a_module_that_is_gone_is_found():
    text = "`operant.engine`, `operant.ops.losses.squared`, `operant.PPO`, `envs/host.py`, `base/protocol.py`"
    assert list(gone(text)) == ["operant.engine", "envs/host.py"]


@pytest.mark.slow
def test_the_site_builds_and_every_page_and_anchor_is_in_it():
    built = subprocess.run([sys.executable, ROOT / "scripts" / "site"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


def code_of(page, start):
    """Return the first block of Python in a page that begins with the given text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    return next(block for block in blocks if block.startswith(start))


def test_the_readme_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = code_of("README.md", "from operant import Agent").replace("range(200)", "range(2)")
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "data" / "agent").is_dir()


@pytest.mark.slow
def test_the_readme_example_of_a_class_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code_of("README.md", "from operant import PPO"), "README.md", "exec"), {})
    returns = [int(x) for x in re.findall(r"mean return (\d+)", capsys.readouterr().out)]
    assert len(returns) == 5 and returns[-1] > 200 > 100 > returns[0], returns
    assert (tmp_path / "data" / "ppo").is_dir()


TAUGHT = sorted([*ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/how-to/*.md")])
"""Pages whose programs and commands run in order, in one folder: what a newcomer types."""


def shortened(text):
    """Return a program or command with a fortieth of the steps."""
    text = text.replace("--target-reward 475", "--max-steps 40000")
    counts = r"((?:max.steps|eval.frequency|divergence-monitoring-steps)[ =])([\d_]+)"
    return re.sub(counts, lambda found: f"{found[1]}{int(found[2]) // 40}", text)


@pytest.fixture
def started():
    """Processes that end with the test."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.stem)
def test_what_a_page_teaches_runs_from_top_to_bottom(page, tmp_path, monkeypatch, started):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before, names, ran = set(sys.modules), {}, 0
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        file = re.match(r'"""(\w+\.py): ', text)
        ran += 1
        if file:
            (tmp_path / file[1]).write_text(text)
        elif language == "python":
            exec(compile(shortened(text), page.name, "exec"), names)
        for line in shortened(text).splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[:1] == ["operant"]:
                assert main(words[1:]) == 0, line
            elif words[:1] == ["python"] and words[-1] == "&":
                command = [sys.executable, *words[1:-1]]
                started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                assert started[-1].stdout.readline(), line
            else:
                assert words[0] in ("pip", "python3", "tensorboard"), line
    assert ran or page.stem in ("choose-a-way", "choose-an-algorithm")
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def test_the_environment_on_the_page_about_training_is_compiled(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_line.py").write_text(code_of("docs/train.md", '"""my_env.py'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    steps = ["--n-envs", "4", "--max-steps", "40", "--run-dir", "run"]
    assert main(["train", "random", "--env", "my_line:Line", *steps]) == 0
    assert "compiled with the agent" in capsys.readouterr().out
    sys.modules.pop("my_line")


@pytest.mark.slow
@pytest.mark.parametrize(("masked", "low", "high"), [(True, 6, 9), (False, -300, -100)])
def test_taxi_on_the_page_about_training_is_learnt_with_its_masks_and_not_without(masked, low, high):
    code = code_of("docs/train.md", "import gymnasium\n\nfrom operant import PPO")
    assert code.count("n_envs=8") == code.count('ActionMasks(gymnasium.make("Taxi-v4"))') == 1
    code = code.replace("n_envs=8", "n_envs=8, seed=1")
    if not masked:
        code = code.replace('ActionMasks(gymnasium.make("Taxi-v4"))', 'gymnasium.make("Taxi-v4")')
    exec(compile(code, "docs/train.md", "exec"), names := {})
    assert low < np.mean(names["agent"].play(episodes=50).rewards) < high


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", ["from operant import PPO, create_envs", "from operant import PPO\n", "from operant import DQN"]
)
def test_the_examples_of_the_page_of_classes_run(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = code_of("docs/classes.md", start)
    for steps in ("0_000", "2_000"):
        code = code.replace(steps, "500")
    made = {}
    exec(compile(code, "docs/classes.md", "exec"), made)
    agent = made["agent"]
    if "eval_frequency" in code:
        assert agent.evaluated.best_reward is not None
    else:  # acting with a recurrent network
        assert made["internals"].keys() == agent.initial_internals().keys()
    agent.close()


@pytest.mark.slow
def test_the_page_on_adding_an_algorithm_followed_literally_works(monkeypatch):
    """The files of the page, put where the page says, with the line that the page says, learn."""
    import jax

    from operant.agents.base.agent_spec import parse_agent
    from operant.agents.base.learner import Learner
    from operant.envs.native import ids as native_ids
    from operant.training.drivers.device_driver import DeviceDriver
    from operant.training.episodes import RollingScore

    source = code_of("docs/add-an-algorithm.md", '"""REINFORCE')
    line = code_of("docs/add-an-algorithm.md", '    "reinforce"')
    module = types.ModuleType("operant.agents.reinforce")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "docs/add-an-algorithm.md", "exec"), module.__dict__)
    entry = eval("{" + line + "}", {"AgentEntry": AgentEntry})
    monkeypatch.setitem(AGENTS, "reinforce", entry["reinforce"])
    assert config_class("reinforce") is module.Config
    definition = parse_agent("reinforce", lr=5e-3, n_steps=64)
    assert parse_agent(definition.to_dict()) == definition
    env = native_ids.make("jax:CartPole-v1")
    learner = Learner(definition.cls.create(definition.config, env.spaces, 16))
    driver = DeviceDriver(learner, env, 16, jax.random.key(0))
    score = RollingScore(100)
    while driver.step < 150_000:
        for episode in driver.advance(driver.blocks):
            score.add([episode.reward], [episode.length])
    assert score.mean > 150  # random: 22; with one trunk for policy and value: 83
    assert np.isfinite(list(driver.metrics().values())).all()


def named_in(page):
    """Yield the files that a page names in code, with the tests in them (none: the file alone)."""
    file = None
    for code in re.findall(r"`([^`\n]+)`", page):
        path, _, test = code.partition(": ")
        if re.fullmatch(r"(tests|examples|benchmarks)/[\w/.]+", path):
            file = path
            yield file, test or None
        elif re.fullmatch(r"test_\w+", code) and file is not None:
            yield file, code


def missing(page):
    for file, test in named_in(page):
        path = ROOT / file
        if not path.exists() or (test is not None and f"def {test}(" not in path.read_text(encoding="utf-8")):
            yield f"{file}: {test}"


def test_what_the_page_of_users_names_exists():
    page = (ROOT / "docs" / "users.md").read_text(encoding="utf-8")
    assert len(list(named_in(page))) > 60
    assert list(missing(page)) == []
    numbers = [
        int(n) for row in re.findall(r"^\| ([\d., ]+)\. ", page, re.M) for n in re.findall(r"\d+", row)
    ]
    assert numbers == list(range(1, 70))


def test_a_name_that_is_missing_is_found():
    page = (
        "`tests/test_docs.py: test_nothing_of_the_kind`, `tests/none.py`, `tests/test_docs.py: "
        "test_links_lead_somewhere`, `test_no`"
    )
    assert list(missing(page)) == [
        "tests/test_docs.py: test_nothing_of_the_kind", "tests/none.py: None", "tests/test_docs.py: test_no",
    ]  # fmt: skip


@pytest.mark.parametrize("cls", [Agent, Environment, Runner])
def test_the_page_for_newcomers_names_every_method_and_argument(cls):
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", page))
    for name, member in inspect.getmembers(cls):
        if name.startswith("_") and name != "__init__":
            continue
        if name in (
            "episode_return",
            "episode_timestep",
            "num_environments",
            "restarts",
            "best_evaluation_score",
            "driver",
            "detach_state",
            "attach_state",
        ):
            continue  # figures of a run, in docs/runner.md; what drivers do with one another
        assert name == "__init__" or name in words or name.startswith("evaluation_"), name
        if inspect.isfunction(member):
            names = set(inspect.signature(member).parameters) - {
                "self",
                "args",
                "kwargs",
                "options",
                "definition",
                "spaces",
            }
            assert names <= words, (name, names - words)
