"""One place per op: the class that holds its signature, rule, meaning, lowering and test cases.

    @op("rms_norm")
    class RmsNorm(Op):
        \"\"\"x / sqrt(mean(x², last) + eps) · weight. Accumulates in float32, rounds once.\"\"\"
        eps: float = 1e-6                            # attributes: frozen, typed, printed, serialised
        def infer(self, x: Spec, weight: Spec | None = None) -> Spec: ...      # operands, shapes and dtypes
        def reference(self, x, weight=None): ...     # the meaning, in NumPy
        def decompose(self, x, weight=None): ...     # simpler ops: the lowering everywhere
        cases = (Case("one decode row", (F32(1, 8), F32(8))), ...)

The decorator (ir/call.py) returns the class; the function that users call is `ingot.ops.rms_norm`. On Values it emits
into their network, on NumPy arrays it computes at once.
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ingot.dims import Dim, Dimension, Expr
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir import versions
from ingot.ir.attribute import AttributeRefused, Hole, Kind, accept, add_kind, from_json, same
from ingot.ir.expr import integer_range
from ingot.ir.spec import StateSpec

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """One configuration an op promises to get right, or (with `error`, a regular expression) promises to refuse.

    An engine of it runs natively, unless `host` says why it takes a host call, or `no_engine` (a regular expression)
    what error ends its build. `stored` names the operands that are parameters in it: kernels may want these packed.
    """

    why: str
    specs: tuple[Any, ...] = ()
    attrs: Mapping[str, Any] = {}
    error: str | None = None
    dims: Mapping[str, int] = {}  # values of named dims; others get small ones
    host: str | None = None  # None: as the op says; "" for natively
    no_engine: str | None = None
    stored: tuple[str, ...] | None = None  # None: as the op says


def require(ok: bool, why: str) -> None:
    """A rule of an op: raises OpError with the rule when broken; the caller adds op, operands and place."""
    if not ok:
        raise OpError(why)


class Operand(NamedTuple):
    name: str
    optional: bool
    variadic: bool
    state: bool


@dataclass(frozen=True, repr=False, eq=False)
class Op:
    """An op with its attributes. Subclasses declare fields and `infer`, `reference`; the rest has defaults."""

    name: ClassVar[str]
    version: ClassVar[int] = 1  # goes up when attributes or their meaning change; files name it (see upgrade)
    operands: ClassVar[tuple[Operand, ...]]  # read from infer's signature, and their least and greatest number
    least: ClassVar[int]
    most: ClassVar[int]
    attributes: ClassVar[dict[str, Kind]]  # read from the fields' annotations
    symbolic: ClassVar[tuple[str, ...]]  # the attributes that may hold dims
    outputs: ClassVar[int | None] = 1  # None: depends on the operands
    cases: ClassVar[tuple[Case, ...]] = ()
    function: ClassVar[str] = ""  # its name in ingot.functional, if that is not its own
    arguments: ClassVar[tuple[str, ...]] = ()  # what its operands are called there; (): nothing there derives from it
    imported_as: ClassVar[tuple[str, ...]] = ()  # the ops of other formats that mean just this: "aten.exp.default"
    host: ClassVar[str] = ""  # of cases that do not say: why they take a host call; "": they run natively
    stored: ClassVar[tuple[str, ...]] = ()  # of cases that do not say: the operands that their engines store
    tolerance: ClassVar[float] = 1.0  # multiplies the tests' rounding allowance; above 1 only with a reason beside it
    scalars_like: ClassVar[tuple[str, ...] | None] = None  # operands whose dtype a Python scalar takes; None: any
    binds: ClassVar[bool] = False  # whether it brings an unbacked dim into being (see bind)
    acts: ClassVar[bool] = False  # whether it stays in a network though nobody reads its results
    # In a precision scope (ir/precision.py) it "computes" in the scope's type, "moves" elements, which keep their type
    # unless there are operands to agree with, or "keeps" the types of all its operands.
    in_scope: ClassVar[str] = "computes"
    external: ClassVar[bool] = False  # whether it is a user's own (ops/external.py), and its declaration
    declaration: ClassVar[Mapping[str, Any]] = {}
    is_view: ClassVar[bool] = False  # whether its result is its first operand's memory under other strides

    def infer(self, *specs: Any) -> Any:
        """Specs of the results from those of the operands; OpError (use `require`) when refused."""
        raise NotImplementedError

    def reference(self, *arrays: Any) -> Any:
        """The meaning: slow, obvious NumPy."""
        raise NotImplementedError

    def working(self, *specs: Any) -> int:
        """The bytes that the reference needs at once, where these may be far more than its operands and results have.

        Specs have the sizes of a run. Overridden where a reference holds such arrays; 0 says that it holds none.
        """
        return 0

    def steps(self, *specs: Any) -> int:
        """The time that the reference takes, in steps of about a nanosecond, where it may be far more than one for each
        element of operands and results. Overridden there, as `working` is.
        """
        return 0

    # Overridden where they exist; `None` says that they do not:
    # (self, *arrays): the only result when elements of small integer operands are dims, in object arrays (ir/sizes.py).
    # DimError says that only a run shows it. Exact: that integers wrap is not its concern.
    on_dims: ClassVar[Callable[..., Any] | None] = None
    reads_shapes: ClassVar[bool] = False  # whether on_dims gets the operands' specs instead
    decompose: ClassVar[Callable[..., Any] | None] = None  # the same result of simpler ops
    expr: ClassVar[Callable[..., Any] | None] = None  # (self, e: ExprBuilder, *scalars): per element
    # (self, torch, *tensors): the same by torch, a second oracle, and what runs on a torch device. It allocates on its
    # operands' device, reads nothing back, and updates states in place. It may give None: torch has no such dtype.
    torch: ClassVar[Callable[..., Any] | None] = None
    reads_back: ClassVar[bool] = False  # whether the torch form does, after all: then it is an oracle only
    # (self, torch, *tensors): whether values are a fault at run time, as a bool scalar on their device; the torch form
    # then gives any numbers, and breaks nothing.
    torch_fault: ClassVar[Callable[..., Any] | None] = None
    fault: ClassVar[Any] = "its operands have indices that are out of range"  # what that fault says
    sample: ClassVar[Callable[..., Any] | None] = None  # (self, rng, *specs): valid random operands for tests
    draw: ClassVar[Callable[..., Any] | None] = None  # (cls, draw): a random Case for the property tests

    @classmethod
    def upgrade(cls, version: int, attributes: dict[str, Any]) -> dict[str, Any]:
        """The attributes of this version from those of an older one, both in their JSON forms.

        Overridden where these are renamed, removed, or of another meaning. A new one whose default says what the op did
        before needs nothing: attributes that a file lacks take their defaults. Raises ValueError for what has no
        counterpart.
        """
        return attributes

    def bind(self, fresh: Callable[..., Dim], *specs: Any) -> Op:
        """For `binds` ops: this op with its unbacked dim named (`fresh(prefix, max=…)` makes one)."""
        raise NotImplementedError

    def settled(self, *results: Any) -> Op:
        """This op as a network records it once the specs of its results are known.

        Overridden where an attribute leaves open what operands decide, and sizes of 0 would not show it.
        """
        return self

    def bound_dims(self) -> tuple[Dim, ...]:
        """The unbacked dims that this op binds when it runs."""
        return ()

    def __post_init__(self) -> None:
        for name, kind in self.attributes.items():
            value = getattr(self, name)
            if type(value) is Hole:
                continue
            try:
                stored = accept(kind, value, self.name, name)
            except AttributeRefused as e:
                raise OpError(f"{self.name}: {e}") from None
            if stored is not value:
                object.__setattr__(self, name, stored)

    def attrs(self) -> dict[str, Any]:
        """Attribute values by name."""
        return {name: getattr(self, name) for name in self.attributes}

    def map_dims(self, change: Callable[[Dimension], Dimension]) -> Op:
        """This op with every dimension in its attributes changed."""
        found: dict[str, Any] = {}
        for name in self.symbolic:
            value = getattr(self, name)
            if value is not None:
                found[name] = tuple(map(change, value)) if isinstance(value, tuple) else change(value)
        return dataclasses.replace(self, **found) if found else self

    def evaluate(self, values: Mapping[str, int]) -> Op:
        """This op with every dim in its attributes replaced by its value."""
        return self.map_dims(lambda d: d if isinstance(d, int) else d.evaluate(values))

    def dimensions(self) -> list[Any]:
        """The dimensions in its attributes, None for those that are not given."""
        values = [getattr(self, name) for name in self.symbolic]
        return [d for value in values for d in (value if isinstance(value, tuple) else (value,))]

    def has_dims(self) -> bool:
        """Whether attributes are dims or hold some, which are numbers only in a run."""
        return any(isinstance(d, Expr) for d in self.dimensions())

    def attrs_json(self) -> dict[str, Any]:
        return {name: kind.to_json(getattr(self, name)) for name, kind in self.attributes.items()}

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self.attrs() == other.attrs())

    def __hash__(self) -> int:
        return hash((self.name, *self.attrs().values()))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.attrs().items())})"

    def describe(self, specs: tuple[Any, ...]) -> str:
        """`rms_norm(x=f32[T, 8], weight=f32[4])`, for messages."""
        names = [o.name for o in self.operands if not o.variadic]
        parts = [f"{names[i]}={s}" if i < len(names) else str(s) for i, s in enumerate(specs) if s is not None]
        return f"{self.name}({', '.join(parts)})"


OPS: dict[str, type[Op]] = {}


def scalar_array(value: bool | int | float, dtype: DType) -> Array:
    """A Python number as a 0-d array of a dtype; OpError when it does not fit."""
    fits = dtype.is_float or dtype.kind == "complex" or isinstance(value, bool | int)
    if dtype.kind == "bool":
        fits = isinstance(value, bool)
    elif dtype.is_integer and fits:
        low, high = integer_range(dtype)
        fits = low <= value <= high
    if not fits:
        raise OpError(f"{value!r} is not a {dtype.name}, the dtype of the tensor beside it; cast the tensor first")
    try:
        with np.errstate(over="ignore"):
            array = np.array(value, dtype.numpy)
        lost = bool(np.isinf(array)) and math.isfinite(value)
    except OverflowError:  # an int beyond float64
        lost = True
    if lost:
        raise OpError(f"{brief(value)} is beyond the largest {dtype.name}, the dtype of the tensor beside it; cast the "
                      "tensor first")
    return array


def infer(op: Op, specs: tuple[Any, ...], where: str, source: str = "") -> tuple[Any, ...]:
    """The results' specs as a tuple; a refusal gets op, operands, place and source line."""
    try:
        _check_operands(op, specs)
        out = op.infer(*specs)
    except OpError as e:
        raise OpError(f"{op.describe(specs)} in {where}: {e}{f' ({source})' if source else ''}") from None
    return out if isinstance(out, tuple) else (out,)


def _check_operands(op: Op, specs: tuple[Any, ...]) -> None:
    if not op.least <= len(specs) <= op.most:
        count = str(op.least) if op.least == op.most else f"{op.least} to {op.most}"
        raise OpError(f"takes {count} operands, got {len(specs)}")
    for operand, spec in zip(op.operands, specs, strict=False):
        if spec is None and not operand.optional:
            raise OpError(f"{operand.name} must be given")
        if spec is not None and (type(spec) is StateSpec) is not operand.state:
            raise OpError(f"{operand.name} must be a {'state' if operand.state else 'tensor'}, not {spec}")


def op_from_json(name: Any, version: Any, attrs: Any, where: str, network: Callable[[Any], Any],
                 external: Mapping[str, type[Op]] = {}) -> Op:
    """The op of a file, maybe of an older version (`Op.upgrade`). `network` reads those among the attributes.

    external: the user's own ops that the file may name.

    Raises OpError for what is no op or none of its attributes, EngineVersionError for a newer version, and what
    `network` raises.
    """
    cls = OPS.get(name, external.get(name)) if isinstance(name, str) else None
    if cls is None:
        raise OpError(f"{where}: there is no op {brief(name)}")
    optional = [f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING]
    given = versions.current(f"{where}: {name}", version, attrs, cls.version, cls.attributes.keys(), optional,
                             cls.upgrade, OpError)
    def decoded(kind: Kind, attribute: str, value: Any) -> Any:
        if kind.name == "Network" or (kind.name == "Network | None" and value is not None):
            return network(value)
        if kind.name == "Op":
            if not isinstance(value, dict) or value.keys() != {"op", "version", "attrs"}:
                raise AttributeRefused(f"attribute {attribute} must be {kind.wanted}, not {brief(value)}")
            return op_from_json(value["op"], value["version"], value["attrs"], f"{where}: {attribute}", network,
                                external)
        return from_json(kind, value, name, attribute)

    try:
        return cls(**{n: decoded(cls.attributes[n], n, value) for n, value in given.items()})
    except AttributeRefused as e:
        raise OpError(f"{where}: {name}: {e}") from None


def _an_op(x: Any) -> Op:
    if not isinstance(x, Op):
        raise TypeError
    return x


def _op_to_json(x: Op) -> dict[str, Any]:
    return {"op": x.name, "version": x.version, "attrs": x.attrs_json()}


# An op may hold another one. op_from_json reads it.
add_kind(Kind("Op", "an op", _an_op, _op_to_json, same))
