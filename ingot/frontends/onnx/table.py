"""The table of ONNX ops: one function for each op, or for each of its meanings over the versions of the opset.

    @onnx("Softmax", since=13)
    def softmax(x: Tensor, *, axis: int = -1) -> Result: ...

Positional parameters are operands, keyword ones attributes, a first parameter `call` is what surrounds the node. An
operand that is annotated as a number or a list of them (`Ints`, `Sizes`, `MaybeFloat`, …) is given by its elements,
which then have to be known while the network is built; `Sizes` and `Size` may also be data, which become sizes at run
time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

import ingot.ops  # noqa: F401  the ops that F finds by name
from ingot.dims import Expr
from ingot.frontends.narrow import Narrow
from ingot.frontends.onnx.regex import Work
from ingot.frontends.onnx.tensors import dtype_of
from ingot.frontends.onnx.text import Text
from ingot.frontends.table import KINDS, Convert, Unsupported, converted, maybe, shown
from ingot.ir import Network, Value
from ingot.ir.sizes import as_shape

Array = np.ndarray[Any, Any]
NDArray = np.ndarray  # a tensor attribute
MaybeNDArray = np.ndarray | None
Graph = Any  # a GraphProto
MaybeGraph = Any
Anything = Any  # an operand as it is: a tensor, a tuple of them for a sequence, or None
Tensors = tuple[Value, ...]
Typed = Any  # a tensor, or a Narrow one
MaybeTyped = Any
Scale = Value  # a tensor; its elements are finite, where the model has them
Divisor = Value  # the same, and none is 0
MaybeDivisor = Value | None
Strings = Any  # a Text
StringsOrTensor = Any

F = TypeVar("F", bound=Callable[..., Any])
MAX_MADE = 1 << 20  # elements of a constant that an op makes of numbers
MAX_PIECES = 1 << 12  # tensors that one node makes


SIZES_ALONE = "make it a constant of the model, or compute it of sizes alone (Shape, Gather, Concat)"


class Unknown(Unsupported):
    """An operand whose elements have to be known while the network is built, and are not. `value` is that operand."""

    def __init__(self, value: Value, what: str, what_to_do: str = SIZES_ALONE) -> None:
        super().__init__(f"{what} must be known when the network is built, and is {shown(value)}", what_to_do)
        self.value = value


class Sequence(tuple[Any, ...]):
    """The tensors of a sequence; a plain tuple is several results of a node."""

    __slots__ = ()


class Body(NamedTuple):
    """A subgraph recorded as a network: what it captured is behind its own inputs, as operands of the op that holds it.
    """

    network: Network
    captured: list[Value]


class Call(Protocol):
    """What surrounds a node."""

    network: Network
    domain: str
    op: str
    version: int  # of the opset of its domain
    outputs: int
    work: Work  # what is left for the patterns of the file
    wanted: tuple[bool, ...]  # which outputs have a name

    def contents(self, value: Value) -> Array | None:
        """The elements of a tensor, if they are known."""

    def odd_scale(self, value: Value, divisor: bool) -> Any:
        """The first element of a tensor, known or stored, that is infinite, NaN or, of a divisor, 0; None where there
        is none, or only a run knows."""

    def unrolled(self, rounds: int, why: str) -> None:
        """Remarks that a loop was written out."""

    def noted(self, what: str) -> None:
        """Tells whoever builds the model something about the node."""

    def must_be_1(self, size: Expr) -> bool:
        """Whether a run ends in an error wherever the size is not 1."""

    def is_new_rule(self, size: Expr) -> bool:
        """Whether no node before has asked the run to check this size."""

    def same_of_any_rank(self) -> bool:
        """Whether what follows the node gives the same elements with a dimension of 1 more in front, or between."""

    def inline(self, graph: Any, operands: list[Any]) -> list[Any]:
        """A subgraph's outputs, recorded here."""

    def body(self, graph: Any, specs: list[Any]) -> Body:
        """A subgraph recorded as a network of its own, from tensors like these."""


@dataclass(frozen=True)
class Entry:
    """One meaning of an op, for opset versions since ≤ v ≤ until."""

    function: Callable[..., Any]
    since: int
    until: int
    operands: tuple[tuple[str, str, bool], ...]  # name, kind, whether it has to be there
    variadic: str
    attributes: dict[str, Convert]
    required: tuple[str, ...]
    takes_call: bool
    folds: bool
    moves: bool


TABLE: dict[tuple[str, str], list[Entry]] = {}
NEWEST = 1 << 20
MICROSOFT = "com.microsoft"
_DOMAINS = {"ai.onnx": ""}


def domain_of(name: str) -> str:
    """The domain as the table has it: ONNX's own is the empty one."""
    return _DOMAINS.get(name, name)


def onnx(
    *names: str, since: int = 1, until: int = NEWEST, domain: str = "", folds: bool = True, moves: bool = False
) -> Callable[[F], F]:
    """Enters a function under the names of ops.

    folds: whether it is computed at once when its operands are known. moves: whether it only moves elements, so that it
    takes them as what carries them.
    """

    def enter(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())
        takes_call = bool(parameters) and parameters[0].name == "call"
        parameters = parameters[takes_call:]
        plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        variadic = next((p.annotation for p in parameters if p.kind is p.VAR_POSITIONAL), "")
        named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        entry = Entry(
            function, since, until,
            tuple((p.name, p.annotation, p.default is p.empty and not p.annotation.startswith("Maybe")) for p in plain),
            variadic,
            {p.name: _ATTRIBUTES[p.annotation] for p in named},
            tuple(p.name for p in named if p.default is p.empty), takes_call, folds, moves,
        )  # fmt: skip
        assert all(kind in _OPERANDS for _, kind, _ in entry.operands), function
        for name in names:
            entries = TABLE.setdefault((domain, name), [])
            assert not any(e.since <= until and since <= e.until for e in entries), name
            entries.append(entry)
        return function

    return enter


def find(domain: str, op: str, version: int) -> Entry | None:
    """The entry for an op of a version of its opset."""
    return next((e for e in TABLE.get((domain, op), ()) if e.since <= version <= e.until), None)


def run(entry: Entry, call: Call, operands: list[Any], attributes: dict[str, Any]) -> Any:
    """What the entry makes. Raises Unsupported for what it does not take."""
    if unknown := sorted(attributes.keys() - entry.attributes.keys()):
        raise Unsupported(f"the attribute {unknown[0]:.60} = {shown(attributes[unknown[0]])} is not supported")
    given = converted(entry.attributes, attributes)
    if missing := [name for name in entry.required if name not in given]:
        raise Unsupported(f"the attribute {', '.join(missing)} is missing")
    args = [call] if entry.takes_call else []
    if len(operands) > len(entry.operands) and not entry.variadic:
        if any(x is not None for x in operands[len(entry.operands) :]):
            raise Unsupported(f"it has {len(operands)} operands, and takes at most {len(entry.operands)}")
        operands = operands[: len(entry.operands)]
    for i, (name, kind, required) in enumerate(entry.operands):
        value = operands[i] if i < len(operands) else None
        if value is None and required:
            raise Unsupported(f"the operand {name} is missing")
        args.append(_operand(call, name, kind, value))
    if entry.variadic != "Anything" and any(x is None for x in operands[len(entry.operands) :]):
        raise Unsupported("one of its operands is absent")
    args += [_operand(call, f"operand {i}", entry.variadic, x)
             for i, x in enumerate(operands[len(entry.operands) :], len(entry.operands))]  # fmt: skip
    return entry.function(*args, **given)


# ------------------------------------------------------------------------------------------------ operands


def _operand(call: Call, name: str, kind: str, value: Any) -> Any:
    try:
        return None if value is None else _OPERANDS[kind](call, value, name)
    except TypeError as e:
        raise Unsupported(f"{name} {e}, not {shown(value)}") from None


def _tensor(call: Call, value: Any, name: str) -> Value:
    if isinstance(value, Narrow):
        raise Unsupported(f"{name} is {value.dtype.name}, which nothing but casts and scales takes")
    if isinstance(value, Text):
        raise Unsupported(f"{name} has strings, which only ops on text take")
    if type(value) is not Value:
        raise TypeError("must be a tensor")
    return value


def _scale(call: Call, value: Any, name: str, divisor: bool = False) -> Value:
    """A tensor of scales. Raises Unsupported where one that the model has is no number or, of a divisor, 0."""
    tensor = _tensor(call, value, name)
    if (odd := call.odd_scale(tensor, divisor)) is not None:
        wanted = "finite and not 0" if divisor else "finite"
        raise Unsupported(f"a scale must be {wanted}, and is {odd} in {name}", "quantise the model again")
    return tensor


def _divisor(call: Call, value: Any, name: str) -> Value:
    return _scale(call, value, name, divisor=True)


def _strings(call: Call, value: Any, name: str) -> Text:
    if not isinstance(value, Text):
        raise TypeError("must be a tensor of strings")
    return value


def _strings_or_tensor(call: Call, value: Any, name: str) -> Any:
    return value if isinstance(value, Text) else _tensor(call, value, name)


def _typed(call: Call, value: Any, name: str) -> Any:
    """A tensor of any element type."""
    return value if isinstance(value, Narrow) else _tensor(call, value, name)


def known(call: Call, value: Value, name: str) -> Array:
    """The elements of an operand. Raises Unknown."""
    found = call.contents(_tensor(call, value, name))
    if found is None:
        raise Unknown(value, name)
    return found


def whole_numbers(call: Call, value: Any, name: str) -> tuple[int, ...]:
    """The elements of an operand of integers. Raises Unknown; TypeError for other types."""
    found = known(call, value, name)
    if found.dtype.kind not in "iu":
        raise TypeError("must be integers")
    return tuple(int(n) for n in found.reshape(-1).tolist())


def _floats(call: Call, value: Any, name: str) -> tuple[float, ...]:
    return tuple(float(n) for n in known(call, value, name).reshape(-1).astype(np.float64).tolist())


def _first(several: Callable[[Call, Any, str], tuple[Any, ...]]) -> Callable[[Call, Any, str], Any]:
    def convert(call: Call, value: Any, name: str) -> Any:
        found = several(call, value, name)
        if len(found) != 1:
            raise TypeError("must be one number")
        return found[0]

    return convert


def _sizes(call: Call, value: Any, name: str) -> tuple[Any, ...]:
    """Sizes: known, computed from those of inputs, or data that become sizes at run time."""
    tensor = _tensor(call, value, name)
    found = call.contents(tensor)
    if found is not None:
        return tuple(int(n) for n in found.reshape(-1).tolist())
    return as_shape(tensor)


def _dims(call: Call, value: Any, name: str) -> tuple[Any, ...]:
    """Sizes that are known, or computed from those of inputs; data has none of them."""
    tensor = _tensor(call, value, name)
    if call.contents(tensor) is not None or tensor.known is None:
        return whole_numbers(call, value, name)
    return tuple(n if isinstance(n, Expr) else int(n) for n in tensor.known.reshape(-1))


def _bool(call: Call, value: Any, name: str) -> bool:
    return bool(known(call, value, name).reshape(-1)[0])


_OPERANDS: dict[str, Callable[[Call, Any, str], Any]] = {
    "Tensor": _tensor, "MaybeTensor": _tensor, "Anything": lambda call, value, name: value,
    "Scale": _scale, "Divisor": _divisor, "MaybeDivisor": _divisor,
    "int": _first(whole_numbers), "MaybeInt": _first(whole_numbers), "Ints": whole_numbers, "MaybeInts": whole_numbers,
    "float": _first(_floats), "MaybeFloat": _first(_floats), "Floats": _floats, "MaybeFloats": _floats,
    "Sizes": _sizes, "MaybeSizes": _sizes, "Size": _first(_sizes), "MaybeSize": _first(_sizes),
    "Typed": _typed, "MaybeTyped": _typed, "Strings": _strings, "StringsOrTensor": _strings_or_tensor,
    "Dims": _dims, "MaybeDims": _dims, "bool": _bool, "MaybeBool": _bool,
    "NDArray": known, "MaybeNDArray": known,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- attributes


def _truth(value: Any) -> bool:
    if type(value) is not int:
        raise TypeError("must be 0 or 1")
    return value != 0


def _dtype(value: Any) -> Any:
    if type(value) is not int:
        raise TypeError("must be an element type")
    return dtype_of(value, "an attribute")


def _array(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise TypeError("must be a tensor")
    return value


def _graph(value: Any) -> Any:
    if not hasattr(value, "node"):
        raise TypeError("must be a graph")
    return value


_ATTRIBUTES: dict[str, Convert] = {
    **KINDS, "bool": _truth, "MaybeBool": maybe(_truth), "DType": _dtype, "MaybeDType": maybe(_dtype),
    "NDArray": _array, "MaybeNDArray": maybe(_array), "Graph": _graph, "MaybeGraph": maybe(_graph),
    "Anything": lambda x: x,
}  # fmt: skip
