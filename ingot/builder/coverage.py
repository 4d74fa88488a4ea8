"""What is covered: for every op the element types that an engine runs natively, and what importers make it of.

Everything follows from declarations. Whether the CPU runs an op natively is found by compiling the op's own cases with
each element type; what a torch device does, by its torch form; which ops of torch lead to it, by what the importer's
functions name.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Collection, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.builder.compile import compile_network
from ingot.dtypes import DType
from ingot.errors import IngotError
from ingot.frontends.torch_export.aten import COMPLEX_TABLE, TABLE, promotion
from ingot.ir import OPS, Case, F, Network, Op, Spec, StateSpec
from ingot.ops import table

DTYPES = ("float32", "bfloat16", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
INTERNAL = ("fused", "lowering")  # families of ops that passes make, and nobody writes
NATIVE, HOST, SOME = "native", "host", "native or host"
MOST_CASES = 4  # of an op, that are compiled with each type


def coverage(names: Collection[str] | None = None, kinds: Collection[str] = DTYPES) -> list[dict[str, Any]]:
    """A row for each op, or for those named: what `ops.table` says of it, and its kernels, cpu, torch and importers.

    cpu: for each element type that the op takes, "native", "host" or, by its cases, "native or host". torch: "native",
    "simpler ops" or "host". importers: {"torch": the ops of torch.export that lead to it}.
    """
    rows = []
    for row in table():
        cls = OPS[row["op"]]
        if names is not None and cls.name not in names:
            continue
        cpu = {kind: how for kind in kinds if (how := on_cpu(cls, dtypes.get(kind))) is not None}
        rows.append({
            **row, "internal": row["family"] in INTERNAL, "kernels": _kernels(cls), "cpu": cpu, "torch": on_torch(cls),
            "importers": {"torch": list(_aten().get(cls.name, ()))},
        })  # fmt: skip
    return rows


def _kernels(cls: type[Op]) -> list[str]:
    """The CPU's kernels that run an op; scalar expressions all go the way of fused_elementwise."""
    wanted = {cls.name, "fused_elementwise"} if cls.expr is not None else {cls.name}
    return [kernel.name for kernel in CPU.kernels if wanted & kernel.runs.keys()]


def on_cpu(cls: type[Op], kind: DType) -> str | None:
    """How an engine runs an op on elements of a type; None when the op takes none."""
    found = {how for case in cases_of(cls, kind) if (how := _compiled(cls, case)) is not None}
    return SOME if len(found) > 1 else next(iter(found), None)


def on_torch(cls: type[Op]) -> str:
    """How a session on a torch device runs an op."""
    if cls.torch is not None and not cls.reads_back:
        return NATIVE
    return "simpler ops" if cls.decompose is not None else HOST


def cases_of(cls: type[Op], kind: DType) -> Iterator[Case]:
    """Some of an op's cases, their elements of a type: those of the first operand, or of the first of floats."""
    count = 0
    for case in cls.cases:
        tensors = [s for s in case.specs if isinstance(s, Spec)]
        main = next((s.dtype for s in tensors if s.dtype.is_float), tensors[0].dtype if tensors else None)
        if case.error or case.no_engine or count == MOST_CASES or (main is None and kind is not dtypes.float32):
            continue
        count += 1
        yield case._replace(specs=tuple(
            s.like(dtype=kind) if isinstance(s, Spec) and s.dtype is main else s for s in case.specs))  # fmt: skip


def _compiled(cls: type[Op], case: Case) -> str | None:
    network = Network("case")
    stored = cls.stored if case.stored is None else case.stored
    operands = []
    names = [o.name for o in cls.operands if not o.variadic]
    for i, spec in enumerate(case.specs):
        name = names[i] if i < len(names) else f"x{i}"
        if spec is None:
            operands.append(network.absent)
        elif isinstance(spec, StateSpec):
            operands.append(network.state(name, spec))
        else:
            operands.append((network.parameter if name in stored else network.input)(name, spec))
    try:
        found = network.emit(cls(**case.attrs), tuple(operands))
        several = found if isinstance(found, tuple) else (found,)
        network.outputs = {f"y{i}": v for i, v in enumerate(several) if not v.is_state}
        return HOST if compile_network(network).host_calls else NATIVE
    except IngotError:
        return None  # the op refuses the type, or no engine has it


# --------------------------------------------------------------------------------------------------------- importers


@cache
def _aten() -> dict[str, list[str]]:
    """The ATen ops whose importing functions name an op, by the op's name."""
    found: dict[str, list[str]] = {}
    for name, entry in [*TABLE.items(), *COMPLEX_TABLE.items()]:
        for op in _ops_of(entry.function):
            found.setdefault(op, []).append(name.removeprefix("aten."))
    return {op: sorted(set(names)) for op, names in found.items()}


@cache
def _ops_of(function: Callable[..., Any]) -> frozenset[str]:
    """The ops that a function of ours names in its code, or in that of functions of ours that it names."""
    found: set[str] = set()
    todo: list[Any] = [function]
    seen: set[Any] = set()
    while todo:
        one = todo.pop()
        cls = getattr(one, "op", one)
        if isinstance(cls, type):
            name = getattr(cls, "name", "")
            found |= {name} if OPS.get(name) is cls else set()
        elif isinstance(one, FunctionType) and one not in seen and one.__module__.startswith("ingot."):
            seen.add(one)
            if one.__module__ != promotion.__name__:  # its casts stand before nearly every op
                todo += _names(one)
    return frozenset(found)


@cache
def _names(function: FunctionType) -> tuple[Any, ...]:
    return tuple(_named(function, function.__code__))


def _named(function: FunctionType, code: CodeType) -> Iterator[Any]:
    """What the code of a function names: globals, attributes of modules and of tables of ops, what it closes over."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    current: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and (current is F or isinstance(current, ModuleType)):
            current = getattr(current, name, None)
            continue
        if callable(current):
            yield current
        current = None
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            current = function.__globals__.get(name)
        elif instruction.opname == "LOAD_DEREF" and name in cells:
            current = cells[name].cell_contents
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(function, constant)
