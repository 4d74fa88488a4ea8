"""More than a server has room for: clients that leave, texts that are too long. Others are served meanwhile."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ingot.serve import frames
from ingot.serve.engine_process import EngineProcess, Ticket
from ingot.serve.problem import Problem
from tests.serve.harness import MODEL, PATIENCE, Running, rest, serving

TEXT, CHAT, EMBED = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
LONG = "x = (a + b) * 17\n" * 50_000  # 0.85 MB
BODIES = {
    TEXT: {"model": MODEL, "prompt": LONG, "max_tokens": 4},
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4},
    EMBED: {"model": MODEL, "input": LONG},
}


def memory(server: Running) -> int:
    """Of the engine process, kB, at its highest."""
    status = Path(f"/proc/{server.engine_pid()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_long_texts_that_are_sent_and_dropped() -> None:
    with serving("--chat-template", "plain", "--max-running", 4) as server:
        server.complete(max_tokens=8)
        before = memory(server)
        for path, body in BODIES.items():
            sent = [server.send(path, body) for _ in range(30)]
            for connection in sent:
                connection.close()
            assert server.complete(max_tokens=8)["usage"]["completion_tokens"] == 8
            server.until(lambda m: m["ingot_queue_depth"] == m["ingot_requests_running"] == 0)
            assert memory(server) < before + (80 << 10)  # what has been received and waits for its turn
            got = server.post(path, body)
            assert got.status_code == 400
            assert "characters, and" in got.json()["error"]["message"]  # refused for its length


class Ear:
    """Takes what would go to the engine process."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self._decoder = frames.Decoder(frames.ToEngine)

    def send(self, data: bytes) -> None:
        self.heard += self._decoder.push(data)


def test_room_is_held_until_the_engine_has_ended_a_request() -> None:
    ear = Ear()
    engine = EngineProcess(frames.Start("none", None, None, None, None, None, None, 1, True, None, None, None), 2)
    engine._connection = ear  # type: ignore[assignment]
    engine.ready = frames.Ready(64, 64, True, False, True, [])
    sampling = frames.Sampling(1, 0.0, 0, 1.0, 0.0, None, (), 1.0, 0.0, 0.0, {}, 0, 2)
    end = frames.End("length", 1, 0, 1, 0.0, 0.0, 0.0, 0.0, 0.0)

    def asked() -> Ticket:
        return engine.submit([frames.Generate(engine.next_id(), "x", None, None, sampling, 0, False, False)], "n")

    def full() -> bool:
        with suppress(Problem):
            engine.submit([frames.Embed(engine.next_id(), ["x", "y"])], "input")
            return False
        return True

    ticket = asked()
    engine.close_ticket(ticket)
    assert ear.heard[-1] == frames.Abort(1)
    assert engine.accepted == 2 and full(), "its client has gone, and the engine still has it"
    engine._take(frames.Pieces([frames.Piece(1, 0, "", 1, [], end)]))
    assert engine.accepted == 1
    engine._take(frames.Pieces([frames.Piece(1, 1, "", 1, [], end)]))
    assert engine.accepted == 0 and not full()
    (embed,) = engine._held
    engine._take(frames.Vectors(embed, 2, [[1.0], [2.0]]))
    for ended in (frames.Ended, lambda id: frames.Refused(id, "request", "why")):
        ticket = asked()
        engine.close_ticket(ticket)
        assert full()
        engine._take(ended(ticket.ids[0]))
        assert engine.accepted == 0
    ticket = asked()
    engine._take(frames.Pieces([frames.Piece(ticket.ids[0], i, "", 1, [], end) for i in range(2)]))
    before = len(ear.heard)
    engine.close_ticket(ticket)
    assert len(ear.heard) == before, "it has ended: there is nothing to abort"
    asked()
    engine._lost()
    assert engine.accepted == 0


# ------------------------------------------------------------------------------------------------------- connections

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_silent_connections_make_room() -> None:
    """More of them than the process may have files; then a running answer among them, which nobody cuts off."""
    with serving(limits={resource.RLIMIT_NOFILE: 300}) as server, ExitStack() as stack:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 300, "stream": True, "logit_bias": {"0": -100}}
        running = stack.enter_context(server.send(TEXT, body))
        running.recv(1)
        before = len(server.lines)
        for _ in range(11):
            for _ in range(40):
                stack.enter_context(server.connect())
            with server.connect() as asking:
                asking.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert rest(asking).startswith(b"HTTP/1.1 200 ")
        assert len(server.lines) < before + 100, "a line for each request, and none for each connection"
        assert rest_of(running).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def rest_of(stream: socket.socket) -> bytes:
    got = b""
    while not got.endswith(b"\r\n0\r\n\r\n") and (part := stream.recv(1 << 16)):
        got += part
    return got


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as found:
        yield found


def test_a_body_that_dribbles_after_a_refusal_is_closed(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        got = connection.recv(1 << 16)
        assert got.startswith(b"HTTP/1.1 404 ")
        with suppress(OSError):  # it is closed under our hands
            for _ in range(int(PATIENCE / 0.05)):
                connection.sendall(b"x")
                time.sleep(0.05)
            raise AssertionError("it is read for ever")


def test_a_request_behind_a_running_one_ends_the_connection_after_it(server: Running) -> None:
    """Its client is noticed when it leaves, and nothing is written into the running answer."""
    stream = {"model": MODEL, "prompt": "x", "max_tokens": 60, "stream": True, "logit_bias": {"0": -100}}
    second = HEAD + b"Content-Length: 1000\r\n\r\n{"
    for late in (second, second[:30], b"GARBAGE\r\n\r\n"):
        with server.send(TEXT, stream) as connection:
            connection.recv(1)
            connection.sendall(late)
            got = rest(connection)
            assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert b"HTTP/1.1" not in got[8:]
    gone = server.metrics()["ingot_client_disconnects_total"]
    with server.send(TEXT, stream | {"max_tokens": 1000}) as connection:
        connection.recv(1)
        connection.sendall(second)
        server.until(lambda m: m["ingot_requests_running"] == 1)
    server.until(lambda m: m["ingot_requests_running"] == 0 and m["ingot_client_disconnects_total"] == gone + 1)


def test_a_body_that_is_cut_off_is_nobodys_fault(server: Running) -> None:
    for _ in range(3):
        with server.connect() as connection:
            connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
    server.until(lambda m: m.get('ingot_requests_total{route="/v1/completions",status="499"}') == 3)
    assert not any("fault" in line for line in server.lines)


@pytest.mark.parametrize(("sent", "status", "code"), [
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
    (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 12_000 + b"\r\n", 431, "headers_too_large"),
    (b"GARBAGE\r\n\r\n", 400, "invalid_http"),
])  # fmt: skip
def test_what_the_parser_refuses_is_an_error_in_json(server: Running, sent: bytes, status: int, code: str) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body)["error"]["code"] == code


def test_what_a_client_sent_is_quoted_in_brief(server: Running) -> None:
    for field in ("\ud800", "x" * 900_000, "\U0001f986" * 1000):
        got = server.post(TEXT, {"model": MODEL, "prompt": "x", field: 1})
        assert got.status_code == 400 and len(got.content) < 10_000
        assert got.json()["error"]["code"] in ("invalid_json", "invalid_value")


def test_a_header_without_end_is_refused_at_the_limit(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(256):
            connection.sendall(b"a" * 4096)  # its rest is read for a while, and kept nowhere
        assert rest(connection).startswith(b"HTTP/1.1 431 ")


def test_a_body_that_is_too_large_gets_its_answer(server: Running) -> None:
    """Its rest is read for a while: an ordinary client sends it all before it looks."""
    for _ in range(5):
        got = server.post(TEXT, {"model": MODEL, "prompt": "x" * (3 << 20)})
        assert (got.status_code, got.json()["error"]["code"]) == (413, "body_too_large")
