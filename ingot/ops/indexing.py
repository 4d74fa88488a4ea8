"""Ops that choose elements by index, make indices, or bind a size that only the data shows."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dim, Dimension
from ingot.dtypes import DType
from ingot.errors import ValueFault
from ingot.ir import Case, F, Op, Spec, Value, op, require
from ingot.ir.expr import integer_range
from ingot.ir.spec import axis_of
from ingot.ops.common import Array, bf16, boolean, certainly_negative, f32, i32, i64, moved, require_index


def in_range(what: str, index: Array, low: int, high: int, every: tuple[int, int] = (1, 0)) -> Array:
    """The index as int64 when low <= index < high everywhere, else a ValueFault naming the first that is not.

    `every`: element i is the i · every[0] + every[1]-th of the tensor that users gave.
    """
    wide = index.astype(np.int64)
    bad = (wide < low) | (wide >= high)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        place = at * every[0] + every[1]
        raise ValueFault(f"{what}: index {wide.flat[at]} is out of range {low}..{high - 1}, at element {place}")
    return wide


def _outside(index: Any, low: int, high: int) -> Any:
    """The same of a torch tensor, as its device sees it."""
    return ((index < low) | (index >= high)).any()


@op("embedding")
class Embedding(Op):
    """Rows of weight[V, H] chosen by ids: ids[…] → […, H]. An id outside 0..V−1 is a fault at run time; with `from_end`
    ids from −V to −1 count from the end.
    """

    version = 2  # 1 had no from_end
    from_end: bool = False
    in_scope = "moves"
    cases = (
        Case("tokens", (i32("T"), bf16(50, 8))),
        Case("counted from the end", (i64(2, 9), f32(3, 4)), {"from_end": True}),
        Case("a batch of int64", (i64(2, 3), f32(7, 4))),
        Case("no tokens", (i32(0), f32(7, 4))),
        Case("float ids", (f32(3), f32(7, 4)), error="ids must be int32 or int64"),
        Case("a table of one dimension", (i32(3), f32(7)), error=r"weight must be \[rows, width\]"),
    )

    def infer(self, ids: Spec, weight: Spec) -> Spec:
        require_index(ids=ids)
        require(len(weight.shape) == 2, "weight must be [rows, width]")
        return Spec((*ids.shape, weight.shape[1]), weight.dtype)

    def reference(self, ids: Array, weight: Array) -> Array:
        return weight[in_range("embedding", ids, -len(weight) if self.from_end else 0, len(weight))]

    def torch(self, torch: Any, ids: Any, weight: Any) -> Any:
        if not weight.shape[0]:  # a fault, if there are ids
            return weight.new_zeros(*ids.shape, weight.shape[1])
        rows = ids.long() % weight.shape[0] if self.from_end else ids.clamp(0, weight.shape[0] - 1)
        return torch.nn.functional.embedding(rows, weight)

    def torch_fault(self, torch: Any, ids: Any, weight: Any) -> Any:
        return _outside(ids, -weight.shape[0] if self.from_end else 0, weight.shape[0])

    def sample(self, rng: np.random.Generator, ids: Spec, weight: Spec) -> tuple[Array, ...]:
        rows = weight.evaluate({})[0]
        return (rng.integers(-rows if self.from_end else 0, rows, ids.evaluate({})).astype(ids.dtype.numpy),
                rng.standard_normal(weight.evaluate({})).astype(weight.dtype.numpy))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        return Case("random", (Spec(draw.shape(max_rank=2), draw.choice([dtypes.int32, dtypes.int64])),
                               Spec((draw.size(1), draw.size()), draw.choice([dtypes.float32, dtypes.bfloat16]))))


@op("take")
class Take(Op):
    """Slices of x along `axis` chosen by index[…], whose dimensions take the axis's place. −1 gives zeros, or with
    `from_end` the last slice, as all indices below 0 then count from the end.

    Any other index outside 0..n−1 is a fault at run time.
    """

    version = 2  # 1 had no from_end
    axis: int = 0
    from_end: bool = False
    in_scope = "moves"
    cases = (
        Case("the rows of logits", (bf16("T", 8), i32("R"))),
        Case("columns by a matrix", (f32(3, 9), i64(2, 4)), {"axis": 1}),
        Case("one", (f32(5, 3), i32())),
        Case("int8", (Spec((5, 3), "int8"), i32(4)), {"axis": -1}),
        Case("counted from the end", (f32("T", 3), i64(2, 9)), {"axis": 1, "from_end": True}),
        Case("float index", (f32(3), f32(3)), error="index must be int32 or int64"),
        Case("a scalar", (f32(), i32(3)), error="axis 0 is out of range"),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        require_index(index=index)
        axis = axis_of(self.axis, len(x.shape))
        return Spec((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)

    def reference(self, x: Array, index: Array) -> Array:
        axis = axis_of(self.axis, x.ndim)
        n = x.shape[axis]
        if self.from_end:
            return np.asarray(np.take(x, in_range("take", index, -n, n) % max(n, 1), axis))
        chosen = in_range("take", index, -1, n)
        zeros = np.zeros_like(x, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        return np.take(np.concatenate([x, zeros], axis), chosen, axis)  # −1 finds the zeros at the end

    on_dims = moved

    def torch(self, torch: Any, x: Any, index: Any) -> Any:
        axis = axis_of(self.axis, x.ndim)
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        n = x.shape[axis]
        if not n:
            return x.new_zeros(shape)
        if self.from_end:
            return x.index_select(axis, index.flatten().long() % n).reshape(shape)
        chosen = x.index_select(axis, index.flatten().clamp(0, n - 1).long())
        left_out = (index.flatten() < 0).reshape([-1] + [1] * (x.ndim - axis - 1))
        return chosen.masked_fill(left_out, 0).reshape(shape)

    def torch_fault(self, torch: Any, x: Any, index: Any) -> Any:
        n = x.shape[axis_of(self.axis, x.ndim)]
        return _outside(index, -n if self.from_end else -1, n)

    def sample(self, rng: np.random.Generator, x: Spec, index: Spec) -> tuple[Array, ...]:
        n = x.evaluate({})[axis_of(self.axis, len(x.shape))]
        return ((rng.standard_normal(x.evaluate({})) * 9).astype(x.dtype.numpy),
                rng.integers(-n if self.from_end else -1, n, index.evaluate({})).astype(index.dtype.numpy))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=1, min_rank=1, max_rank=3)
        attributes = {"axis": draw.axis(len(shape)), "from_end": draw.choice([False, True])}
        return Case("random", (f32(*shape), i32(*draw.shape(max_rank=2, least=1))), attributes)


@op("gather")
class Gather(Op):
    """ONNX's GatherElements: one element of x per element of index, which replaces its place along `axis`.

    Ranks agree; other sizes of index are not above x's. An index below 0 counts from the end.
    """

    axis: int = 0
    in_scope = "moves"
    cases = (
        Case("the chosen logit of each row", (f32("T", 9), i64("T", 1)), {"axis": 1}),
        Case("rows", (bf16(5, 3), i32(2, 3))),
        Case("ranks differ", (f32(5, 3), i32(2)), error="x has 2 dimensions and index 1"),
        Case("index is wider", (f32(5, 3), i32(2, 4)), error="index has size 4 at dimension 1, x only 3"),
        Case("float index", (f32(5), f32(2)), error="index must be int32 or int64"),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        require_index(index=index)
        require(len(x.shape) == len(index.shape), f"x has {len(x.shape)} dimensions and index {len(index.shape)}")
        axis = axis_of(self.axis, len(x.shape))
        for i, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
            fits = i == axis or have == want or not certainly_negative(dims.add(have, dims.mul(want, -1)))
            require(fits, f"index has size {want} at dimension {i}, x only {have}")
        return Spec(index.shape, x.dtype)

    def reference(self, x: Array, index: Array) -> Array:
        axis = axis_of(self.axis, x.ndim)
        n = x.shape[axis]
        chosen = in_range("gather", index, -n, n) % max(n, 1)
        box = x[tuple(slice(None) if i == axis else slice(size) for i, size in enumerate(index.shape))]
        return np.take_along_axis(box, chosen, axis)

    on_dims = moved

    def torch(self, torch: Any, x: Any, index: Any) -> Any:
        if not x.shape[self.axis]:  # a fault, if there are indices
            return x.new_zeros(index.shape)
        return torch.gather(x, self.axis, index.long() % x.shape[self.axis])

    def torch_fault(self, torch: Any, x: Any, index: Any) -> Any:
        return _outside(index, -x.shape[self.axis], x.shape[self.axis])

    def sample(self, rng: np.random.Generator, x: Spec, index: Spec) -> tuple[Array, ...]:
        n = x.evaluate({})[axis_of(self.axis, len(x.shape))]
        return (rng.standard_normal(x.evaluate({})).astype(x.dtype.numpy),
                rng.integers(-n, n, index.evaluate({})).astype(index.dtype.numpy))


@op("nonzero")
class NonZero(Op):
    """Where x is not zero: int64 [rank, count], in row-major order. `count` is an unbacked dim that this op binds."""

    count: Dimension | None = None
    in_scope = "moves"
    binds = True
    cases = (
        Case("a mask", (boolean(3, 4),)),
        Case("numbers of unknown count", (f32("T"),)),
        Case("int32", (i32(3, 2, 2),)),
        Case("bfloat16", (bf16(5, 4),)),
        Case("float64", (Spec((2, 9), "float64"),)),
        Case("nothing", (i32(0),)),
        Case("no rows", (i32(0, 3),)),
        Case("a scalar", (f32(),), error="x needs at least one dimension"),
        Case("a size that is known", (f32(3),), {"count": 3}, error="count must be an unbacked dim"),
    )

    def infer(self, x: Spec) -> Spec:
        require(len(x.shape) >= 1, "x needs at least one dimension")
        require(isinstance(self.count, Dim) and self.count.unbacked,
                "count must be an unbacked dim: leave it out, or give Dim(name, unbacked=True)")
        return Spec((len(x.shape), self.count), dtypes.int64)

    def bind(self, fresh: Callable[..., Dim], *specs: Any) -> Op:
        if self.count is not None:
            return self
        sizes = [dims.bounds(d)[1] for d in specs[0].shape]
        most = math.prod(sizes)
        return replace(self, count=fresh("nonzero", max=int(most) if most < dims.MAX_VALUE else None))

    def bound_dims(self) -> tuple[Dim, ...]:
        return (self.count,) if isinstance(self.count, Dim) else ()

    def reference(self, x: Array) -> Array:
        return np.stack(np.nonzero(x)).astype(np.int64)

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.nonzero(x).T

    def sample(self, rng: np.random.Generator, x: Spec) -> tuple[Array, ...]:
        return (rng.integers(0, 2, x.evaluate({})).astype(x.dtype.numpy),)


@op("iota")
class Iota(Op):
    """start, start + step, …: `size` numbers, integers, float32 or float64. Without operands, it computes at once when
    everything is known, else it joins the network of the first op that uses it."""

    size: Dimension
    start: Dimension = 0
    step: int = 1
    dtype: DType = dtypes.int32
    cases = (
        Case("positions", (), {"size": "T"}),
        Case("from an unknown start", (), {"size": "T", "start": "S", "dtype": "int64"}),
        Case("downwards, float32", (), {"size": 7, "start": 6, "step": -1, "dtype": "float32"}),
        Case("float64", (), {"size": "T", "start": 2**40, "dtype": "float64"}),
        Case("none", (), {"size": 0}),
        Case("too small a type", (), {"size": 300, "dtype": "int8"}, error="299 does not fit int8"),
        Case("negative size", (), {"size": -1}, error="size must not be negative"),
        Case("bfloat16", (), {"size": 3, "dtype": "bf16"}, error="dtype must be an integer type, float32 or float64"),
    )

    def infer(self) -> Spec:
        require(self.dtype in (*dtypes.INTEGERS, dtypes.float32, dtypes.float64),
                "dtype must be an integer type, float32 or float64")
        require(not certainly_negative(self.size), f"size must not be negative: {self.size}")
        if isinstance(self.size, int) and isinstance(self.start, int) and self.dtype.is_integer and self.size:
            low, high = integer_range(self.dtype)
            for edge in (self.start, self.start + (self.size - 1) * self.step):
                require(low <= edge <= high, f"{edge} does not fit {self.dtype.name}")
        return Spec((self.size,), self.dtype)

    def reference(self) -> Array:
        numbers = np.arange(int(self.size), dtype=np.int64) * self.step + int(self.start)
        return numbers.astype(self.dtype.numpy)

    def on_dims(self) -> list[Dimension]:
        return [dims.add(self.start, i * self.step) for i in range(int(self.size))]

    def torch(self, torch: Any) -> Any:
        return (torch.arange(self.size) * self.step + self.start).to(getattr(torch, self.dtype.name))


@op("shape_of")
class ShapeOf(Op):
    """The sizes of x as int64 [rank]: a tensor, for importers whose source computes with shapes."""

    in_scope = "moves"
    cases = (
        Case("unknown rows", (f32("T", 4),)),
        Case("known", (bf16(2, 3, 4),)),
        Case("a scalar", (f32(),)),
    )

    def infer(self, x: Spec) -> Spec:
        return Spec((len(x.shape),), dtypes.int64)

    def reference(self, x: Array) -> Array:
        return np.array(x.shape, np.int64)

    reads_shapes = True

    def on_dims(self, x: Spec) -> tuple[Dimension, ...]:
        return x.shape

    def decompose(self, x: Any) -> Any:
        if not x.shape:
            none = np.zeros(0, np.int64)
            return x.network.constant(none) if isinstance(x, Value) else none
        return F.concat([F.iota(1, start=d, dtype=dtypes.int64) for d in x.shape])

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.tensor(x.shape, dtype=torch.int64, device=x.device)
