"""One client's connection: which HTTP it may send and how slowly, and how the connection ends."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import struct
import termios
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ingot.serve.problem import Problem

SEND_SECONDS = 60.0  # for a client to take MIN_TAKEN of what it is sent, or all
MIN_TAKEN = 64 << 10  # bytes
HEADER_SECONDS = 10.0  # for a request's headers to come
KEEP_ALIVE_SECONDS = 30
MAX_HEADER = 64 << 10  # bytes, trailers included
REST_SECONDS = 2.0  # for a client to finish sending once it has its answer: closed at once, it might lose that
MAX_REST = 16 << 20  # bytes that it may send meanwhile
FRAMING = 16  # bytes around a chunk for each byte of its body, beyond MAX_HEADER
MAX_CONNECTIONS = 800
AT_ONCE = "ingot.at_once"  # the extension of a scope by which parts of an answer are written without waiting
OTHER_FILES = 200  # that may be open beside connections, those included that have just been accepted


class _Unwanted(Exception):
    """What the parser is told to stop at; `Connection` knows what to answer."""


class _Outgoing:
    """Where an answer is written. How the connection ends behind it is the connection's part."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.close = connection.end

    def is_closing(self) -> bool:
        return self._connection.ends()


class _Cycle(RequestResponseCycle):
    """A request and its answer."""

    _unsized = False  # only the end of the connection tells where the answer ends

    def flows(self) -> bool:
        """Whether `write` may be called: the answer has begun, in chunks, and the client takes what it is sent."""
        stopped = self.flow.write_paused or self.disconnected or self.response_complete or self.transport.is_closing()
        return bool(self.response_started and self.chunked_encoding and not stopped)

    def write(self, body: bytes) -> None:
        """Sends more of the answer, at once: `send` would come to the same by way of everything that waits."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            if self.more_body:  # whether a client sends what is left of it, once refused, nobody can tell
                self.keep_alive = False
            sized = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if self.scope["http_version"] == "1.0" and not sized:  # it knows no chunks
                self._unsized, self.chunked_encoding = True, False
        elif self._unsized:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class Connection(HttpToolsProtocol):
    """HTTP with an end to patience: headers have to come soon and be short, bodies to come with their request, answers
    to be read, and requests to wait for the answer to the one before.

    What two readers might take for different requests is refused (RFC 9112, 6.3 and 11.2). A connection is closed only
    after the client has stopped sending, or has had time to (9.6). When there are too many connections the one that has
    been silent longest makes room.
    """

    _patience: asyncio.TimerHandle | None = None  # for headers, or for a client to finish
    _stalled: asyncio.TimerHandle | None = None
    _problem: Problem | None = None  # what the parser was stopped for
    _deaf = False  # what comes is discarded
    _discarded = 0  # bytes
    _ending = False
    _in_headers = False
    _in_body = False
    _header = 0  # bytes of a request's line and headers, as far as the parser has told of them
    _headless = 0  # bytes since a request began whose headers are not complete
    _body = 0  # bytes of a body
    _received = 0  # bytes since its headers, those of its chunks' sizes and extensions included
    _heard = 0.0  # when something came, or an answer had gone

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard = self.loop.time()
        self._await_headers()
        if len(self.connections) > max_connections():
            silent = [one for one in self.connections if isinstance(one, Connection) and one.is_idle()]
            oldest = min(silent, key=lambda one: one._heard)  # this one at least is idle
            if oldest is self:
                self._refuse(Problem(503, "too many connections are being answered", "too_many_connections", None, 1))
            else:
                oldest.transport.abort()

    def is_idle(self) -> bool:
        """Whether it is open, and no request that has come as a whole waits for its answer."""
        cycle = self._unanswered()
        return (cycle is None or cycle.more_body) and not self.transport.is_closing()

    def ends(self) -> bool:
        """Whether nothing more is written to it."""
        return self._ending or self.transport.is_closing()

    def _unanswered(self) -> RequestResponseCycle | None:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        return None if cycle is None or cycle.response_complete or cycle.disconnected else cycle

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_patience()
        self._flows()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()  # who takes no answers is not listened to
        self._await_taken()

    def _left(self) -> int:
        """Bytes that the client's system has not taken."""
        socket = self.transport.get_extra_info("socket")
        (sent,) = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)))
        return int(sent) + self.transport.get_write_buffer_size()

    def _await_taken(self) -> None:
        self._stalled = self.loop.call_later(SEND_SECONDS, self._check_taken, max(0, self._left() - MIN_TAKEN))

    def _check_taken(self, most: int) -> None:
        """Who is slow is waited for, and who takes nothing is not."""
        if self._left() > most:
            self.transport.abort()
        else:
            self._await_taken()

    def resume_writing(self) -> None:
        self._flows()
        super().resume_writing()
        if self._ending:
            self.loop.call_soon(self._linger)
        else:
            self.flow.resume_reading()

    def _flows(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # What comes.

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        if self._deaf:
            self._discard(len(data))
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # the other protocol is not spoken here, and the parser has lost its place
            self._no_more()
        except httptools.HttpParserError:
            if not self._deaf:
                self._stop(self._problem or _no_http("the request is not HTTP/1.1"))
        if self._deaf:
            return
        if self._in_headers:  # of one that has not ended the parser says nothing
            self._headless += len(data)
            if self._headless > MAX_HEADER:
                self._stop(_too_large())
        if self._in_body:  # nor does it tell of extensions
            self._received += len(data)
            if self._received > FRAMING * self._body + 2 * MAX_HEADER:
                self._stop(_no_http("the chunks of the body have too much around them"))

    def on_message_begin(self) -> None:
        if self._unanswered() is not None:
            # A request behind one that is being answered: the answer ends the connection, and the client may ask again
            # (RFC 9112, 9.3.2). Reading goes on, so that a client that leaves is noticed.
            self._no_more()
            raise _Unwanted
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._header, self._headless, self._in_headers = 0, 0, True
        if self._patience is None:
            self._await_headers()

    def on_url(self, url: bytes) -> None:
        self._measure(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._measure(len(name) + len(value) + len(": \r\n"))
        if self._in_headers:  # and no trailer, of which nothing is taken (RFC 9110, 6.5.1)
            super().on_header(name, value)

    def _measure(self, count: int) -> None:
        self._header += count
        if self._header > MAX_HEADER:
            self._problem = _too_large()
            raise _Unwanted

    def on_headers_complete(self) -> None:
        self._in_headers, self._in_body, self._body, self._received = False, True, 0, 0
        self._cancel_patience()
        version, method = self.parser.get_http_version(), self.parser.get_method().decode("ascii")
        try:
            _check(method, version, self.headers, self.parser.should_upgrade())
        except Problem as problem:
            self._problem = problem
            raise
        self._target(httptools.parse_url(self.url))
        self.scope["method"], self.scope["http_version"] = method, version
        self.cycle = _Cycle(
            scope=self.scope, transport=cast(asyncio.Transport, _Outgoing(self)), flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=self.access_log,
            default_headers=self.server_state.default_headers, message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version == "1.1",
            keep_alive=version == "1.1" and self.parser.should_keep_alive(), on_response=self.on_response_complete,
        )  # fmt: skip
        self.scope["extensions"] = {AT_ONCE: cast(Any, self.cycle)}
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _target(self, url: Any) -> None:
        """Where the request goes; the host of a whole URL counts, and the header's does not (RFC 9112, 3.2.2)."""
        path = url.path or b"/"
        self.scope["path"], self.scope["raw_path"] = unquote(path.decode("ascii")), path
        self.scope["query_string"] = url.query or b""
        if url.host is not None:
            host = b"[%b]" % url.host if b":" in url.host else url.host
            host += b":%d" % url.port if url.port else b""
            self.headers[:] = [(n, host if n == b"host" else v) for n, v in self.headers]

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    # What ends it.

    def on_response_complete(self) -> None:
        self._heard = self.loop.time()
        if not self._ending:
            super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        self.end()

    def shutdown(self) -> None:
        if not self._ending:
            super().shutdown()

    def _await_headers(self) -> None:
        problem = Problem(408, f"the headers did not come within {HEADER_SECONDS:g} s", "timeout")
        self._patience = self.loop.call_later(HEADER_SECONDS, self._refuse, problem)

    def _cancel_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _no_more(self) -> None:
        """Takes no other request; the answer to the last one ends the connection."""
        self._deaf = True
        if (cycle := self._unanswered()) is not None:
            cycle.keep_alive = False

    def _stop(self, problem: Problem) -> None:
        """Ends a request in the middle, with one answer: its own where that has begun, and else the problem."""
        self._no_more()
        if (cycle := self._unanswered()) is not None:
            if cycle.response_started:
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self._refuse(problem)

    def _refuse(self, problem: Problem) -> None:
        if self.ends():
            return
        body = problem.body()
        headers = [*problem.headers(), (b"connection", b"close"), (b"content-length", str(len(body)).encode())]
        head = b"".join(b"%b: %b\r\n" % header for header in dict(headers).items())
        self.transport.write(STATUS_LINE[problem.status] + head + b"\r\n" + body)
        self.end()

    def end(self) -> None:
        """Closes once what was written has gone and the client has stopped sending: data that come after a close have
        the system drop the answer that it has not read yet."""
        if self.ends():
            return
        self._ending = self._deaf = True
        self._cancel_patience()
        self._unset_keepalive_if_required()
        self.transport.set_write_buffer_limits(0)  # pauses, if anything is still to be written
        if not self.transport.get_write_buffer_size():
            self._linger()

    def _linger(self) -> None:
        if self.transport.is_closing():
            return
        try:
            self.transport.write_eof()
        except OSError:  # the client has closed it
            self.transport.abort()
            return
        self._patience = self.loop.call_later(REST_SECONDS, self.transport.close)
        self.flow.resume_reading()

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > MAX_REST:
            self.transport.abort()


def _check(method: str, version: str, headers: list[tuple[bytes, bytes]], upgrades: bool) -> None:
    """Raises Problem for a request whose end or host could be read in two ways, or that wants what is not here."""
    given = [(name, value.strip().lower()) for name, value in headers]
    codings = [value for name, value in given if name == b"transfer-encoding"]
    hosts = [value for name, value in given if name == b"host"]
    if version not in ("1.0", "1.1"):
        raise Problem(505, "HTTP/1.1 and HTTP/1.0 are spoken here", "http_version")
    if len(hosts) > 1 or (version == "1.1" and not hosts):
        raise _no_http("a request has one Host header")
    if codings and version == "1.0":
        raise _no_http("HTTP/1.0 has no Transfer-Encoding")
    if codings not in ([], [b"chunked"]):
        raise Problem(501, "of transfer codings only chunked is read here", "unsupported")
    if method == "CONNECT":
        raise Problem(501, "this server is no proxy", "unsupported")
    if upgrades and (codings or any(name == b"content-length" and value != b"0" for name, value in given)):
        raise Problem(501, "a request with a body cannot change the protocol: leave Upgrade out", "unsupported")
    if version == "1.1" and any(name == b"expect" and value != b"100-continue" for name, value in given):
        raise Problem(417, "only 100-continue can be expected", "expectation_failed")


def _no_http(why: str) -> Problem:
    return Problem(400, why, "invalid_http")


def _too_large() -> Problem:
    return Problem(431, f"the headers are over {MAX_HEADER:,} bytes", "headers_too_large")


def max_connections() -> int:
    """How many connections are kept: as many as the process may have files."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if most == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, most - OTHER_FILES))
