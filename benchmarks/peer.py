"""A peer under a Python of its own, and both ends of the pipe to it: it gets its work as JSON, and takes its own times.

The process's first line of standard output is {"version": text}. Then each line of standard input, {"prompts":
[[id, ...], ...], "tokens": n}, is answered by one, {"events": [[seconds since they were handed over, request, tokens],
...]}. The peer's Python reads this file too, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parent.parent
Event: TypeAlias = tuple[float, int, int]  # seconds since the requests were handed over, request, tokens
Generate: TypeAlias = Callable[[list[list[int]], int], list[Event]]  # prompts, and tokens for each


def absent(name: str, variable: str) -> str:
    """What a benchmark notes of a peer that is not installed."""
    return f"{name} is not installed: {variable} names no Python that has it (benchmarks/README.md)"


class Peer:
    """Our end: a process that runs `module` under `python`, until the `with` ends.

    Raises SystemExit with the peer's name when it ends before that.
    """

    def __init__(self, name: str, python: str, module: str, settings: dict[str, Any]) -> None:
        self.name = name
        command = [python, "-m", module, json.dumps(settings)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self._answer()["version"]

    def generate(self, prompts: list[list[int]], tokens: int) -> list[Event]:
        """All prompts at once, greedily: which tokens came when."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return [(seconds, request, count) for seconds, request, count in self._answer()["events"]]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve(version: str, generate: Generate) -> None:
    """The peer's end: answers standard input until it ends."""
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"events": generate(asked["prompts"], asked["tokens"])}), flush=True)
