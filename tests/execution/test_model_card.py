"""`operant card`: a model card whose metadata the Hugging Face Hub reads, beside its agent."""

import json
from pathlib import Path

import numpy as np
import pytest

from operant import Agent
from operant.cli import main
from operant.errors import SpecError, UsageError
from operant.execution.model_card import CardConfig, card, write_card
from operant.execution.play import PlayConfig, play

yaml = pytest.importorskip("yaml", reason="it reads the metadata as the Hub does")


def metadata(text):
    return yaml.safe_load(text.split("\n---\n")[0])


@pytest.mark.slow
def test_a_card_says_what_its_copy_of_the_agent_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = [
        "train",
        "ppo",
        "--env",
        "jax:CartPole-v1",
        "--n-steps",
        "16",
        "--max-steps",
        "40",
        "--seed",
        "1",
    ]
    assert main([*train, "--quiet", "--run-dir", "run"]) == 0
    assert main(["card", "run", "--episodes", "3", "--out", "c"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Wrote c"
    assert sorted(path.name for path in Path("c").iterdir()) == [
        "README.md",
        "agent.json",
        "agent.safetensors",
    ]
    text = Path("c/README.md").read_text()
    returns = play(PlayConfig(run_dir="run", episodes=3)).rewards
    (model,) = metadata(text)["model-index"]
    (result,) = model["results"]
    assert result["dataset"]["name"] == "jax:CartPole-v1"
    assert result["metrics"][0]["value"] == f"{np.mean(returns):.2f} +/- {np.std(returns):.2f}"
    assert f"Mean return over 3 episodes with the best actions: **{result['metrics'][0]['value']}**" in text
    assert "| `n_steps` | `16` | `128` |" in text
    observation = np.full(4, 0.01, np.float32)
    actions = [Agent.load(directory=x).act(states=observation, independent=True) for x in ("run", "c")]
    assert actions[0] == actions[1]
    with pytest.raises(UsageError, match="out must be a new or empty folder. Received: out='c'"):
        write_card("run", CardConfig(out="c"))
    with pytest.raises(SpecError, match="has no best evaluation"):
        write_card("run", CardConfig(best=True))
    assert not Path("card").exists()


def test_what_a_run_says_stays_text():
    evil = "x\n---\n# <script>`|`é\U0001f600"
    data = {
        "agent": {"type": "ppo", "note": evil},
        "run": {"env": evil, "seed": 1},
        "versions": {"jax": evil},
    }
    text = card(data, [1.0, 3.0], 7)
    found = metadata(text)
    assert found["tags"][0] == evil and found["model-index"][0]["results"][0]["dataset"]["name"] == evil
    assert found["model-index"][0]["results"][0]["metrics"][0]["value"] == "2.00 +/- 1.00"
    body = text.split("\n---\n", 1)[1]
    assert "| `note` | `x --- # <script>'\\|'é\U0001f600` | `-` |" in body
    assert body.count("\n# ") == 1
    assert json.loads(text.split("---\n")[1])


def test_one_run_gets_a_card(tmp_path, capsys):
    assert main(["card", "a", "b"]) == 2
    assert "card takes one run: operant card RUN. Received 2." in capsys.readouterr().err
    with pytest.raises(SpecError, match="does not exist"):
        write_card(tmp_path)
