"""Where the time of a run goes: every call with its share, its rates and how near the machine's roofs it comes."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.backends.cost import Attended, Call
from ingot.backends.device import DEFAULT, program_of
from ingot.cli import cost
from ingot.cli.inspect import name_of
from ingot.cli.output import table
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.written import check_folder, write_whole

WAITING = "(threads waiting)"  # the row of what is no call's time
CACHED = "in caches"  # in place of a share of the memory's bandwidth that no memory has
CLEAR = 1.1  # a share from which on that is so: the bandwidth is measured a little too low

# A product that any machine runs at its best: large enough to amortise, small enough for the caches.
PEAK_ROWS, PEAK_WIDTH, PEAK_RUNS = 384, 1024, 30


@dataclass(frozen=True)
class Roofs:
    """What a device does at most: bytes a second from memory, and operations a second by number format; what is known
    of it."""

    bandwidth: float | None
    flops: dict[str, float]

    def seconds(self, found: cost.Cost) -> tuple[float, str | None]:
        """The least time that a call can take, and what bounds it; 0 and None without roofs."""
        limits = [(found.moved / self.bandwidth, "memory")] if self.bandwidth else []
        if found.flops is not None and found.compute is not None:
            limits.append((found.flops / self.flops[found.compute], found.compute))
        return max(limits, default=(0.0, None))

    def json(self) -> dict[str, float | None]:
        """As --json shows them."""
        return {"bandwidth": self.bandwidth, **self.flops}

    def __str__(self) -> str:
        flops = [f"{name} {value / 1e9:,.0f} GFLOP/s" for name, value in self.flops.items()]
        memory = [f"memory {self.bandwidth / 1e9:.1f} GB/s"] if self.bandwidth else []
        return ", ".join([*memory, *flops])


@dataclass(frozen=True)
class Row:
    """One call, or the sum of all calls of a kernel."""

    name: str
    where: str
    call: int
    count: int
    seconds: float
    roof_seconds: float
    flops: int | None
    bytes: int
    bound: str | None  # None: no roof is known, and roof_seconds is 0
    shapes: str = ""
    integers: bool = False  # whether it computes in int8, whose roof is not measured
    waited: float = 0.0  # seconds behind those: threads met, and some had nothing to do

    def json(self, total: float) -> dict[str, Any]:
        """As --json shows it; `total` are the seconds of all calls."""
        return {
            "kernel": self.name, "where": self.where, "call": self.call, "calls": self.count, "shapes": self.shapes,
            "ms": self.seconds * 1e3, "share": self.seconds / total if total else 0.0, "bytes": self.bytes,
            "flops": self.flops, "gb_per_s": self.bytes / self.seconds / 1e9 if self.seconds else None,
            "gflop_per_s": self.flops / self.seconds / 1e9 if self.seconds and self.flops is not None else None,
            "share_of_roof": self.roof_seconds / self.seconds if self.seconds and self.bound else None,
            "bound_by": self.bound,
        }  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """The calls of a run in order, each with the median of its times, and the sums by kernel, the longest first."""

    calls: tuple[Row, ...]
    kernels: tuple[Row, ...]
    roofs: Roofs
    runs: int

    @property
    def waited(self) -> float:
        """The seconds between the calls, in which threads waited for one another."""
        return sum(row.waited for row in self.calls)

    @property
    def seconds(self) -> float:
        """All calls together, and the waiting between them."""
        return sum(row.seconds for row in self.calls) + self.waited

    def json(self) -> dict[str, Any]:
        """The part of --json that --profile adds."""
        total = self.seconds
        kernels = [
            {k: v for k, v in row.json(total).items() if k not in ("where", "call", "shapes")} for row in self.kernels
        ]
        calls = [{k: v for k, v in row.json(total).items() if k != "calls"} for row in self.calls]
        return {"profiled_runs": self.runs, "roofs": self.roofs.json(), "waiting_ms": self.waited * 1e3,
                "kernels": kernels, "calls": calls}  # fmt: skip

    def text(self, slowest: int, run: float) -> str:
        """Both tables, with as many of the slowest calls. `run`: the seconds of a run that was not profiled."""
        total = self.seconds
        known = f"roofs: {self.roofs}; beyond 100 %: Winograd; {CACHED!r}: faster than memory gives"
        if any(row.integers and row.bound for row in self.calls):
            known += "; calls of int8 are held against float32's roof, which they exceed"
        lines = [
            f"{len(self.calls)} calls in {total * 1e3:.3f} ms, the median of {self.runs} profiled runs each; "
            f"{max(0.0, run - total) * 1e3:.3f} ms outside them",
            known if str(self.roofs) else "roofs: none is known of this device; --bandwidth gives its memory's",
            "",
            table(self._sums(total), ("kernel", "calls", *_HEAD)),
        ]
        if slowest:
            rows = sorted(self.calls, key=lambda row: -row.seconds)[:slowest]
            shown = [(row.call, row.name, *_figures(row, total), row.shapes, row.where) for row in rows]
            lines += ["", table(shown, ("call", "kernel", *_HEAD, "shapes", "where"))]
        return "\n".join(lines)

    def _sums(self, total: float) -> list[tuple[Any, ...]]:
        """The rows of the first table: kernels, and what threads waited behind them."""
        rows = [(row.seconds, (row.name, row.count, *_figures(row, total))) for row in self.kernels]
        if self.waited:
            share = f"{self.waited / total:6.1%}"
            rows.append((self.waited, (WAITING, None, self.waited * 1e3, share, None, None, "-", None)))
        return [shown for _, shown in sorted(rows, key=lambda row: -row[0])]

    def trace(self) -> dict[str, Any]:
        """A Chrome trace: the calls one after the other, as they ran."""
        events: list[dict[str, Any]] = []
        at, total = 0.0, self.seconds
        for row in self.calls:
            figures = {k: v for k, v in row.json(total).items() if k not in ("calls", "ms")}
            events.append(
                {"name": row.name, "cat": row.where or "-", "ph": "X", "pid": 0, "tid": 0, "ts": at * 1e6,
                 "dur": row.seconds * 1e6, "args": figures}
            )  # fmt: skip
            at += row.seconds + row.waited
        names = (("process_name", "ingot"), ("thread_name", f"median of {self.runs} runs"))
        events += [
            {"name": kind, "ph": "M", "pid": 0, "tid": 0, "ts": 0, "dur": 0, "args": {"name": name}}
            for kind, name in names
        ]
        return {"traceEvents": events, "displayTimeUnit": "ns"}


_HEAD = ("ms", "share", "GB/s", "GFLOP/s", "of the roof", "bound by")


def _figures(row: Row, total: float) -> tuple[Any, ...]:
    if not row.seconds:
        return (0.0, "-", None, None, "-", row.bound)
    near = row.roof_seconds / row.seconds
    share = CACHED if row.bound == "memory" and near > CLEAR else f"{near:6.1%}" if row.bound else "-"
    return (
        row.seconds * 1e3, f"{row.seconds / total:6.1%}", row.bytes / row.seconds / 1e9,
        row.flops / row.seconds / 1e9 if row.flops else None, share, row.bound,
    )  # fmt: skip


def profile(
    engine: Engine, run: Callable[[], list[dict[str, Any]]], runs: int, roofs: Roofs, attended: Attended | None
) -> Profile:
    """Profiles `runs` runs; a call's time is the median of its times. `attended`: see Attended."""
    measured = [run() for _ in range(runs)]
    target = engine.device.runtime.name
    calls = program_of(engine.header)["calls"] if target == DEFAULT else ()  # another one runs the network's nodes
    rows = []
    for item, *more in zip(*measured, strict=True):
        seconds = statistics.median(one["ns"] - one.get("waited_ns", 0) for one in (item, *more)) / 1e9
        params = calls[item["call"]].get("params", {}) if calls else {}
        waited = statistics.median(one.get("waited_ns", 0) for one in (item, *more)) / 1e9  # of the CPU's threads
        rows.append(replace(_row(item, params, target, seconds, roofs, attended), waited=waited))
    sums: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        sums[row.name].append(row)
    kernels = sorted((_sum(name, group) for name, group in sums.items()), key=lambda row: -row.seconds)
    return Profile(tuple(rows), tuple(kernels), roofs, runs)


def _row(
    item: dict[str, Any], params: Mapping[str, Any], target: str, seconds: float, roofs: Roofs,
    attended: Attended | None,
) -> Row:  # fmt: skip
    inputs, outputs = (tuple((dtype, tuple(shape)) for dtype, shape in item[side]) for side in ("in", "out"))
    name = name_of(item)
    found = cost.of(Call(name, params, inputs, outputs, item["bytes"], attended), target)
    least, bound = roofs.seconds(found)
    shapes = " -> ".join("×".join(map(str, tensors[0][1])) for tensors in (inputs, outputs) if tensors)
    integers = bool(inputs) and inputs[0][0] == "int8"
    return Row(name, item["where"], item["call"], 1, seconds, least, found.flops, found.moved, bound, shapes, integers)


def _sum(name: str, rows: Sequence[Row]) -> Row:
    by_bound: dict[str | None, float] = defaultdict(float)
    for row in rows:
        by_bound[row.bound] += row.seconds
    flops = [r.flops for r in rows if r.flops is not None]
    return Row(
        name, "", -1, len(rows), sum(r.seconds for r in rows), sum(r.roof_seconds for r in rows),
        sum(flops) if flops else None, sum(r.bytes for r in rows), max(by_bound, key=lambda bound: by_bound[bound]),
    )  # fmt: skip


def write_trace(path: str, found: Profile) -> None:
    """Writes the Chrome trace. Raises FileError."""
    write_whole(Path(path), json.dumps(found.trace()).encode())


def check_trace_path(path: str) -> None:
    """Raises UserError for a path that is rather the forgotten source, FileError for a folder that takes none."""
    if path.endswith((".ingot", ".pt2", ".onnx", ".safetensors")) or Path(path).is_dir():
        raise UserError(
            f"--profile {path}: that is no file for a trace; SOURCE comes first: ingot bench {path} --profile"
        )
    check_folder(path)


# --------------------------------------------------------------------------------------------------------------- roofs


def peak(dtype: str, threads: int | None) -> float:
    """Operations a second of our own product of this type at its best: what the other kernels are measured against."""
    shape = [PEAK_WIDTH // 32, PEAK_WIDTH // 2, 32, 2] if dtype == "bfloat16" else [PEAK_WIDTH // 32, PEAK_WIDTH, 32]
    epilogue = {"steps": [["input", "float32", 0]], "outputs": [0]}
    program = {
        "version": 1,
        "symbols": [],
        "buffers": [
            {"kind": "input", "name": "x", "dtype": dtype, "shape": [PEAK_ROWS, PEAK_WIDTH]},
            {"kind": "weight", "tensor": "w", "dtype": dtype, "shape": shape},
            {"kind": "temp", "dtype": dtype, "shape": [PEAK_ROWS, PEAK_WIDTH]},
        ],
        "calls": [{"kernel": "matmul_packed", "version": 1, "in": [0, 1], "out": [2],
                   "params": {"n": PEAK_WIDTH, "k": PEAK_WIDTH, "parts": 1, "epilogue": epilogue}}],
        "outputs": [{"name": "y", "buffer": 2}],
    }  # fmt: skip
    kind = dtypes.get(dtype).numpy
    header = {"format": 1, "programs": {DEFAULT: {"entries": {"main": program}}}}
    engine = Engine.from_memory(header, {"w": np.ones(shape, kind)})
    session = engine.session(threads)
    feeds = {"x": np.ones((PEAK_ROWS, PEAK_WIDTH), kind)}
    best = min((session.profile(feeds)[0]["ns"] for _ in range(PEAK_RUNS)), default=math.inf)
    return 2 * PEAK_ROWS * PEAK_WIDTH * PEAK_WIDTH / (best / 1e9)
