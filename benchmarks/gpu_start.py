"""From the start of a process to its first tokens on a GPU: Triton's cache empty, empty beside kernels that travelled,
and warm.

The engine is a file, which the system has cached. What a start spends beyond reading it is the first request, less one
like it later; opening the file brings the weights to the GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.alike import alike
from benchmarks.gpu_decode import SHAPES, started
from benchmarks.gpu_eager import beside_eager
from benchmarks.gpu_generate import PROMPT, build
from benchmarks.harness import ROOT, Options, Result
from ingot.builder import kernels

CASES = ((1, "same"), (0, "same"), (0, "int4-g128"))  # shapes and weights
COLD, WARM = 30.0, 3.0  # seconds


def gpu_start(options: Options) -> Result:
    """Every case three times from its start."""
    result, _ = started("gpu-start")
    for number in sorted({number for number, _ in CASES}):
        beside_eager(result, SHAPES[number], 1, PROMPT)
    for number, weights in CASES:
        with TemporaryDirectory() as place:
            _case(result, number, weights, Path(place))
    return result


def _case(result: Result, number: int, weights: str, place: Path) -> None:
    of = f"{SHAPES[number].name} {'bfloat16' if weights == 'same' else weights}"
    path = place / "x.ingot"
    with alike():
        engine = build(SHAPES[number], weights=weights)
        engine.save(path)
    built = kernels.beside(engine.on("cuda"), path, progress=False)
    del engine
    result.add(f"{of}: kernels of it compiled ahead", built.seconds, "s",
               note=f"{built.kernels} kernels, {built.bytes / 1e6:.1f} MB, {os.cpu_count()} processors")  # fmt: skip
    travelled = {"INGOT_KERNELS": f"{path}.cuda"}
    more: dict[str, str]
    for what, more in (("cold", {}), ("with its kernels", travelled), ("warm", {})):
        cache = place / ("travelled" if more else "own")
        found = _started(path, {"TRITON_CACHE_DIR": str(cache), **more})
        beyond = found["first token"] + found["decoding"] - found["decoding again"]
        goal = COLD if what == "cold" else WARM
        result.add(f"{of}, {what}: to the first tokens, beyond reading the file", beyond, "s", at_most=goal)
        note = ", ".join(f"{name} {value:.2f}" for name, value in found.items() if isinstance(value, float))
        result.notes.append(f"{of}, {what}: {note}; compiled {found['compiled']}, had {found['had']}")
        print(result.notes[-1], file=sys.stderr, flush=True)


def _started(path: Path, variables: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu_start_process", str(path), str(PROMPT)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    if "compiled here" in done.stderr:
        print(done.stderr[-2000:], file=sys.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
