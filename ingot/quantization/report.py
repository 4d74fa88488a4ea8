"""The quantisation report: for each layer its type and its error alone, and how much faster the engine became."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot.backends.device import DEFAULT, Device
from ingot.builder.algorithms import Tuned
from ingot.builder.measurements import GAIN
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.passes.calibrated import Choice, Plan
from ingot.quantization.chart import Bar, chart
from ingot.quantization.pays import SHORT, Pairs, is_faster, is_slower, run_in_turn
from ingot.quantization.places import own_seconds_of, placed, seconds_of, word_of
from ingot.quantization.running import Feeds, samples_of
from ingot.quantization.tuning import Tuning, profiled
from ingot.strict_json import finite
from ingot.written import check_folder, write_whole

LEAST, PAIRS = 3, 7  # runs of both engines in turn, once they are warm: for a remark, and for a report
BY_LAYER = 0.1  # seconds after which no more runs by layer begin than are needed
UNTIL_CAPTURED = 2  # first runs on a GPU, which compile and are recorded
KINDS = (".svg", ".json")


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a run in float and in int8 on one machine, each the least of some: of whole runs, and by layer
    (name, float, int8)."""

    float_ms: float
    int8_ms: float
    layers: tuple[tuple[str, float, float], ...]
    batch: int  # samples of a run
    isa: str  # the level of instructions; of a GPU its name
    is_slower: bool = False  # whether int8 takes clearly longer, see `pays`
    slower: tuple[str, ...] = ()  # the layers that do

    @property
    def ratio(self) -> float:
        """How many times as fast int8 is."""
        return self.float_ms / self.int8_ms

    def __str__(self) -> str:
        return (f"a run of {self.batch} sample(s) takes {self.int8_ms:.3g} ms, and {self.float_ms:.3g} ms in float "
                f"({self.isa})")  # fmt: skip

    def json(self) -> dict[str, Any]:
        layers = [{"name": name, "float_ms": a, "int8_ms": b} for name, a, b in self.layers]
        return {"float_ms": self.float_ms, "int8_ms": self.int8_ms, "ratio": self.ratio, "batch": self.batch,
                "isa": self.isa, "layers": layers}  # fmt: skip


@dataclass(frozen=True)
class NotTaken:
    """What a net would be in int8 that stays float for its speed. error, largest: of its outputs, as of a plan's."""

    speed: Speed
    error: float
    largest: float

    def json(self) -> dict[str, Any]:
        return {**self.speed.json(), "error": self.error, "largest": self.largest}


@dataclass(frozen=True)
class Report:
    """The plan that an engine was built by, and the speed and what was tuned, where that was measured.

    clipped: by layer the share of its input's values in the calibration that became ±127 though they were larger, where
    that is known. not_taken: the net in int8, where it stays float.
    """

    plan: Plan
    speed: Speed | None = None
    tuning: Tuning | None = None
    clipped: Mapping[str, float] = field(default_factory=dict)
    algorithms: Tuned | None = None
    not_taken: NotTaken | None = None

    @classmethod
    def of(cls, engine: Engine) -> Report:
        """Of a calibrated engine. Raises UserError for another one."""
        plan = Plan.of(engine.config)
        if plan is None:
            raise UserError("this engine was not calibrated: ingot.quantize makes one that was")
        return cls(plan)

    def json(self) -> dict[str, Any]:
        """As --report FILE.json has it."""
        layers = [
            {**{k: v for k, v in choice.json().items() if k != "shift"}, "clipped": self.clipped.get(choice.name)}
            for choice in self.plan.layers
        ]
        speed = None if self.speed is None else self.speed.json()
        not_taken = None if self.not_taken is None else self.not_taken.json()
        tuning = None if self.tuning is None else {k: v for k, v in asdict(self.tuning).items() if k != "key"}
        algorithms = None if self.algorithms is None else self.algorithms.json()
        return {"schema": 1, **self.plan.facts, "layers": layers, "speed": speed, "slower": self.slower,
                "not_taken": not_taken, "tuning": tuning, "algorithms": algorithms}  # fmt: skip

    @property
    def headline(self) -> str:
        """The whole in a line."""
        int8 = sum(choice.scale is not None for choice in self.plan.layers)
        facts = self.plan.facts
        words = [f"{int8} of {len(self.plan.layers)} layers in int8 ({facts.get('method')})"]
        error, largest, samples = (facts.get(name) for name in ("error", "largest", "samples"))
        speed, named = self.speed, "relative error"
        if self.not_taken is not None:  # what is told of is int8, and not the engine
            error, largest, speed = self.not_taken.error, self.not_taken.largest, self.not_taken.speed
            named = "float for its speed; int8: relative error"
        on = f" on {samples} sample(s) of the data" if isinstance(samples, int) else ""
        words += [f"{named} {error:.2g}{on}"] if isinstance(error, int | float) else []
        words += [f"at most {largest:.2g} of the largest"] if isinstance(largest, int | float) else []
        if speed is not None:
            words.append(f"{speed.ratio:.2f} times as fast at batch {speed.batch} ({speed.isa})")
        return ", ".join(words)

    @property
    def slower(self) -> list[str]:
        """The layers in int8 that took clearly longer than in float, where that was measured."""
        int8 = {choice.name for choice in self.plan.layers if choice.scale is not None}
        return [] if self.speed is None else [name for name in self.speed.slower if name in int8]

    def doubts(self, always: bool) -> list[str]:
        """Words for what int8 does not pay for, where that was measured: the whole run if it is no faster than in
        float, and layers that are clearly slower.

        always: whether int8 was asked for all the same.
        """
        found, tune = [], "in its place tune (--tune SECONDS)" if always else "tune (--tune SECONDS)"
        if (speed := self.speed) is not None and speed.int8_ms > speed.float_ms * (1 - GAIN):
            found.append(f"int8: it does not pay on this machine: {speed}; {tune} keeps the faster type")
        if self.slower:
            found.append(f"int8: slower on this machine: {', '.join(self.slower)}; keep (--keep NAME) leaves layers "
                         f"float, {tune} those with which a run is faster")  # fmt: skip
        return found

    def __str__(self) -> str:
        width = max((len(choice.name) for choice in self.plan.layers), default=5)
        lines = [self.headline, *(f"{c.name:{width}}  {self._word(c)}" for c in self.plan.layers)]
        return "\n".join(lines)

    def svg(self) -> str:
        """A chart of the layers' errors."""
        times = {name: (a, b) for name, a, b in self.speed.layers} if self.speed is not None else {}
        bars = [
            Bar(c.name, c.error, c.scale is not None, self._beside(c, times.get(c.name)), c.why)
            for c in self.plan.layers
        ]
        return chart("error of the outputs when one layer alone is int8", self.headline, bars)

    def _word(self, choice: Choice) -> str:
        error = "" if choice.error is None else f"{choice.error:.1e} alone"
        return "  ".join(word for word in (f"{choice.type:5}", error, self._clips(choice), choice.why) if word)

    def _beside(self, choice: Choice, times: tuple[float, float] | None) -> str:
        error = "" if choice.error is None else f"{choice.error:.1e}"
        took = "" if times is None or not times[1] else _times(*times)
        return "   ".join(word for word in (error, took, self._clips(choice)) if word)

    def _clips(self, choice: Choice) -> str:
        share = self.clipped.get(choice.name)
        return "" if share is None else f"clips {share * 100:.2g} %"

    def write(self, path: str) -> None:
        """As a chart (.svg) or as data (.json). Raises UserError for another name, FileError."""
        check_name(path)
        text = self.svg() if path.endswith(".svg") else _text(self.json())
        write_whole(Path(path), text.encode())


def write_accuracy(report: Any, path: str) -> None:
    """The accuracy report of a build as a chart (.svg) or as data (.json).

    Raises UserError for another name, and for a report without figures; FileError.
    """
    check_name(path)
    rows = [*report.layers, *report.outputs]
    if not rows:
        raise UserError(f"{path}: there is nothing to draw: {report.note or 'nothing was compared'}")
    if path.endswith(".json"):
        text = _text({"schema": 1, **report.json()})
    else:
        bars = [Bar(row.name, row.relative, True, f"{row.relative:.1e}", row.odd) for row in rows]
        title = "difference from float32 after each layer, relative"
        on_text = "" if report.text is None else f"; {report.text.headline}"
        text = chart(title, f"{report.inputs} inputs{on_text}", bars, "outputs are the last bars")
    write_whole(Path(path), text.encode())


def _text(found: Any) -> str:
    return json.dumps(finite(found), indent=1, allow_nan=False) + "\n"


def check_name(path: Any) -> str:
    """The name of a file of the report. Raises UserError for what is no path, or neither a chart nor data, FileError
    where its folder takes no files."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"report_file must be the path of a file, not {path!r:.60}")
    name = os.fsdecode(path)
    if not name.endswith(KINDS):
        raise UserError(f"{name}: the quantisation report is written as .svg (a chart) or .json")
    check_folder(name)
    return name


def _times(before: float, after: float) -> str:
    """Milliseconds in float and in int8, in microseconds where they are small."""
    if min(before, after) < 0.1:
        return f"{before * 1e3:.3g} → {after * 1e3:.3g} µs"
    return f"{before:.2f} → {after:.2f} ms"


def _until(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds from now are not over yet."""
    end = perf_counter() + seconds
    return lambda: perf_counter() < end


def measured(engine: Engine, other: Engine, feeds: Feeds, device: Device, precise: bool = True) -> Speed:
    """An engine in int8 beside one in float on the same inputs, in turn, as a whole and, on the CPU, by layer (of runs
    below a millisecond on one thread): a GPU's kernels join what stands around a layer.

    precise: PAIRS runs. Else, on the CPU, the runs by layer if int8 is clearly faster in all of them, or what runs take
    of the processor on a thread alone: where other programs run, threads wait for each other, and how long a run takes
    changes from one to the next.
    """
    sessions = other.session(device=device), engine.session(device=device)
    names = [choice.name for choice in Report.of(engine).plan.layers]
    given, where = placed(feeds, device), word_of(device)
    plain, int8 = (partial(seconds_of, session, given) for session in sessions)
    if device.runtime.name == DEFAULT:  # these warm up
        layers, pairs, slower = profiled(*sessions, feeds, names, more=_until(BY_LAYER))
        if min(map(min, pairs)) < SHORT:  # threads that wake take longer than a layer
            alone = other.session(1), engine.session(1)
            layers, _, slower = profiled(*alone, feeds, names, more=_until(BY_LAYER))
        pairs = pairs[:LEAST]
    else:
        layers, pairs, slower = [], Pairs(), ()
        for run in (plain, int8):
            for _ in range(UNTIL_CAPTURED + 1):
                run()
    if precise or not pairs:
        pairs = run_in_turn(plain, int8, PAIRS if precise else LEAST)
    elif not is_faster(pairs):
        plain, int8 = (partial(own_seconds_of, one.session(1), feeds) for one in (other, engine))
        pairs, where = run_in_turn(plain, int8, LEAST, warm=True), f"{where}, one thread"
    one, two = (min(times) * 1e3 for times in zip(*pairs, strict=True))
    return Speed(one, two, tuple(layers), samples_of(engine, feeds), where, is_slower(pairs), slower)
