"""More than a server has room for: clients that leave, texts that are too long. Others are served meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from ingot.serve import frames
from ingot.serve.engine_process import EngineProcess, Ticket
from ingot.serve.problem import Problem
from tests.serve.harness import MODEL, Running, serving

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
    engine.close_ticket(ticket, 1.0)
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
        engine.close_ticket(ticket, 1.0)
        assert full()
        engine._take(ended(ticket.ids[0]))
        assert engine.accepted == 0
    ticket = asked()
    engine._take(frames.Pieces([frames.Piece(ticket.ids[0], i, "", 1, [], end) for i in range(2)]))
    before = len(ear.heard)
    engine.close_ticket(ticket, 1.0)
    assert len(ear.heard) == before, "it has ended: there is nothing to abort"
    asked()
    engine._lost()
    assert engine.accepted == 0
