"""`Guard`: decides which requests the server answers.

A request must name one of our hosts (against DNS rebinding), must only read, and must carry the
session cookie that was given for an address with a token.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Nothing from other hosts, and no inline scripts or styles. Plotly uses data and blob addresses for
# its own images (cursors, exports).
POLICY = "; ".join(
    [
        "default-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Tokens:
    """Tokens that open the page. A token works once; one chosen by the user works repeatedly."""

    def __init__(self, chosen: str = "", first: str = "") -> None:
        self.chosen = chosen
        self._token = chosen or first or secrets.token_urlsafe(24)
        self._sessions: set[str] = set()
        self._lock = threading.Lock()

    @property
    def token(self) -> str:
        """The token that is valid now."""
        return self._token

    def trade(self, token: str) -> str | None:
        """Exchange a token for a new session; None if the token is wrong."""
        with self._lock:
            if not secrets.compare_digest(token.encode(), self._token.encode()):
                return None
            if not self.chosen:
                self._token = secrets.token_urlsafe(24)
            session = secrets.token_urlsafe(32)
            self._sessions.add(session)
            return session

    def knows(self, session: str) -> bool:
        """Whether we issued this session."""
        said = session.encode()
        found = [secrets.compare_digest(said, one.encode()) for one in tuple(self._sessions)]
        return any(found)


class Guard:
    """ASGI middleware: `Guard(app, tokens, port, hosts, traded)`.

    `traded()` is called when a token was used, so that the next address can be printed.
    """

    def __init__(
        self,
        app: Any,
        tokens: Tokens,
        port: int,
        hosts: Iterable[str] = (),
        traded: Callable[[], None] = lambda: None,
    ) -> None:
        self.app, self.tokens, self.traded = app, tokens, traded
        self.cookie = f"millpond_watch_{port}"  # browsers share cookies between ports
        self.hosts = {*LOOPBACK, *(host.lower() for host in hosts)}
        self.open_elsewhere = bool(self.hosts - set(LOOPBACK))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            return  # there are no websockets here
        else:
            refusal = self._refuse(scope)
            if refusal is not None:
                await _answer(send, *refusal)
            else:
                await self._answered(scope, receive, _with_headers(send))

    async def _answered(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the app answer; if the server ends meanwhile, answer 503 instead of a traceback.

        Answers are cancelled only when the server ends.
        """
        begun = False

        async def noted(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if not begun:
                await _answer(send, 503, "watch: the server has ended\n", {})

    def _refuse(self, scope: Any) -> tuple[int, str, dict[str, str]] | None:
        """Status, text and headers of a refusal or redirection; None to let the app answer."""
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if not self._ours(host):
            text = f"watch: this server does not answer to the host name '{host[:80]}'; "
            return 421, f"{text}open the address that millpond watch printed\n", {}
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "watch: this page is read-only; use GET\n", {"allow": "GET, HEAD"}
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if scope["path"] == "/" and "token" in query:
            session = self.tokens.trade(query["token"][0])
            if session is None:
                return 403, _WRONG, {}
            self.traded()
            cookie = f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
            return 303, "", {"location": "/", "set-cookie": cookie}
        if not self.tokens.knows(self._session(headers.get("cookie", b""))):
            return 403, _MISSING, {}
        return None

    def _session(self, cookie: bytes) -> str:
        try:
            found = SimpleCookie(cookie.decode("latin-1")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _ours(self, host: str) -> bool:
        """Whether a host is ours: a loopback name with any port, or one of `hosts`.

        If other machines may connect, any IP address is ours, too: only names can be rebound.
        """
        name = _name_of(host)
        if name in self.hosts:
            return True
        return self.open_elsewhere and _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached only from this machine."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def own_names() -> set[str]:
    """The host names of this machine."""
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0]}


def _name_of(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


_MISSING = (
    "watch: this page needs the address with a token that millpond watch printed; after a restart "
    "of the server, open the new address\n"
)
_WRONG = (
    "watch: this token is wrong or was already used, since each works once; open the newest "
    "address that millpond watch printed\n"
)


def _with_headers(send: Any) -> Any:
    async def told(message: Any) -> None:
        if message["type"] == "http.response.start":
            kept = [*message.get("headers", [])]
            kept += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            if not any(name == b"cache-control" for name, _ in kept):
                kept.append((b"cache-control", b"no-store"))
            message = {**message, "headers": kept}
        await send(message)

    return told


async def _answer(send: Any, status: int, text: str, more: dict[str, str]) -> None:
    told = _with_headers(send)
    headers = {"content-type": "text/plain; charset=utf-8", **more}
    plain = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await told({"type": "http.response.start", "status": status, "headers": plain})
    await told({"type": "http.response.body", "body": text.encode()})
