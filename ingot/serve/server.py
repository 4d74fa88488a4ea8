"""One server from start to end: its socket, its limits on clients, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ingot.errors import UserError
from ingot.serve import frames
from ingot.serve.app import LOOPBACK, App, Settings
from ingot.serve.engine_process import EngineProcess
from ingot.serve.problem import Problem

SEND_SECONDS = 60.0  # for a client to take something of what it is sent
HEADER_SECONDS = 10.0  # for a request's headers to come
KEEP_ALIVE_SECONDS = 30
MAX_HEADER = 64 << 10  # bytes
REST_SECONDS = 2.0  # for the rest of a body whose request has been refused: closed at once, the answer might be lost
MAX_REST = 16 << 20  # bytes of it
MAX_CONNECTIONS = 800
OTHER_FILES = 200  # that may be open beside connections, those included that have just been accepted
BACKLOG = 512  # connections that wait to be accepted
ACCEPTED = 64  # of them at once, before any is looked at
MIN_BODY = 1 << 20  # bytes
BODY_PER_TOKEN = 16  # bytes of a body for each token of context, where that is more
POLL = 0.05

log = logging.getLogger("ingot.serve")


@dataclass(frozen=True)
class Options:
    """What `ingot serve` is told.

    Attributes:
        start: the model and its resources.
        max_queue: answers that may wait beside those that run.
        drain_seconds: how long running answers may go on after SIGTERM.
        step_timeout: seconds after which a silent engine, or one whose step goes on, is taken for one that hangs.
    """

    start: frames.Start
    host: str
    port: int
    model: str
    key: bytes | None = None
    max_queue: int = 256
    drain_seconds: float = 30.0
    step_timeout: float = 300.0
    chat_stop: tuple[str, ...] = ()
    trace: bool = False


class _Unwanted(Exception):
    """What the parser is told to stop at; `Protocol` knows what to answer."""


class Protocol(HttpToolsProtocol):
    """HTTP with an end to patience: headers have to come soon and be short, bodies to come with their request, answers
    to be read, and requests to wait for the answer to the one before.

    When there are too many connections the one that has been silent longest makes room.
    """

    _patience: asyncio.TimerHandle | None = None  # for headers, or for the body of a request that has its answer
    _stalled: asyncio.TimerHandle | None = None
    _problem: Problem | None = None  # what the parser was stopped for
    _deaf = False  # what comes is not read any more
    _in_headers = False
    _refused = False  # a request has its answer before its body has come, and the rest of that is read
    _rest = 0  # bytes of it
    _header = 0  # bytes of a request's line and headers, as far as the parser has told of them
    _headless = 0  # bytes since a request began whose headers are not complete
    _heard = 0.0  # when something came, or an answer had gone

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard = self.loop.time()
        self._await_headers()
        if len(self.connections) > max_connections():
            silent = [one for one in self.connections if isinstance(one, Protocol) and one.is_idle()]
            oldest = min(silent, key=lambda one: one._heard)  # this one at least is idle
            if oldest is self:
                self._refuse(Problem(503, "too many connections are being answered", "too_many_connections", None, 1))
            else:
                oldest.transport.abort()

    def is_idle(self) -> bool:
        """Whether it is open, and no request that has come as a whole waits for its answer."""
        cycle = self._unanswered()
        return (cycle is None or cycle.more_body) and not self.transport.is_closing()

    def _unanswered(self) -> RequestResponseCycle | None:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        return None if cycle is None or cycle.response_complete else cycle

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_patience()
        self._flows()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._flows()
        super().resume_writing()

    def _flows(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # What comes.

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        if self._deaf:
            return
        super().data_received(data)
        if self._refused:
            self._rest += len(data)
            if self._rest > MAX_REST:
                self.transport.close()
        if self._in_headers:  # of one that has not ended the parser says nothing
            self._headless += len(data)
            if self._headless > MAX_HEADER:
                self._refuse(_too_large())
        if self._waits_for_nothing():
            self._keep_alive()

    def on_message_begin(self) -> None:
        if (cycle := self._unanswered()) is not None:
            # A request behind one that is being answered: the answer ends the connection, and the client may ask again
            # (RFC 9112, 9.3.2). Reading goes on, so that a client that leaves is noticed.
            cycle.keep_alive = False
            self._deaf = True
            raise _Unwanted
        super().on_message_begin()
        self._header, self._headless, self._in_headers = 0, 0, True
        self._refused, self._rest = False, 0
        if self._patience is None:
            self._await_headers()

    def on_url(self, url: bytes) -> None:
        self._measure(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._measure(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def _measure(self, count: int) -> None:
        self._header += count
        if self._header > MAX_HEADER:
            self._problem = _too_large()
            raise _Unwanted

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._cancel_patience()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._cancel_patience()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._heard = self.loop.time()
        super().on_response_complete()
        self._refused = self.cycle.more_body
        if self._refused and not self.transport.is_closing():
            self._patience = self.loop.call_later(REST_SECONDS, self.transport.close)

    # What ends it.

    def _waits_for_nothing(self) -> bool:
        """Whether no timer runs, though no request is read or answered: after the rest of a refused one, say."""
        timed = self._patience is not None or self.timeout_keep_alive_task is not None
        return not (timed or self._in_headers or self._unanswered() or self.transport.is_closing())

    def _keep_alive(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE_SECONDS, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():  # it closes when that has gone, which nobody may ever read
            self._stalled = self._stalled or self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def _await_headers(self) -> None:
        problem = Problem(408, f"the headers did not come within {HEADER_SECONDS:g} s", "timeout")
        self._patience = self.loop.call_later(HEADER_SECONDS, self._refuse, problem)

    def _cancel_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped."""
        if not self._deaf:
            self._refuse(self._problem or Problem(400, "the request is not HTTP/1.1", "invalid_http"))

    def _refuse(self, problem: Problem) -> None:
        self._deaf = True
        if self.transport.is_closing():
            return
        body = problem.body()
        head = f"HTTP/1.1 {problem.status} \r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


def _too_large() -> Problem:
    return Problem(431, f"the headers are over {MAX_HEADER:,} bytes", "headers_too_large")


def max_connections() -> int:
    """How many connections are kept: as many as the process may have files."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if most == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, most - OTHER_FILES))


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `Server`'s: they let running answers finish first."""
        yield


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

    def run(self) -> dict[str, Any]:
        """Serves. Returns what happened. Raises what loading the model raises, UserError for the address."""
        return asyncio.run(self._run())

    async def _run(self) -> dict[str, Any]:
        options, begin = self._options, time.monotonic()
        listener = _bind(options.host, options.port)
        engine = EngineProcess(options.start, options.max_queue, options.step_timeout)
        loop = asyncio.get_running_loop()
        opening = asyncio.ensure_future(engine.open())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number, opening)
        try:
            await opening
            app = self._app(engine)
            server = _Uvicorn(
                uvicorn.Config(
                    app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
                    server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=2,
                    backlog=ACCEPTED,
                )
            )  # fmt: skip
            # What goes wrong is logged by the app; uvicorn would log it again.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
            _listen(listener, options)  # now, not when uvicorn gets to it: the announcement is a promise
            serving = asyncio.create_task(server.serve([listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0)
            listener.listen(BACKLOG)  # its own call has set ACCEPTED
            address = listener.getsockname()
            host = f"[{address[0]}]" if listener.family == socket.AF_INET6 else address[0]
            self._announce(f"http://{host}:{address[1]}", engine.ready.left_out if engine.ready else [])
            await self._until_drained(app)
            server.should_exit = True
            if app.active:
                log.warning("%d requests are cut off: they did not end in time", app.active)
                await engine.close()
            await serving
        except asyncio.CancelledError:
            if not self._signals:
                raise
        finally:
            listener.close()
            await engine.close()
        answered = sum(app.metrics.requests.values()) if opening.done() and not opening.cancelled() else 0
        return {"requests": answered, "engine_restarts": engine.restarts, "seconds": time.monotonic() - begin,
                "interrupted": signal.SIGINT in self._signals}  # fmt: skip

    def _app(self, engine: EngineProcess) -> App:
        options = self._options
        assert engine.ready is not None
        local = options.host in ("localhost", "::1") or options.host.startswith("127.")
        hosts = (*LOOPBACK, options.host) if local and options.key is None else None
        max_body = max(MIN_BODY, BODY_PER_TOKEN * engine.ready.context_length)
        settings = Settings(options.model, options.key, hosts, max_body, options.chat_stop, options.trace)
        return App(engine, settings, int(time.time()))

    def _signalled(self, number: int, opening: asyncio.Future[None]) -> None:
        self._signals.append(number)
        if not opening.done():
            opening.cancel()

    async def _until_drained(self, app: App) -> None:
        """Until a signal has come, and after it nothing runs, the time is over, or another signal has come."""
        while not self._signals:
            await asyncio.sleep(POLL)
        app.draining = True
        log.info("shutting down: %d requests may still end", app.active)
        deadline = time.monotonic() + self._options.drain_seconds
        while app.active and time.monotonic() < deadline and len(self._signals) < 2:
            await asyncio.sleep(POLL)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket, which does not listen yet: until the model is there connections are refused."""
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
    return UserError(f"cannot listen on {host} port {port}: {error.strerror or error}")
