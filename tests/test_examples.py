"""The programs of `examples/` run, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder, arguments=(), **variables):
    result = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:operant", str(EXAMPLES / name), *arguments],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["action_masking.py", "save_and_restore.py", "summaries.py"])
def test_small_examples(name, tmp_path):
    run(name, tmp_path)
    files = {
        "action_masking.py": set(),
        "save_and_restore.py": {"data/checkpoints/agent-20.npz"},
        "summaries.py": {"data/summaries"},
    }
    assert all((tmp_path / file).exists() for file in files[name])


@pytest.mark.slow
def test_a_saved_model_plays_in_tensorflow_alone(tmp_path):
    pytest.importorskip("tensorflow", reason="SavedModels need TensorFlow: the extra `tensorflow`")
    line = run("saved_model.py", tmp_path, TF_CPP_MIN_LOG_LEVEL="3").splitlines()[-1]
    assert float(line.split()[-1]) > 150, line  # untrained: about 22


@pytest.mark.slow
def test_several_inputs(tmp_path):
    assert run("multi_input_network.py", tmp_path).splitlines()[-1] == "2 updates"


@pytest.mark.slow
def test_aborted_episodes_bootstrap(tmp_path):
    endless, aborted, ended = (
        float(line.split()[-1]) for line in run("abort_terminal.py", tmp_path).splitlines()
    )
    assert abs(aborted - endless) < 0.5 and ended < 0.5 * endless


@pytest.mark.slow
def test_pretraining_beats_chance_before_any_step(tmp_path):
    line = run("record_and_pretrain.py", tmp_path).splitlines()[-1]
    before, after = float(line.split()[4].rstrip(",")), float(line.split()[-1])
    # Random actions earn some 22, the teacher 165. What 50 of its episodes teach varies with them, from 121
    # to 385.
    assert after > 100 > 4 * before, line


@pytest.mark.slow
def test_act_experience_update_learns(tmp_path):
    lines = run("act_experience_update.py", tmp_path, UPDATES="25").splitlines()
    values = [float(line.split()[-1]) for line in lines]
    assert max(values[-5:]) > 2 * values[0], values


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["ppo", "a2c", "trpo", "modular"])
def test_nested_hybrid_actions_with_a_mask_are_learned_in_every_style(name, tmp_path):
    lines = run("hybrid.py", tmp_path, arguments=[name]).splitlines()
    assert [line.split()[1] for line in lines] == ["act_observe:", "batched:", "act_experience_update:"]
    for line in lines:
        before, after = (float(x) for x in line.split()[-2:])
        assert after > before + 0.5, line


@pytest.mark.slow
def test_the_walkthrough_runs_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "walkthrough.ipynb", 4)
    client = NotebookClient(
        notebook, timeout=250, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises at the first cell that does
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert not any(output.get("name") == "stderr" for output in shown), shown
