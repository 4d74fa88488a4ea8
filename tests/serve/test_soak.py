"""What `make soak` looks at: that it sees what it is there to see. The run itself takes hours."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.serve.in_process import served
from tools import soak
from tools.soak import Job, Load, Rest, Server, Watch, growth


def server_on(port: int, log: Path) -> Server:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        return Server(ended, log, port)


def rests(leak: float, pid: int = 1) -> list[Rest]:
    draw = random.Random(0)
    return [Rest(60.0 * i, pid, 200_000_000 + int(leak * i) + draw.randrange(4 << 20), 20, 9) for i in range(60)]


def test_memory_that_grows(tmp_path: Path) -> None:
    assert growth(rests(0)[: soak.JUDGED - 1]) is None
    for leak, faults in ((0.0, 0), (1e6, 1)):
        watch = Watch(server_on(1, tmp_path / "log"))
        watch.rests = {1: rests(leak)}
        (row,) = watch.judge(60.0)
        assert row["judged"] and len(watch.server.faults) == faults, watch.server.faults
    watch.judge(soak.LONG_RUN)
    assert "memory was judged of ['engine'] only" in watch.server.faults


def test_another_answer(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "x"}
    with served() as quiet:
        server = server_on(quiet.port, tmp_path / "log")
        status, text = server.ask("POST", soak.COMPLETION, json.dumps(body).encode())
        assert status == 200
        right: Any = soak.answer_of(Job(soak.COMPLETION, body), text)
        wrong = json.loads(json.dumps(right).replace('"word"', '"world"'))
        for answer, faults in ((right, 0), (tuple(wrong), 8)):
            load = Load(server, [Job(soak.COMPLETION, body, answer)], 0)
            for i in range(8):  # whole and streamed
                load.good(random.Random(i))
            assert len(server.faults) == faults, server.faults
        quiet.app.engine.ready = None  # 503, and nobody has killed the engine process
        load.good(random.Random(0))
        assert "status 503" in server.faults[-1]


@pytest.mark.parametrize(
    "line", [f"x {soak.KEY}", f"x {soak.CANARY}", "Traceback (most recent call last):", "x" * 9000]
)
def test_a_log_that_holds_what_it_should_not(line: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("127.0.0.1 POST /v1/completions 200 0.1 s\n")
    server = server_on(1, log)
    soak._judge_log(server)
    assert not server.faults
    log.write_text(log.read_text() + line + "\n")
    soak._judge_log(server)
    assert len(server.faults) >= 1


def test_a_stream_that_is_cut_off() -> None:
    job = Job(soak.COMPLETION, {})
    event = 'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}\n\n'
    assert soak.streamed(job, (event + "data: [DONE]\n\n").encode()) == [("a", "stop")]
    with pytest.raises(ValueError, match="a stream ends with"):
        soak.streamed(job, event.encode())
