"""The server of the live page: `serve(runs, listener, tokens)`. It never writes to runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from socket import socket
from typing import Any

from ..extras import require

require("the live page", "view", "starlette", "uvicorn", "plotly")

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import MillpondError
from .checkup import Checkup
from .figures import figures_of
from .guard import Guard, Tokens
from .history import differences, flat
from .page_files import PAGE_SCRIPTS, SHARED_SCRIPTS, index_page, page_file, plotly_path
from .parallel import comparison
from .processes import processes
from .projector import Projector
from .runs import RunEntry, Runs
from .summary import summary
from .traces import COLOURS
from .water import water

LOOK_S = 1.5  # time between looks at the files while a page is open; each look costs a redraw
_QUIET_S = 15.0  # time without news after which a sign of life is sent
_STREAMS = 32  # most pages that may be open
_PATIENCE_S = 1.0  # time after which an answer omits the runs that are not read yet
_PARTING_S = 1.0  # time for pages to fetch the last state when the server ends
_SCRIPT = "text/javascript; charset=utf-8"
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    **{f"/{name}": (name, _SCRIPT) for name in (*SHARED_SCRIPTS, *PAGE_SCRIPTS)},
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),  # for pages that name no icon
}


class WatchApp:
    """The page and its API as a Starlette app."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.checkup, self.projector = runs, Checkup(), Projector()
        self._streams = 0
        self._ending = False
        self._news = asyncio.Condition()

    def app(self) -> Starlette:
        """The app with all routes."""
        routes = [Route(path, self._file) for path in _PAGE]
        routes += [
            Route("/plotly.js", self._plotly),
            Route("/api/events", self._events),
            Route("/api/runs", self._runs),
            Route("/api/settings", self._settings),
            Route("/api/greedy", self._greedy),
            Route("/api/runs/{run}", self._run),
            Route("/api/runs/{run}/doctor", self._doctor),
            Route("/api/runs/{run}/film", self._film),
            Route("/api/runs/{run}/film.gif", self._pictures),
            Route("/api/compare", self._compare),
        ]
        handlers: Any = {MillpondError: _refused}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncGenerator[None]:
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            await run_in_threadpool(self.projector.close)

    async def end_streams(self) -> None:
        """Send every open page the last news, and tell it that the server ends.

        Pages then fetch what they show once more, and stay readable.
        """
        listened = self._streams > 0
        self._ending = True
        await self._look_once()
        async with self._news:
            self._news.notify_all()
        if listened:
            await asyncio.sleep(_PARTING_S)

    async def _look(self) -> None:
        """Look at the files regularly while a page is open."""
        known = -1
        while True:
            async with self._news:
                await self._news.wait_for(lambda: self._streams > 0)
            await self._look_once()
            if self.runs.version != known:
                known = self.runs.version
                async with self._news:
                    self._news.notify_all()
            await asyncio.sleep(LOOK_S)

    async def _look_once(self) -> None:
        try:
            await run_in_threadpool(self.runs.look)
        except Exception:  # one bad file must not end the server
            traceback.print_exc()

    # --- the page itself ------------------------------------------------------------------------

    async def _file(self, request: Request) -> Response:
        name, kind = _PAGE[request.url.path]
        text = index_page() if name == "index.html" else page_file(name)
        return Response(text, media_type=kind)

    async def _plotly(self, _: Request) -> Response:
        keep = {"cache-control": "private, max-age=86400"}
        return FileResponse(plotly_path(), media_type="text/javascript", headers=keep)

    # --- the API --------------------------------------------------------------------------------

    async def _events(self, request: Request) -> Response:
        """Server-sent events: cards of runs that changed after the one named by Last-Event-ID."""
        if self._streams >= _STREAMS:
            return _error(503, f"watch: {_STREAMS} pages are already open; close one of them")
        name, _, version = request.headers.get("last-event-id", "").partition("-")
        known = int(version) if name == self.runs.name and version.isdecimal() else -1
        return StreamingResponse(self._stream(known), media_type="text/event-stream")

    async def _stream(self, known: int) -> AsyncGenerator[str]:
        self._streams += 1
        try:
            await run_in_threadpool(self.runs.look)
            async with self._news:
                self._news.notify_all()
            yield "retry: 1000\n\n"
            while True:
                if self.runs.version != known:
                    cards = self.runs.cards(known)
                    known = cards["version"]
                    yield f"id: {self.runs.name}-{known}\nevent: runs\ndata: {_text(cards)}\n\n"
                if self._ending:
                    yield "event: end\ndata: {}\n\n"
                    return
                if not await self._newer(known):
                    yield ": still here\n\n"
        finally:
            self._streams -= 1

    async def _newer(self, known: int) -> bool:
        """Wait for a version newer than `known`; False after a timeout."""
        try:
            async with asyncio.timeout(_QUIET_S), self._news:
                await self._news.wait_for(lambda: self._ending or self.runs.version != known)
        except TimeoutError:
            return False
        return True

    async def _runs(self, _: Request) -> Response:
        await run_in_threadpool(self.runs.look)
        return JSONResponse(self.runs.cards())

    async def _settings(self, _: Request) -> Response:
        return _json(_text(await run_in_threadpool(self.runs.settings)))

    async def _greedy(self, request: Request) -> Response:
        entries = [entry for run in _ids(request) if (entry := self._entry(run)) is not None]

        def read() -> str:
            found = {entry.id: curve for entry, curve in _in_time(entries, self.runs.greedy)}
            unread = len(entries) - len(found)
            return _text({"runs": found, "unread": unread, "colours": COLOURS})

        return _json(await run_in_threadpool(read))

    async def _run(self, request: Request) -> Response:
        entry = self._entry(request.path_params["run"])
        if entry is None:
            return _no_run(request.path_params["run"])
        return _json(await run_in_threadpool(self._detail, entry))

    def _detail(self, entry: RunEntry) -> str:
        history = self.runs.history(entry)
        with history.lock:
            found = {
                "id": entry.id,
                "name": entry.name,
                "summary": summary(history),
                "figures": figures_of(history),
                "water": water(history),
                "processes": processes(history),
                "config": flat(history.settings),
            }
        return _text(found)

    async def _doctor(self, request: Request) -> Response:
        entry = self._entry(request.path_params["run"])
        if entry is None:
            return _no_run(request.path_params["run"])
        verdicts = await run_in_threadpool(self.checkup, entry.path)
        return _json(_text({"id": entry.id, "verdicts": verdicts}))

    async def _film(self, request: Request) -> Response:
        entry = self._entry(request.path_params["run"])
        if entry is None:
            return _no_run(request.path_params["run"])
        found = await run_in_threadpool(self.projector.film, entry.id, entry.path)
        return _json(_text(found))

    async def _pictures(self, request: Request) -> Response:
        entry = self._entry(request.path_params["run"])
        data = self.projector.data(entry.id) if entry is not None else None
        if data is None:
            return _error(404, "watch: there is no film of this run yet; open its page to make one")
        return Response(data, media_type="image/gif")

    async def _compare(self, request: Request) -> Response:
        """Compare `runs`; `figures` names the figures to fill with data, by default all."""
        wanted = _ids(request)
        entries = [entry for run in wanted if (entry := self._entry(run)) is not None]
        if len(entries) < len(wanted) or not entries:
            return _no_run(",".join(wanted)[:200])
        named = request.query_params.get("figures")
        figures = None if named is None else named.split(",")
        return _json(await run_in_threadpool(self._compared, entries, figures))

    def _compared(self, entries: list[RunEntry], figures: list[str] | None) -> str:
        pairs = [(one.name, sketch) for one, sketch in _in_time(entries, self.runs.sketch)]
        sketches = [sketch for _, sketch in pairs]
        rows = differences([sketch.settings for sketch in sketches])
        found = {
            "names": [name for name, _ in pairs],
            "unread": len(entries) - len(pairs),
            "summaries": [sketch.summary for sketch in sketches],
            "figures": comparison(pairs, rows, figures),
            "differences": rows,
        }
        return _text(found)

    def _entry(self, run: str) -> RunEntry | None:
        return self.runs.get(run)


def _in_time(
    entries: list[RunEntry], read: Callable[[RunEntry], Any]
) -> Iterator[tuple[RunEntry, Any]]:
    """Entries with what `read` returns for them; after the first, only as many as time allows.

    Long runs take a while at first; a later call returns the rest.
    """
    began = time.monotonic()
    for number, entry in enumerate(entries):
        if number and time.monotonic() - began > _PATIENCE_S:
            return
        yield entry, read(entry)


def _ids(request: Request) -> list[str]:
    return list(dict.fromkeys(request.query_params.get("runs", "").split(",")))


def serve(
    runs: Runs,
    listener: socket,
    tokens: Tokens,
    hosts: Iterable[str] = (),
    traded: Callable[[], None] = lambda: None,
) -> None:
    """Serve on a listening socket until SIGINT or SIGTERM."""
    make_server(runs, listener, tokens, hosts, traded).run(sockets=[listener])


def make_server(
    runs: Runs,
    listener: socket,
    tokens: Tokens,
    hosts: Iterable[str] = (),
    traded: Callable[[], None] = lambda: None,
) -> Any:
    """The server, not yet started: `server.run(sockets=[listener])`."""
    import uvicorn

    watch = WatchApp(runs)

    class PageServer(uvicorn.Server):
        """Ends the pages' event streams before it stops listening."""

        async def shutdown(self, sockets: list[socket] | None = None) -> None:
            await watch.end_streams()
            await super().shutdown(sockets)

    port = listener.getsockname()[1]
    app = Guard(watch.app(), tokens, port, hosts, traded)
    settings = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,  # for pending answers; streams have ended by then
    )
    return PageServer(settings)


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


async def _refused(_: Request, error: Exception) -> Response:
    """Answer with the error, for example if a folder is no longer a run."""
    return _error(409, f"{error}")


def _no_run(run: str) -> Response:
    return _error(404, f"watch: there is no run '{run[:200]}'; reload the page")
