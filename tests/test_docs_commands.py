"""The documentation's commands: calls of `operant` in shell blocks are accepted, up to where they would
begin."""

import json
import re
import shlex
import types
from pathlib import Path

import pytest

from operant import cli
from operant.agents.base.agent_spec import parse_agent
from operant.envs.catalog import is_own

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"--resume", "--from-study", ">"}
"""What is of runs and studies that are not here, or writes where a test should not."""


def shell(page):
    """Yield the lines of a page's shell blocks."""
    language = None
    for line in page.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language in ("sh", ""):
            yield line


def commands():
    """Return the page and the arguments of each call."""
    found = []
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        for line in shell(page):
            if re.match(r"(python3 -m venv|taskset|operant) ", line):
                words = shlex.split(line, comments=True)
                call = next((i for i, word in enumerate(words) if Path(word).name == "operant"), len(words))
                found += [(page.name, [w for w in words[call + 1 :] if w != "&"])] if words[call:] else []
    return found


COMMANDS = commands()
HERE = [
    (page, words)
    for page, words in COMMANDS
    if page != "add-an-algorithm.md" and not ELSEWHERE & set(words) and not any(map(is_own, words))
]
"""Those that need nothing that is not here: no run, no study, no agent or environment that the page has
the reader write."""


def test_there_are_commands_of_every_kind():
    assert set(cli.COMMANDS) - {"completion"} <= {words[0] for _, words in COMMANDS}
    assert {"README.md", "train.md", "td3.md", "modular.md", "remote.md"} <= {page for page, _ in COMMANDS}


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """What a command would begin with; the folders of runs that it names are there."""
    begun = []

    def train(plan, *_):
        parse_agent(plan.agent, **plan.options)
        begun.append(plan)

    def begins(result=None):
        return lambda *given, **_: begun.append(given) or result

    done = types.SimpleNamespace(files=[], identical=True, failed=0)
    monkeypatch.setattr("operant.training.train.train", train)
    monkeypatch.setattr("operant.training.multi_seed.replicate", train)
    for name in (
        "tuning.tune.tune",
        "execution.play.play",
        "training.reproduce.reproduce",
        "tracking.figures.plot",
        "execution.report.report",
        "execution.model_card.write_card",
    ):
        monkeypatch.setattr(f"operant.{name}", begins(done))
    for name in ("cli.serving.serve", "cli.running._once"):
        monkeypatch.setattr(f"operant.{name}", begins())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    return begun


@pytest.mark.parametrize(("page", "words"), HERE, ids=lambda x: x if isinstance(x, str) else " ".join(x)[:60])
def test_commands_are_accepted(page, words, begun, capsys):
    for word in words[1:]:
        if word.startswith("runs/"):
            Path(word).mkdir(parents=True)
            (Path(word) / "run.json").write_text(json.dumps({}))
    assert cli.main(words) == 0, capsys.readouterr().err
    asks = words[0] in ("train", "tune", "serve") and (len(words) <= 2 or words[-1] == "--help-all")
    shows = words[0] in ("list", "completion") or asks
    assert bool(begun) != shows


def test_a_command_that_would_not_end_is_not_accepted(begun, capsys):
    """The control: what the test above must find."""
    assert cli.main(["train", "acer", "--env", "CartPole-v1", "--no-trust-region"]) == 2
    assert "--max-steps" in capsys.readouterr().err and not begun
