"""What only a GPU shows: two processes on one, one that fails, and too little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kept import PICO
from tests.serve.harness import MODEL, start

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")

ROOT = Path(__file__).parents[3]
SCRIPT = "tests.backends.cuda.gpu_process"


def started(what: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", SCRIPT, what]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def said(process: subprocess.Popen[str], told: str = "") -> dict[str, Any]:
    out, err = process.communicate(told, timeout=300)
    assert process.returncode == 0, err[-3000:]
    found: dict[str, Any] = json.loads(out)
    return found


def until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    while (line := process.stderr.readline()) != "ready\n":
        assert line, "it ended"


def test_two_processes_on_one_gpu() -> None:
    both = [started("text") for _ in range(2)]
    for process in both:
        until_ready(process)
    one, other = (said(process, "go\n") for process in both)
    assert one == other and len(one["tokens"][0]) == 64


@pytest.mark.whole_gpu
def test_a_device_that_fails() -> None:
    """A typed error, in every run from then on; another process has the device."""
    found = said(started("failure"))
    assert len(found["good"]) == 4 and found["blocks"] == 0
    for code, message in found["errors"]:
        assert code == "device" and "of no more use to this process" in message
    assert said(started("too_much"))


@pytest.mark.whole_gpu
def test_memory_that_somebody_takes_while_requests_run() -> None:
    found = said(started("memory"))
    assert found["short"][0] == "memory" and found["blocks"] == 0 and found["same"]


@pytest.mark.whole_gpu
def test_a_server_whose_memory_somebody_takes() -> None:
    """Requests fail and say why, the server lives, and answers as before when the memory is back."""
    server = start("--device", "cuda", "--kv-memory", "256MB", source=PICO)
    try:
        before = server.complete(max_tokens=8)["choices"][0]["text"]
        hog = started("hog")
        until_ready(hog)
        long = [[5 + i, *range(100, 1000)] for i in range(4)]
        got = server.post("/v1/completions", {"model": MODEL, "prompt": long, "max_tokens": 2, "temperature": 0})
        assert got.status_code == 500 and "cuda:0" in got.json()["error"]["message"], got.text
        assert server.http.get("/health").status_code == 200
        assert said(hog, "go\n")["bytes"] > 0
        assert server.complete(max_tokens=8)["choices"][0]["text"] == before
        server.complete(long, max_tokens=2)
        assert not [name for name in server.metrics() if "restart" in name and server.metrics()[name]]
        assert server.end() == 0
    finally:
        server.close()


@pytest.mark.whole_gpu
def test_more_than_there_is() -> None:
    found = said(started("too_much"))
    assert found["cache"][0] == "memory" and "states" in found["cache"][1]
    assert found["weights"][0] == "memory" and "cuda:0 has" in found["weights"][1]
