"""A kernel of a target, declared in one place: its name, parameters and operands, which nodes it runs, and its cost.

    NORM = Kernel(
        "rms_norm",
        params="eps: number, shift?: number",
        operands=(Operand("x", FLOATS, INNER), Operand("weight?", ("x",), DENSE)),
        results=(Operand("y", ("x",)),),
        runs={"rms_norm": lambda op, node: {"eps": op.eps}},
        flops=lambda call: 4 * size(call.x),
    )

The target's choice, the profile's costs, `ingot ops` and docs/kernels.md follow from declarations. The native table
exports the same names, operands and parameters; tests/backends compares both, element types included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from ingot.backends.cost import Call
from ingot.dtypes import DType
from ingot.errors import NetworkError
from ingot.ir import Network, Node, Op, Value
from ingot.ops.fused import expr_json
from ingot.ops.layouts import PLAIN
from ingot.ops.lowering import Lowered


class Reads(Enum):
    """What strides a kernel reads an operand with, or writes its result."""

    ANY = "any strides"
    ROWS = "a dense last dimension and rows a fixed distance apart"
    INNER = "a dense last dimension"
    DENSE = "row-major without gaps"


@dataclass(frozen=True)
class KernelCall:
    """A kernel for a node: its name and parameters, how it reads each operand, and with what strides it writes its
    result. `sizes`: the kernel that is called first, with its parameters; see Kernel. `splits`: of each operand, the
    flag and the dimension of Operand.split, or None."""

    kernel: str
    version: int
    params: Mapping[str, Any]
    reads: tuple[Reads, ...]
    writes: Reads
    sizes: str
    sizes_params: Mapping[str, Any]
    splits: tuple[tuple[str, int] | None, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why a kernel does not take a node, or why none of a target does."""

    why: str


# ---------------------------------------------------------------------------------------------------- parameters


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": _is_integer,
    "integer or null": lambda value: value is None or _is_integer(value),
    "integers": lambda value: isinstance(value, list) and all(map(_is_integer, value)),
    "number": _is_number,
    "number or null": lambda value: value is None or _is_number(value),
    "flag": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
    "texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "expression": lambda value: isinstance(value, dict) and value.keys() == {"steps", "outputs"},
}


class Param(NamedTuple):
    """A parameter: its name, its kind (of KINDS, or the words it chooses from), and whether it may be absent."""

    name: str
    kind: str
    optional: bool

    def takes(self, value: Any) -> bool:
        """Whether the value is of its kind."""
        known = KINDS.get(self.kind)
        return known(value) if known else isinstance(value, str) and value in self.kind.split(" | ")


@cache
def read_params(schema: str) -> tuple[Param, ...]:
    """The parameters of a schema, "axis: integer, keepdims?: flag"."""
    pairs = [item.split(": ") for item in schema.split(", ") if item]
    return tuple(Param(name.removesuffix("?"), kind, name.endswith("?")) for name, kind in pairs)


# ------------------------------------------------------------------------------------------------------ operands


class Operand(NamedTuple):
    """An operand or a result. Its name says whether it may be absent ("weight?") or is any number ("*extras").

    `dtypes` are its element types; a name among them stands for the element type of that operand. None: a state.
    `layouts`: in which order its elements may be stored (ops/layouts.py). `split`: the dimension, counted from the end,
    that may be given as two where one stride does not walk it; the call's flag "NAME_split" says so.
    """

    name: str
    dtypes: tuple[DType | str, ...] | None
    strides: Reads = Reads.DENSE
    layouts: tuple[str, ...] = (PLAIN,)
    split: int | None = None

    @property
    def plain_name(self) -> str:
        """Without its mark."""
        return self.name.strip("?*")


class Use(NamedTuple):
    """How a kernel runs a node, where more than parameters depends on the node.

    `counts`: how many operands a marked name stands for; without it, as many as there are left. `reads`: the strides of
    operands that are not read as declared.
    """

    params: Mapping[str, Any]
    counts: Mapping[str, int] = {}
    reads: Mapping[str, Reads] = {}


Runs = Callable[[Any, Node], Mapping[str, Any] | Use | Refusal]  # of an op (of a lowered one, that inside) and its node
OfNetwork = Callable[[Network], Mapping[Node, Mapping[str, Any]]]
Cost = Callable[[Call], int]


def inner(op: Op) -> Op:
    """The op that kernels are declared to run: of a lowered one, that inside."""
    return op.inner if isinstance(op, Lowered) else op


def present(node: Node, at: int) -> bool:
    """Whether a node has operand `at`, which is optional."""
    return at < len(node.inputs) and node.inputs[at].spec is not None


def layout(node: Node, at: int) -> str:
    """The layout in which operand `at` of a node is stored."""
    found = node.op.entry_of(at) if isinstance(node.op, Lowered) else None
    return found.layout if found else PLAIN


def sizes_of(node: Node, at: int) -> tuple[int, ...]:
    """The sizes of that layout; () when it is plain."""
    found = node.op.entry_of(at) if isinstance(node.op, Lowered) else None
    return found.sizes if found else ()


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel of a target; see the module.

    `runs`: for each op that it runs, the function that gives the parameters of a node's call, or declines it.
    `of_network`: gives some nodes of a lowered network more parameters, which a node by itself does not show.
    `flops`: the arithmetic of a call, beside the expression that a product may end in. None: it only moves.
    `moved`: the bytes of a call, where they are not those of all operands and results.
    `products`: whether sums of products bound it, which have a peak of their own in bfloat16.
    `sizes`: of ops that bind dims, the kernel that is called with the same operands first; its one result, int64, holds
    the sizes. `sizes_params`: its parameters, of an op.
    """

    name: str = field(kw_only=False)
    version: int = 1
    params: str = ""
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    runs: Mapping[str, Runs]
    flops: Cost | None
    of_network: OfNetwork | None = None
    moved: Cost | None = None
    products: bool = False
    sizes: str = ""
    sizes_params: Callable[[Any], Mapping[str, Any]] | None = None

    @property
    def epilogue(self) -> bool:
        """Whether it runs nodes with an epilogue, and only these: its operands end in those of the epilogue, *extras,
        and its parameters have the expression."""
        return bool(self.operands) and self.operands[-1].name == "*extras"

    @property
    def signature(self) -> str:
        """`x, weight?, *extras -> y`."""
        return f"{', '.join(o.name for o in self.operands)} -> {', '.join(r.name for r in self.results)}".strip()

    def choose(self, node: Node) -> KernelCall | Refusal:
        """Its call for a node of an op that it runs, or why it declines."""
        op = inner(node.op)
        found = self.runs[op.name](op, node)
        if isinstance(found, Refusal):
            return found
        use = found if isinstance(found, Use) else Use(found)
        epilogue = node.op.epilogue if isinstance(node.op, Lowered) else None
        if self.epilogue is not (epilogue is not None):
            return Refusal("it has no epilogue" if epilogue else "it runs lowered nodes, which have an epilogue")
        params = use.params if epilogue is None else {**use.params, "epilogue": expr_json(epilogue)}
        known: dict[str, DType] = {}
        if lacking := [o for o in self.operands[: len(node.inputs)] if self._lacks(o, node, use)]:
            return Refusal(f"it needs the operand {lacking[0].plain_name}")
        operands = list(_assign(self.operands, node.given, use.counts))
        for i, (operand, _) in enumerate(operands):
            if (stored := layout(node, i)) not in operand.layouts:
                return Refusal(f"its {operand.plain_name} is read in {' or '.join(operand.layouts)}, not {stored}")
        written = [v for v in node.outputs if not v.is_state]  # a state is written in place
        for operand, value in (*operands, *_assign(self.results, written, {})):
            if why := _wrong_type(operand, value, known):
                return Refusal(why)
        self._check(params)
        reads = tuple(use.reads.get(operand.plain_name, operand.strides) for operand, _ in operands)
        writes = self.results[0].strides if self.results else Reads.DENSE
        first = self.sizes_params(op) if self.sizes_params else {}
        splits = tuple(None if o.split is None else (f"{o.plain_name}_split", o.split) for o, _ in operands)
        return KernelCall(self.name, self.version, params, reads, writes, self.sizes, first, splits)

    def _lacks(self, operand: Operand, node: Node, use: Use) -> bool:
        """Whether the node has not this operand but ones behind it, and the call would not say so. What only belongs
        to another operand's layout has no place in nodes without it."""
        name = operand.plain_name
        says = use.params.get(name) is False or use.counts.get(name) == 0
        before = self.operands[: self.operands.index(operand)]
        at = sum(PLAIN in o.layouts or use.counts.get(o.plain_name) != 0 for o in before)
        return not present(node, at) and not says

    def _check(self, params: Mapping[str, Any]) -> None:
        """Holds what a declaration's functions give to its own schema."""
        schema = {param.name: param for param in read_params(self.params)}
        for name, param in schema.items():
            if name not in params and not param.optional:
                raise NetworkError(f"{self.name}: the parameter {name} is missing")
        for name, value in params.items():
            if name not in schema or not schema[name].takes(value):
                wanted = f"must be {schema[name].kind}" if name in schema else f"it has {self.params or 'none'}"
                raise NetworkError(f"{self.name}: the parameter {name} is {value!r:.80}; {wanted}")


def _assign(
    operands: tuple[Operand, ...], values: Sequence[Value], counts: Mapping[str, int]
) -> Iterator[tuple[Operand, Value]]:
    """Each value with the operand that it is."""
    at = 0
    for operand in operands:
        most = len(values) if operand.name.startswith("*") else 1
        for value in values[at : at + counts.get(operand.plain_name, most)]:
            yield operand, value
            at += 1
    if at != len(values):
        raise NetworkError(f"{len(values) - at} operands too many: {', '.join(o.name for o in operands)}")


def _wrong_type(operand: Operand, value: Value, known: dict[str, DType]) -> str:
    """What is wrong with the element type of a value, or nothing; it becomes known under the operand's name."""
    if operand.dtypes is None:
        return ""
    dtype = value.dtype
    known.setdefault(operand.plain_name, dtype)
    allowed = [known[d] if isinstance(d, str) else d for d in operand.dtypes]
    if dtype in allowed:
        return ""
    return f"its {operand.plain_name} may be {' or '.join(dict.fromkeys(d.name for d in allowed))}, not {dtype.name}"
