"""An environment that answers requests in the format of `wire`, however they are transported."""

from __future__ import annotations

import traceback

from operant.envs.remote import wire
from operant.envs.remote.connection import Connection
from operant.envs.remote.wire import Schema, WireError
from operant.envs.workers.restarts import LostError
from operant.errors import OperantError, shortened, text_of


class Service:
    """The served side of one environment: contents of requests in, contents of answers out."""

    def __init__(self, environment: Connection, schema: Schema | None = None) -> None:
        self._environment = environment
        self._schema = schema or Schema(environment.spaces, environment.num_actors)
        self._running = 0

    def obey(self, kind: int, content: memoryview) -> bytes:
        """Begin an episode (RESET) or take a step (STEP), and return the content of ANSWER."""
        acted = 0
        if kind == wire.RESET:
            self._environment.send_reset(wire.unpack_seed(content))
        elif kind != wire.STEP:
            raise WireError(f"a request of kind {kind} with {len(content)} bytes")
        elif not self._running:
            raise WireError("a step before an episode was begun")
        else:
            acted = self._running
            try:
                actions = self._schema.unpack_actions(content, acted)
            except OperantError as error:
                raise WireError(str(error)) from None
            self._environment.send_execute(actions)
        answer = self._environment.receive()
        single = self._schema.num_actors == 1
        self._running = int(answer.terminal == 0) if single else len(answer.parallel)
        episode_return = self._environment.episode_return()
        return self._schema.pack_answer(answer, episode_return, acted=acted > 0)


def lost_by(content: memoryview) -> LostError:
    """Return what the content of FAULT means to the client: its environment is lost."""
    _, text, trace = wire.unpack_fault(content)
    return LostError(f"failed: {text}\n{trace}".rstrip())


def fault(error: Exception) -> bytes:
    """Return the content of FAULT."""
    is_operants = isinstance(error, OperantError)
    text = str(error) if is_operants else f"{type(error).__name__}: {text_of(error)}"
    lines = "" if is_operants else shortened("".join(traceback.format_exception(error)).strip())
    return wire.pack_fault(type(error).__name__, text, lines)
