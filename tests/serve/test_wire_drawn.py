"""Requests changed at random, in pieces: never more answers than h11, another parser, finds requests, and no faults."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import Any

import pytest

from ingot.serve import connection as limits
from ingot.serve import frames
from ingot.serve.app import LOOPBACK, App, Settings
from ingot.serve.connection import Connection
from ingot.serve.engine_process import EngineProcess
from ingot.serve.server import http_server
from tests.serve.in_process import MODEL, Engine, one_word
from tests.serve.test_wire import BODY, CHUNK, NEXT, SMUGGLED, WIRE, H

h11: Any = pytest.importorskip("h11")

SEEDS = [sent for sent, *_ in WIRE.values() if len(sent) < 5000]
LINES = [
    b"Content-Length: 0\r\n", b"Content-Length: 5\r\n", b"Content-Length: %d\r\n" % len(SMUGGLED), H,
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding : chunked\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: upgrade\r\n", b"Upgrade: websocket\r\n",
    b"Expect: 100-continue\r\n", b"\r\n", b" folded\r\n", b"0\r\n\r\n", b"5;x\r\nhello\r\n", CHUNK, BODY, NEXT,
    b"X: \x00\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HEAD ", b"CONNECT ", b"http://localhost", b"\n", b"\r", b"\t", b"\xff",
    SMUGGLED,
]  # fmt: skip


class Wire(asyncio.Transport):
    """A socket that takes everything, and remembers it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.ended = False  # for us: nothing more may be written
        self.late = b""

    def write(self, data: Any) -> None:
        if self.ended:
            self.late += bytes(data)
        else:
            self.written += bytes(data)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def changed(draw: random.Random) -> bytes:
    """A case of the table, or two, with some of its bytes and lines moved, doubled, left out or put in."""
    data = draw.choice(SEEDS) + (draw.choice(SEEDS) if draw.random() < 0.3 else b"")
    for _ in range(draw.randrange(4)):
        at, kind = draw.randrange(len(data) + 1), draw.randrange(5)
        if draw.random() < 0.6:  # at the beginning of a line
            at = data.find(b"\n", at) + 1
        if kind < 2:
            data = data[:at] + draw.choice(LINES) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + draw.randrange(1, 12) :]
        elif kind == 3:
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        else:
            data = data[:at] + data[max(0, at - draw.randrange(40)) :]
    return data


def requests(data: bytes) -> int:
    """How many answers the data may get, as h11 reads them: one for each request, and for what it refuses as one."""
    parser, found = h11.Connection(h11.SERVER), 0
    parser.receive_data(data)
    while True:
        before = parser.their_state
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return found + (before is h11.IDLE)
        if isinstance(event, h11.Request):
            found += 1
        elif event is h11.PAUSED:
            try:
                parser.send(h11.Response(status_code=204, headers=[]))
                parser.send(h11.EndOfMessage())
                parser.start_next_cycle()
            except h11.LocalProtocolError:  # it ends the connection
                return found
        elif event is h11.NEED_DATA:
            return found + (before is h11.IDLE and bool(parser.trailing_data[0]))


async def answers(server: Any, pieces: list[bytes]) -> bytes:
    """What comes back for data that come in these pieces."""
    wire = Wire()
    connection = Connection(config=server.config, server_state=server.server_state, app_state={})
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
        for _ in range(12):
            await asyncio.sleep(0)
    for _ in range(60):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not wire.late, "written behind the end"
    return wire.written


def idle() -> EngineProcess:
    process = EngineProcess(frames.Start("none", None, None, None, None, None, None, 4, True, None, None, None), 4)
    process._connection = Engine(process, one_word)  # type: ignore[assignment]
    process.ready = frames.Ready(64, 64, True, True, True, [])
    return process


async def meet(seed: int, count: int) -> None:
    process = idle()
    app = App(process, Settings(MODEL, None, LOOPBACK, 1 << 20), 0)
    server = http_server(app)
    draw = random.Random(seed)
    for _ in range(count):
        data = changed(draw)
        cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(4)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]
        most = requests(data)
        for sent in ([data], pieces):
            got = await answers(server, sent)
            statuses = [status for status in re.findall(rb"HTTP/1\.1 (\d\d\d) ", got) if status != b"100"]
            assert len(statuses) <= most and b"500" not in statuses, (data, sent, got)
    assert not app.active and not process._tickets


def test_a_client_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes many times as long as one that takes nothing is given."""
    left = iter([1000, 900, 900, 800, 800, 750, -1])  # at the beginning of each time, and at its end
    gone: list[int] = []
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.001)
    monkeypatch.setattr(limits, "MIN_TAKEN", 100)
    monkeypatch.setattr(Connection, "_left", lambda self: next(left, 0))
    monkeypatch.setattr(Wire, "abort", lambda self: gone.append(next(left, 0)))

    async def wait() -> None:
        server = http_server(App(idle(), Settings(MODEL, None, LOOPBACK, 1 << 20), 0))
        connection = Connection(config=server.config, server_state=server.server_state, app_state={})
        connection.connection_made(Wire())
        connection.pause_writing()
        while not gone:
            await asyncio.sleep(0.001)
        connection.connection_lost(None)

    asyncio.run(asyncio.wait_for(wait(), 60))
    assert gone == [-1], "at the end of the first time in which it took less, and not before"


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
    caplog.set_level(logging.ERROR)
    return caplog


def test_drawn_bytes(errors: pytest.LogCaptureFixture) -> None:
    asyncio.run(meet(0, 250))
    assert not errors.records


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_drawn_bytes(seed: int, errors: pytest.LogCaptureFixture) -> None:
    asyncio.run(meet(seed, 5000))
    assert not errors.records
