"""Trials in an actor of a Ray cluster, which starts their process wherever Ray places it."""

from __future__ import annotations

import contextlib
import json
import threading
from multiprocessing import Pipe
from typing import Any

from operant.envs.remote.cluster import TaskPlacement
from operant.training.child_process import ProcessLostError
from operant.tuning.trial import TrialProcess


class TrialActor:
    """The cluster's side: a process of trials, and what passes through its pipe, as bytes."""

    def __init__(self, silent: bool) -> None:
        self._process = TrialProcess(silent)

    def send(self, content: bytes) -> None:
        """Pass a message on to the process."""
        self._process.connection.send_bytes(content)

    def receive(self) -> bytes:
        """Wait for a message of the process."""
        try:
            message = self._process.receive()
        except ProcessLostError as lost:
            message = {"kind": "failed", "text": str(lost), "traceback": ""}
        return json.dumps(message).encode()


class ClusterTrialProcess(TrialProcess):
    """Looks like a process of this machine; `lost` if the machine where it runs is gone."""

    def __init__(self, silent: bool, placement: TaskPlacement) -> None:
        import ray

        self.lost = "it ended"
        self.connection, self._end = Pipe()
        options = placement.options()
        self._actor = ray.remote(TrialActor).options(max_restarts=0, **options).remote(silent)
        threading.Thread(target=self._pass_on, name="operant-trial", daemon=True).start()

    def _pass_on(self) -> None:
        import ray

        with self._end:
            try:
                asks = True
                while True:
                    if asks:
                        ray.get(self._actor.send.remote(self._end.recv_bytes()))
                    content: bytes = ray.get(self._actor.receive.remote())
                    self._end.send_bytes(content)
                    message = json.loads(content)
                    asks = message["kind"] in ("report", "built") or "trial" not in message
            except (EOFError, OSError):  # closed here
                return
            except ray.exceptions.RayError as error:
                self.lost = " ".join(str(error).split())

    def receive(self) -> dict[str, Any]:
        """Wait for a message; ProcessLostError: the actor ended instead."""
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.close()
            error = ProcessLostError(f"The Ray actor of the trial was lost: {self.lost}")
            error.blameless = True
            raise error from None
        return message

    def close(self) -> None:
        """End the actor, and with it the process."""
        import ray

        self.connection.close()
        with contextlib.suppress(Exception):  # it is gone already, or Ray is
            ray.kill(self._actor)
