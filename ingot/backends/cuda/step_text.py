"""Steps of scalar expressions as text in Triton's language. Needs no Triton.

Numbers that differ from layer to layer, such as scales, become arguments (`apart`), so that one kernel serves them all.
Rounding to int8 by such a scale becomes one step, "quantise", of a quarter of the instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_BINARY = {"add": "+", "sub": "-", "mul": "*"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_LARGER = "tl.{0}({1}, {2}, propagate_nan=tl.PropagateNan.ALL)"
_FLOAT = {
    "div": "tl.div_rn({}, {})", "neg": "-{}", "abs": "tl.abs({})", "exp": "tl.exp({})", "log": "tl.log({})",
    "sqrt": "tl.sqrt_rn({})", "rsqrt": "1.0 / tl.sqrt_rn({})", "sin": "tl.sin({})", "cos": "tl.cos({})",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{}))", "erf": "tl.erf({})", "floor": "tl.floor({})", "ceil": "tl.ceil({})",
    "recip": "1.0 / {}", "silu": "{0} / (1.0 + tl.exp(-{0}))",
    # halves to even, by adding 1.5 · 2²³; from 2²² on it has none
    "round": "tl.where(tl.abs({0}) < 4194304.0, ({0} + 12582912.0) - 12582912.0, {0})",
    # near 0 by its series: the other form would lose the low bits
    "tanh": "tl.where(tl.abs({0}) < 0.1, {0} * (1 + {0} * {0} * (-1 / 3 + {0} * {0} * (2 / 15 - {0} * {0} * 17 / 315)))"
            ", 1 - 2 / (tl.exp(2 * {0}) + 1))",
}  # fmt: skip
_INT = {"neg": "-{}", "abs": "tl.abs({})", "max": "tl.maximum({}, {})", "min": "tl.minimum({}, {})"}
_READ = {"float32": "tl.float32", "int64": "tl.int64", "bool": "tl.int1"}
# a register of 32 bits: what it does not hold, NaN too, becomes its smallest number
_WHOLE = "tl.where(({0} >= -2147483648.0) & ({0} < 2147483648.0), {0}, -2147483648.0).to(tl.int32).to(tl.int64)"
_ROUND = {"float16": "tl.float16", "bfloat16": "tl.bfloat16"}
_WRAP = {"int8", "int16", "int32", "uint8"}

_SCALES = (2.0**-100, 2.0**100)  # of "quantise": products and quotients with them stay normal numbers


def line_of(step: Sequence[Any]) -> str | None:
    """The Triton expression of one step (ir/expr.py); None where there is none."""
    name, kind, *args = step
    if kind not in _READ:
        return None
    if name == "const":
        number = args[0]
        return f'float("{number}")' if isinstance(number, str) else repr(number)
    given = [f"r{a}" for a in args if isinstance(a, int)]
    if name in _COMPARE:
        return f"{given[0]} {_COMPARE[name]} {given[1]}"
    if name == "where":
        return f"tl.where({', '.join(given)})"
    if name == "round" and len(args) == 2:
        return f"{given[0]}.to({_ROUND[args[1]]}).to(tl.float32)" if args[1] in _ROUND else None
    if name == "wrap":
        return f"{given[0]}.to(tl.{args[1]}).to(tl.int64)" if args[1] in _WRAP else None
    if name == "to_float" or (name == "to_int" and len(args) == 1):
        return f"{given[0]}.to({_READ[kind]})"
    if name == "to_int" and args[1] == "int32":
        return _WHOLE.format(*given)
    if name == "to_bool":
        return f"{given[0]} != 0"
    if kind == "bool":
        return f"{given[0]} {_LOGIC[name]} {given[1]}" if name in _LOGIC else f"{given[0]} == 0"
    if name in _BINARY:
        return f"{given[0]} {_BINARY[name]} {given[1]}"
    if kind == "int64":
        if name in _LOGIC:
            return f"{given[0]} {_LOGIC[name]} {given[1]}"
        return _INT[name].format(*given) if name in _INT else None
    if name in ("max", "min"):
        return _LARGER.format(f"{name}imum", *given)
    return _FLOAT[name].format(*given) if name in _FLOAT else None


def apart(steps: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    """An expression's steps with ("number", kind, i) in the place of constants, and these. Small whole numbers stay."""
    found = _with_quantise(steps)
    numbers: dict[float, int] = {}
    for at, (name, kind, *args) in enumerate(found):
        if name == "const" and kind == "float32" and isinstance(args[0], float) and not _is_small(args[0]):
            found[at] = ("number", kind, numbers.setdefault(args[0], len(numbers)))
    return tuple(found), tuple(numbers)


def _is_small(number: float) -> bool:
    return number == int(number) and abs(number) <= 128 if np.isfinite(number) else True


def _with_quantise(steps: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Steps where ("quantise", "int64", x, scale, low, high) rounds x / scale to int8, halves to even, NaN as 0."""
    found = [tuple(step) for step in steps]
    for at in range(len(found)):
        if (made := _quantise(found, at)) is not None:
            found[at] = made
    return found


def _quantise(steps: Sequence[tuple[Any, ...]], at: int) -> tuple[Any, ...] | None:
    def read(step: int, name: str, *kept: Any) -> tuple[int, ...] | None:
        """The operands of a step of that name."""
        known, _, *args = steps[step]
        given = tuple(args[: len(args) - len(kept)])
        return given if known == name and tuple(args[len(given) :]) == kept else None

    def bound(step: int, name: str) -> tuple[int, float] | None:
        """What a step of that name limits, and the constant to which it does."""
        given = read(step, name)
        if given is None or steps[given[1]][0] != "const":
            return None
        return given[0], steps[given[1]][2]

    whole = read(at, "wrap", "int8")
    limited = None if whole is None else read(whole[0], "to_int", "int32")
    high = None if limited is None else bound(limited[0], "min")
    low = None if high is None else bound(high[0], "max")
    chosen = None if low is None else read(low[0], "where")
    if high is None or low is None or chosen is None or not -128 <= low[1] < 0 < high[1] <= 127:
        return None
    test, rounded, zero = chosen
    divided = read(rounded, "round")
    if read(test, "eq") != (rounded, rounded) or steps[zero][0] != "const" or steps[zero][2] or divided is None:
        return None
    given = read(divided[0], "div") if len(divided) == 1 else None
    if given is None or steps[divided[0]][1] != "float32" or steps[given[1]][0] != "const":
        return None
    scale = steps[given[1]][2]
    if not isinstance(scale, float) or not _SCALES[0] <= scale <= _SCALES[1]:
        return None
    return ("quantise", "int64", *given, low[1], high[1])


def lines_of(steps: Sequence[Any], output: int, loads: Sequence[str], native: bool = True) -> list[str]:
    """Triton's lines for an expression whose result is a step, register r{i} for step i. loads: what brings each
    operand; c{i} is number i. native: on a GPU, where a product and an addition round once; not interpreted.
    """
    needed = _needed(steps, output)
    found = []
    for i, step in enumerate(steps):
        if i not in needed:
            continue
        name, kind, *args = step
        if name == "quantise":
            found += _quantised(i, args, native)
            continue
        if name == "input":
            made: str | None = f"{loads[args[0]]}.to({_READ[kind]})"
        elif name == "number":
            made = f"c{args[0]}"
        elif name == "to_float" and steps[args[0]][0] == "quantise":
            made = f"q{args[0]} - 12582912.0"
        else:
            made = line_of(step)
        found.append(f"    r{i} = {made}")
    return found


def _needed(steps: Sequence[Any], output: int) -> set[int]:
    """The steps on which a result depends."""
    found, left = set(), [output]
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            name, _, *args = steps[at]
            if name not in ("input", "number", "const"):
                left += args[:2] if name == "quantise" else [a for a in args if isinstance(a, int)]
    return found


def _quantised(i: int, args: Sequence[Any], native: bool) -> list[str]:
    """The lines of a step "quantise". x is held where its quotient stays in low..high. The quotient is that of a
    division: a product with the reciprocal, and a step of Newton's on what is left. Adding 1.5 · 2²³ rounds it, and its
    low bits are the integer.
    """
    x, scale, low, high = args
    quotient = [f"    q{i} = q{i} * i{i}" if native else f"    q{i} = tl.div_rn(q{i}, r{scale})"]
    if native:
        quotient = [f"    v{i} = q{i}", *quotient,
                    f"    q{i} = tl.fma(tl.fma(-q{i}, r{scale}, v{i}), i{i}, q{i})"]  # fmt: skip
    return [
        f"    i{i} = tl.div_rn(1.0, r{scale})",
        f"    q{i} = tl.minimum(tl.maximum(r{x}, {low} * r{scale}), {high} * r{scale})",
        f"    q{i} = tl.where(r{x} == r{x}, q{i}, 0.0)", *quotient, f"    q{i} = q{i} + 12582912.0",
        f"    r{i} = (q{i}.to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int64)",
    ]  # fmt: skip
