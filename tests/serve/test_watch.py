"""An engine process that hangs without dying: it is killed, those who wait are told, and another one serves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attacks.directories import Directory, config
from attacks.tokenizers import tokenizer
from ingot.serve import engine_process, frames
from ingot.serve.engine_process import EngineProcess
from ingot.serve.problem import Problem
from ingot.serve.worker import STATS_EVERY, Stillness
from tests.serve.harness import MODEL, ROOT, hurried, serving, until

LONG = {"model": MODEL, "prompt": "import os", "max_tokens": 1000, "temperature": 0, "logit_bias": {"0": -100}}


def test_a_stopped_engine_is_killed_and_started_again() -> None:
    with serving("--step-timeout", 6) as server, ThreadPoolExecutor(3) as pool:
        before = server.complete(max_tokens=20)
        stopped = server.engine_pid()
        os.kill(stopped, signal.SIGSTOP)  # it says nothing any more, and does not end
        waiting = [pool.submit(server.post, "/v1/completions", LONG) for _ in range(3)]
        for future in waiting:
            got = future.result()
            assert (got.status_code, got.json()["error"]["code"]) == (503, "engine_down")
            assert int(got.headers["retry-after"]) >= 1
        until(lambda: server.http.get("/ready").status_code == 200 or None)
        assert not Path(f"/proc/{stopped}").exists() and server.engine_pid() != stopped
        metrics = server.metrics()
        assert metrics["ingot_engine_hangs_total"] == metrics["ingot_engine_restarts_total"] >= 1
        health = server.http.get("/health").json()
        assert health["engine_hangs"] == health["engine_restarts"] == metrics["ingot_engine_hangs_total"]
        assert server.says(f"{stopped} hangs and is killed: has said nothing for")
        assert server.complete(max_tokens=20)["choices"] == before["choices"]


def test_without_a_limit_nobody_is_killed() -> None:
    server = hurried("frames.HEARTBEAT", "engine_process.SILENCE", words=("--step-timeout", 0))
    try:
        with ThreadPoolExecutor(1) as pool:
            engine = server.engine_pid()
            os.kill(engine, signal.SIGSTOP)
            waiting = pool.submit(server.post, "/v1/completions", LONG | {"max_tokens": 3})
            with pytest.raises(TimeoutError):
                waiting.result(2)
            os.kill(engine, signal.SIGCONT)
            assert waiting.result().status_code == 200
            assert server.metrics()["ingot_engine_hangs_total"] == 0
        assert server.end() == 0
    finally:
        server.close()


@pytest.mark.slow  # what ends it is below, of an engine that only says so
def test_a_prompt_that_takes_for_ever_is_ended(tmp_path: Path) -> None:
    """The pattern looks for a b from every a on, which no check of the file forbids; other requests go on meanwhile."""
    content: Any = tokenizer()
    content["pre_tokenizer"]["pattern"]["Regex"] = "a+b|[c-z]+"
    long = config() | {"max_position_embeddings": 1 << 13}
    Directory(config=long, files={"tokenizer.json": json.dumps(content).encode()}).write(tmp_path / "model")
    with serving("--step-timeout", 6, source=tmp_path / "model") as server, ThreadPoolExecutor(1) as pool:
        path, body = "/v1/completions", {"model": "model", "max_tokens": 2}
        hostile = pool.submit(server.post, path, body | {"prompt": "a" * 1_000_000 + " b"})
        assert server.post(path, body | {"prompt": "cde"}).status_code == 200
        got = hostile.result()
        assert (got.status_code, got.json()["error"]["code"]) == (503, "engine_down")
        assert server.says("hangs and is killed: one step or prompt has taken")
        until(lambda: server.http.get("/ready").status_code == 200 or None)
        assert server.post(path, body | {"prompt": "cde"}).status_code == 200
        assert server.metrics()["ingot_engine_hangs_total"] >= 1


# What stands in for an engine process: it is ready at once, and then reports of a step that never ends, or of none.
STUCK = """
import socket, sys, time
from ingot.serve import frames
connection = socket.socket(fileno=int(sys.argv[1]))
connection.recv(1 << 16)
connection.sendall(frames.encode(frames.Ready(64, 64, True, False, False, [])))
beats = 0.0
while True:
    beats += float(sys.argv[2])
    connection.sendall(frames.encode(frames.Load(1, 0, 1, 0, 1, 1, 0, 0, 0, beats)))
    time.sleep(0.2)
"""


def _spawned(grows: float, started: list[subprocess.Popen[bytes]]) -> Any:
    def spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", STUCK, str(connection.fileno()), str(grows)]
        found = subprocess.Popen(command, pass_fds=(connection.fileno(),), env=os.environ | {"PYTHONPATH": str(ROOT)})
        started.append(found)
        return found

    return spawn


def _start() -> frames.Start:
    return frames.Start("none", None, None, "cpu", None, None, None, 1, True, None, None, None)


def test_a_step_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(engine_process, "_spawn", _spawned(50.0, started))

    async def meet() -> None:
        engine = EngineProcess(_start(), 1, patience=100.0)
        await engine.open()
        ticket = engine.submit([frames.Embed(engine.next_id(), ["x"])], "input")
        with pytest.raises(Problem) as caught:
            await ticket.vectors()
        assert (caught.value.status, caught.value.code) == (503, "engine_down")
        monkeypatch.setattr(engine_process, "_spawn", _spawned(0.0, started))
        while engine.restarts < engine.hangs or engine.ready is None or engine.load is None:
            await asyncio.sleep(0.05)
        hangs, pid = engine.hangs, engine.pid
        assert hangs >= 1
        for _ in range(3):  # a step that has only begun is left alone
            await asyncio.sleep(frames.HEARTBEAT)
        assert (engine.hangs, engine.pid) == (hangs, pid)
        await engine.close()

    asyncio.run(meet())
    assert all(process.returncode is not None for process in started)
    assert any("one step or prompt has taken" in record.message for record in caplog.records)


def test_a_start_that_fails_whatever_the_reason_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    spawn = _spawned(0.0, started)
    monkeypatch.setattr(engine_process, "_spawn", spawn)
    monkeypatch.setattr(engine_process, "FIRST_DELAY", 0.05)
    failures = [RuntimeError("cannot start a thread"), MemoryError(), OSError("no process")]

    def fail(connection: socket.socket) -> subprocess.Popen[bytes]:
        if failures:
            raise failures.pop()
        return spawn(connection)

    async def meet() -> None:
        engine = EngineProcess(_start(), 1)
        await engine.open()
        monkeypatch.setattr(engine_process, "_spawn", fail)
        started[0].kill()
        while engine.ready is None or len(started) < 2:
            await asyncio.sleep(0.01)
        assert engine.restarts == 4 and not failures
        await engine.close()

    asyncio.run(asyncio.wait_for(meet(), 60))


def test_stillness_counts_looks_at_work_that_does_not_go_on() -> None:
    steps = Stillness()
    assert [steps.seen(7, False) for _ in range(3)] == [0, 0, 0], "nothing to do"
    assert [steps.seen(7, True) / STATS_EVERY for _ in range(3)] == [1, 2, 3]
    assert steps.seen(8, True) == 0, "a step has ended"
    assert steps.seen(8, True) == STATS_EVERY
    assert steps.seen(8, False) == 0
