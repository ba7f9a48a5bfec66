"""The page's socket, and the address that opens the page."""

from __future__ import annotations

import errno
import socket

from ..errors import BadConfig
from .guard import is_loopback

PORT = 8787  # the default, if it is free
LONG_ENOUGH = 16  # least characters in a token chosen by the user


def listen(host: str = "127.0.0.1", port: int | None = None, token: str = "") -> socket.socket:
    """A listening socket; without `port` at 8787, or at any free port if that is taken."""
    check_door(host, token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tries = (PORT, 0) if port is None else (port,)
    for one in tries:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, one))
            listener.listen(64)
        except (OSError, OverflowError) as error:
            listener.close()
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE and port is None:
                continue
            raise _refused(host, one, error) from error
        return listener
    raise BadConfig(f"watch: no port of {host} is free; stop a program that listens there")


def check_door(host: str, token: str) -> None:
    """BadConfig for a bad token, or if other machines may connect without a chosen token."""
    if token and len(token) < LONG_ENOUGH:
        raise BadConfig(
            f"watch: --token must have at least {LONG_ENOUGH} characters, got {len(token)}; "
            "make a good one with python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    if token and not token.isascii():
        raise BadConfig("watch: --token must be ASCII, because it is part of an address")
    if not is_loopback(host) and not token:
        raise BadConfig(
            f"watch: --host {host} lets other machines connect, so it needs a token: add --token "
            "TEXT, or omit --host and use a tunnel: ssh -L 8787:127.0.0.1:8787 MACHINE"
        )


def address(listener: socket.socket, token: str) -> str:
    """The address to open in a browser."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # a browser needs a name instead
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/?token={token}"


def _refused(host: str, port: int, error: Exception) -> BadConfig:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        why = f"port {port} of {host} is in use by another program"
        return BadConfig(f"watch: {why}; choose another with --port, or leave it out")
    return BadConfig(
        f"watch: cannot listen at {host}, port {port}: {error}; use --host 127.0.0.1 and a --port "
        "from 1024 to 65535"
    )
