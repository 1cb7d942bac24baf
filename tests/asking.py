"""What tests of remote environments, wherever these are, do with a connection."""

from __future__ import annotations


def ask(connection, actions=None, seed=None):
    """Take a step, or begin an episode if there are no actions; return the answer."""
    if actions is None:
        connection.send_reset(seed)
    else:
        connection.send_execute(actions)
    return connection.receive()
