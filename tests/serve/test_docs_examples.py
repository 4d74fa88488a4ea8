"""The examples of docs/serving.md, run as they are printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.serve.harness import PATIENCE, ROOT, Running, serving

BLOCKS = dict(re.findall(r"```(python|sh)\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--chat-template", "plain", "--model-name", "model") as running:
        yield running


def run(command: list[str], text: str, server: Running) -> str:
    assert "127.0.0.1:8000" in text
    done = subprocess.run(
        [*command, text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")], capture_output=True, text=True,
        timeout=PATIENCE, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client(server: Running) -> None:
    shown = run([sys.executable, "-c"], BLOCKS["python"], server)
    assert "completion_tokens=" in shown and shown.endswith("2\n")  # between them a text that nobody foresees


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: Running) -> None:
    shown = run(["sh", "-ec"], BLOCKS["sh"], server)
    for part in ('"object":"chat.completion"', "data: [DONE]", "ingot_engine_up 1"):
        assert part in shown
