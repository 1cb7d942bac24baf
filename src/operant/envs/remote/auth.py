"""Who may connect: the shared token, and how both sides prove that they know it without sending it.

Each side contributes a fresh random number, and answers with HMAC-SHA256, keyed with the token, over both
numbers and a word for its role: a recorded greeting is worth nothing in another connection, nor is a side's
own proof sent back to it. The client proves first. The keys for the frames that follow are derived in the
same way.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
from pathlib import Path

from operant.envs.remote.channel import Channel
from operant.envs.remote.wire import HELLO, MAC, PROOF, REFUSED, VERSION, WELCOME, WireError, printable
from operant.envs.workers.restarts import LostError
from operant.errors import SpecError, UsageError, quoted

VARIABLE = "OPERANT_TOKEN"
_MAGIC = b"operant\0"
_HELLO = struct.Struct("<8sH32s")
_PROOF = struct.Struct("<H32s32s")
_LEAST = 16
_RECIPE = "(umask 077; python -c 'import secrets; print(secrets.token_hex(32))' > token)"


def read_token(token: str | None = None, token_file: str | Path | None = None) -> bytes:
    """Return the token given, or of the file, or of `OPERANT_TOKEN`; SpecError: too short, or not secret."""
    source = "token"
    if token is None and token_file is not None:
        source, token = f"The token in {str(token_file)!r}", _read_file(Path(token_file))
    elif token is None and VARIABLE in os.environ:
        source, token = f"The variable {VARIABLE}", os.environ[VARIABLE]
    if token is None:
        return b""
    try:
        secret = token.strip().encode()
    except UnicodeEncodeError:  # bytes of a variable that are no UTF-8
        raise SpecError(f"{source} must be UTF-8 text. Make one: {_RECIPE}") from None
    if len(secret) < _LEAST:  # the message does not show it
        raise SpecError(
            f"{source} must have at least {_LEAST} characters. Received: {len(secret)}. Make one: {_RECIPE}"
        )
    return secret


def _read_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"The token file {str(path)!r} cannot be read: {error}. Make one: {_RECIPE}"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SpecError(
            f"The token file {str(path)!r} must be its owner's alone: chmod 600 {quoted(str(path))}. "
            f"Where a file system has no such modes, give the token in the variable {VARIABLE}."
        )
    return text


def is_loopback(host: str) -> bool:
    """Tell whether a name or address stands for this machine alone."""
    if not host:
        return False  # all interfaces
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SpecError(f"host {host!r} is not known: {error}.") from None
    addresses = {str(entry[4][0]) for entry in entries}
    return all(address == "::1" or address.startswith("127.") for address in addresses)


def check_reach(host: str, token: bytes, what: str) -> None:
    """Refuse (UsageError) to connect beyond this machine without a token."""
    if not token and not is_loopback(host):
        raise UsageError(
            f"{what} {host!r} goes beyond this machine, and needs a token that both sides know: "
            f"--token-file, or the variable {VARIABLE}. Make one: {_RECIPE}"
        )


def welcome(channel: Channel, token: bytes, seconds: float) -> None:
    """Greet a client, as the server: after this, frames are sealed.

    Raises:
        WireError: it is not a client of operant's, or does not know the token.
        LostError: it closed the connection, or is too slow.
    """
    ours = secrets.token_bytes(32)
    channel.send(HELLO, _HELLO.pack(_MAGIC, VERSION, ours), seconds=seconds)
    kind, content = channel.receive(seconds)
    if kind != PROOF or len(content) != _PROOF.size:
        raise WireError("no greeting")
    version, theirs, proof = _PROOF.unpack(content)
    if version != VERSION:
        channel.send(
            REFUSED, f"It speaks version {VERSION} of the protocol, not {version}.".encode(), seconds=seconds
        )
        raise WireError(f"version {version} of the protocol")
    if not hmac.compare_digest(proof, _derive(token, b"client proof", ours, theirs)):
        channel.send(REFUSED, b"The token is not the server's.", seconds=seconds)
        raise WireError("a wrong token")
    channel.send(WELCOME, _derive(token, b"server proof", ours, theirs), seconds=seconds)
    channel.protect(
        MAC(_derive(token, b"client frames", ours, theirs)),
        MAC(_derive(token, b"server frames", ours, theirs)),
    )


def greet(channel: Channel, token: bytes, seconds: float) -> None:
    """Greet a server, as the client: after this, frames are sealed.

    Raises:
        LostError: for good if it does not know the token, or speaks another version; also if it is not a
            server of operant's, closed the connection, or is too slow.
    """
    kind, content = channel.receive(seconds)
    if kind != HELLO or len(content) < _HELLO.size or bytes(content[:8]) != _MAGIC:
        raise WireError("no greeting of operant's")
    _, version, theirs = _HELLO.unpack_from(content)
    if version != VERSION:
        raise LostError(
            f"speaks version {version} of the protocol, and this side version {VERSION}. Install the same "
            "version of operant on both.",
            final=True,
        )
    ours = secrets.token_bytes(32)
    proof = _derive(token, b"client proof", theirs, ours)
    channel.send(PROOF, _PROOF.pack(VERSION, ours, proof), seconds=seconds)
    kind, content = channel.receive(seconds)
    if kind == REFUSED:
        reason = printable(bytes(content).decode(errors="replace"))
        raise LostError(
            f"refused: {reason} Give the server's token: token_file, or the variable {VARIABLE}.", final=True
        )
    if kind != WELCOME or not hmac.compare_digest(content, _derive(token, b"server proof", theirs, ours)):
        raise LostError("does not know the token. It may not be the server that you mean.", final=True)
    channel.protect(
        MAC(_derive(token, b"server frames", theirs, ours)),
        MAC(_derive(token, b"client frames", theirs, ours)),
    )


def _derive(token: bytes, role: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(token, role + struct.pack("<H", VERSION) + server + client, hashlib.sha256)
