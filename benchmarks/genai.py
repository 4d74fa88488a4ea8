"""OpenVINO GenAI as a peer: its converter wants a transformers of its own, so it runs under a Python of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.harness import CACHE

VARIABLE = "INGOT_BENCH_GENAI"
ABSENT = f"OpenVINO GenAI is not installed: {VARIABLE} names no Python that has it (benchmarks/README.md)"
PROCESS = Path(__file__).parent / "genai_process.py"
# Budgets of 256 to 2,048 tokens a step, chunked prompts or whole ones, a cache in bfloat16 or float16, pinned threads
# or not and weights stored as bfloat16, float16 or float32 differ by 2 % (NOTES.md); these are the best for decoding.
SCHEDULER = {"max_num_batched_tokens": 512, "cache_size": 2}
PROPERTIES = {"INFERENCE_PRECISION_HINT": "bf16"}
# What its converter is told: int8 for each output, int4 in groups of 128, both symmetric.
WEIGHTS = {
    "fp16": ["fp16"], "int8": ["int8", "--sym"], "int4": ["int4", "--group-size", "128", "--sym", "--ratio", "1.0"],
}  # fmt: skip

Event: TypeAlias = tuple[float, int, int]  # seconds since the requests were handed over, request, tokens


class GenAI:
    """The process. It computes in bfloat16, from weights stored with 16 bits."""

    def __init__(self, python: Path, model: Path, threads: int) -> None:
        settings = json.dumps({"threads": threads, "scheduler": SCHEDULER, "properties": PROPERTIES})
        command = [str(python), str(PROCESS), str(model), settings]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self._answer()["version"]

    def generate(self, prompts: list[list[int]], tokens: int) -> list[Event]:
        """All prompts at once, greedily: which tokens came when."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        return [(seconds, request, count) for seconds, request, count in self._answer()["events"]]

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"OpenVINO GenAI has ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def peer(directory: Path, threads: int, weights: str | None = "fp16") -> Iterator[GenAI | None]:
    """The model of a Hugging Face directory with such weights, a key of WEIGHTS.

    None where OpenVINO GenAI is not installed, and for no weights.
    """
    python = os.environ.get(VARIABLE)
    if not python or weights is None:
        yield None
        return
    found = GenAI(Path(python), _converted(Path(python), directory, weights), threads)
    try:
        yield found
    finally:
        found.close()


def _converted(python: Path, directory: Path, weights: str) -> Path:
    """The model in OpenVINO's form with such weights, made once."""
    path = CACHE / f"{directory.name}-openvino-{weights}"
    if not (path / "openvino_model.bin").exists():
        tool = [str(python.parent / "optimum-cli"), "export", "openvino", "--model", str(directory)]
        form = ["--task", "text-generation-with-past", "--weight-format", *WEIGHTS[weights]]
        subprocess.run([*tool, *form, str(path)], check=True)
    return path
