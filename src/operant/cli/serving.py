"""`operant serve`."""

from __future__ import annotations

from operant.cli import parse, tables
from operant.envs.remote.serve import ServeConfig, serve


def run(arguments: list[str]) -> int:
    """Serve environments, or print help when there is nothing to serve."""
    if parse.asks_for_help(arguments):
        usage = "operant serve --level <environment id> --port <port> [options]"
        print(tables.page([usage], tables.flags("Flags", [ServeConfig])))
        return 0
    serve(ServeConfig.from_dict(parse.parse([ServeConfig], arguments, "serve")))
    return 0
