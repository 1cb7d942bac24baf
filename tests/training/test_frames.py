"""A reader of a traceback meets few frames of operant between the command and the arithmetic."""

import traceback

import pytest

from operant.cli import main
from operant.ops import losses

LIMIT = 15
"""Most frames of the package from `operant train ppo` to the loss, both included."""
DRIVEN = 8
"""Most of them above the algorithm, down to the driver's compiled block."""


class PlantedFaultError(Exception):
    """What the loss raises here."""


@pytest.mark.parametrize("env", ["jax:CartPole-v1", "CartPole-v1"])
def test_few_frames_lead_from_the_command_to_the_loss(env, monkeypatch, tmp_path):
    def faulty(*args, **kwargs):
        raise PlantedFaultError

    monkeypatch.setattr(losses, "clipped_surrogate", faulty)
    flags = ["--n-envs", "4", "--max-steps", "2000", "--quiet", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(PlantedFaultError) as caught:
        main(["train", "ppo", "--env", env, *flags])
    frames = [frame for frame in traceback.extract_tb(caught.tb) if "/operant/" in frame.filename]
    names = [f"{frame.filename.rpartition('/operant/')[2]}:{frame.name}" for frame in frames]
    driven = next(i for i, name in enumerate(names) if name.startswith("agents/"))
    assert driven <= DRIVEN, names
    assert len(frames) <= LIMIT, names
