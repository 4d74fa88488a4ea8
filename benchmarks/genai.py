"""OpenVINO GenAI as a peer: its converter wants a transformers of its own, so it runs under a Python of its own."""

from __future__ import annotations

import os
import subprocess
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks.harness import CACHE
from benchmarks.machine import has_bfloat16
from benchmarks.peer import Peer, absent

NAME, VARIABLE = "OpenVINO GenAI", "INGOT_BENCH_GENAI"
ABSENT = absent(NAME, VARIABLE)
# Budgets of 256 to 2,048 tokens a step, chunked prompts or whole ones, a cache in bfloat16 or float16, pinned threads
# or not and weights stored as bfloat16, float16 or float32 differ by 2 % (NOTES.md); these are the best for decoding.
SCHEDULER = {"max_num_batched_tokens": 512, "cache_size": 2}
# What its converter is told: int8 for each output, int4 in groups of 128, both symmetric.
WEIGHTS = {
    "fp16": ["fp16"], "int8": ["int8", "--sym"], "int4": ["int4", "--group-size", "128", "--sym", "--ratio", "1.0"],
}  # fmt: skip


# Rows meet weights of int8 and int4 as int8 too, 32 values to a scale, unless this property of the plugin says
# otherwise: 0 leaves them floats. Of 32, 128 and whole rows 128 is the fastest (NOTES.md).
ROWS, ROWS_OF_FLOATS, ROWS_OF_INT8 = "DYNAMIC_QUANTIZATION_GROUP_SIZE", "0", "128"


def peer(
    directory: Path, threads: int, weights: str | None = "fp16", rows_of_int8: bool = False
) -> AbstractContextManager[Peer | None]:
    """The model of a Hugging Face directory with such weights, a key of WEIGHTS. It computes in bfloat16, or in
    float32 at a level of instructions without it, or with `rows_of_int8` rounds what meets weights of integers.

    None where OpenVINO GenAI is not installed, and for no weights.
    """
    python = os.environ.get(VARIABLE)
    if not python or weights is None:
        return nullcontext()
    model = str(_converted(Path(python), directory, weights))
    properties = {"INFERENCE_PRECISION_HINT": "bf16" if has_bfloat16() else "f32"}
    properties[ROWS] = ROWS_OF_INT8 if rows_of_int8 else ROWS_OF_FLOATS
    settings = {"model": model, "threads": threads, "scheduler": SCHEDULER, "properties": properties}
    return Peer(NAME, python, "benchmarks.genai_process", settings)


def _converted(python: Path, directory: Path, weights: str) -> Path:
    """The model in OpenVINO's form with such weights, made once."""
    path = CACHE / f"{directory.name}-openvino-{weights}"
    if not (path / "openvino_model.bin").exists():
        tool = [str(python.parent / "optimum-cli"), "export", "openvino", "--model", str(directory)]
        form = ["--task", "text-generation-with-past", "--weight-format", *WEIGHTS[weights]]
        subprocess.run([*tool, *form, str(path)], check=True)
    return path
