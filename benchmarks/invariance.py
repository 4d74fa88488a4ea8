"""What it costs that a row's result does not depend on its company: our products beside ways whose bits depend on it.

The products are those of a layer of TinyLlama's shape, with weights from memory, for one row, 16 and a prompt of 512.
What the ways do is said in native/invariance_bench.cpp, which is compiled at first use: that takes g++ and a build of
the core in build/. With its 9 pairs it takes two to three minutes.

Of another way the result is how many times as fast as ours it is: above 1 ours loses.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, Result, Sample, ratios
from benchmarks.level_code import compiled
from benchmarks.llm_formats import FORMATS, Format
from benchmarks.machine import forced_level
from benchmarks.tinyllama import LAYERS
from ingot.errors import UserError


def invariance(options: Options) -> Result:
    """For each format and number of rows: the layers' products, and how many times as fast other ways are."""
    if forced_level() is not None:
        raise UserError("invariance: its ways are compiled for this machine, not for a level: unset INGOT_ISA")
    result = Result("invariance")
    program = compiled("invariance_bench.cpp", "invariance", {})
    for format in FORMATS:
        found = _measured(program, format, options)
        ours = {one["rows"]: one["seconds"] for one in found if one["way"] == "ours"}
        for rows, times in ours.items():
            label = f"{format.name}, {rows} row{'s' if rows > 1 else ''}"
            sample = Sample.of([1e3 * LAYERS * one for one in times])
            result.measured(f"{label}: ours, {LAYERS} layers", sample, "ms")
            for other in (one for one in found if one["rows"] == rows and one["way"] != "ours"):
                faster = ratios(times, other["seconds"])
                note = f"differs by {other['difference']:.1g} of the largest" if other["difference"] else ""
                result.measured(f"{label}: {other['way']}", faster, "× as fast", note)
    return result


def _measured(program: Path, format: Format, options: Options) -> list[dict[str, Any]]:
    """Of each number of rows and way: the seconds of each round."""
    weights, _, group = format.weights.partition("-g")
    if weights == "int8" and format.activations:
        weights = "same"  # as the rows are
    words = [str(options.threads), str(options.pairs), format.activations or "bfloat16", weights, group or "0"]
    done = subprocess.run([str(program), *words], check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["found"]
    return found
