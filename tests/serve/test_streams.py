"""Pieces on their way into a stream: what a chunk looks like, and which pieces are written without waking anybody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ingot.serve import frames
from ingot.serve.answers import Reply
from ingot.serve.engine_process import Ticket
from ingot.serve.schema import Job
from tests.serve.in_process import END, served
from tests.serve.test_wire import BODY, JSON, H

TEXTS = ("a", "\0", '"\\', "é\n\u2028", "logprobs", " ", "𝄞")
STREAM = BODY[:-1] + b', "stream": true}'


def reply(chat: bool, usage: bool, n: int = 2) -> Reply:
    """Of a request under a model's name that looks like what stands in for a text."""
    request = frames.Generate(7, "a", None, None, Any, 0, True, False)  # type: ignore[arg-type]
    return Reply(Job(chat, "\0 m", [request], n, True, usage, False, False))


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_chunks_in_the_middle_look_like_the_last_one(chat: bool, usage: bool) -> None:
    one = reply(chat, usage)
    for index in (0, 1):
        for text in TEXTS:
            middle = one.chunk(frames.Piece(7, index, text, 1, [], None))
            assert middle == one._chunk(index, text)
            (choice,) = json.loads(middle.removeprefix(b"data: "))["choices"]
            assert choice["index"] == index
            assert (choice["delta"]["content"] if chat else choice["text"]) == text
        last = one.chunk(frames.Piece(7, index, "a", 1, [], END))
        assert last == one._chunk(index, "a").replace(b'"finish_reason":null', b'"finish_reason":"length"')
    assert not one.left


def piece(text: str, end: frames.End | None = None) -> frames.Piece:
    return frames.Piece(7, 0, text, 1, [], end)


def test_pieces_that_are_shown_at_once_overtake_none() -> None:
    """With those before them gone, and somebody waiting for more; an end always wakes."""

    async def run() -> None:
        ticket, shown, flows = Ticket([7], 1), [], True

        def at_once(piece: frames.Piece) -> bool:
            if flows:
                shown.append(piece.text)
            return flows

        ticket.at_once = at_once
        ticket.push(piece("a"))  # nobody waits yet
        assert [p.text for p in await ticket.pieces()] == ["a"]
        ticket.push(piece("b"))  # who has "a" may not have written it yet
        assert not shown
        assert [p.text for p in await ticket.pieces()] == ["b"]
        task = asyncio.create_task(ticket.pieces())
        await asyncio.sleep(0)
        ticket.push(piece("c"))
        assert shown == ["c"] and not task.done()
        flows = False
        ticket.push(piece("d"))
        flows = True
        ticket.push(piece("e"))  # behind "d"
        ticket.push(piece("f", END))
        assert [p.text for p in await task] == ["d", "e", "f"]
        assert shown == ["c"] and not ticket.left

    asyncio.run(run())


def test_a_fault_of_a_chunk_is_its_answer_s_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to light in the middle of handing out what many got; the engine's socket stays open."""
    chunk = Reply.chunk

    def broken(self: Reply, piece: frames.Piece) -> bytes:
        assert piece.text != "bad"
        return chunk(self, piece)

    def says(message: Any) -> list[frames.FromEngine]:
        if not isinstance(message, frames.Generate):
            return [frames.Ended(message.id)]
        return [frames.Pieces([frames.Piece(message.id, 0, "first", 1, [], None)])]

    monkeypatch.setattr(Reply, "chunk", broken)
    with served(says) as server, server.connect() as one, server.connect() as other:
        for connection in (one, other):
            connection.settimeout(60)
            head = b"POST /v1/completions HTTP/1.1\r\n" + H + JSON + b"Content-Length: %d\r\n\r\n" % len(STREAM)
            connection.sendall(head + STREAM)
            got = b""
            while b"first" not in got:
                got += connection.recv(1 << 16)
        ids = [message.id for message in server.engine.heard]
        texts = zip((*ids, ids[1]), ("bad", "good", ""), (None, None, END), strict=True)
        for id, text, end in texts:
            word = frames.Pieces([frames.Piece(id, 0, text, 2, [], end)])
            server.loop.call_soon_threadsafe(server.app.engine._take, word)
        got = b""
        while b"[DONE]" not in got:
            got += other.recv(1 << 16)
        assert b"good" in got
        rest = b""
        while part := one.recv(1 << 16):
            rest += part
        assert b"[DONE]" not in rest and b"bad" not in rest
