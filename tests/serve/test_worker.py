"""The engine process from inside: conversations that wait for their template, and vectors that nobody wants."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.errors import DeviceError, RequestError, from_code
from ingot.serve import chat_queue, frames, worker
from ingot.serve.problem import from_error
from ingot.serve.worker import Worker
from ingot.text.chat_prompt import Written
from tests.kept import PICO
from tests.serve.harness import MODEL, serving, until
from tests.serve.in_process import Served, served

SAMPLING = frames.Sampling(2, 0.0, 0, 1.0, 0.0, None, (), 1.0, 0.0, 0.0, {}, 0, 1)


class Chats:
    """Stands in for a model's ChatPrompt: a conversation is written when its gate is open."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, threading.Event] = {}

    def write(self, turns: Any) -> Written:
        name = turns[0]["content"]
        self.begun.append(name)
        assert self.gates.setdefault(name, threading.Event()).wait(60)
        return Written(name, None)

    def tokens(self, written: Written) -> list[int]:
        return [1, 2, len(written.text)]

    def open(self, name: str) -> None:
        """Lets it be written."""
        self.gates.setdefault(name, threading.Event()).set()


class Here(Worker):
    """One whose threads end alone, and not with their process."""

    def _guarded(self, work: Any) -> None:
        with suppress(OSError):
            work()

    def _end_process(self) -> None:  # type: ignore[override]
        self.ended = True


class Inside:
    """A worker in a thread, and what it sends."""

    def __init__(self, model: Any) -> None:
        self._ours, theirs = socket.socketpair()
        self.worker = Here(model, theirs, frames.Decoder(frames.ToEngine))
        self.heard: list[Any] = []
        self._thread = threading.Thread(target=self.worker.run, daemon=True)
        self._thread.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder = frames.Decoder(frames.FromEngine)
        while data := self._ours.recv(1 << 16):
            self.heard += decoder.push(data)

    def send(self, message: Any) -> None:
        self._ours.sendall(frames.encode(message))

    def chat(self, id: int) -> None:
        """A conversation of that number, which is what is said."""
        self.send(frames.Generate(id, None, None, [("user", str(id), None)], SAMPLING, 0, False, False))

    def ends(self, id: int) -> list[Any]:
        """What ended a request: one of these has to come, and no more."""
        kinds = (frames.Refused, frames.Ended, frames.Vectors)
        found = [one for one in self.heard if isinstance(one, kinds) and one.id == id]
        for one in list(self.heard):
            if isinstance(one, frames.Pieces):
                found += [piece for piece in one.pieces if piece.id == id and piece.end is not None]
        return found

    def end(self, id: int) -> Any:
        """The one end of a request, once it is there."""
        until(lambda: self.ends(id) or None)
        (found,) = self.ends(id)
        return found

    def loads(self) -> list[frames.Load]:
        return [one for one in self.heard if isinstance(one, frames.Load)]

    def close(self) -> None:
        self._ours.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, self._reader):  # neither reads a socket that is closed
            thread.join(60)
            assert not thread.is_alive()
        self._ours.close()


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    with ingot.LLM(PICO) as found:
        yield found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and heartbeats come often."""
    monkeypatch.setattr(worker, "STATS_EVERY", 0.01)
    monkeypatch.setattr(frames, "HEARTBEAT", 0.02)


@pytest.fixture
def chats(llm: Any, quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Inside, Chats]]:
    stub = Chats()
    monkeypatch.setattr(llm, "_chat", stub)
    inside = Inside(llm)
    yield inside, stub
    for i in range(1, 10):
        stub.open(str(i))
    inside.close()


def test_conversations_wait_in_their_order_and_nobody_waits_for_them(chats: tuple[Inside, Chats]) -> None:
    inside, stub = chats
    for id in range(1, 7):
        inside.chat(id)
    until(lambda: len(stub.begun) == 2 or None)
    inside.send(frames.Generate(100, None, [1, 2], None, SAMPLING, 0, False, False))
    inside.send(frames.Embed(101, [[1, 2]]))
    inside.send(frames.Generate(102, "import os", None, None, SAMPLING, 0, False, False))
    assert inside.end(100).end.completion_tokens == inside.end(102).end.completion_tokens == 2
    assert isinstance(inside.end(101), frames.Vectors)
    until(lambda: inside.loads()[-1].running == 0 or None)
    seen = len(inside.loads())
    until(lambda: len(inside.loads()) > seen + 5 or None)
    assert all(load.still == 0 for load in inside.loads()[seen:]), "the watchdog sees nothing that stands still"
    assert sorted(stub.begun) == ["1", "2"]
    for id in (6, 5, 2, 1, 4, 3):
        stub.open(str(id))
    assert [inside.end(id).end.prompt_tokens for id in range(1, 7)] == [3] * 6
    assert [*sorted(stub.begun[:2]), *sorted(stub.begun[2:4]), *sorted(stub.begun[4:])] == list("123456")


def test_a_device_that_fails_ends_the_process(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is told why; whoever watches over the process starts another one."""
    inside = Inside(llm)

    def fails(step: Any) -> Any:
        raise DeviceError("a run on cuda:0: unspecified launch failure")

    with monkeypatch.context() as patch:
        patch.setattr(llm._loop._runner, "launch", fails)
        inside.send(frames.Generate(1, None, [1, 2], None, SAMPLING, 0, False, False))
        found = inside.end(1)
    assert (found.code, found.message) == ("device", "a run on cuda:0: unspecified launch failure")
    assert from_error(from_code(found.code, found.message)).status == 500
    until(lambda: getattr(inside.worker, "ended", None))
    inside.close()


def test_who_waits_too_long_is_told(chats: tuple[Inside, Chats], monkeypatch: pytest.MonkeyPatch) -> None:
    inside, stub = chats
    for id in (1, 2):
        inside.chat(id)
    until(lambda: len(stub.begun) == 2 or None)
    with monkeypatch.context() as patch:
        patch.setattr(chat_queue, "CHAT_SECONDS", 0.05)
        inside.chat(3)
        late = inside.end(3)
    problem = from_error(from_code(late.code, late.message))
    assert (problem.status, problem.code) == (503, "overloaded") and (problem.retry_after or 0) >= 1
    stub.open("1")
    stub.open("2")
    assert inside.end(1).end and inside.end(2).end, "those whose turn has come are let be"
    inside.chat(4)
    stub.open("4")
    assert inside.end(4).end and "3" not in stub.begun


def test_no_more_wait_than_there_is_room_for(chats: tuple[Inside, Chats], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_queue, "MAX_CHATS", 1)
    inside, stub = chats
    for id in (1, 2):
        inside.chat(id)
        until(lambda id=id: str(id) in stub.begun or None)
    inside.chat(3)
    inside.chat(4)
    assert inside.end(4).code == "overloaded" and not inside.ends(3)
    for id in (1, 2, 3):
        stub.open(str(id))
        assert inside.end(id).end


def test_conversations_whose_client_leaves(chats: tuple[Inside, Chats]) -> None:
    inside, stub = chats
    for id in (1, 2, 3):
        inside.chat(id)
    until(lambda: len(stub.begun) == 2 or None)
    inside.send(frames.Abort(3))
    assert isinstance(inside.end(3), frames.Ended), "it waits no more"
    inside.send(frames.Abort(1))
    inside.chat(4)
    time.sleep(0.05)
    assert not inside.ends(1), "it is being written, and has its room until then"
    for id in (1, 2, 4):
        stub.open(str(id))
    assert isinstance(inside.end(1), frames.Ended) and inside.end(2).end and inside.end(4).end
    assert "3" not in stub.begun and not inside.worker._requests


def post(server: Served, path: str, body: Any) -> socket.socket:
    """A connection with a request on it."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    found = server.connect()
    found.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return found


SLOW = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.slow
def test_templates_without_end_end_nothing_else(tmp_path: Path) -> None:
    """Each takes all the time that it may have, and all together more than the watchdog's."""
    (tmp_path / "template").write_text(SLOW)
    words = ("--chat-template", tmp_path / "template", "--step-timeout", 4)
    with serving(*words) as server, ThreadPoolExecutor(14) as pool:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        begin = time.monotonic()
        chats = [pool.submit(server.post, "/v1/chat/completions", body) for _ in range(14)]
        meanwhile = 0  # completions that began and ended while the same conversations were being rendered
        while (ended := sum(chat.done() for chat in chats)) < len(chats):
            server.complete(max_tokens=4)
            meanwhile += sum(chat.done() for chat in chats) == ended
        assert meanwhile > len(chats) and time.monotonic() - begin > 4
        for chat in chats:
            got = chat.result()
            assert (got.status_code, got.json()["error"]["code"]) in ((400, "request"), (503, "overloaded"))
        metrics = server.metrics()
        assert metrics["ingot_engine_hangs_total"] == metrics["ingot_engine_restarts_total"] == 0


def test_a_turn_has_its_name(llm: Any, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the body of a request to what the template is given."""
    turns = [{"role": "user", "content": "1", "name": "Ann"}, {"role": "user", "content": "x"}]
    body = {"model": "m", "messages": turns, "max_tokens": 2}
    with served() as server, post(server, "/v1/chat/completions", body):
        until(lambda: server.engine.heard or None)
        message = server.engine.heard[0]
    seen: list[Any] = []
    stub = Chats()
    stub.open("1")
    monkeypatch.setattr(llm, "_chat", stub)
    monkeypatch.setattr(stub, "write", lambda turns: seen.append(turns) or Chats.write(stub, turns))
    inside = Inside(llm)
    inside.send(message)
    assert inside.end(message.id).end
    inside.close()
    assert seen == [turns]


# -------------------------------------------------------------------------------------------------------------- vectors


class Encoder:
    """Stands in for a model that makes vectors: each takes until it is let go, or ends where it is aborted."""

    def __init__(self) -> None:
        self.texts = self
        self.runs = 0
        self.begun: list[str] = []
        self.named: dict[str, threading.Event] = {}
        self.known = threading.Event()  # closed: requests are begun of which `abort` finds nothing yet
        self.known.set()
        self.go = threading.Event()

    def rows(self, inputs: Any, truncate: bool) -> list[list[int]]:
        return [[1, 2, 3] for _ in inputs]

    def embed(self, rows: list[list[int]], request_id: str) -> Any:
        self.begun.append(request_id)
        assert self.known.wait(60)
        aborted = self.named[request_id] = threading.Event()
        until(lambda: aborted.is_set() or self.go.is_set() or None)
        del self.named[request_id]
        if aborted.is_set():
            raise RequestError("the request was aborted")
        return np.ones((len(rows), 2), np.float32)

    def abort(self, name: str) -> bool:
        found = self.named.get(name)
        if found is not None:
            found.set()
        return found is not None


@pytest.fixture
def vectors(quick: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Inside, Encoder]]:
    monkeypatch.setattr(worker, "EMBEDDERS", 2)
    stub = Encoder()
    inside = Inside(stub)
    yield inside, stub
    stub.go.set()
    inside.close()


def test_vectors_end_where_their_client_leaves(vectors: tuple[Inside, Encoder]) -> None:
    inside, stub = vectors
    for id in (1, 2, 3):
        inside.send(frames.Embed(id, ["a", "b"]))
    until(lambda: len(stub.begun) == len(stub.named) == 2 or None)
    (waits,) = {1, 2, 3} - set(map(int, stub.begun))
    leaves, stays = map(int, stub.begun)
    inside.send(frames.Abort(waits))
    inside.send(frames.Abort(leaves))
    assert isinstance(inside.end(leaves), frames.Refused)
    assert isinstance(inside.end(waits), frames.Ended), "nothing of it was computed"
    assert not inside.ends(stays) and stub.begun == [str(leaves), str(stays)]
    stub.go.set()
    got = inside.end(stays)
    assert got == frames.Vectors(stays, 6, [[1.0, 1.0]] * 2)
    inside.send(frames.Abort(stays))  # it crossed the answer
    inside.send(frames.Embed(9, ["a"]))
    assert isinstance(inside.end(9), frames.Vectors) and len(inside.ends(stays)) == 1
    assert not inside.worker._requests and not inside.worker._computing


def test_vectors_whose_client_leaves_just_before_the_model_knows_of_them(vectors: tuple[Inside, Encoder]) -> None:
    inside, stub = vectors
    stub.known.clear()
    inside.send(frames.Embed(1, ["a"]))
    until(lambda: stub.begun or None)
    inside.send(frames.Abort(1))
    until(lambda: 1 not in inside.worker._requests or None)
    time.sleep(0.05)
    stub.known.set()
    assert isinstance(inside.end(1), frames.Refused)
    assert not stub.go.is_set() and not inside.worker._computing


def test_vectors_of_a_client_that_left_hold_their_room_until_the_engine_has_ended_them() -> None:
    with served(lambda message: []) as server:
        engine = server.app.engine
        with post(server, "/v1/embeddings", {"model": "m", "input": ["a", "b", "c"]}):
            until(lambda: server.engine.heard or None)
        until(lambda: len(server.engine.heard) == 2 or None)
        embed, abort = server.engine.heard
        assert embed.inputs == ["a", "b", "c"] and abort == frames.Abort(embed.id)
        assert engine.accepted == 3 and server.app.metrics.disconnects == 1
        server.loop.call_soon_threadsafe(engine._take, frames.Refused(embed.id, "request", "the request was aborted"))
        until(lambda: engine.accepted == 0 or None)
        until(lambda: server.app.active == 0 or None)
        assert server.app.metrics.requests["/v1/embeddings", 499] == 1
