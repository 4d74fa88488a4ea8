"""HTTP byte by byte: one answer to each request, none to what two readers might read in two ways, and good ends."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ingot.serve import connection as limits
from ingot.serve import frames
from tests.serve.harness import until
from tests.serve.in_process import END, MODEL, PATIENCE, Served, served

H = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
BODY = json.dumps({"model": MODEL, "prompt": "x"}).encode()
SIZED = b"Content-Length: %d\r\n" % len(BODY)
POST = b"POST /v1/completions HTTP/1.1\r\n" + H + JSON
RESPONSE = POST.replace(b"completions", b"responses")
ITEMS = json.dumps({"model": MODEL, "input": [{"role": "user", "content": "x"}], "stream": True}).encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n" % len(BODY) + BODY + b"\r\n"
NEXT = b"GET /health HTTP/1.1\r\n" + H + b"\r\n"
SMUGGLED = b"GET /metrics HTTP/1.1\r\n" + H + b"\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as found:
        yield found


class Answer:
    """One answer, read from a connection."""

    def __init__(self, stream: Any, head: bool = False) -> None:
        line = stream.readline()
        self.version, status, self.reason = (*line.decode().rstrip("\r\n").split(" ", 2), "")[:3]
        self.status = int(status)
        self.headers: dict[str, str] = {}
        while (line := stream.readline()) != b"\r\n":
            name, _, value = line.decode().partition(":")
            assert name not in self.headers, "a header twice"
            self.headers[name] = value.strip()
        self.body = b""
        if head or self.status == 100:
            return
        if "content-length" in self.headers:
            self.body = stream.read(int(self.headers["content-length"]))
        elif self.headers.get("transfer-encoding") == "chunked":
            while size := int(stream.readline(), 16):
                self.body += stream.read(size)
                assert stream.readline() == b"\r\n"
            assert stream.readline() == b"\r\n"
        else:
            self.body = stream.read()

    @property
    def code(self) -> str:
        """Of an error."""
        return str(json.loads(self.body)["error"]["code"])


# name → (what is sent, statuses of the answers, code of the last, whether the connection goes on)
WIRE: dict[str, tuple[bytes, list[int], str, bool]] = {
    "a request": (NEXT, [200], "", True),
    "empty lines before one": (b"\r\n\r\n" + NEXT, [200], "", True),
    "a body": (POST + SIZED + b"\r\n" + BODY, [200], "", True),
    "chunks": (CHUNKED + CHUNK + b"0\r\n\r\n", [200], "", True),
    "chunks with extensions": (CHUNKED + CHUNK.replace(b"\r\n", b';a=b;c="d"\r\n', 1) + b"0\r\n\r\n", [200], "", True),
    "CHUNKED": (CHUNKED.replace(b"chunked", b"CHUNKED") + CHUNK + b"0\r\n\r\n", [200], "", True),
    "a response": (RESPONSE + b"Content-Length: %d\r\n\r\n" % len(ITEMS) + ITEMS, [200], "", True),
    "a response in chunks": (
        RESPONSE + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(ITEMS), ITEMS), [200], "", True,
    ),
    "a response with two lengths": (
        RESPONSE + b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n" % len(ITEMS) + ITEMS,
        [400], "invalid_http", False,
    ),
    # how long a body is
    "two lengths": (POST + SIZED * 2 + b"\r\n" + BODY, [400], "invalid_http", False),
    "two other lengths": (POST + SIZED + b"Content-Length: 1\r\n\r\n" + BODY, [400], "invalid_http", False),
    "a list of lengths": (POST + b"Content-Length: 4, 4\r\n\r\n{}{}", [400], "invalid_http", False),
    "a length with a sign": (POST + b"Content-Length: +2\r\n\r\n{}", [400], "invalid_http", False),
    "a length in hex": (POST + b"Content-Length: 0x2\r\n\r\n{}", [400], "invalid_http", False),
    "a length below 0": (POST + b"Content-Length: -1\r\n\r\n{}", [400], "invalid_http", False),
    "a length of 2⁷⁰": (POST + b"Content-Length: %d\r\n\r\n{}" % 2**70, [400], "invalid_http", False),
    "no length given": (POST + b"Content-Length:\r\n\r\n{}", [400], "invalid_http", False),
    "length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
                          [400], "invalid_http", False),
    "chunks and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
                          [400], "invalid_http", False),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n",
                       [501], "unsupported", False),
    "another coding behind": (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + CHUNK, [400], "invalid_http", False),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n" + BODY, [501], "unsupported", False),
    "nearly chunked": (POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNK, [501], "unsupported", False),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + CHUNK, [400], "invalid_http", False),
    "chunked with a tab": (POST + b"Transfer-Encoding:\tchunked\r\n\r\n" + CHUNK + b"0\r\n\r\n", [200], "", True),
    "chunked by 1.0": (CHUNKED.replace(b"/1.1", b"/1.0") + CHUNK + b"0\r\n\r\n", [400], "invalid_http", False),
    # chunks
    "a size of 17 digits": (CHUNKED + b"f" * 17 + b"\r\nx", [400], "invalid_http", False),
    "a size below 0": (CHUNKED + b"-1\r\nx", [400], "invalid_http", False),
    "a size with 0x": (CHUNKED + b"0x1\r\nx", [400], "invalid_http", False),
    "a size with a space": (CHUNKED + b"1 \r\nx\r\n0\r\n\r\n", [400], "invalid_http", False),
    "a size before a bare LF": (CHUNKED + b"1\nx\n0\n\n", [400], "invalid_http", False),
    "a chunk longer than its size": (CHUNKED + b"1\r\n{}\r\n0\r\n\r\n", [400], "invalid_http", False),
    "a bad chunk behind a good one": (CHUNKED + CHUNK + b"x\r\n" + SMUGGLED, [400], "invalid_http", False),
    "extensions without end": (CHUNKED + b"1;" + b"a" * 200_000, [400], "invalid_http", False),
    "more extensions than body": (CHUNKED + (b"1;" + b"a" * 2000 + b"\r\n{\r\n") * 100, [400], "invalid_http", False),
    "small chunks": (CHUNKED + b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n", [200], "", True),
    # trailers
    "trailers": (CHUNKED + CHUNK + b"0\r\nX: y\r\n\r\n", [200], "", True),
    "a trailer of another host": (CHUNKED + CHUNK + b"0\r\nHost: evil.example\r\n\r\n", [200], "", True),
    "a length as a trailer": (CHUNKED + CHUNK + b"0\r\nContent-Length: 5\r\n\r\n", [400], "invalid_http", False),
    "trailers without end": (CHUNKED + CHUNK + b"0\r\n" + b"X: y\r\n" * 20_000, [431], "headers_too_large", False),
    "a trailer without end": (CHUNKED + CHUNK + b"0\r\nX: " + b"y" * 200_000, [400], "invalid_http", False),
    # lines
    "a folded header": (b"GET /health HTTP/1.1\r\n" + H + b"X: a\r\n b\r\n\r\n", [400], "invalid_http", False),
    "a folded coding": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", [400], "invalid_http", False),
    "a space before headers": (b"GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n", [400], "invalid_http", False),
    "bare LF": (NEXT.replace(b"\r\n", b"\n"), [400], "invalid_http", False),
    "one bare LF": (b"GET /health HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", [400], "invalid_http", False),
    "bare CR": (b"GET /health HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n", [400], "invalid_http", False),
    "NUL in a value": (b"GET /health HTTP/1.1\r\n" + H + b"X: a\0b\r\n\r\n", [400], "invalid_http", False),
    "NUL in a name": (b"GET /health HTTP/1.1\r\n" + H + b"X\0: a\r\n\r\n", [400], "invalid_http", False),
    "a space before the colon": (POST + b"Content-Length : 2\r\n\r\n{}", [400], "invalid_http", False),
    "a header without a name": (b"GET /health HTTP/1.1\r\n" + H + b": x\r\n\r\n", [400], "invalid_http", False),
    # methods and versions
    "a method in small letters": (NEXT.replace(b"GET", b"get"), [400], "invalid_http", False),
    "a method nobody knows": (NEXT.replace(b"GET", b"FROB"), [400], "invalid_http", False),
    "HTTP/0.9": (b"GET /health HTTP/0.9\r\n\r\n", [505], "http_version", False),
    "HTTP/2.0": (NEXT.replace(b"/1.1", b"/2.0"), [505], "http_version", False),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], "invalid_http", False),
    "HTTP/1.2": (NEXT.replace(b"/1.1", b"/1.2"), [400], "invalid_http", False),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1\r\n" + H + b"\r\n", [501], "unsupported", False),
    "OPTIONS": (b"OPTIONS /v1/completions HTTP/1.1\r\n" + H + b"Origin: http://evil.example\r\n\r\n",
                [405], "method_not_allowed", True),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n", [404], "not_found", True),
    "TRACE": (b"TRACE /health HTTP/1.1\r\n" + H + b"\r\n", [405], "method_not_allowed", True),
    # hosts and targets
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400], "invalid_http", False),
    "two hosts": (b"GET /health HTTP/1.1\r\n" + H * 2 + b"\r\n", [400], "invalid_http", False),
    "another host": (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", [421], "wrong_host", True),
    "a host in large letters": (b"GET /health HTTP/1.1\r\nHost: LOCALHOST:80\r\n\r\n", [200], "", True),
    "an IPv6 host": (b"GET /health HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", [200], "", True),
    "a whole URL": (b"GET http://localhost:80/health HTTP/1.1\r\n" + H + b"\r\n", [200], "", True),
    "a whole URL without a path": (b"GET http://localhost HTTP/1.1\r\n" + H + b"\r\n", [200], "", True),
    "one with a question": (b"GET http://localhost?a=b HTTP/1.1\r\n" + H + b"\r\n", [200], "", True),
    "one of IPv6": (b"GET http://[::1]:80/health HTTP/1.1\r\n" + H + b"\r\n", [200], "", True),
    "one of another host": (b"GET http://evil.example/health HTTP/1.1\r\n" + H + b"\r\n", [421], "wrong_host", True),
    "one beside another host": (b"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n", [200], "", True),
    "no path": (b"GET health HTTP/1.1\r\n" + H + b"\r\n", [400], "invalid_http", False),
    "a path with escapes": (b"GET /he%61lth HTTP/1.1\r\n" + H + b"\r\n", [200], "", True),
    "a path that is no UTF-8": (b"GET /%ff%fe HTTP/1.1\r\n" + H + b"\r\n", [404], "not_found", True),
    "a path with raw bytes": (b"GET /h\xc3\xa4 HTTP/1.1\r\n" + H + b"\r\n", [400], "invalid_http", False),
    "NUL in a path": (b"GET /health%00 HTTP/1.1\r\n" + H + b"\r\n", [404], "not_found", True),
    "two slashes": (b"GET //health HTTP/1.1\r\n" + H + b"\r\n", [404], "not_found", True),
    "a piece of a page": (b"GET /health#x HTTP/1.1\r\n" + H + b"\r\n", [200], "", True),
    # what else a header asks for
    "another protocol": (b"GET /health HTTP/1.1\r\n" + H + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + SMUGGLED,
                         [200], "", False),
    "another protocol with a body": (POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n"
                                     % len(SMUGGLED) + SMUGGLED, [501], "unsupported", False),
    "100-continue": (POST + SIZED + b"Expect: 100-continue\r\n\r\n" + BODY, [100, 200], "", True),
    "100-continue that is refused": (POST.replace(b"completions", b"nowhere") + b"Content-Length: %d\r\n"
                                     b"Expect: 100-continue\r\n\r\n" % len(SMUGGLED), [404], "not_found", False),
    "another expectation": (POST + SIZED + b"Expect: wonders\r\n\r\n" + BODY, [417], "expectation_failed", False),
    "a compressed body": (POST + SIZED + b"Content-Encoding: gzip\r\n\r\n" + BODY,
                          [415], "invalid_content_encoding", True),
    "pipelined": (NEXT * 3, [200], "", False),
    "pipelined behind the last": (NEXT[:-2] + b"Connection: close\r\n\r\n" + NEXT, [200], "", False),
}  # fmt: skip


def ask(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # it is refused before all of it has gone
        connection.sendall(data)


@pytest.mark.parametrize("name", WIRE)
def test_wire(server: Served, name: str) -> None:
    sent, statuses, code, goes_on = WIRE[name]
    with server.connect() as connection, connection.makefile("rb") as stream:
        ask(connection, sent)
        answers = [Answer(stream) for _ in statuses]
        assert [answer.status for answer in answers] == statuses, answers[0].body
        if code:
            assert answers[-1].code == code
            assert answers[-1].headers["content-type"] == "application/json"
        assert (answers[-1].headers.get("connection") != "close" or not goes_on) and answers[-1].version == "HTTP/1.1"
        if goes_on:  # it is in step: the next request gets the next answer
            ask(connection, NEXT[:-2] + b"Connection: close\r\n\r\n")
            assert Answer(stream).status == 200
        assert stream.read() == b""


def test_one_in_two_segments_is_the_same(server: Served) -> None:
    """What comes with the headers, and what comes after the answer."""
    for name in ("another protocol with a body", "another protocol", "100-continue that is refused", "pipelined"):
        sent, statuses, *_ = WIRE[name]
        with server.connect() as connection, connection.makefile("rb") as stream:
            ask(connection, sent[: sent.index(b"\r\n\r\n") + 4])
            assert Answer(stream).status == statuses[-1]
            ask(connection, sent[sent.index(b"\r\n\r\n") + 4 :] or SMUGGLED)
            if name == "pipelined":  # by then it is none
                assert Answer(stream).status == 200
            else:
                assert stream.read() == b""


def test_head_is_as_get_without_the_body(server: Served) -> None:
    for path in (b"/health", b"/v1/models", b"/", b"/page.js", b"/nowhere", b"/v1/completions"):
        with server.connect() as connection, connection.makefile("rb") as stream:
            ask(connection, b"GET %b HTTP/1.1\r\n%b\r\n" % (path, H))
            got = Answer(stream)
            ask(connection, b"HEAD %b HTTP/1.1\r\n%b\r\n" % (path, H))
            head = Answer(stream, head=True)
            assert (head.status, head.headers | {"date": ""}) == (got.status, got.headers | {"date": ""})
            ask(connection, NEXT)
            assert Answer(stream).status == 200


def test_what_may_be_asked_instead_is_said(server: Served) -> None:
    with server.connect() as connection, connection.makefile("rb") as stream:
        ask(connection, b"DELETE /health HTTP/1.1\r\n" + H + b"\r\n")
        got = Answer(stream)
        assert got.status == 405 and set(got.headers["allow"].split(", ")) == {"GET", "HEAD"}
        assert not any(name.startswith("access-control") for name in got.headers)


STREAM = json.dumps({"model": MODEL, "prompt": "x", "stream": True}).encode()


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_knows_no_chunks(server: Served, keep: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.0\r\n" + H + JSON + keep + b"Content-Length: %d\r\n\r\n"
    with server.connect() as connection, connection.makefile("rb") as stream:
        ask(connection, head % len(STREAM) + STREAM)
        got = Answer(stream)
        assert got.status == 200 and got.headers["connection"] == "close"
        assert not {"transfer-encoding", "content-length"} & got.headers.keys()
        assert got.body.startswith(b"data: {") and got.body.endswith(b"data: [DONE]\n\n") and b"word" in got.body
    with server.connect() as connection, connection.makefile("rb") as stream:
        ask(connection, head % len(BODY) + BODY)
        got = Answer(stream)
        assert (got.status, got.headers["connection"]) == (200, "close")
        assert json.loads(got.body)["choices"][0]["text"] == "word" and stream.read() == b""


# ------------------------------------------------------------------------------------------------------------ the end

REFUSED = {
    "connection: close": b"POST /nowhere HTTP/1.1\r\n" + H + b"Connection: close\r\nContent-Length: 4000000\r\n\r\n",
    "HTTP/1.0": b"POST /nowhere HTTP/1.0\r\n" + H + b"Content-Length: 4000000\r\n\r\n",
    "no HTTP": b"POST /nowhere HTTP/1.1\r\n" + H + b"Content-Length: x\r\n\r\n",
    "too large": b"GET / HTTP/1.1\r\n" + H + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
    "kept": b"POST /nowhere HTTP/1.1\r\n" + H + b"Content-Length: 4000000\r\n\r\n",
    "its end is not HTTP": POST + b"Transfer-Encoding: chunked\r\n\r\nx",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_client_that_is_still_sending_gets_its_refusal(
    server: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close under its hands would have its system drop the answer."""
    monkeypatch.setattr(limits, "REST_SECONDS", PATIENCE)
    with server.connect() as connection, connection.makefile("rb") as stream:
        connection.sendall(REFUSED[name])
        for _ in range(40):
            connection.sendall(b"x" * 100_000)  # nothing is reset
        got = Answer(stream)
        assert got.status in (400, 404, 431) and got.headers["connection"] == "close"
        assert stream.read() == b""


def rest_is_reset(connection: socket.socket) -> bool:
    """Whether the other side ends it while we send."""
    begin = time.monotonic()
    with suppress(OSError):
        while time.monotonic() < begin + PATIENCE:
            connection.sendall(b"x" * 10_000)
            time.sleep(0.005)
        return False
    return True


@pytest.mark.parametrize("name", ["connection: close", "HTTP/1.0", "no HTTP"])
def test_who_goes_on_after_a_refusal_is_cut_off(server: Served, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_SECONDS", 0.05)
    with server.connect() as connection:
        connection.sendall(REFUSED[name])
        assert rest_is_reset(connection)


def test_who_sends_much_after_a_refusal_is_cut_off(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REST", 100_000)
    with server.connect() as connection:
        connection.sendall(REFUSED["kept"])
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"x" * 100_000_000)


def small(server: Served) -> socket.socket:
    """A connection whose client has room for little."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect(("127.0.0.1", server.port))
    found.settimeout(PATIENCE)
    return found


def large(message: Any) -> list[frames.FromEngine]:
    """More than the buffers of the system hold."""
    if not isinstance(message, frames.Generate):
        return [frames.Ended(message.id)]
    return [frames.Pieces([frames.Piece(message.id, 0, "x" * 200_000, 1, [], None)]) for _ in range(60)] + [
        frames.Pieces([frames.Piece(message.id, 0, "", 1, [], END)])
    ]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that waits for nobody."""
    monkeypatch.setattr("ingot.serve.server.KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.1)
    with served(large) as found:
        yield found


@pytest.mark.parametrize("end", [b"", b"Connection: close\r\n"])
def test_an_answer_that_nobody_reads_is_given_up(hurried: Served, end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fits into our own buffer, so that nothing waits for it but the end of the connection."""
    seen: list[tuple[int, int]] = []
    check = limits.Connection._check_taken

    def checked(self: limits.Connection, most: int) -> None:
        seen.append((self._left(), self.transport.get_write_buffer_size()))
        check(self, most)

    monkeypatch.setattr(limits.Connection, "_check_taken", checked)
    with small(hurried) as connection:
        (ours,) = until(lambda: hurried.connections or None)
        ours.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\n" + H + end + b"\r\n")
        until(lambda: None if hurried.connections else True)
    left, ours_of_it = seen[-1]
    assert left > ours_of_it > 0, "some of it was in our buffer, and some in the system's"


def test_who_does_not_read_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REST", 1 << 40)
    with served(large) as server:
        connection = small(server)
        with connection:
            head = b"POST /v1/completions HTTP/1.1\r\n" + H + JSON + b"Content-Length: %d\r\n\r\n" % len(STREAM)
            connection.sendall(head + STREAM)
            (ours,) = until(lambda: server.connections or None)
            until(lambda: ours.flow.write_paused or None)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.sendall(b"x" * (64 << 20))
        until(lambda: None if server.connections else True)  # who leaves is noticed all the same
        until(lambda: server.app.metrics.disconnects or None)
        assert server.app.metrics.disconnects == 1


def test_who_sends_much_behind_a_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REST", 100_000)
    with served(lambda message: []) as server, server.connect() as connection:
        connection.sendall(POST + SIZED + b"\r\n" + BODY)
        until(lambda: server.engine.heard or None)
        assert rest_is_reset(connection)
