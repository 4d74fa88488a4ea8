"""Steps of scalar expressions as text in Triton's language. Needs no Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def lines_of(steps: Sequence[Any], loads: Sequence[str]) -> list[str]:
    """Triton's lines for an expression, register r{i} for step i; loads: what brings each operand."""
    found = []
    for i, step in enumerate(steps):
        name, kind, *args = step
        made = f"{loads[args[0]]}.to({_READ[kind]})" if name == "input" else line_of(step)
        found.append(f"    r{i} = {made}")
    return found
