"""The symbolic tensor: one value of a network, with torch's operators and view-like methods.

Methods reach ops through `functions`, the table that the op decorator fills by name, so that this file knows no op.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ingot import dims
from ingot.dims import Dim, Dimension, Expr
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir.checked import to_expand, to_reshape
from ingot.ir.sizes import Tensor, as_shape, as_size
from ingot.ir.spec import Shape, StateSpec, axis_of, elements

functions: dict[str, Callable[..., Any]] = {}


class Functions:
    """`F.softmax(x)` calls the op of that name: for code below ops and inside them, where names cannot be imported."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return functions[name]
        except KeyError:
            raise AttributeError(f"there is no op {name!r}") from None


F = Functions()


class Recorder(Protocol):
    """What a value needs of the network it belongs to: what a call of an op means there."""

    name: str
    dims: dict[str, Dim]

    def emit(self, op: Any, inputs: tuple[Value, ...]) -> Any: ...
    def constant(self, array: Any) -> Value: ...
    def scalar(self, value: Any, dtype: DType | None) -> Value: ...


class Value(Tensor):
    """A tensor (or state) in a network. `ingot.Tensor` is this class."""

    __slots__ = ("array", "kind", "name", "network", "node", "recipe", "spec", "uses")
    __array_ufunc__ = None  # NumPy arrays on the left of an operator leave it to us

    def __init__(self, network: Any, name: str, spec: Any, kind: str, node: Any = None, array: Any = None,
                 recipe: Any = None) -> None:
        self.network = network
        self.name: str = name
        self.spec: Any = spec  # Spec, StateSpec for a state, None for an absent operand
        self.kind: str = kind  # "input" | "parameter" | "constant" | "state" | "result" | "absent"
        self.node: Any = node  # the Node that makes a result
        self.array: Any = array  # a constant's data; every value's when computing eagerly
        self.recipe: Any = recipe  # a parameter's; None: the source parameter of the same name
        self.uses: dict[Any, None] = {}  # the Nodes that read it, in order
        self.known = None  # its elements, where they are known as dims (ir/sizes.py)

    # -------------------------------------------------------------------------------------------- what is known
    @property
    def is_state(self) -> bool:
        """Whether it is a state, of the network or as an op hands it on: it has no shape."""
        return isinstance(self.spec, StateSpec)

    @property
    def shape(self) -> Shape:
        if self.is_state:
            raise OpError(f"{self.said} is a {self.spec}: it has no shape, its blocks belong to the session")
        return self.spec.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> DType:
        return self.spec.dtype  # type: ignore[no-any-return]

    @property
    def said(self) -> str:
        """What messages call it: `%x`, or the op that made it where nobody gave it a name."""
        if not self.name.isdecimal():
            return f"%{self.name}"
        return f"the result of {self.node.op.name}" if self.node is not None else "a tensor"

    def ndim(self) -> int:
        return len(self.shape)

    rank = ndim

    def size(self, dim: int | None = None) -> Any:
        """One dimension, or with none given the whole shape."""
        return self.shape if dim is None else self.shape[axis_of(dim, len(self.shape), "dim")]

    @property
    def is_fixed(self) -> bool:
        """Whether all dimensions are ints, the same in every run."""
        return dims.all_fixed(self.shape)

    def is_dynamic(self, dim: int | None = None) -> bool:
        """Whether a dimension (or any) is known only at run time."""
        return not dims.all_fixed(self.shape if dim is None else (self.size(dim),))

    def numel(self) -> Dimension:
        return elements(self.shape)

    def __repr__(self) -> str:
        data = "" if self.array is None or getattr(self.array, "size", 17) > 16 else f" = {self.array.tolist()}"
        return f"%{self.name}: {self.spec}{data}"

    __str__ = __repr__

    # -------------------------------------------------------------------------------------------- refusals that teach
    def __bool__(self) -> bool:
        raise OpError(f"the truth of {self.said} is known only at run time: use ops.where or ops.cond instead of if, "
                      "and `is` to compare tensors as objects")

    def __len__(self) -> int:
        raise OpError(f"len() of {self.said}: use .size(0) for its first dimension, which may be known only at run "
                      "time, and .ndim() for the number of dimensions")

    def __iter__(self) -> Iterator[Value]:
        raise OpError(f"{self.said} cannot be iterated: use .split(1) or an index")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise OpError(f"{self.said} is a symbolic tensor without numbers: use ops of ingot on it, not NumPy's")

    # -------------------------------------------------------------------------------------------- operators
    def __add__(self, other: Any) -> Value:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return _call("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return _call("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return _call("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return _call("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return _call("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return _call("div", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return _call("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return _call("floordiv", other, self)

    def __mod__(self, other: Any) -> Value:
        return _call("mod", self, other)

    def __rmod__(self, other: Any) -> Value:
        return _call("mod", other, self)

    def __pow__(self, other: Any) -> Value:
        return _call("pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return _call("pow", other, self)

    def __matmul__(self, other: Any) -> Value:
        return _call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return _call("matmul", other, self)

    def __neg__(self) -> Value:
        return _call("neg", self)

    def __abs__(self) -> Value:
        return _call("abs", self)

    def __invert__(self) -> Value:
        return _call("logical_not", self)

    def __and__(self, other: Any) -> Value:
        return _call("logical_and", self, other)

    def __or__(self, other: Any) -> Value:
        return _call("logical_or", self, other)

    def __xor__(self, other: Any) -> Value:
        return _call("logical_xor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __eq__(self, other: Any) -> Any:
        return _call("equal", self, other)

    def __ne__(self, other: Any) -> Any:
        return _call("not_equal", self, other)

    def __lt__(self, other: Any) -> Value:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Value:
        return _call("less_equal", self, other)

    def __gt__(self, other: Any) -> Value:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Value:
        return _call("greater_equal", self, other)

    __hash__ = object.__hash__

    # -------------------------------------------------------------------------------------------- views
    def reshape(self, *shape: Any) -> Value:
        """Another shape of the same elements; one size may be −1. A run checks what only it can show to fit."""
        return _call("reshape", *to_reshape(self, as_shape(shape)))

    def view(self, *shape: Any) -> Value:
        """As `reshape`, where a 0 keeps the dimension at its place. Sizes may be tensors of integers too."""
        sizes = as_shape(shape)
        kept = [self.size(i) if type(d) is int and d == 0 else d for i, d in enumerate(sizes)]
        return self.reshape(*kept)

    def permute(self, *axes: Any) -> Value:
        """The dimensions in another order."""
        return _call("permute", self, _sequence(axes))

    def transpose(self, dim0: int, dim1: int) -> Value:
        """Two dimensions exchanged."""
        order = list(range(self.ndim()))
        a, b = axis_of(dim0, len(order), "dim0"), axis_of(dim1, len(order), "dim1")
        order[a], order[b] = order[b], order[a]
        return _call("permute", self, tuple(order))

    def expand(self, *shape: Any) -> Value:
        """Broadcast to a shape; −1 keeps a dimension. A run checks what only it can show to fit."""
        return _call("expand", *to_expand(self, as_shape(shape)))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Value:
        """The dimensions start_dim..end_dim as one."""
        if not self.shape:
            return self.reshape(1)
        a, b = axis_of(start_dim, self.ndim(), "start_dim"), axis_of(end_dim, self.ndim(), "end_dim")
        return self.reshape(*self.shape[:a], elements(self.shape[a : b + 1]), *self.shape[b + 1 :])

    def unsqueeze(self, dim: int) -> Value:
        """A dimension of size 1 inserted before `dim`."""
        at = axis_of(dim, self.ndim() + 1, "dim")
        return self.reshape(*self.shape[:at], 1, *self.shape[at:])

    def squeeze(self, dim: int | None = None) -> Value:
        """Without the dimension `dim`, which must be of size 1, or without all that are."""
        if dim is None:
            return self.reshape(*(d for d in self.shape if d != 1))
        at = axis_of(dim, self.ndim(), "dim")
        if self.shape[at] != 1:
            raise OpError(f"squeeze({self.said}: {self.spec}): dimension {dim} has size {self.shape[at]}, not 1")
        return self.reshape(*self.shape[:at], *self.shape[at + 1 :])

    def split(self, sizes: Any, dim: int = 0) -> tuple[Value, ...]:
        """Cut along `dim`: into pieces of one size (the last may be smaller), or of the listed sizes."""
        at = axis_of(dim, self.ndim(), "dim")
        total = self.shape[at]
        if isinstance(sizes, int):
            if not isinstance(total, int) or sizes <= 0:
                raise OpError(f"split({self.said}: {self.spec}, {sizes}, dim={dim}): pieces of one positive size need "
                              "a dimension that is known; list the sizes instead")
            sizes = [min(sizes, total - start) for start in range(0, total, sizes)] or [0]
        if dims.add(0, *sizes) != total:
            raise OpError(f"split({self.said}: {self.spec}): sizes {list(sizes)} do not add up to {total}")
        pieces: list[Value] = []
        start: Dimension = 0
        for size in sizes:
            pieces.append(self._cut({at: (start, size, 1)}))
            start = dims.add(start, size)
        return tuple(pieces)

    def __getitem__(self, index: Any) -> Value:
        """Ints, slices, `None` and `...` as in NumPy; use ops.take for a tensor of indices."""
        return _index(self, index if isinstance(index, tuple) else (index,))

    def _cut(self, parts: dict[int, tuple[Dimension, Dimension, int]]) -> Value:
        whole = [parts.get(i, (0, d, 1)) for i, d in enumerate(self.shape)]
        starts, sizes, strides = zip(*whole, strict=True)
        return _call("slice", self, starts, sizes, strides)

    # -------------------------------------------------------------------------------------------- other methods
    def cast(self, dtype: Any) -> Value:
        """Another dtype, as ops.cast converts: nothing is scaled, int8 is an integer like any other."""
        return _call("cast", self, dtype)

    to = cast

    def sum(self, dim: Any = None, keepdim: bool = False) -> Value:
        return _call("reduce_sum", self, _axes(dim), keepdim)

    def mean(self, dim: Any = None, keepdim: bool = False) -> Value:
        return _call("reduce_mean", self, _axes(dim), keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Value:
        return _call("reduce_max", self, _axes(dim), keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Value:
        return _call("reduce_min", self, _axes(dim), keepdim)

    def argmax(self, dim: int = -1, keepdim: bool = False) -> Value:
        return _call("argmax", self, dim, keepdim)

    def softmax(self, dim: int = -1) -> Value:
        return _call("softmax", self, dim)

    def sqrt(self) -> Value:
        return _call("sqrt", self)

    def exp(self) -> Value:
        return _call("exp", self)


def _call(name: str, *args: Any) -> Value:
    return functions[name](*args)  # type: ignore[no-any-return]


def _sequence(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """view(2, 3) and view((2, 3)) mean the same."""
    match args:
        case (tuple() | list() as sizes,):
            return tuple(sizes)
    return args


def _axes(dim: int | Sequence[int] | None) -> tuple[int, ...] | None:
    return None if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)


def _index(x: Value, index: tuple[Any, ...]) -> Value:
    """Basic indexing: at most one slice op, then one reshape for dropped and added dimensions."""
    named = [i for i in index if i is not None and i is not Ellipsis]
    if sum(i is Ellipsis for i in index) > 1:
        raise OpError(f"{x.said}[...]: an index takes one ellipsis")
    if len(named) > x.ndim():
        raise OpError(f"{x.said} has {x.ndim()} dimensions, the index names {len(named)}")
    if not any(i is Ellipsis for i in index):
        index = (*index, Ellipsis)
    cuts: dict[int, tuple[Dimension, Dimension, int]] = {}
    shape: list[Dimension] = []
    axis = 0
    for i in index:
        if i is None:
            shape.append(1)
        elif i is Ellipsis:
            rest = x.ndim() - len(named)
            shape.extend(x.shape[axis : axis + rest])
            axis += rest
        elif isinstance(i, slice):
            cuts[axis] = _slice(x, axis, i)
            shape.append(cuts[axis][1])
            axis += 1
        elif isinstance(i, int | Expr) and not isinstance(i, bool):
            cuts[axis] = (dims.add(x.shape[axis], i) if isinstance(i, int) and i < 0 else i, 1, 1)
            axis += 1
        else:
            raise OpError(f"{x.said}[{type(i).__name__}]: an index may hold ints, slices, None and ...; "
                          "use ops.take(x, index, axis) for a tensor of indices")
    cuts = {a: c for a, c in cuts.items() if c != (0, x.shape[a], 1)}
    cut = x._cut(cuts) if cuts else x
    return cut if cut.shape == tuple(shape) else _call("reshape", cut, tuple(shape))


def _slice(x: Value, axis: int, part: slice) -> tuple[Dimension, Dimension, int]:
    """(start, size, stride) of a Python slice of one dimension."""
    whole = x.shape[axis]
    step = 1 if part.step is None else part.step
    if type(step) is not int or step == 0:
        raise OpError(f"{x.said}: the step of a slice must be an int other than 0, not {step!r}")
    ends = [None if end is None else as_size(end) for end in (part.start, part.stop)]
    if isinstance(whole, int) and not any(isinstance(e, Expr) for e in ends):
        run = range(*slice(ends[0], ends[1], step).indices(whole))
        return (run.start if len(run) else 0), len(run), step
    if step < 0:
        raise OpError(f"{x.said}: a slice with a negative step needs a dimension that is known, not {whole}")

    known = x.network.dims

    def edge(at: Any, default: Dimension) -> Dimension:  # clamped as Python does, where the bounds leave it open
        at = default if at is None else at
        if isinstance(at, int) and at < 0:
            at = dims.add(whole, at)
            return at if dims.bounds(at, known)[0] >= 0 else dims.maximum(at, 0)
        if isinstance(at, Expr) and dims.bounds(at, known)[1] <= 0:  # from the end where it is below 0
            back = dims.mul(at, -1)
            at = 0 if back == whole else dims.add(at, dims.mul(whole, dims.minimum(1, back)))
            at = at if dims.bounds(at, known)[0] >= 0 else dims.maximum(at, 0)
        inside = dims.bounds(dims.add(whole, dims.mul(at, -1)), known)[0] >= 0
        return at if inside else dims.minimum(at, whole)

    start, stop = edge(ends[0], 0), edge(ends[1], whole)
    size = dims.add(stop, dims.mul(start, -1))
    least, most = dims.bounds(size, known)
    if most <= 0:
        return 0, 0, step
    return start, dims.ceil_div(size if least >= 0 else dims.maximum(size, 0), step), step
