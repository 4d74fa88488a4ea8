"""Ops that put elements where indices or masks say, and the gathering that goes with them.

An index below 0 counts from the end. Updates go in row-major order: where two meet the later one stays, or by `mode`
each is added, multiplied, or the smaller or greater of both stays (NaN wins).
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension
from ingot.errors import ValueFault
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.spec import axis_of
from ingot.ops.common import (
    Array,
    bf16,
    boolean,
    certainly_negative,
    f32,
    f64,
    i8,
    i32,
    i64,
    minus,
    require_index,
    show,
)
from ingot.ops.indexing import in_range


def _at_most(what: str, size: Dimension, most: Dimension, axis: int) -> None:
    require(size == most or not certainly_negative(minus(most, size)),
            f"{what} has size {size} at dimension {axis}, x only {most}")


def _same_dtype(x: Spec, updates: Spec) -> None:
    require(x.dtype is updates.dtype, f"x is {x.dtype.name} and the elements put into it are {updates.dtype.name}: "
            "nothing is promoted silently, cast one of them")


# How an update meets what is there: in NumPy, and under torch's name.
MODES: dict[str, tuple[Any, str]] = {
    "replace": (None, ""), "add": (np.add, "sum"), "mul": (np.multiply, "prod"), "min": (np.minimum, "amin"),
    "max": (np.maximum, "amax"),
}  # fmt: skip


def _require_mode(mode: str, x: Spec) -> None:
    require(mode in MODES, f"mode must be {', '.join(MODES)}, not {mode!r}")
    computes = x.dtype in (dtypes.float32, dtypes.float64, *dtypes.INTEGERS)
    require(mode == "replace" or computes, f"mode {mode!r} computes with float32, float64 or integers; cast x first")


def _put(mode: str, out: Array, places: tuple[Array, ...], updates: Array) -> Array:
    """The updates put into out, which is changed."""
    if mode == "replace":
        out[places] = updates
    else:
        with np.errstate(all="ignore"):
            MODES[mode][0].at(out, places, updates)
    return out


def _distinct(rng: np.random.Generator, index: Spec, n: int, axis: int) -> Array:
    """Indices along an axis without two alike: torch leaves open which of these stays."""
    shape = index.evaluate({})
    rank = rng.random((*shape[:axis], n, *shape[axis + 1 :])).argsort(axis)
    found = np.take(rank, np.arange(shape[axis]), axis)
    return np.asarray(np.where(rng.random(shape) < 0.3, found - n, found)).astype(index.dtype.numpy)


@op("scatter")
class Scatter(Op):
    """ONNX's ScatterElements: x, where updates[i, j, …] stands at the place that index[i, j, …] says along `axis`.

    Index and updates have one shape, of x's rank and of at most its sizes elsewhere. An index below 0 counts from the
    end, or is out of range where `from_end` is False.
    """

    version = 2  # 1 had no from_end
    axis: int = 0
    in_scope = "moves"
    mode: str = "replace"
    from_end: bool = True
    cases = (
        Case("columns", (f32("T", 9), i64("T", 2), f32("T", 2)), {"axis": 1}),
        Case("rows, fewer columns", (bf16(5, 3), i32(2, 2), bf16(2, 2))),
        Case("integers", (i8(2, 4), i64(1, 4), i8(1, 4)), {"axis": -2}),
        Case("sums", (f32("T", 9), i64("T", 20), f32("T", 20)), {"axis": 1, "mode": "add"}),
        Case("products that wrap", (i8(5, 3), i32(40, 2), i8(40, 2)), {"mode": "mul"}),
        Case("the smallest", (f64(4, 3), i32(9, 3), f64(9, 3)), {"mode": "min"}),
        Case("the greatest", (i64(7), i64(50), i64(50)), {"mode": "max"}),
        Case("counted from the front alone", (f32(7), i64(5), f32(5)), {"from_end": False}),
        Case("no updates", (f32(5), i64(0), f32(0))),
        Case("into nothing", (f32(0, 3), i64(0, 3), f32(0, 3))),
        Case("a scalar", (f32(), i64(), f32()), error="axis 0 is out of range"),
        Case("ranks differ", (f32(5, 3), i64(2), f32(2)), error="x has 2 dimensions and index 1"),
        Case("shapes differ", (f32(5), i64(2), f32(3)), error=r"updates are \(3,\), index \(2,\)"),
        Case("dtypes differ", (f32(5), i64(2), bf16(2)), error="cast one of them"),
        Case("index is wider", (f32(5, 3), i64(2, 4), f32(2, 4)), error="index has size 4 at dimension 1, x only 3"),
        Case("float index", (f32(5), f32(2), f32(2)), error="index must be int32 or int64"),
        Case("another mode", (f32(5), i64(2), f32(2)), {"mode": "mean"}, error="mode must be replace, add"),
        Case("sums of bfloat16", (bf16(5), i64(2), bf16(2)), {"mode": "add"}, error="cast x first"),
    )

    def infer(self, x: Spec, index: Spec, updates: Spec) -> Spec:
        require_index(index=index)
        _same_dtype(x, updates)
        _require_mode(self.mode, x)
        require(len(x.shape) == len(index.shape), f"x has {len(x.shape)} dimensions and index {len(index.shape)}")
        require(index.shape == updates.shape, f"updates are {show(updates.shape)}, index {show(index.shape)}")
        axis = axis_of(self.axis, len(x.shape))
        for i, (have, want) in enumerate(zip(x.shape, index.shape, strict=True)):
            if i != axis:
                _at_most("index", want, have, i)
        return x

    def reference(self, x: Array, index: Array, updates: Array) -> Array:
        axis = axis_of(self.axis, x.ndim)
        n = x.shape[axis]
        places: list[Array] = list(np.indices(index.shape, sparse=True))
        places[axis] = in_range("scatter", index, self.lowest(n), n) % max(n, 1)
        return _put(self.mode, np.array(x), tuple(places), updates)

    def lowest(self, n: int) -> int:
        """The least index."""
        return -n if self.from_end else 0

    def torch(self, torch: Any, x: Any, index: Any, updates: Any) -> Any:
        n = x.shape[self.axis]
        if not n:
            return x
        if self.mode == "replace":
            return torch.scatter(x, self.axis, index.long() % n, updates)
        return torch.scatter_reduce(x, self.axis, index.long() % n, updates, MODES[self.mode][1])

    def torch_fault(self, torch: Any, x: Any, index: Any, updates: Any) -> Any:
        n = x.shape[self.axis]
        return ((index < self.lowest(n)) | (index >= n)).any()

    def sample(self, rng: np.random.Generator, x: Spec, index: Spec, updates: Spec) -> tuple[Array, ...]:
        axis = axis_of(self.axis, len(x.shape))
        n = x.evaluate({})[axis]
        if self.mode == "replace":
            found = _distinct(rng, index, n, axis)
            return _numbers(rng, x), found if self.from_end else found % n, _numbers(rng, updates)
        several = rng.integers(self.lowest(n), n, index.evaluate({})).astype(index.dtype.numpy)
        return _numbers(rng, x), several, _numbers(rng, updates)


def _numbers(rng: np.random.Generator, spec: Spec) -> Array:
    if spec.dtype is dtypes.bool_:
        return rng.integers(0, 2, spec.evaluate({})).astype(np.bool_)
    return (rng.standard_normal(spec.evaluate({})) * 9).astype(spec.dtype.numpy)


class Places(Op):
    """What ops share whose index[…, k] names places by their first k coordinates."""

    def coordinates(self, index: Array, sizes: tuple[int, ...]) -> tuple[Array, ...]:
        """Each coordinate counted from the front, checked."""
        depth = index.shape[-1]
        return tuple(in_range(f"{self.name}: coordinate {i}", index[..., i], -n, n, (depth, i)) % max(n, 1)
                     for i, n in enumerate(sizes))


def _depth(index: Spec, rank: int, first: int = 0) -> int:
    """How many coordinates an index gives; the rule of that."""
    require_index(index=index)
    require(len(index.shape) > first, f"index must have more than {first} dimensions, the last for coordinates")
    depth = index.shape[-1]
    require(isinstance(depth, int) and 0 < depth <= rank - first,
            f"the last dimension of index is the number of coordinates, 1 to {rank - first}, not {depth}")
    return int(depth)


@op("gather_nd")
class GatherND(Places):
    """ONNX's GatherND: what stands in x at the coordinates index[…, :], behind the first `batch_dims` dimensions."""

    batch_dims: int = 0
    in_scope = "moves"
    cases = (
        Case("elements", (f32(4, 5), i64(6, 2))),
        Case("rows", (bf16("T", 8), i32(3, 2, 1))),
        Case("in batches", (f32("B", 5, 3), i64("B", 2, 1)), {"batch_dims": 1}),
        Case("one for each in two batch dimensions", (i8(2, 3, 4), i64(2, 3, 1)), {"batch_dims": 2}),
        Case("none", (f32(4, 5), i64(0, 2))),
        Case("float index", (f32(5), f32(2, 1)), error="index must be int32 or int64"),
        Case("batches differ", (f32(2, 5), i64(3, 1)), {"batch_dims": 1}, error="batch dimension 0 is 2 in x and 3"),
        Case("too many coordinates", (f32(4, 5), i64(6, 3)), error="number of coordinates, 1 to 2, not 3"),
        Case("a scalar", (f32(), i64(1)), error="number of coordinates"),
        Case("negative batch_dims", (f32(3), i64(1, 1)), {"batch_dims": -1}, error="batch_dims must not be negative"),
    )

    def infer(self, x: Spec, index: Spec) -> Spec:
        require(self.batch_dims >= 0, "batch_dims must not be negative")
        depth = _depth(index, len(x.shape), self.batch_dims)
        for i, (a, b) in enumerate(zip(x.shape[: self.batch_dims], index.shape[: self.batch_dims], strict=True)):
            require(a == b, f"batch dimension {i} is {a} in x and {b} in index")
        return Spec((*index.shape[:-1], *x.shape[self.batch_dims + depth :]), x.dtype)

    def reference(self, x: Array, index: Array) -> Array:
        first, depth = self.batch_dims, index.shape[-1]
        batches = np.indices(index.shape[:first], sparse=True)
        inner = index.ndim - 1 - first
        own = tuple(b.reshape(*b.shape, *[1] * inner) for b in batches)
        return np.asarray(x[(*own, *self.coordinates(index, x.shape[first : first + depth]))])

    def torch(self, torch: Any, x: Any, index: Any) -> Any:
        first, depth = self.batch_dims, index.shape[-1]
        inner = index.ndim - 1 - first
        own = [torch.arange(n, device=x.device).reshape([-1] + [1] * (first - 1 - i + inner))
               for i, n in enumerate(index.shape[:first])]
        if 0 in x.shape[first : first + depth]:
            return x.new_zeros((*index.shape[:-1], *x.shape[first + depth :]))
        within = [index[..., i].long() % n for i, n in enumerate(x.shape[first : first + depth])]
        return x[(*own, *within)]

    def torch_fault(self, torch: Any, x: Any, index: Any) -> Any:
        return _outside(torch, x.shape[self.batch_dims :], index)

    def sample(self, rng: np.random.Generator, x: Spec, index: Spec) -> tuple[Array, ...]:
        sizes = x.evaluate({})[self.batch_dims :]
        return _numbers(rng, x), _places(rng, index, sizes)


def _outside(torch: Any, sizes: Any, index: Any) -> Any:
    most = torch.tensor(sizes[: index.shape[-1]], dtype=index.dtype, device=index.device)
    return ((index < -most) | (index >= most)).any()


def _places(rng: np.random.Generator, index: Spec, sizes: tuple[int, ...]) -> Array:
    shape = index.evaluate({})
    most = np.array(sizes[: shape[-1]])
    return np.asarray(rng.integers(-most, np.maximum(most, 1 - most), shape)).astype(index.dtype.numpy)


@op("scatter_nd")
class ScatterND(Places):
    """ONNX's ScatterND: x, where updates stand at the places whose first coordinates index[…, :] names."""

    in_scope = "moves"
    arguments = ("input", "mask", "source")
    mode: str = "replace"
    cases = (
        Case("elements", (f32(4, 5), i64(6, 2), f32(6))),
        Case("sums", (f32(4, 5), i64(30, 2), f32(30)), {"mode": "add"}),
        Case("products of rows", (i8(4, "T"), i32(9, 1), i8(9, "T")), {"mode": "mul"}),
        Case("the smallest", (f64(4, 2), i64(9, 1), f64(9, 2)), {"mode": "min"}),
        Case("the greatest", (i32(7), i64(5, 9, 1), i32(5, 9)), {"mode": "max"}),
        Case("rows", (bf16("T", 8), i32(2, 1), bf16(2, 8))),
        Case("bools", (boolean(3, 4), i64(2, 2), boolean(2))),
        Case("none", (f32(4, 5), i64(0, 2), f32(0))),
        Case("float index", (f32(5), f32(2, 1), f32(2)), error="index must be int32 or int64"),
        Case("updates of another shape", (f32(4, 5), i64(6, 1), f32(6)), error=r"updates must be \(6, 5\), not \(6,\)"),
        Case("dtypes differ", (f32(4), i64(6, 1), bf16(6)), error="cast one of them"),
        Case("too many coordinates", (f32(4), i64(6, 2), f32(6)), error="number of coordinates, 1 to 1, not 2"),
        Case("sums of bools", (boolean(4), i64(2, 1), boolean(2)), {"mode": "add"}, error="cast x first"),
    )

    def infer(self, x: Spec, index: Spec, updates: Spec) -> Spec:
        _same_dtype(x, updates)
        _require_mode(self.mode, x)
        depth = _depth(index, len(x.shape))
        wanted = (*index.shape[:-1], *x.shape[depth:])
        require(updates.shape == wanted, f"updates must be {show(wanted)}, not {show(updates.shape)}")
        return x

    def reference(self, x: Array, index: Array, updates: Array) -> Array:
        return _put(self.mode, np.array(x), self.coordinates(index, x.shape[: index.shape[-1]]), updates)

    def torch(self, torch: Any, x: Any, index: Any, updates: Any) -> Any:
        if 0 in x.shape:
            return x
        depth = index.shape[-1]
        within = tuple(index[..., i].long() % n for i, n in enumerate(x.shape[:depth]))
        if self.mode == "replace":
            return x.index_put(within, updates)
        place = within[0]
        for n, coordinate in zip(x.shape[1:depth], within[1:], strict=True):
            place = place * n + coordinate
        rows, changes = x.reshape(math.prod(x.shape[:depth]), -1), updates.reshape(place.numel(), -1)
        spread = place.reshape(-1, 1).expand(changes.shape)
        return rows.scatter_reduce(0, spread, changes, MODES[self.mode][1]).reshape(x.shape)

    def torch_fault(self, torch: Any, x: Any, index: Any, updates: Any) -> Any:
        return _outside(torch, x.shape, index)

    def sample(self, rng: np.random.Generator, x: Spec, index: Spec, updates: Spec) -> tuple[Array, ...]:
        """With replace no place twice: torch leaves open which update stays."""
        *rows, depth = index.evaluate({})
        sizes = x.evaluate({})[:depth]
        if self.mode != "replace":
            return _numbers(rng, x), _places(rng, index, sizes), _numbers(rng, updates)
        flat = rng.permutation(math.prod(sizes))[: math.prod(rows)]
        places = np.stack(np.unravel_index(flat, sizes), -1).reshape(*rows, depth)
        return _numbers(rng, x), places.astype(index.dtype.numpy), _numbers(rng, updates)


@op("masked_scatter")
class MaskedScatter(Op):
    """x, where the elements of source, in order, stand in the places in which the mask (bool, broadcast to x) is True.

    A source with fewer elements than there are such places is a fault at run time.
    """

    in_scope = "moves"
    arguments = ("input", "mask", "source")
    cases = (
        Case("a mask of x's shape", (f32(3, 4), boolean(3, 4), f32(12))),
        Case("a mask of rows, unknown many", (bf16("T", 4), boolean("T", 1), bf16("T", 4))),
        Case("integers", (i8(9), boolean(9), i8(3, 3))),
        Case("a scalar", (f32(), boolean(), f32(1))),
        Case("nothing", (f32(0, 3), boolean(0, 3), f32(0))),
        Case("no mask", (f32(3), f32(3), f32(3)), error="mask must be bool"),
        Case("a mask that is larger", (f32(3), boolean(2, 3), f32(6)), error=r"mask of \(2, 3\) does not broadcast"),
        Case("dtypes differ", (f32(3), boolean(3), bf16(3)), error="cast one of them"),
    )

    def infer(self, x: Spec, mask: Spec, source: Spec) -> Spec:
        require(mask.dtype is dtypes.bool_, "mask must be bool; compare it with 0 first")
        _same_dtype(x, source)
        fits = len(mask.shape) <= len(x.shape) and all(
            a in (1, b) for a, b in zip(reversed(mask.shape), reversed(x.shape), strict=False))
        require(fits, f"a mask of {show(mask.shape)} does not broadcast to x, {show(x.shape)}")
        return x

    def reference(self, x: Array, mask: Array, source: Array) -> Array:
        whole = np.broadcast_to(mask, x.shape)
        count = int(whole.sum())
        if count > source.size:
            raise ValueFault(f"masked_scatter: the mask has {count} places, the source {source.size} elements")
        out = np.array(x)
        out[whole] = source.reshape(-1)[:count]
        return out

    def torch(self, torch: Any, x: Any, mask: Any, source: Any) -> Any:
        whole = mask.expand(x.shape)
        if source.numel() < x.numel():  # torch does not say so when they do not suffice
            source = torch.cat([source.flatten(), source.new_zeros(x.numel() - source.numel())])
        return x.masked_scatter(whole, source)

    def torch_fault(self, torch: Any, x: Any, mask: Any, source: Any) -> Any:
        return mask.expand(x.shape).sum() > source.numel()
