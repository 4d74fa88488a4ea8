"""Requests drawn from the server's own description, good ones and bad ones: none may end in a fault of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.harness import Running, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--chat-template", "plain", "--context", 256) as running:
        yield running


@pytest.mark.slow
def test_drawn_requests(server: Running, tmp_path: Path) -> None:
    # What is legal by itself may be refused beside other words, as top_logprobs without logprobs.
    excluded = "positive_data_acceptance"
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
    command += [f"{server.url}/openapi.json", "--exclude-checks", excluded, "--max-examples", "100"]
    command += ["--generation-deterministic", "--request-timeout", "100"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    metrics = server.until(lambda m: not m["ingot_queue_depth"] and not m["ingot_kv_blocks_used"])
    assert metrics["ingot_engine_restarts_total"] == 0
    assert not any('status="500"' in name or 'status="503"' in name for name in metrics)
