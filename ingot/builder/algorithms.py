"""Which algorithm of a convolution or product, loops of a product and number of threads are the fastest here: `--tune`.

Kernels choose by rules of their own (native/kernels/conv.cpp, product.h, level/matmul.h). Here the whole net runs by
these rules and by each alternative, call by call, in turn. What is faster on this machine becomes a parameter of the
call, which the core obeys on every machine. Results of two algorithms differ by rounding. Two orders, or what is dealt
to threads, change no bit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ingot import _native
from ingot.backends.cpu.product import DIRECT, ORDERS, SPLITS, STRASSEN
from ingot.backends.cpu.spatial import ALGORITHMS
from ingot.backends.device import DEFAULT, Device
from ingot.backends.native import processors
from ingot.builder.layers import row
from ingot.builder.measurements import (
    GAIN,
    NUMBER,
    ROUNDS,
    Budget,
    Clock,
    check_tune,
    damaged,
    in_turn,
    is_time,
    keep,
    least,
    part_of,
)
from ingot.builder.phases import Phases
from ingot.engine.inputs import seeded, sizes_that_run
from ingot.engine.session import Engine, Session
from ingot.errors import FileError, UserError
from ingot.version import __version__

Array = np.ndarray[Any, Any]
Program = dict[str, Any]
Make = Callable[[Program], Engine]
Chosen = tuple[int, str, str, float, float]  # as Tuned.calls has them

PART = "algorithms"  # of a file of measurements
CONVOLUTION, PRODUCT = "conv_packed", "matmul_packed"
# What a call may take in the place of the rules: a parameter and its value, by the word that a file has for it.
LOOPS = {
    **{f"order={value}": ("order", value) for value in ORDERS},
    **{f"split={value}": ("split", value) for value in SPLITS},
}
WORDS = {**{word: ("algorithm", word) for word in ALGORITHMS}, **LOOPS}
LOOKS = (1, 4, 5, 5, 5, 5, 5, 5, 5)  # profiled runs of an alternative beside as many by the rules, look by look
PROFILES, MOST_PROFILES = sum(LOOKS[:2]), sum(LOOKS)  # more than the first while there is time
SHARE = 0.4  # of the seconds: until then more runs of the alternatives begin
BEHIND = 1.0  # of a call's time on top of it: no later run makes such a choice the fastest one
LAYER_GAIN = 0.05  # of a call's time, which another choice must save
APART = {"float32": 1e-4, "": 0.02}  # most relative difference of an output from that by the rules; "": narrower types
MOST_TAPS = 64  # along one axis
SMALL = 8  # outputs up to which there is a kernel of its own, level/narrow.h
MOST_SMALL_INT8 = 1024  # channels of int8 up to which there is
ALL_COUNTS = 8  # threads up to which every number is measured; beyond, every power of 2
OF_LLM = (
    "tune is for nets, not for a language model: its products are summed in one order for any number of rows, so that "
    "there is no second algorithm to measure, and no order of loops suits steps of every size: leave it out"
)


@dataclass(frozen=True)
class Tuned:
    """What was measured of one program, and the calls whose choice follows from it.

    Attributes:
        key: of the program and the sizes of its inputs.
        isa: the level of instructions that was measured with.
        calls: (number in the program, place in the model, one of WORDS, milliseconds by the rules, with it).
        before_ms, after_ms: of a run by the rules, and by these.
        difference: the largest relative difference of an output between the two (root mean squares).
        threads: (number of threads, milliseconds of a run).
    """

    key: str
    isa: str
    calls: list[Chosen] = field(default_factory=list)
    before_ms: float = 0.0
    after_ms: float = 0.0
    difference: float = 0.0
    threads: list[tuple[int, float]] = field(default_factory=list)

    @property
    def choices(self) -> dict[int, str]:
        """The choice of each call that does not go by the rules."""
        return {number: word for number, _, word, *_ in self.calls}

    @property
    def fastest(self) -> int | None:
        """The number of threads of the fastest runs, where that was measured."""
        return min(self.threads, key=lambda item: item[1])[0] if self.threads else None

    def json(self) -> dict[str, Any]:
        """As reports and --json have it."""
        calls = [
            {"call": number, "where": where, **dict([WORDS[word]]), "rules_ms": before, "ms": after}
            for number, where, word, before, after in self.calls
        ]
        threads = [{"threads": count, "ms": ms} for count, ms in self.threads]
        return {"isa": self.isa, "calls": calls, "before_ms": self.before_ms, "after_ms": self.after_ms,
                "difference": self.difference, "threads": threads, "fastest_threads": self.fastest}  # fmt: skip

    def lines(self) -> list[str]:
        """The whole in words."""
        found = [f"tune: {where or f'call {number}'}: {' '.join(WORDS[word])}, {after:.3g} ms in the place of "
                 f"{before:.3g}" for number, where, word, before, after in self.calls]  # fmt: skip
        if self.calls:
            found.append(f"tune: a run takes {self.after_ms:.3g} ms in the place of {self.before_ms:.3g}; outputs "
                         f"differ by {self.difference:.1e} from those by the kernels' own rules")  # fmt: skip
        elif self.before_ms:
            found.append("tune: no call is faster by another algorithm or other loops than by the kernels' own rules")
        if len(self.threads) > 1:
            times = ", ".join(f"{count}: {ms:.3g} ms" for count, ms in self.threads)
            found.append(f"tune: fastest with {self.fastest} thread(s) ({times})")
        return found


def requested(
    seconds: float | None, file: str | os.PathLike[str] | None, sizes: Mapping[str, int] | None, device: Device
) -> Tune | None:
    """What tunes, where a build is asked for it. Raises UserError for words that do not go together."""
    check_tune(seconds, file)
    if seconds is None:
        if sizes:
            raise UserError("tune_sizes are of the inputs that tune measures on: give tune=SECONDS with them")
        return None
    if device.runtime.name != DEFAULT:
        raise UserError(f"tune measures kernels of this machine's processor, and {device} has others: leave one out")
    return Tune(Budget(seconds, file), [f"{name}={size}" for name, size in (sizes or {}).items()])


class Tune:
    """Gives an engine the choices that a file of measurements has for it, or those that it measures."""

    def __init__(self, budget: Budget, sizes: Sequence[str] = ()) -> None:
        self.budget, self.sizes = budget, sizes

    def __call__(
        self, engine: Engine, program: Program, make: Make, phases: Phases, feeds: Mapping[str, Array] | None
    ) -> tuple[Engine, Tuned, list[str]]:
        """The engine, what it follows from, and remarks.

        make: an engine of another program with the same tensors. feeds: None takes seeded ones of the sizes.
        """
        file, remarks = self.budget.file, list[str]()
        feeds = self._seeded(engine) if feeds is None else feeds
        key, tuned = key_of(program, feeds), None
        if file is not None:
            tuned, word = read(file, key, program)
            remarks += [f"tune: {word}: measured anew"] if word else []
        if tuned is None:
            with phases.phase("tune algorithms") as done, self.budget.clock(done) as clock:
                tuned = measured(key, program, engine, make, feeds, clock)
            if file is not None:
                keep(file, PART, asdict(tuned))
        elif tuned.isa != (here := _native.level()):
            remarks.append(f"tune: {file} was measured at {tuned.isa}, and this machine has {here}")
        chosen = make(with_algorithms(program, tuned.choices)) if tuned.calls else engine
        return chosen, tuned, [*remarks, *tuned.lines()]

    def _seeded(self, engine: Engine) -> dict[str, Array]:
        sizes, rng = sizes_that_run(engine, self.sizes), np.random.default_rng(0)
        return {port.name: seeded(port, sizes, rng) for port in engine.inputs}


def key_of(program: Program, feeds: Mapping[str, Array]) -> str:
    """What tells one thing to tune from another; the weights' values are not part of it."""
    sizes = {name: list(array.shape) for name, array in sorted(feeds.items())}
    return hashlib.sha256(json.dumps([__version__, program, sizes]).encode()).hexdigest()


def with_algorithms(program: Program, choices: Mapping[int, str]) -> dict[str, Any]:
    """The program with a choice, one of WORDS, for each of these calls."""
    calls = list(program["calls"])
    for number, word in choices.items():
        calls[number] = {**calls[number], "params": {**calls[number]["params"], **dict([WORDS[word]])}}
    return {**program, "calls": calls}


def alternatives(program: Program) -> dict[int, tuple[str, ...]]:
    """The choices that each call has; calls of bodies are left to the rules."""
    found: dict[int, tuple[str, ...]] = {}
    for number, call in enumerate(program["calls"]):
        if call.get("kernel") not in (CONVOLUTION, PRODUCT) or _buffer(program, call["in"][1])["kind"] != "weight":
            continue
        params, is_int8 = call["params"], _buffer(program, call["in"][0])["dtype"] == "int8"
        if call["kernel"] == PRODUCT:
            found[number] = _of_product(program, call)
        elif params["groups"] > 1 or (_is_small_int8(params) if is_int8 else params["outputs"] <= SMALL):
            found[number] = (DIRECT,)  # in the place of a kernel of its own, which has one way
        else:
            found[number] = (*(() if is_int8 else _of_window(params)), *LOOPS)
    return found


def _is_small_int8(params: Mapping[str, Any]) -> bool:
    """Whether a convolution of int8 has a kernel of its own for few outputs, as native/kernels/narrow.cpp says it."""
    channels, outputs = int(params["channels"]), int(params["outputs"])
    if outputs > SMALL or channels > MOST_SMALL_INT8 or math.prod(params["kernel"]) > 1 or params.get("outside"):
        return False
    return (-(-channels // 16) + 12) * outputs <= channels // 4 + channels // 8 + 20


def _of_product(program: Program, call: Mapping[str, Any]) -> tuple[str, ...]:
    """The direct product where the build took Strassen's, whose loops have one order."""
    if call["params"].get("algorithm") != STRASSEN:
        return tuple(LOOPS)
    by_level = _buffer(program, call["in"][0])["dtype"] == "bfloat16"  # direct where its own product is faster
    return DIRECT, *(word for word, (name, _) in LOOPS.items() if name == "split" or by_level)


def _of_window(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of 3×3, or of taps along one axis, as native/kernels/winograd.cpp takes them; else none."""
    axes = list(zip(params["kernel"], params["stride"], params["dilation"], strict=True))
    if axes == [(3, 1, 1)] * 2:
        return ALGORITHMS
    lines = [axis for axis in axes if axis[:2] != (1, 1)]
    if len(axes) > 2 or len(lines) != 1:
        return ()
    taps, stride, dilation = lines[0]
    return ALGORITHMS if 3 <= taps <= MOST_TAPS and stride <= 2 and dilation == 1 else ()


def _buffer(program: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The buffer that a number stands for, of a view the one that it lies in."""
    buffer: Mapping[str, Any] = program["buffers"][number]
    return _buffer(program, buffer["of"]) if buffer["kind"] == "view" else buffer


# --------------------------------------------------------------------------------------------------------- the file

_KINDS: dict[str, Any] = {
    "key": str, "isa": str, "calls": list, "before_ms": NUMBER, "after_ms": NUMBER, "difference": NUMBER,
    "threads": list,
}  # fmt: skip


def read(path: Any, key: str, program: Program) -> tuple[Tuned | None, str]:
    """What a file holds for this key; or nothing, and a word for why. Raises FileError for a damaged file."""
    found = part_of(path, PART, _KINDS)
    if found is None:
        return None, ""
    if not all(map(_is_call, found["calls"])):
        raise damaged(path, "calls")
    if not all(map(_is_count, found["threads"])):
        raise damaged(path, "threads")
    if found["key"] != key:
        return None, f"{path} was measured for another program or other sizes, or by another ingot"
    able = alternatives(program)
    for number, _, word, *_ in found["calls"]:
        if word not in able.get(number, ()):
            raise FileError(f"{path} has {word!r:.80} for call {number}, which cannot take it: remove the file")
    calls = [(number, where, word, float(a), float(b)) for number, where, word, a, b in found.pop("calls")]
    threads = [(count, float(ms)) for count, ms in found.pop("threads")]
    return Tuned(calls=calls, threads=threads, **found), ""


def _is_call(item: Any) -> bool:
    if not isinstance(item, list) or len(item) != 5:
        return False
    number, where, word, *times = item
    return type(number) is int and isinstance(where, str) and isinstance(word, str) and all(map(is_time, times))


def _is_count(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and type(item[0]) is int and item[0] > 0 and is_time(item[1])


# -------------------------------------------------------------------------------------------------------- measuring


def measured(
    key: str, program: Program, engine: Engine, make: Make, feeds: Mapping[str, Array], clock: Clock
) -> Tuned:  # fmt: skip
    """Times the alternatives of the engine's program; those that are faster stay where whole runs get faster too."""
    chosen, able = engine, alternatives(program)
    calls: list[Chosen] = []
    before = after = difference = 0.0
    if able and clock.left():
        session = chosen.session()
        before = after = least(partial(_seconds, session, feeds))
        calls = _faster(program, able, _by_call(program, able, session, make, feeds, clock))
        calls = list(_others(program, calls, session, make, feeds, clock))
        calls = _again(program, calls, session, make, feeds, clock)
        if calls and clock.left():
            other = make(with_algorithms(program, {number: word for number, _, word, *_ in calls}))
            faster = other.session()
            difference = _apart(faster, session, feeds)
            before, after = in_turn(partial(_seconds, session, feeds), partial(_seconds, faster, feeds))
            if after < before * (1 - GAIN) and difference <= _most_apart(program):
                chosen = other
            else:
                calls, after, difference = [], before, 0.0
        else:
            calls = []
    threads = sorted(_by_threads(chosen, feeds, clock))
    return Tuned(key, _native.level(), calls, before * 1e3, after * 1e3, difference, threads)


def _by_call(
    program: Program, able: Mapping[int, Sequence[str]], rules: Session, make: Make, feeds: Mapping[str, Array],
    clock: Clock,
) -> dict[str, dict[int, float]]:  # fmt: skip
    """Milliseconds of these calls by choice ("": by the rules), each the least of some runs.

    One choice is looked at after the other, in runs in turn with the rules, and its session goes before the next one
    comes: each holds the weights of all calls in the forms that its kernels read. There are several looks, so that a
    busy moment costs no choice all of its runs. One that is behind in each of its calls is looked at no more.

    The least by the rules is of the runs beside all choices together, that of another choice of its own 5 to 40. Of
    more runs the least is smaller by chance: so the measurement is biased to the rules.
    """
    takes = {word: [number for number, some in able.items() if word in some] for word in WORDS}
    words = [word for word, numbers in takes.items() if numbers]
    found: dict[str, dict[int, float]] = {"": {}}
    shares: dict[str, dict[int, float]] = {}  # of the time by the rules, as the newest look has it
    for look, turns in enumerate(LOOKS):
        for word in words:
            if not clock.left() or (sum(LOOKS[:look]) >= PROFILES and clock.spent() > SHARE):
                return found
            session = make(with_algorithms(program, dict.fromkeys(takes[word], word))).session()
            session.run(feeds)
            here, by_rules = dict[int, float](), dict[int, float]()
            for _ in range(turns):
                _profile(rules, feeds, by_rules, able)
                _profile(session, feeds, here, takes[word])
            del session
            shares[word] = {number: ms / by_rules[number] for number, ms in here.items() if by_rules.get(number)}
            _keep_least(found[""], by_rules)
            _keep_least(found.setdefault(word, {}), here)
        margin = LAYER_GAIN if look else BEHIND
        words = [word for word in words if not all(_is_behind(shares, word, number, margin) for number in takes[word])]
    return found


def _is_behind(shares: Mapping[str, Mapping[int, float]], word: str, number: int, margin: float) -> bool:
    """Whether a call takes longer by a choice than by another one, or than what is clearly less than by the rules, by
    more than a margin; in shares of its time by the rules."""
    best = min(1 - LAYER_GAIN, *(known.get(number, math.inf) for known in shares.values()))
    return shares[word].get(number, math.inf) > best * (1 + margin)


def _keep_least(times: dict[int, float], more: Mapping[int, float]) -> None:
    for number, ms in more.items():
        times[number] = min(times.get(number, math.inf), ms)


def _profile(session: Session, feeds: Mapping[str, Array], times: dict[int, float], numbers: Collection[int]) -> None:
    """Takes the milliseconds of these calls in one run, where they are less than before."""
    _keep_least(times, {call["call"]: call["ns"] / 1e6 for call in session.profile(feeds) if call["call"] in numbers})


def _faster(
    program: Program, able: Mapping[int, Sequence[str]], times: Mapping[str, Mapping[int, float]]
) -> list[Chosen]:
    """The calls for which another choice takes clearly less, with that."""
    found = []
    for number, words in able.items():
        best = min(words, key=lambda word: times.get(word, {}).get(number, math.inf))
        before, after = times[""].get(number, 0.0), times.get(best, {}).get(number, math.inf)
        if after < before * (1 - LAYER_GAIN):
            found.append((number, str(program["calls"][number].get("where", "")), best, before, after))
    return found


def _others(
    program: Program, calls: Sequence[Chosen], rules: Session, make: Make, feeds: Mapping[str, Array], clock: Clock
) -> Iterator[Chosen]:
    """Algorithms that change a bit of the results: what changes none is what the rules take too, and was faster by
    chance. Sums of int8 are exact in any order, and loops change no sum, so that bits tell nothing.
    """
    wanted = rules.run(feeds) if calls else {}
    for item in calls:
        number, _, word, *_ = item
        if word in LOOPS or _buffer(program, program["calls"][number]["in"][0])["dtype"] == "int8":
            yield item
        elif clock.left():
            found = make(with_algorithms(program, {number: word})).session().run(feeds)
            if any(found[name].tobytes() != wanted[name].tobytes() for name in wanted):
                yield item


def _again(
    program: Program, calls: Sequence[Chosen], rules: Session, make: Make, feeds: Mapping[str, Array], clock: Clock
) -> list[Chosen]:  # fmt: skip
    """Those that are faster when all of them are measured once more: of many alternatives some were so by chance."""
    choices = {number: word for number, _, word, *_ in calls}
    if not choices or not clock.left():
        return []
    session = make(with_algorithms(program, choices)).session()
    session.run(feeds)
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for turn in range(MOST_PROFILES):
        if clock.left() and (turn < PROFILES or clock.spent() < 2 * SHARE):
            _profile(rules, feeds, before, choices)
            _profile(session, feeds, after, choices)
    chosen = {number: (word,) for number, word in choices.items()}
    return _faster(program, chosen, {"": before, **dict.fromkeys(choices.values(), after)})


def _most_apart(program: Program) -> float:
    """The largest difference from the results by the rules: of a net that stores anything narrower, its rounding."""
    types = {buffer.get("dtype") for buffer in program["buffers"]}
    return APART["" if types & {"bfloat16", "float16", "int8"} else "float32"]


def _apart(ours: Session, theirs: Session, feeds: Mapping[str, Array]) -> float:
    one, two = ours.run(feeds), theirs.run(feeds)
    return max((row(name, one[name], two[name]).relative for name in one), default=0.0)


def _by_threads(engine: Engine, feeds: Mapping[str, Array], clock: Clock) -> Iterator[tuple[int, float]]:
    """Milliseconds of a run with each number of threads that there was time for, the least of runs in turn."""
    most = processors()
    counts = [n for n in range(1, most + 1) if most <= ALL_COUNTS or n == most or n & (n - 1) == 0]
    sessions: dict[int, Session] = {}
    times: dict[int, float] = {}
    for _ in range(ROUNDS if most > 1 else 0):
        for count in counts:
            if not clock.left():
                yield from times.items()
                return
            if count not in sessions:
                sessions[count] = engine.session(threads=count)
                sessions[count].run(feeds)
            times[count] = min(times.get(count, math.inf), least(partial(_seconds, sessions[count], feeds)) * 1e3)
    yield from times.items()


def _seconds(session: Session, feeds: Mapping[str, Array]) -> float:
    begin = perf_counter()
    session.run(feeds)
    return perf_counter() - begin
