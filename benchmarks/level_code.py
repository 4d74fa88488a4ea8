"""Programs that time the kernels' code by itself: native/*_bench.cpp, compiled at first use with a core from build/."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import CACHE, ROOT
from ingot.errors import UserError

FOLDER = ROOT / "benchmarks" / "native"
PROMPT_ROWS, LAYER_SHAPES = 512, 4  # of a step of a prompt; those of a layer are the first that matmul_bench has
SECONDS = 0.5  # for each shape
COMPILER = "g++"


def compiled(source: str, name: str, defined: Mapping[str, str]) -> Path:
    """A program from that file of native/, linked with the core that was built last, under that name.

    Raises UserError where no core was built in this tree, or no compiler is there.
    """
    cores = sorted((ROOT / "build").glob("*/libingot_core.a"), key=lambda path: path.stat().st_mtime)
    if not cores:
        raise UserError(f"{source} needs the core's static library: make builds build/*/libingot_core.a")
    core, program = cores[-1], CACHE / name
    sources = [core, *FOLDER.glob("*.h"), FOLDER / source]
    if not program.exists() or program.stat().st_mtime < max(one.stat().st_mtime for one in sources):
        if shutil.which(COMPILER) is None:
            raise UserError(f"{source} needs a compiler, {COMPILER}")
        CACHE.mkdir(parents=True, exist_ok=True)
        levels = next(core.parent.rglob("include/levels.h")).parent
        folders = (levels, ROOT / "native" / "src", ROOT / "native" / "kernels")
        json_library = Path(importlib.import_module("nlohmann_json").__path__[0]) / "include"
        command = [COMPILER, "-O3", "-std=c++20", "-march=native", "-pthread", "-DINGOT_LEVEL=bench"]
        command += [f"-D{word}={value}" for word, value in defined.items()]
        command += [*(f"-I{folder}" for folder in folders), "-isystem", str(json_library)]
        subprocess.run([*command, str(FOLDER / source), str(core), "-o", str(program)], check=True)
    return program


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
