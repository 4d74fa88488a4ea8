"""What all benchmarks share: rows of results with goals, alternating pairs, quartiles, the table."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.machine import machine_name

ROOT = Path(__file__).parent.parent
CACHE = ROOT / "build" / "bench"  # models and programs made for the benchmarks; everything there can be made again
PICO = ROOT / "models" / "pico-python"
THREADS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Options:
    """What the command line can change. `pairs`: how often ours and the peer alternate after warm-up; `server_cpus` and
    `client_cpus`: where a server and its clients run (none: anywhere)."""

    pairs: int = 9
    threads: int = THREADS
    server_cpus: tuple[int, ...] = ()
    client_cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """One figure. `at_least` and `at_most` are goals; `quartiles` those of the ratios or of the single runs."""

    what: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    quartiles: tuple[float, float] | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.at_least is None and self.at_most is None:
            return None
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)


@dataclass(frozen=True)
class Sample:
    """The median and quartiles of repeated measurements."""

    median: float
    quartiles: tuple[float, float]

    @classmethod
    def of(cls, values: list[float]) -> Sample:
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(middle, (low, high))


@dataclass(frozen=True)
class Pairs:
    """Alternating measurements of ours and a peer, and the ratio ours / peer of each pair."""

    ours: Sample
    peer: Sample
    ratio: Sample


@dataclass(frozen=True)
class Share:
    """How much of what the machine can do at most somebody reached: a bar of the chart.

    work: what was computed, the same words for all who did. limit: what bounds it, arithmetic or read bandwidth.
    """

    work: str
    who: str
    share: float
    limit: str
    value: float
    unit: str


@dataclass
class Result:
    """What one benchmark prints. `machine`: a GPU's name, where that is what it measures."""

    name: str
    machine: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # peers that are missing, or their versions
    shares: list[Share] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, **rest: Any) -> None:
        self.rows.append(Row(what, value, unit, **rest))

    def measured(self, what: str, sample: Sample, unit: str, note: str = "") -> float:
        """Adds a sample, and says it at once, for what takes minutes; its median."""
        self.add(what, sample.median, unit, quartiles=sample.quartiles, note=note)
        print(f"{what}: {sample.median:.4g} {unit} {note}", file=sys.stderr, flush=True)
        return sample.median

    def json(self) -> dict[str, Any]:
        rows = [{**{k: v for k, v in asdict(r).items() if v not in (None, "")}, "met": r.met} for r in self.rows]
        about = {"machine": self.machine or machine_name(), "threads": THREADS, "notes": self.notes}
        shares = {"shares": [asdict(share) for share in self.shares]} if self.shares else {}
        return {"schema": 1, "name": self.name, **about, "rows": rows, **shares}

    def show(self, console: Console) -> None:
        columns = ("what", "measured", "quartiles", "goal", "")
        title = f"{self.name} ({self.machine or machine_name()})"
        table = Table(*columns, title=title, caption="\n".join(self.notes) or None)
        for row in self.rows:
            low, high = row.quartiles or (None, None)
            spread = "" if low is None or high is None else f"{short(low)} … {short(high)}"
            goals = [f"≥ {short(row.at_least)}"] if row.at_least is not None else []
            goals += [f"≤ {short(row.at_most)}"] if row.at_most is not None else []
            verdict = {True: "[green]met", False: "[red]missed", None: row.note}[row.met]
            table.add_row(row.what, f"{short(row.value)} {row.unit}", spread, ", ".join(goals), verdict)
        console.print(table)


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.5g}"


def repeated(measure: Callable[[], float], times: int) -> Sample:
    """`measure` once to warm up, then `times` times."""
    return Sample.of(alternated({"": measure}, times)[""])


def alternated(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Warms all up, then lets them take turns, so that a machine that changes its mind slows all alike."""
    for measure in measures.values():
        measure()
    found: dict[str, list[float]] = {who: [] for who in measures}
    for _ in range(rounds):
        for who, measure in measures.items():
            found[who].append(measure())
    return found


def ratios(ours: list[float], peer: list[float]) -> Sample:
    """Ours / peer of each pair."""
    return Sample.of([a / b for a, b in zip(ours, peer, strict=True)])


def paired(ours: Callable[[], float], peer: Callable[[], float], pairs: int) -> Pairs:
    """Alternating measurements of ours and one peer."""
    mine, other = alternated({"ours": ours, "peer": peer}, pairs).values()
    return Pairs(Sample.of(mine), Sample.of(other), ratios(mine, other))


def seconds(work: Callable[[], object], collect: bool = True) -> float:
    """How long `work` takes, with the garbage of others collected before it."""
    if collect:
        gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
