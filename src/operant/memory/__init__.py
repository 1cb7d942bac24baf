"""Replay memory that lives on the device that trains."""

from operant.memory.replay import Replay
from operant.memory.ring import Cursor, ReplayState, RowSpec

__all__ = ["Cursor", "Replay", "ReplayState", "RowSpec"]
