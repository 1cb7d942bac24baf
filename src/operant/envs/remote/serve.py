"""Serve environments to agents on other machines."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from operant.errors import SpecError
from operant.spec import Config, option
from operant.tracking.console import say, wait

if TYPE_CHECKING:
    from operant.envs.env_spec import EnvSpec
    from operant.envs.remote.server import Server


class ServeConfig(Config):
    """Options of `operant serve`."""

    environment: str = option(
        "gymnasium", "Environment to serve: gymnasium, an environment id, module.Class or a JSON file"
    )
    level: str | None = option(None, "Environment id, with --environment gymnasium")
    arguments: Any = option(None, "Further arguments of the environment, as JSON")
    max_episode_timesteps: int | None = option(
        None, "Time limit of an episode, if shorter than the environment's own", low=1
    )
    host: str = option("127.0.0.1", "Address to listen on; one that other machines reach requires a token")
    port: Any = option(65432, "Port to listen on, or several, separated by commas")
    num_envs: int = option(1, "Environments per port, and so clients served at once", low=1)
    token_file: str | None = option(
        None, "File with the token that clients must know (default: the variable OPERANT_TOKEN)"
    )
    certificate: str | None = option(None, "File with the certificate (PEM); turns TLS on")
    key: str | None = option(None, "File with the certificate's private key (PEM)")
    timeout_seconds: float = option(
        30.0,
        "Time that a step may take before its environment is replaced; keep it below the clients' own limit",
        low=0.0,
        low_open=True,
    )
    start_seconds: float = option(120.0, "Time that an environment may take to start", low=0.0, low_open=True)
    greeting_seconds: float = option(
        10.0, "Time that a client may take to prove that it knows the token", low=0.0, low_open=True
    )
    idle_seconds: float = option(
        3600.0, "Time that a client may be silent before its environment is freed", low=0.0, low_open=True
    )
    max_restarts: int = option(3, "How often an environment may be replaced for one client", low=0)
    sessions: int | None = option(None, "End the server after n clients have left", low=1)
    quiet: bool = option(False, "If specified, nothing is printed")

    def check(self) -> Iterator[str]:
        """Check options against one another."""
        if (self.certificate is None) != (self.key is None):
            yield (
                f"certificate and key go together. Received: certificate={self.certificate!r}, "
                f"key={self.key!r}."
            )
        if self.arguments is not None and not isinstance(self.arguments, dict):
            yield f'arguments must be a dict, as JSON: {{"size": 3}}. Received: arguments={self.arguments!r}.'


def start(config: ServeConfig, source: EnvSpec | None = None) -> Server:
    """Start a server of an environment, else that of the options; it serves in its own threads until `close`.

    Raises:
        SpecError: an option or the environment is not understood.
        UsageError: the server could be reached from other machines without a token.
        EnvError: the environment cannot be made, or a port is taken.
    """
    from operant.envs.catalog import resolve
    from operant.envs.remote import ConnectionLimits, read_ports
    from operant.envs.remote.auth import read_token
    from operant.envs.remote.server import Server, Timeouts, tls_context

    if source is None:
        if config.environment in ("gym", "gymnasium", "default") and config.level is None:
            raise SpecError(
                "level must be given: an environment id such as CartPole-v1 (or environment: a class of "
                "yours)."
            )
        arguments = dict(config.arguments or {}) | ({} if config.level is None else {"level": config.level})
        limit = config.max_episode_timesteps
        source = resolve(config.environment, max_episode_timesteps=limit, arguments=arguments)
    return Server(
        source,
        config.host,
        read_ports(config.port),
        config.num_envs,
        read_token(token_file=config.token_file),
        tls_context(config.certificate, config.key),
        ConnectionLimits(config.timeout_seconds, config.start_seconds, config.max_restarts),
        Timeouts(config.greeting_seconds, config.idle_seconds),
        config.sessions,
    )


def greeting(server: Server) -> str:
    """Return what a server says when it listens: what it serves where, how to use it and how to end it."""
    host = socket.gethostname() if server.host in ("", "0.0.0.0", "::") else server.host
    client = f"Environment.create(remote='socket-client', host={host!r}, port={server.ports[0]})"
    main = threading.current_thread() is threading.main_thread()
    end = "Ctrl-C ends it" if main else "it ends when its client leaves"
    return f"Serving {server}\nUse it by {client}; {end}"


def serve(config: ServeConfig, source: EnvSpec | None = None) -> None:
    """Serve until interrupted, terminated, or left by `sessions` clients; OperantError: see `start`."""
    before: Any = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not config.quiet:
            wait(f"Starting {source.name if source else config.level or config.environment}")
        with start(config, source) as server:
            if not config.quiet:
                say(greeting(server))
            server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
