"""What templates share: dtypes, expressions, operands that broadcast, packed weights."""

from __future__ import annotations

from typing import Any

from fuzz.template import Template, calc

Json = Any
FLOATS = ("float32", "bfloat16", "float16")
NARROW = ("int32", "int64", "int8", "int16", "uint8", "uint16", "uint32")  # what expressions compute as int64
INTEGERS = (*NARROW, "uint64")
FLOAT = {"steps": [["input", "float32", 0]], "outputs": [0]}


def steps(*items: Json, outputs: int | list[int] = -1) -> Json:
    """An expression; its outputs are steps, by default the last one."""
    results = [outputs % len(items)] if isinstance(outputs, int) else outputs
    return {"steps": list(items), "outputs": results}


def f(op: str, *arguments: Json) -> Json:
    return [op, "float32", *arguments]


# Epilogues: the number of extra operands, their class, the steps.
EPILOGUES: dict[str, tuple[int, str, Json]] = {
    "plain": (0, "float", FLOAT),
    "bias": (1, "float", steps(f("input", 0), f("input", 1), f("add", 0, 1))),
    "turned": (1, "float", steps(f("input", 0), f("input", 1), f("mul", 1, 0), f("silu", 2))),
    "residual": (
        2, "float",
        steps(f("input", 0), f("input", 1), f("add", 0, 1), f("round", 2, "bfloat16"), f("input", 2), f("max", 3, 4)),
    ),
    "wide": (
        2, "float",
        steps(f("input", 0), f("input", 1), f("input", 2), f("pow", 1, 2), f("erf", 0), f("div", 4, 3)),
    ),
    "integer": (
        1, "int",
        steps(f("input", 0), ["input", "int64", 1], f("to_float", 1), f("const", 0.5), f("mul", 2, 3), f("sub", 0, 4)),
    ),
}  # fmt: skip


def broadcasts(shape: list[Json]) -> list[Json]:
    """Shapes that broadcast to this one, of every rank."""
    found: list[Json] = []
    for rank in range(len(shape) + 1):
        tail = shape[len(shape) - rank :]
        found += [[*ones, *tail[len(ones) :]] for ones in ([1] * n for n in range(rank + 1))]
        if rank:
            found += [[*tail[:-1], 1]]
    distinct = {str(one): one for one in found}.values()
    return sorted(distinct, key=lambda one: (-len(one), str(one)))


def extras(t: Template, epilogue: str, y: list[Json]) -> tuple[list[int], Json]:
    """The operands and the expression of an epilogue."""
    count, kind, expression = EPILOGUES[epilogue]
    operands = []
    for i in range(count):
        dtype = t.choice(f"extra{i}_dtype", *(FLOATS if kind == "float" else NARROW))
        shape = t.choice(f"extra{i}_shape", *broadcasts(y))
        operands.append(t.input(f"extra{i}", shape, dtype))
    return operands, expression


def panels(outputs: Json, k: Json, dtype: str, groups: Json = 1) -> list[Json]:
    """The shape of a packed weight; uint8: of values of 4 bits."""
    units = calc("*", groups, calc("//", calc("+", outputs, 31), 32))
    if dtype not in ("bfloat16", "int8", "uint8"):
        return [units, k, 32]
    depth = {"bfloat16": 2, "int8": 4, "uint8": 8}[dtype]  # values of k side by side
    return [units, calc("//", calc("+", k, depth - 1), depth), 32, min(depth, 4)]
