"""Programs that time the kernels' code by itself: native/*_bench.cpp, compiled at first use with a core from build/."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.compiler import compile_program
from benchmarks.harness import ROOT
from ingot.errors import UserError

FOLDER = ROOT / "benchmarks" / "native"
PROMPT_ROWS, LAYER_SHAPES = 512, 4  # of a step of a prompt; those of a layer are the first that matmul_bench has
SECONDS = 0.5  # for each shape


def compiled(source: str, name: str, defined: Mapping[str, str]) -> Path:
    """A program from that file of native/, linked with the core that was built last, under that name.

    Raises UserError where no core was built in this tree, or no compiler is there.
    """
    cores = sorted((ROOT / "build").glob("*/libingot_core.a"), key=lambda path: path.stat().st_mtime)
    if not cores:
        raise UserError(f"{source} needs the core's static library: make builds build/*/libingot_core.a")
    core = cores[-1]
    levels = next(core.parent.rglob("include/levels.h")).parent
    folders = (levels, ROOT / "native" / "src", ROOT / "native" / "kernels")
    json_library = Path(importlib.import_module("nlohmann_json").__path__[0]) / "include"
    words = ["-DINGOT_LEVEL=bench", *(f"-D{word}={value}" for word, value in defined.items()),
             *(f"-I{folder}" for folder in folders), "-isystem", str(json_library), str(core)]  # fmt: skip
    return compile_program(name, "native", FOLDER / source, (core, *FOLDER.glob("*.h")), words)


def matmul_bench(weights: str, activations: str | None) -> Path:
    """The products of a format, which words of `ingot.build` name."""
    packing, _, group = weights.partition("-g")
    if packing == activations:
        packing = "same"  # as the rows are
    defined = {"BENCH_DTYPE": activations or "bfloat16", "BENCH_PACKING": packing, "BENCH_GROUP": group or "0"}
    return compiled("matmul_bench.cpp", f"matmul_bench-{weights}-{activations}", defined)


def prompt_rate(program: Path, layers: int, threads: int) -> float:
    """Tokens of a prompt in a second that the products of all layers alone would let through, weights from memory."""
    words = [threads, SECONDS, LAYER_SHAPES, PROMPT_ROWS]
    done = subprocess.run([str(program), *map(str, words)], check=True, capture_output=True, text=True)
    return float(PROMPT_ROWS / (layers * sum(json.loads(done.stdout)["seconds"])))
