"""The quantisation report: for each layer its type and its error alone, and how much faster the engine became."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.passes.calibrated import Choice, Plan
from ingot.quantization.chart import Bar, chart
from ingot.quantization.running import Feeds
from ingot.written import write_whole

PAIRS = 7  # runs of both engines in turn, after one of each
KINDS = (".svg", ".json")


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a run in float and in int8 on one machine, by whole runs and by layer (name, float, int8)."""

    float_ms: float
    int8_ms: float
    layers: tuple[tuple[str, float, float], ...]
    isa: str

    @property
    def ratio(self) -> float:
        """How many times as fast int8 is."""
        return self.float_ms / self.int8_ms

    def json(self) -> dict[str, Any]:
        layers = [{"name": name, "float_ms": a, "int8_ms": b} for name, a, b in self.layers]
        return {"float_ms": self.float_ms, "int8_ms": self.int8_ms, "ratio": self.ratio, "isa": self.isa,
                "layers": layers}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The plan that an engine was built by, and the speed where it was measured."""

    plan: Plan
    speed: Speed | None = None

    @classmethod
    def of(cls, engine: Engine) -> Report:
        """Of a calibrated engine. Raises UserError for another one."""
        plan = Plan.of(engine.config)
        if plan is None:
            raise UserError("this engine was not calibrated: ingot.quantize makes one that was")
        return cls(plan)

    def json(self) -> dict[str, Any]:
        """As --report FILE.json has it."""
        layers = [{k: v for k, v in choice.json().items() if k != "shift"} for choice in self.plan.layers]
        speed = None if self.speed is None else self.speed.json()
        return {"schema": 1, **self.plan.facts, "layers": layers, "speed": speed}

    @property
    def headline(self) -> str:
        """The whole in a line."""
        int8 = sum(choice.scale is not None for choice in self.plan.layers)
        error = self.plan.facts.get("error")
        words = [f"{int8} of {len(self.plan.layers)} layers in int8 ({self.plan.facts.get('method')})"]
        words += [f"outputs {error:.2g} from float"] if isinstance(error, int | float) else []
        words += [f"{self.speed.ratio:.2f} times as fast ({self.speed.isa})"] if self.speed is not None else []
        return ", ".join(words)

    def __str__(self) -> str:
        width = max((len(choice.name) for choice in self.plan.layers), default=5)
        return "\n".join([self.headline, *(f"{c.name:{width}}  {_word(c)}" for c in self.plan.layers)])

    def svg(self) -> str:
        """A chart of the layers' errors."""
        times = {name: (a, b) for name, a, b in self.speed.layers} if self.speed is not None else {}
        bars = [
            Bar(c.name, c.error, c.scale is not None, _beside(c, times.get(c.name)), c.why) for c in self.plan.layers
        ]
        return chart("error of the outputs when one layer alone is int8", self.headline, bars)

    def write(self, path: str) -> None:
        """As a chart (.svg) or as data (.json). Raises UserError for another name, FileError."""
        check_name(path)
        text = self.svg() if path.endswith(".svg") else json.dumps(self.json(), indent=1, allow_nan=False) + "\n"
        write_whole(Path(path), text.encode())


def check_name(path: str) -> None:
    """Raises UserError for a file that is neither a chart nor data."""
    if not path.endswith(KINDS):
        raise UserError(f"{path}: the quantisation report is written as .svg (a chart) or .json")


def _word(choice: Choice) -> str:
    error = "" if choice.error is None else f"  {choice.error:.1e} alone"
    return f"{'float' if choice.scale is None else 'int8 '}{error}{f'  {choice.why}' if choice.why else ''}"


def _beside(choice: Choice, times: tuple[float, float] | None) -> str:
    error = "" if choice.error is None else f"{choice.error:.1e}"
    return error if times is None or not times[1] else f"{error}   {times[0]:.2f} → {times[1]:.2f} ms"


def measured(engine: Engine, other: Engine, feeds: Feeds, isa: str) -> Speed:
    """An engine in int8 beside one in float on the same inputs, in turn."""
    sessions = {"float": other.session(), "int8": engine.session()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    by_layer: dict[str, list[dict[str, float]]] = {name: [] for name in sessions}
    for _ in range(1 + PAIRS):
        for name, session in sessions.items():
            begin = perf_counter()
            session.run(feeds)
            times[name].append((perf_counter() - begin) * 1e3)
    for _ in range(3):
        for name, session in sessions.items():
            by_layer[name].append(_by_place(session.profile(feeds)))
    one, two = (_least(by_layer[name]) for name in ("float", "int8"))
    names = [choice.name for choice in Report.of(engine).plan.layers]
    layers = tuple((name, one[name], two[name]) for name in names if name in one and name in two)
    return Speed(statistics.median(times["float"][1:]), statistics.median(times["int8"][1:]), layers, isa)


def _by_place(calls: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds by module path."""
    found: dict[str, float] = {}
    for call in calls:
        where = call.get("where") or ""
        found[where] = found.get(where, 0.0) + call["ns"] / 1e6
    return found


def _least(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: min(run[name] for run in runs if name in run) for name in runs[0]}
