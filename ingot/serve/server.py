"""One server from start to end: its socket, its engine, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from ingot.errors import UserError
from ingot.serve import frames
from ingot.serve.app import LOOPBACK, App, Settings
from ingot.serve.connection import KEEP_ALIVE_SECONDS, Connection
from ingot.serve.engine_process import SIGNALS, EngineProcess

BACKLOG = 512  # connections that wait to be accepted
ACCEPTED = 64  # of them at once, before any is looked at
POLL = 0.05

log = logging.getLogger("ingot.serve")


@dataclass(frozen=True)
class Options:
    """What `ingot serve` is told.

    Attributes:
        start: the model and its resources.
        max_queue: answers that may wait beside those that run.
        max_wait: seconds that a new one may have to wait, by the pace of those before it; 0: any time.
        drain_seconds: how long running answers may go on after SIGTERM.
        step_timeout: seconds after which a silent engine, or one whose step goes on, is taken for one that hangs.
    """

    start: frames.Start
    host: str
    port: int
    model: str
    key: bytes | None = None
    max_queue: int = 256
    max_wait: float = 60.0
    drain_seconds: float = 30.0
    step_timeout: float = 300.0
    chat_stop: tuple[str, ...] = ()
    trace: bool = False
    any_model: bool = False


class _Uvicorn(uvicorn.Server):
    """uvicorn's, which looks ten times a second whether it should end; this one waits to be told. The engine needs the
    processor, and all its workers wait for the one that is disturbed."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def end(self) -> None:
        """Has it end once its answers have."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # makes the header Date anew
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 1.0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `Server`'s: they let running answers finish first."""
        yield


def http_server(app: App) -> _Uvicorn:
    """What speaks HTTP for the app, once it is given a socket to serve."""
    return _Uvicorn(
        uvicorn.Config(
            app, http=Connection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=2, backlog=ACCEPTED,
        )
    )  # fmt: skip


class Server:
    """A server that runs until a signal ends it.

    Args:
        options: see there.
        announce: called once it listens, with the address and what is left out of the model's source.
    """

    def __init__(self, options: Options, announce: Callable[[str, list[str]], None]) -> None:
        self._options = options
        self._announce = announce
        self._signals: list[int] = []
        self._signalled_once = asyncio.Event()

    def run(self) -> dict[str, Any]:
        """Serves. Returns what happened. Raises what loading the model raises, UserError for the address."""
        return asyncio.run(self._run())

    async def _run(self) -> dict[str, Any]:
        options, begin = self._options, time.monotonic()
        listener = _bind(options.host, options.port)
        engine = EngineProcess(options.start, options.max_queue, options.step_timeout, options.max_wait)
        loop = asyncio.get_running_loop()
        opening = asyncio.ensure_future(engine.open())
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:  # as nohup has it
                loop.add_signal_handler(number, self._signalled, number, opening)
        app = self._app(engine)
        server = http_server(app)
        serving: asyncio.Task[None] | None = None
        try:
            # What goes wrong is logged by the app; uvicorn would log it again.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
            _listen(listener, options)  # now, not when uvicorn gets to it: /health tells that the model is being loaded
            serving = asyncio.create_task(server.serve([listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0)
            listener.listen(BACKLOG)  # its own call has set ACCEPTED
            await opening
            address = listener.getsockname()
            host = f"[{address[0]}]" if listener.family == socket.AF_INET6 else address[0]
            self._announce(f"http://{host}:{address[1]}", engine.ready.left_out if engine.ready else [])
            await self._until_drained(app)
            server.end()
            if app.active:
                log.warning("%d requests are cut off: they did not end in time", app.active)
                await engine.close()
        except asyncio.CancelledError:
            if not self._signals:
                raise
        finally:
            opening.cancel()
            server.end()
            await asyncio.gather(opening, *([serving] if serving else []), return_exceptions=True)
            listener.close()
            await engine.close()
        return {"requests": sum(app.metrics.requests.values()), "engine_restarts": engine.restarts,
                "seconds": time.monotonic() - begin, "interrupted": signal.SIGINT in self._signals}  # fmt: skip

    def _app(self, engine: EngineProcess) -> App:
        options = self._options
        local = options.host in ("localhost", "::1") or options.host.startswith("127.")
        hosts = (*LOOPBACK, options.host) if local and options.key is None else None
        settings = Settings(options.model, options.key, hosts, options.chat_stop, options.trace, options.any_model)
        return App(engine, settings, int(time.time()))

    def _signalled(self, number: int, opening: asyncio.Future[None]) -> None:
        self._signals.append(number)
        self._signalled_once.set()
        if not opening.done():
            opening.cancel()

    async def _until_drained(self, app: App) -> None:
        """Until a signal has come, and after it nothing runs, the time is over, or another signal has come."""
        await self._signalled_once.wait()
        app.draining = True
        log.info("shutting down: %d requests may still end", app.active)
        deadline = time.monotonic() + self._options.drain_seconds
        while app.active and time.monotonic() < deadline and len(self._signals) < 2:
            await asyncio.sleep(POLL)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket, which does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as e:
        raise _taken(host, port, e) from None
    return found


def _listen(listener: socket.socket, options: Options) -> None:
    try:
        listener.listen(BACKLOG)
    except OSError as e:  # another server was bound to the address too, and listens by now
        raise _taken(options.host, options.port, e) from None


def _taken(host: str, port: int, error: OSError) -> UserError:
    way = ": another program listens there, so give another --port" if error.errno == errno.EADDRINUSE else ""
    return UserError(f"cannot listen on {host} port {port}: {error.strerror or error}{way}")
