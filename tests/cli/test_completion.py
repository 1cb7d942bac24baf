"""Shell completion, as bash sees it."""

import shutil
import subprocess
import sys

import pytest

from operant.cli import COMMANDS, completing, main, tables
from operant.spec import options

BASH = shutil.which("bash")
ASK = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_operant 2> /dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
FLAGS = {
    "train ppo": (
        completing.RunConfig,
        completing.Extra,
        completing.ProcessConfig,
        completing.config_class("ppo"),
    ),
    "train td3": (
        completing.RunConfig,
        completing.Extra,
        completing.ProcessConfig,
        completing.config_class("td3"),
    ),
    "play": (completing.PlayConfig, completing.ProcessConfig),
    "serve": (completing.ServeConfig,),
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    if BASH is None:
        pytest.skip("bash is not installed")
    folder = tmp_path_factory.mktemp("completion")
    (folder / "script").write_text(completing.script("bash"))
    (folder / "a.tf").touch()
    (folder / "runs").mkdir()

    def ask(line):
        words = line.split(" ")
        command = [BASH, "--norc", "-c", ASK, "bash", str(folder / "script"), *words]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return sorted(result.stdout.split())

    return ask


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("operant tr", ["train"]),
        ("operant ", sorted(COMMANDS)),
        ("operant train pp", ["ppo"]),
        ("operant train ppo --ppo", ["--ppo-epochs"]),
        ("operant train dqn --ppo", []),
        ("operant train dqn --double --target-sy", ["--target-sync-steps"]),
        ("operant train ppo --env CartP", ["CartPole-v0", "CartPole-v1"]),
        ("operant train ppo --env CartPole-v1 --vector in", ["in-process"]),
        ("operant train ppo --weights a", ["a.tf"]),
        ("operant train ppo --weights a.tf --ppo", ["--ppo-epochs"]),
        ("operant train --resume r", ["runs"]),
        ("operant tune ppo --lr 1e-4 1e-2 --trial-s", ["--trial-seeds", "--trial-steps"]),
        ("operant train ppo --trial-s", []),
        ("operant train ppo --help-", ["--help-all"]),
        ("operant train --config a", ["a.tf"]),
        ("operant reproduce ru", ["runs"]),
        ("operant list pre", ["presets"]),
        ("operant completion f", ["fish"]),
        ("operant run --batch", ["--batch-agent-calls"]),
    ],
)
def test_bash_completes(complete, line, expected):
    assert complete(line) == expected


@pytest.mark.parametrize("command", FLAGS)
def test_every_flag_is_offered(complete, command):
    names = {name for config in FLAGS[command] for name in options(config)}
    assert {tables.flag(name) for name in names} <= set(complete(f"operant {command} --"))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "ppo" in script and "target-sync-steps" in script and "_operant_environments" in script


def test_messages(capsys, monkeypatch):
    assert main(["completion"]) == 0
    assert "operant completion <shell>" in capsys.readouterr().out
    assert main(["completion", "bahs"]) == 2
    assert "There is no completion for 'bahs'. Did you mean 'bash'?" in capsys.readouterr().err
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("Known: ") == 1
    assert main(["completion", "bash", "zsh"]) == 2
    assert "completion takes the name of a shell. Received: bash zsh." in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'operant[completion]'" in capsys.readouterr().err
