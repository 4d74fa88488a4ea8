"""The op decorator, the functions derived from it, and what a call of an op means.

The network is found from the operands. Values emit into the network they belong to, which may be a pattern recorder or
an eager one. NumPy arrays compute at once, and Python numbers take the dtype of the tensors beside them.
"""
from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from ingot.dims import Dim, Expr
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir import precision
from ingot.ir.attribute import kind_of
from ingot.ir.network import Network
from ingot.ir.op import OPS, Op, Operand, infer, scalar_array
from ingot.ir.sizes import as_shape, as_size, is_data
from ingot.ir.spec import Spec
from ingot.ir.value import Value, functions

C = TypeVar("C", bound=type[Op])

UNLIMITED = 1 << 16
MAX_CONSTANT = 1 << 16


@dataclass_transform(frozen_default=True, eq_default=False)
def op(name: str) -> Callable[[C], C]:
    """Registers an op: reads its operands and attributes, and derives the function that users call."""
    def register(cls: C) -> C:
        if name in OPS:
            raise KeyError(f"op {name!r} is declared twice: {OPS[name].__qualname__} and {cls.__qualname__}")
        OPS[name] = cls
        declare(cls, name)
        functions[name] = function_of(cls)
        return cls
    return register


def declare(cls: type[Op], name: str) -> None:
    """Reads an op's operands and attributes off its class."""
    fields = {n: a for base in reversed(cls.__mro__[:-2])  # all but Op and object
              for n, a in inspect.get_annotations(base).items() if not a.startswith("ClassVar")}
    if fields:  # a class without attributes inherits all that dataclass would write
        cls.__annotations__ = fields  # those of undecorated bases too
        dataclasses.dataclass(frozen=True, repr=False, eq=False)(cls)
    cls.name = name
    cls.attributes = {n: kind_of(a) for n, a in fields.items()}
    cls.symbolic = tuple(n for n, kind in cls.attributes.items() if kind.symbolic)
    parameters = list(inspect.signature(cls.infer).parameters.values())[1:]
    cls.operands = tuple(
        Operand(p.name, p.default is None, p.kind is p.VAR_POSITIONAL, str(p.annotation).startswith("StateSpec"))
        for p in parameters)
    variadic = any(o.variadic for o in cls.operands)
    cls.least = sum(not o.optional and not o.variadic for o in cls.operands)
    cls.most = UNLIMITED if variadic else len(cls.operands)
    returns = cls.infer.__annotations__.get("return", "...")
    cls.outputs = None if "..." in returns else returns.count("Spec")


def function_of(cls: type[Op]) -> Callable[..., Any]:
    """The public function of an op: operands, then attributes, each by position or keyword."""
    def call(*args: Any, **kwargs: Any) -> Any:
        operands, attributes = _bind(cls, args, kwargs)
        for n in cls.symbolic:
            if is_data(attributes.get(n)):
                whole = cls.attributes[n].name.startswith("Shape")
                attributes[n] = (as_shape if whole else as_size)(attributes[n])
        return apply(cls(**attributes), operands)

    call.__name__ = call.__qualname__ = cls.name
    call.__doc__ = f"{cls.name}{signature(cls)}\n\n{cls.__doc__}"
    call.op = cls  # type: ignore[attr-defined]
    return call


def signature(cls: type[Op]) -> str:
    """`(x, weight=None, eps=1e-06)`."""
    shown = [f"*{o.name}" if o.variadic else f"{o.name}=None" if o.optional else o.name for o in cls.operands]
    for n in cls.attributes:
        default = getattr(cls, n, dataclasses.MISSING)
        shown.append(n if default is dataclasses.MISSING else f"{n}={default!r}")
    return f"({', '.join(shown)})"


def _bind(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sorts a call's arguments into operands (in order, trailing absent ones dropped, others None) and attributes."""
    declared = cls.operands
    if declared and declared[-1].variadic:
        fixed = len(declared) - 1
        if len(args) > fixed and isinstance(args[fixed], tuple | list):  # concat([a, b], 0)
            operands, rest = [*args[:fixed], *args[fixed]], args[fixed + 1 :]
        else:
            operands, rest = list(args), ()
    else:
        operands, rest = list(args[: len(declared)]), args[len(declared) :]
    if kwargs and not kwargs.keys() <= cls.attributes.keys():
        _take_operands(cls, operands, kwargs)
    for name, value in zip(cls.attributes, rest, strict=False):
        if name in kwargs:
            raise OpError(f"{cls.name}{signature(cls)}: {name} is given twice, by position and by name")
        kwargs[name] = value
    while len(operands) > cls.least and operands[-1] is None:
        operands.pop()
    missing = [o.name for o in declared[len(operands) : cls.least]]
    missing += [o.name for o, x in zip(declared, operands, strict=False) if x is None and not o.optional]
    missing += [n for n in cls.attributes if n not in kwargs and not hasattr(cls, n)]
    if missing or len(rest) > len(cls.attributes):
        why = f"{', '.join(missing)} must be given" if missing else f"got {len(args)} positional arguments"
        raise OpError(f"{cls.name}{signature(cls)}: {why}")
    return tuple(operands), kwargs


def _take_operands(cls: type[Op], operands: list[Any], kwargs: dict[str, Any]) -> None:
    """Moves operands that were given by name from kwargs to their place."""
    for i, o in enumerate(cls.operands):
        if o.name in kwargs and not o.variadic:
            if i < len(operands):
                raise OpError(f"{cls.name}{signature(cls)}: {o.name} is given twice, by position and by name")
            operands.extend([None] * (i - len(operands)))
            operands.append(kwargs.pop(o.name))
    if unknown := [k for k in kwargs if k not in cls.attributes]:
        raise OpError(f"{cls.name}{signature(cls)} has no {', '.join(unknown)}")


def apply(op: Op, operands: tuple[Any, ...]) -> Any:
    """Emits into the network of the operands, or computes at once when they are arrays."""
    scope = precision.scope()
    if scope is None:
        return _apply(op, operands)
    cast: Any = OPS["cast"]
    given = list(operands)
    for i in scope.to_cast(op, operands):
        given[i] = _apply(cast(dtype=scope.dtype), (given[i],))
        scope.note(given[i], ())
    result = _apply(op, tuple(given))
    if op.in_scope != "keeps":
        scope.note(result, given)
    return result


def _apply(op: Op, operands: tuple[Any, ...]) -> Any:
    network: Network | None = None
    plain = False
    for x in operands:
        if type(x) is not Value:
            plain = True
        elif network is None:
            network = x.network
        elif x.network is not network:
            network = network.join(x.network, op)
    if network is None:
        return compute(op, operands)
    return network.emit(op, _as_values(op, operands, network) if plain else operands)


def _as_values(op: Op, operands: tuple[Any, ...], network: Network) -> tuple[Value, ...]:
    """Arrays become constants, and Python numbers constants of the tensors' dtype; dims are computed, in that dtype."""
    out = []
    for i, x in enumerate(operands):
        if isinstance(x, Value):
            out.append(x)
        elif isinstance(x, np.ndarray | np.generic):
            out.append(network.constant(np.asarray(x)))
        elif x is None:
            out.append(network.absent)
        elif isinstance(x, Expr):
            out.append(_size(network, x, _scalar_dtype(op, i, x, operands)))
        else:
            out.append(network.scalar(x, _scalar_dtype(op, i, x, operands)))
    return tuple(out)


def _size(network: Network, size: Expr, dtype: DType) -> Value:
    counted: Any = OPS["iota"]
    whole = functions["reshape"](network.emit(counted(size=1, start=size, dtype="int64"), ()), ())
    return functions["cast"](whole, dtype)  # type: ignore[no-any-return]


def _scalar_dtype(op: Op, index: int, x: Any, operands: tuple[Any, ...]) -> DType:
    """The dtype that a Python number takes: that of the first tensor beside it which may lend its own."""
    if not isinstance(x, bool | int | float | Expr):
        kind = type(x)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise OpError(f"{op.name}: operand {_operand_name(op, index)} is a {name}; operands are tensors of a network, "
                      "NumPy arrays, or Python numbers")
    for i, other in enumerate(operands):
        if op.scalars_like is None or _operand_name(op, i) in op.scalars_like:
            if isinstance(other, Value):
                return other.dtype
            if isinstance(other, np.ndarray | np.generic):
                return Spec.of(other).dtype
    raise OpError(f"{op.name}: a Python number takes its dtype from a tensor beside it, and there is none; "
                  "give an array with a dtype instead")


def _operand_name(op: Op, index: int) -> str:
    return op.operands[min(index, len(op.operands) - 1)].name if op.operands else str(index)


def compute(op: Op, operands: tuple[Any, ...]) -> Any:
    """Eager mode: checks by the op's rule, computes by its reference. What depends on dims is recorded instead, in a
    network that joins that of its first consumer."""
    if op.has_dims() or not (operands or _is_small(op)):
        network = Network("detached", detached=True)
        return network.emit(op, _as_values(op, operands, network))
    arrays = tuple(
        x if x is None else
        np.asarray(x) if isinstance(x, np.ndarray | np.generic) else scalar_array(x, _scalar_dtype(op, i, x, operands))
        for i, x in enumerate(operands))
    specs = tuple(None if x is None else Spec.of(x) for x in arrays)
    infer(op.bind(_unbacked, *specs) if op.binds else op, specs, "eager mode")
    return op.reference(*arrays)


def _unbacked(prefix: str, max: int | None = None) -> Dim:
    return Dim(prefix, max=max, unbacked=True)


def _is_small(op: Op) -> bool:
    """Whether an op without operands gives sizes that are known, and few enough to keep as a constant."""
    return all(isinstance(n, int) and n <= MAX_CONSTANT for n in (s.elements for s in infer(op, (), "eager mode")))
