"""Which steps of a scalar expression that round to a type of floats may be left out: those that change nothing, and
those that bytes are too coarse to show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir.expr import COMPARE, integer_range

# What rounding to nearest changes of a number that is neither tiny nor too large: this much of it at most.
_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_LARGEST = {"bfloat16": 3.38e38, "float16": 65504.0}
_TINY = {"bfloat16": 2.0**-134, "float16": 2.0**-25}  # and of a tiny one this much
# Errors of an operand and of the result are alike. (A rounding is to bytes or is left out: see _quantised_later.)
_AS_LARGE = ("neg", "abs", "max", "min", "where", "round")
_RELATIVE = ("sqrt", "rsqrt", "recip", "tanh", "erf")  # relative errors of the result are no larger
_JUMPS = ("floor", "ceil", "floordiv", "mod", "fmod", "to_int", "to_bool")  # as comparisons do


def is_needless_rounding(steps: Sequence[Any], step: Any, kinds: Sequence[DType | None]) -> bool:
    """Whether a step rounds an operand to the dtype that it has; `kinds` are the operands' dtypes, or None."""
    if not _rounds_to_floats(step) or steps[step[2]][0] != "input":
        return False
    kind = kinds[steps[step[2]][2]]
    return kind is not None and kind.name == step[3]


def without_needless_rounding(
    steps: Sequence[Any], outputs: Sequence[int], kinds: Sequence[DType], ends: Sequence[DType]
) -> tuple[Any, Any]:
    """Steps and outputs of an expression on operands of these dtypes, its results of dtypes `ends`, without the steps
    that round nothing: what lies in memory as it is, and what is rounded again, when it is stored or to bytes."""
    left_out = {_rounded_later(steps, outputs, output, end) for output, end in zip(outputs, ends, strict=True)}
    left_out |= {at for at, step in enumerate(steps) if is_needless_rounding(steps, step, kinds)}
    left_out |= _quantised_later(steps, outputs, kinds, ends, left_out)
    kept: list[Any] = []
    number: list[int] = []
    for at, step in enumerate(steps):
        if at in left_out:
            number.append(number[step[2]])
            continue
        name, kind, *args = step
        if name not in ("input", "const"):
            args = [number[a] if type(a) is int else a for a in args]
        number.append(len(kept))
        kept.append((name, kind, *args))
    return tuple(kept), tuple(number[o] for o in outputs)


def _rounded_later(steps: Sequence[Any], outputs: Sequence[int], at: int, end: DType) -> int:
    """The step that rounds to the dtype of an output, or -1. Limits that the dtype holds may come behind it: they and
    rounding, which keeps the order of numbers, may change places. Nothing else reads what lies between. (That is so of
    zeros too, with -0 below +0, as maximum and minimum of IEEE 754 have it. A `max` that takes either of two zeros may
    give -0 of what rounds to that before a limit of 0; rounded behind the limit it is always 0.)"""
    while [o for step in steps for o in _arguments(step)].count(at) + outputs.count(at) == 1:
        name, kind, *args = steps[at]
        if _rounds_to_floats(steps[at]):
            return at if args[1] == end.name else -1
        if name not in ("max", "min") or kind != "float32" or not _holds(end, steps[args[1]]):
            return -1
        at = args[0]
    return -1


def steps_looked_at(steps: Sequence[Any]) -> set[int]:
    """The steps of which the least error may show as a jump: what is compared or made whole other than to the nearest
    number, and what that is made of, as far as nothing is rounded to the nearest on the way."""
    found: set[int] = set()
    for at in reversed(range(len(steps))):
        name = steps[at][0]
        if name in COMPARE or name in _JUMPS or (at in found and name != "round"):
            found.update(_arguments(steps[at]))
    return found


# ----------------------------------------------------------------------------------------------------------- to bytes


class Reach(NamedTuple):
    """How far the whole numbers that become bytes move by an error in a step: by one of 1 at most, and at least (in
    front of limits), and by one as large as the number itself. Infinite: no matter how small the error."""

    of_one: float
    least: float
    of_all: float


def _quantised_later(
    steps: Sequence[Any], outputs: Sequence[int], kinds: Sequence[DType], ends: Sequence[DType], known: set[int]
) -> set[int]:
    """The steps that round to a type of floats what becomes whole numbers in bytes: so coarsely that together these
    steps move no number by one whole before, and so no byte by more than one. `known` are left out anyway.

    That is known of a rounding whose relative error stays one, up to the largest of the bytes. A sum may cancel: of
    the roundings before it, those are left out alone whose numbers have a bound, as bytes times a scale do. What is
    compared or otherwise jumps is rounded before, and so is what is read without this rounding too. A rounding that is
    kept jumps as well: the least error turns a tie by one whole unit, so nothing before it is left out."""
    readers: list[list[int]] = [[] for _ in steps]
    for at, step in enumerate(steps):
        for argument in _arguments(step):
            readers[argument].append(at)
    reaches: dict[int, Reach | None] = {}
    for output, end in zip(outputs, ends, strict=True):
        reaches.update(_ending(steps, outputs, readers, output, end))
    if not reaches:
        return set()
    most = _magnitudes(steps, kinds)
    found: set[int] = set()
    moved = 0.0
    for at in reversed(range(len(steps))):
        if at not in reaches:
            by = [_through(steps, reader, at, reaches[reader]) for reader in dict.fromkeys(readers[at])]
            reaches[at] = None if at in outputs or _rounds_to_whole(steps[at]) else _together(by)
        if not _rounds_to_floats(steps[at]) or at in known:
            continue
        reach, (operand, narrow) = reaches[at], steps[at][2:]
        alone = readers[operand] == [at] and operand not in outputs
        moves = _moves(reach, most[operand], narrow) if reach is not None and alone else math.inf
        if moved + moves < 1:
            found.add(at)
            moved += moves
        else:
            reaches[at] = None
    return found


def _together(reaches: Sequence[Reach | None]) -> Reach | None:
    """The reach of what is read in several ways, each with a reach of its own."""
    found = [reach for reach in reaches if reach is not None]
    if not found or len(found) < len(reaches):
        return None
    return Reach(sum(r.of_one for r in found), min(r.least for r in found), sum(r.of_all for r in found))


def _moves(reach: Reach, most: float, narrow: str) -> float:
    """How far the whole numbers move where numbers of a magnitude up to `most` are not rounded to a narrow type. What
    would become infinite has to lie beyond the limits of the bytes without that too."""
    tiny = reach.of_one * _TINY[narrow]
    bounded = reach.of_one * most * _UNIT[narrow] + tiny if most <= _LARGEST[narrow] else math.inf
    if narrow == "bfloat16":  # as wide in range as what is computed in, but for numbers below 2^-126: those are let go
        return min(bounded, reach.of_all * _UNIT[narrow])
    limited = reach.least * _LARGEST[narrow] >= reach.of_all
    return min(bounded, reach.of_all * _UNIT[narrow] + tiny) if limited else bounded


def _ending(
    steps: Sequence[Any], outputs: Sequence[int], readers: Sequence[Sequence[int]], output: int, end: DType
) -> dict[int, Reach | None]:
    """What makes bytes of an output: the step that rounds to whole numbers with its reach, and the steps behind it
    (0 in the place of a NaN, a zero point and limits) with none. Nothing where it is not that."""
    if end.name not in ("int8", "uint8"):
        return {}
    found: dict[int, Reach | None] = {}
    low, high, zero, at, whole = -math.inf, math.inf, 0.0, output, -1
    while True:
        name, _, *args = steps[at]
        number = _number(steps, args[-1]) if name in ("max", "min", "add") else None
        nan: Sequence[Any] = steps[args[0]] if name == "where" else [""]
        if name in ("max", "min") and number is not None:
            low, high = (max(low, number + zero), high) if name == "max" else (low, min(high, number + zero))
        elif whole >= 0:
            break
        elif _rounds_to_whole(steps[at]):
            whole = at
        elif name == "add" and number is not None:
            zero += number
        elif name == "where" and nan[0] == "eq" and nan[2] == nan[3] == args[1] and _rounds_to_whole(steps[args[1]]):
            found[args[0]] = None
            args = args[1:]
        elif name not in ("to_int", "wrap"):
            break
        if whole in (-1, at):
            found[at] = None
        at = args[0]
    first, last = integer_range(end)
    alone = all(set(readers[at]) <= set(found) and (at not in outputs or at == output) for at in found)
    if whole < 0 or not alone or outputs.count(output) > 1 or not first <= low <= high <= last:
        return {}
    return {**found, whole: Reach(1, 1, max(abs(low - zero), abs(high - zero)))}


def _through(steps: Sequence[Any], reader: int, at: int, reach: Reach | None) -> Reach | None:
    """The reach of a step by one reader, which has a reach itself; None where what is read decides or jumps."""
    name, kind, *args = steps[reader]
    times = args.count(at)
    if reach is None or kind != "float32" or (name == "where" and args[0] == at):
        return None
    of_one, of_all = reach.of_one * times, reach.of_all * times
    if name in ("add", "sub"):
        return Reach(of_one, 0, math.inf)
    if name in _AS_LARGE:
        return Reach(of_one, reach.least, of_all)
    if name in _RELATIVE:
        return Reach(math.inf, 0, of_all)
    if name not in ("mul", "div"):
        return None
    number = None if args[0] != at and name == "div" else _number(steps, args[0] if args[0] != at else args[1])
    if not number or not math.isfinite(number):
        return Reach(math.inf, 0, of_all)
    factor = abs(number) if name == "mul" else 1 / abs(number)
    return Reach(of_one * factor, reach.least * factor, of_all)


def _magnitudes(steps: Sequence[Any], kinds: Sequence[DType]) -> list[float]:
    """How large each step's result can be; infinite where nothing says so."""
    found: list[float] = []
    for name, kind, *args in steps:
        most = math.inf
        if name == "input" and kinds[args[0]] in (dtypes.int8, dtypes.uint8):
            most = float(max(map(abs, integer_range(kinds[args[0]]))))
        elif name == "const":
            most = abs(float(args[0]))
        elif name in ("add", "sub"):
            most = found[args[0]] + found[args[1]]
        elif name == "mul":
            most = found[args[0]] * found[args[1]]
        elif name in ("neg", "abs", "to_float", "round"):
            most = found[args[0]]
        if math.isfinite(most) and _rounds_to_whole((name, kind, *args)):
            most = float(math.ceil(most))
        found.append(most if math.isfinite(most) else math.inf)
    return found


def _number(steps: Sequence[Any], at: int) -> float | None:
    """The number that a step of floats is, or None."""
    name, kind, *args = steps[at]
    return float(args[0]) if name == "const" and kind == "float32" else None


def _rounds_to_floats(step: Any) -> bool:
    return bool(step[0] == "round" and step[1] == "float32" and len(step) == 4)


def _rounds_to_whole(step: Any) -> bool:
    return bool(step[0] == "round" and step[1] == "float32" and len(step) == 3)


def _arguments(step: Any) -> list[int]:
    """The steps whose results a step reads."""
    return [] if step[0] in ("input", "const") else [a for a in step[2:] if type(a) is int]


def _holds(dtype: DType, step: Any) -> bool:
    """Whether a step is a number that the dtype has."""
    return step[0] == "const" and bool(float(np.float32(step[2]).astype(dtype.numpy)) == step[2])
