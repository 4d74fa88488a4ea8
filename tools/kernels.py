"""docs/kernels.md: the table of the CPU's kernels, made from their declarations: `python -m tools.kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ingot import _native
from ingot.backends.cpu import CPU
from ingot.backends.kernel import Kernel, Operand, Reads

PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
HEAD = """# Kernels

<!-- written by python -m tools.kernels -->

Every kernel of the CPU target: the ops whose nodes it runs, its parameters, operands and results. `?` marks what may be
absent, `*` any number. Of the kernels that run an op the first that does not decline a node is taken.

An operand is read with any strides, or has to have

{strides}

and is copied first where it has not. Element types:

{types}

| kernel | runs | parameters | operands | results | levels |
|---|---|---|---|---|---|
"""
TYPES = {
    "stored": ("float32", "bfloat16", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
               "uint64", "bool", "float64"),
    "floats": ("float32", "bfloat16", "float16"),
}  # fmt: skip
STRIDES = {Reads.ANY: "", Reads.ROWS: "rows", Reads.INNER: "inner", Reads.DENSE: "dense"}


def _types(operand: Operand) -> str:
    if operand.dtypes is None:
        return "state"
    names = tuple(d if isinstance(d, str) else d.name for d in operand.dtypes)
    for short, group in TYPES.items():
        if set(group) <= set(names):
            return ", ".join([short, *(n for n in names if n not in group)])
    return ", ".join(f"as {d}" if isinstance(d, str) else d.name for d in operand.dtypes)


def _operands(operands: Sequence[Operand]) -> str:
    described = []
    for operand in operands:
        strides = STRIDES[operand.strides] if operand.dtypes is not None else ""
        described.append(f"{operand.name}: {_types(operand)}{f' ({strides})' if strides else ''}")
    return "; ".join(described) or "–"


def _row(kernel: Kernel, levels: Sequence[str]) -> str:
    params = kernel.params.replace(" | ", " or ") or "–"
    cells = (kernel.name, ", ".join(kernel.runs) or "–", params, _operands(kernel.operands), _operands(kernel.results))
    return f"| {' | '.join(cells)} | {', '.join(levels)} |".replace("*", "\\*")


def page() -> str:
    """The page as it should be."""
    strides = "\n".join(f"- {short}: {how.value}" for how, short in STRIDES.items() if short)
    types = "\n".join(f"- {short}: {', '.join(group)}" for short, group in TYPES.items())
    levels = {kernel["name"]: kernel["levels"] for kernel in _native.kernels()}
    rows = [_row(kernel, levels[kernel.name]) for kernel in CPU.kernels]
    return HEAD.format(strides=strides, types=types) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
