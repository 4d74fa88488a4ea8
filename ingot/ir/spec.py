"""What is known about a value before it exists: dtype and shape, or the type of a state."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.errors import OpError

Shape = tuple[Dimension, ...]

MAX_RANK = 16
MAX_ELEMENTS = 2**62


class Spec:
    """A tensor's dtype and shape: `Spec(("T", 256), "bfloat16")` is shown as `bf16[T, 256]`. Immutable.

    shape: sizes; a string names a dim, or is an expression of some. dtype: one of ingot.dtypes, or its name. Raises
    OpError for a shape that is none or too large, DTypeError for a dtype that is not known.
    """

    __slots__ = ("dtype", "shape")
    dtype: DType
    shape: Shape

    def __init__(self, shape: Sequence[Any], dtype: DType | str = "float32") -> None:
        if isinstance(shape, str | DType):
            raise OpError(f"a Spec takes its shape first, Spec((\"N\", 8), \"float32\"), and {shape!r:.80} is no shape")
        if not isinstance(dtype, str | DType):
            raise OpError(f"a Spec takes its shape first, Spec((\"N\", 8), \"float32\"), and {dtype!r:.80} is no dtype")
        kind = dtype if isinstance(dtype, DType) else dtypes.get(dtype)
        whole = tuple([d if type(d) is int else dims.as_dim(d) for d in shape])
        elements = 1
        for d in whole:
            if isinstance(d, int):
                if d < 0:
                    raise OpError(f"a shape has no negative dimensions: {list(whole)}")
                elements *= d
        if elements > MAX_ELEMENTS or len(whole) > MAX_RANK:
            raise OpError(f"{list(whole)} is too large: at most {MAX_RANK} dimensions and 2^62 elements")
        object.__setattr__(self, "dtype", kind)
        object.__setattr__(self, "shape", whole)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Spec is immutable; make another: Spec(shape, dtype) instead of setting {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.shape, self.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.dtype is other.dtype and self.shape == other.shape

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __str__(self) -> str:
        return f"{self.dtype.short}[{', '.join(map(str, self.shape))}]"

    __repr__ = __str__

    @classmethod
    def of(cls, array: np.ndarray[Any, Any] | np.generic) -> Spec:
        """The Spec of a NumPy array."""
        return cls(array.shape, dtypes.get(array.dtype))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_fixed(self) -> bool:
        """Whether all dimensions are ints, the same in every run."""
        return dims.all_fixed(self.shape)

    @property
    def elements(self) -> Dimension:
        """The number of elements (1 for a scalar)."""
        return elements(self.shape)

    def like(self, dtype: DType | str | None = None, shape: Sequence[Any] | None = None) -> Spec:
        """This Spec with another dtype or shape."""
        return Spec(self.shape if shape is None else shape, self.dtype if dtype is None else dtype)

    def evaluate(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The shape as ints, given each dim's value."""
        return tuple(d if isinstance(d, int) else d.evaluate(values) for d in self.shape)


class StateSpec:
    """The type of a state that outlives a run. `kv_cache`: paged keys and values of one attention layer.

    Its NumPy form is an array [num_blocks, block_size, 2, heads, width] (keys, then values): the number and size of
    blocks belong to the session, not to the network. The width is head_dim. Only of int8 is it more: head_dim padded to
    a multiple of 16, and the four bytes of a float32 scale behind it. A vector is then its whole numbers times its
    scale, which is the greatest of its magnitudes / 127 (`ops.narrow_cache.to_int8`). float8_e4m3fn has no scales: what
    lies beyond its largest number, 448, becomes that.
    """

    __slots__ = ("dtype", "head_dim", "heads", "type")
    TYPES = ("kv_cache",)

    def __init__(self, dtype: DType | str, type: str = "kv_cache", *, heads: int, head_dim: int) -> None:
        if type not in self.TYPES:
            raise OpError(f"{type!r} is no state type; known are {', '.join(self.TYPES)}")
        for label, number in (("heads", heads), ("head_dim", head_dim)):
            if number.__class__ is not int or not 0 < number < 2**31:
                raise OpError(f"a {type} state needs a positive int for {label}, got {number!r}")
        for name, value in (("dtype", dtypes.get(dtype)), ("type", type), ("heads", heads), ("head_dim", head_dim)):
            object.__setattr__(self, name, value)

    dtype: DType
    type: str
    heads: int
    head_dim: int

    __setattr__ = Spec.__setattr__

    @property
    def width(self) -> int:
        """Elements that a key or value takes."""
        return dtypes.cache_width(self.dtype, self.head_dim)

    def like(self, dtype: DType | str) -> StateSpec:
        """This StateSpec with another dtype."""
        return StateSpec(dtype, self.type, heads=self.heads, head_dim=self.head_dim)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.dtype, self.type, self.heads, self.head_dim

    def __str__(self) -> str:
        return f"state {self.type}<{self.dtype.short}, heads={self.heads}, head_dim={self.head_dim}>"

    __repr__ = __str__


def elements(shape: Iterable[Dimension]) -> Dimension:
    """The product of a shape's dimensions."""
    sizes = list(shape)
    known = [d for d in sizes if isinstance(d, int)]
    return math.prod(known) if len(known) == len(sizes) else dims.mul(*sizes)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that all broadcast to: aligned at the last dimension, each size equal or 1."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    out: list[Dimension] = []
    for axis in range(-rank, 0):
        size: Dimension = 1
        for shape in shapes:
            d = shape[axis] if -axis <= len(shape) else 1
            if d != 1 and d != size:
                if size != 1:
                    raise OpError(f"{' and '.join(_show(s) for s in shapes)} do not broadcast: {size} and {d} at "
                                  f"dimension {axis} differ (sizes must be equal, or 1)")
                size = d
        out.append(size)
    return tuple(out)


def _show(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """The axis counted from the front; −1 is the last."""
    if not hasattr(axis, "__index__"):
        raise OpError(f"{what} must be an int, not {axis!r:.40}")
    if not -rank <= axis < rank:
        raise OpError(f"{what} {axis} is out of range for a tensor of rank {rank}"
                      + (f": use {-rank}..{rank - 1}" if rank else " (a scalar)"))
    return axis % rank


def axes_of(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Distinct axes counted from the front, sorted; None means all of them."""
    if axes is None:
        return tuple(range(rank))
    found = sorted(axis_of(a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise OpError(f"axes {tuple(axes)} name an axis twice")
    return tuple(found)
