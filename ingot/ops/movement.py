"""Ops that move elements without computing. Most are views: the operand's memory under other strides."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.errors import ValueFault
from ingot.ir import Case, F, Op, Spec, Value, op, require
from ingot.ir.checked import may_be
from ingot.ir.spec import Shape, axis_of, elements
from ingot.ops.common import Array, bf16, boolean, certainly_negative, f32, holds, i8, i32, minus, moved, positive, show


@op("reshape")
class Reshape(Op):
    """The same elements in the same order under another shape; one size may be −1 and is worked out."""

    shape: Shape
    in_scope = "moves"
    is_view = True
    cases = (
        Case("split heads", (bf16("T", 24),), {"shape": ("T", 4, 6)}),
        Case("one size worked out", (f32("T", 4, 6),), {"shape": ("T", -1)}),
        Case("the unknown one worked out", (f32("T", 4, 6),), {"shape": (-1, 6)}),
        Case("a scalar", (f32(1, 1),), {"shape": ()}),
        Case("nothing", (f32(0, 3),), {"shape": (3, 0)}),
        Case("two sizes to work out", (f32(4, 6),), {"shape": (-1, -1)}, error="at most one size may be -1"),
        Case("other number of elements", (f32(4, 6),), {"shape": (5, 5)}, error="24 elements.*25"),
        Case("not a multiple", (f32(4, 6),), {"shape": (-1, 5)}, error="24 elements are not a multiple of 5"),
        Case("−1 beside 0", (f32(0, 6),), {"shape": (-1, 0)}, error="cannot be worked out beside a size of 0"),
        Case("negative", (f32(4),), {"shape": (-2, 2)}, error="no negative dimensions|must not be negative"),
        Case("unknown sizes must match", (f32("T", 4),), {"shape": ("S", 4)}, error=r"4\*T elements.*4\*S"),
    )

    def infer(self, x: Spec) -> Spec:
        total = x.elements
        unknown = [i for i, d in enumerate(self.shape) if d == -1]
        require(len(unknown) <= 1, f"at most one size may be -1 in {show(self.shape)}")
        if not unknown:
            require(not any(map(certainly_negative, self.shape)), f"sizes must not be negative: {show(self.shape)}")
            found = elements(self.shape)
            require(found == total, f"x has {total} elements, {show(self.shape)} has {found}")
            return Spec(self.shape, x.dtype)
        rest = elements(d for d in self.shape if d != -1)
        require(rest != 0, f"-1 in {show(self.shape)} cannot be worked out beside a size of 0")
        require(not certainly_negative(rest), f"sizes must not be negative: {show(self.shape)}")
        size = dims.floordiv(total, rest)
        require(dims.mul(size, rest) == total, f"{total} elements are not a multiple of {rest}")
        return Spec(tuple(size if d == -1 else d for d in self.shape), x.dtype)

    def settled(self, *results: Any) -> Op:
        """With the size that was worked out: beside a size that is 0 in a run, NumPy could not."""
        dynamic = -1 in self.shape and not dims.all_fixed(self.shape)
        return replace(self, shape=results[0].shape) if dynamic else self

    def reference(self, x: Array) -> Array:
        return x.reshape(self.shape)

    on_dims = moved

    def torch(self, torch: Any, x: Any) -> Any:
        return torch.reshape(x, self.shape)


@op("permute")
class Permute(Op):
    """The dimensions in another order: dimension i of the result is dimension dims[i] of x."""

    dims: tuple[int, ...]
    in_scope = "moves"
    is_view = True
    cases = (
        Case("heads first", (bf16("T", 4, 6),), {"dims": (1, 0, 2)}),
        Case("counted from the end", (f32(2, 3, 4),), {"dims": (-1, 0, 1)}),
        Case("no permutation", (f32(2, 3),), {"dims": (0, 0)}, error="is not a permutation of the 2 dimensions"),
        Case("too few", (f32(2, 3),), {"dims": (0,)}, error="is not a permutation"),
        Case("out of range", (f32(2, 3),), {"dims": (0, 2)}, error="is not a permutation"),
        Case("not ints", (f32(2, 3),), {"dims": "ab"}, error="dims must be a tuple of ints"),
    )

    def order(self, rank: int) -> tuple[int, ...]:
        """The order counted from the front."""
        return tuple(d + rank if d < 0 else d for d in self.dims)

    def infer(self, x: Spec) -> Spec:
        order = self.order(len(x.shape))
        require(sorted(order) == list(range(len(x.shape))),
                f"{show(self.dims)} is not a permutation of the {len(x.shape)} dimensions of x")
        return Spec(tuple(x.shape[d] for d in order), x.dtype)

    def reference(self, x: Array) -> Array:
        return x.transpose(self.order(x.ndim))

    on_dims = moved

    def torch(self, torch: Any, x: Any) -> Any:
        return x.permute(self.order(x.ndim))


@op("expand")
class Expand(Op):
    """Broadcast to `shape`: sizes of 1 repeat, new dimensions come first, −1 keeps a size."""

    shape: Shape
    in_scope = "moves"
    is_view = True
    cases = (
        Case("a row repeated", (f32(1, 5),), {"shape": (3, 5)}),
        Case("to an unknown size", (bf16(5),), {"shape": ("T", 5)}),
        Case("kept", (f32(2, 1, 3),), {"shape": (-1, 4, -1)}),
        Case("not of size 1", (f32(2, 3),), {"shape": (4, 3)}, error="size 2 at dimension 0 cannot become 4"),
        Case("fewer dimensions", (f32(2, 3),), {"shape": (3,)}, error="has fewer dimensions than x"),
        Case("−1 for a new one", (f32(3),), {"shape": (-1, 3)}, error="-1 at dimension 0 keeps a size, and x has none"),
    )

    def infer(self, x: Spec) -> Spec:
        return Spec(self.sizes(x.shape), x.dtype)

    def sizes(self, shape: Shape) -> Shape:
        """The sizes of the result."""
        new = len(self.shape) - len(shape)
        require(new >= 0, f"{show(self.shape)} has fewer dimensions than x")
        out: list[Dimension] = []
        for i, d in enumerate(self.shape):
            require(d != -1 or i >= new, f"-1 at dimension {i} keeps a size, and x has none there")
            size = 1 if i < new else shape[i - new]
            require(d == -1 or d == size or size == 1, f"size {size} at dimension {i - new} cannot become {d}")
            out.append(size if d == -1 else d)
        return tuple(out)

    def reference(self, x: Array) -> Array:
        return np.broadcast_to(x, [int(d) for d in self.sizes(x.shape)])

    on_dims = moved

    def torch(self, torch: Any, x: Any) -> Any:
        return x.expand(self.shape)


@op("with_shape")
class WithShape(Op):
    """x under sizes that only a run shows to be its own; a run where they are not is a fault.

    `broadcast`: a size of x may also be 1, and repeats. `text` says in that fault what was asked for.
    """

    shape: Shape
    broadcast: bool = False
    text: str = ""
    in_scope = "moves"
    is_view = True
    cases = (
        Case("a size that is another's", (f32("T", 3),), {"shape": (dims.Dim("T"), 3)}),
        Case("one that may be 1", (bf16(1, 4),), {"shape": (5, 4), "broadcast": True}),
        Case("as it is", (f32(2, 3),), {"shape": (2, 3), "broadcast": True}),
        Case("nothing", (i32(0, 3),), {"shape": (0, 3)}),
        Case("other sizes in every run", (f32(2, 3),), {"shape": (4, 3)}, error="view: dimension 0 is 2, and 4"),
        Case("1 that may not repeat", (f32(1, 3),), {"shape": (4, 3)}, error="dimension 0 is 1, and 4"),
        Case("another rank", (f32(2, 3),), {"shape": (6,)}, error="has 1 dimensions, x has 2"),
    )

    def infer(self, x: Spec) -> Spec:
        require(len(self.shape) == len(x.shape), f"{show(self.shape)} has {len(self.shape)} dimensions, "
                                                 f"x has {len(x.shape)}")
        for i, (size, wanted) in enumerate(zip(x.shape, self.shape, strict=True)):
            fits = may_be(size, wanted) or self.broadcast and may_be(size, 1)
            require(fits, f"{self.text or 'view'}: dimension {i} is {size}, and {wanted} is needed")
        return Spec(self.shape, x.dtype)

    def reference(self, x: Array) -> Array:
        for size, wanted in zip(x.shape, self.shape, strict=True):
            if size != wanted and not (self.broadcast and size == 1):
                raise ValueFault(f"{self.text or 'view'}; here {size} and {wanted}")
        return np.broadcast_to(x, [int(d) for d in self.shape])

    def torch(self, torch: Any, x: Any) -> Any:
        if any(size != wanted and not (self.broadcast and size == 1)
               for size, wanted in zip(x.shape, self.shape, strict=True)):  # fmt: skip
            raise ValueFault(f"{self.text or 'view'}; here {list(x.shape)} and {show(self.shape)}")
        return x.expand(self.shape)


@op("slice")
class Slice(Op):
    """A box: element i of dimension d of the result is element starts[d] + i · strides[d] of x; strides may be < 0."""

    starts: Shape
    sizes: Shape
    strides: tuple[int, ...]
    in_scope = "moves"
    is_view = True
    cases = (
        Case("columns", (bf16("T", 10),), {"starts": (0, 2), "sizes": ("T", 5), "strides": (1, 1)}),
        Case("the last row", (f32("T", 3),), {"starts": (dims.Dim("T") - 1, 0), "sizes": (1, 3), "strides": (1, 1)}),
        Case("every other", (f32(9,),), {"starts": (1,), "sizes": (4,), "strides": (2,)}),
        Case("reversed", (f32(9,),), {"starts": (8,), "sizes": (9,), "strides": (-1,)}),
        Case("nothing", (f32(4),), {"starts": (4,), "sizes": (0,), "strides": (1,)}),
        Case("past the end", (f32(4),), {"starts": (2,), "sizes": (3,), "strides": (1,)}, error="reaches 4, and"),
        Case("past the end of an unknown size", (f32("T"),),
             {"starts": (1,), "sizes": ("T",), "strides": (1,)}, error="reaches T, and x has T"),
        Case("back from behind the end", (f32(5),), {"starts": (8,), "sizes": (8,), "strides": (-1,)},
             error="starts at 8, and x has 5"),
        Case("before the start", (f32(4),), {"starts": (1,), "sizes": (3,), "strides": (-1,)}, error="reaches -1"),
        Case("stride 0", (f32(4),), {"starts": (0,), "sizes": (2,), "strides": (0,)}, error="stride must not be 0"),
        Case("too few", (f32(4, 4),), {"starts": (0,), "sizes": (2,), "strides": (1,)}, error="one entry for each"),
        Case("negative size", (f32(4),), {"starts": (0,), "sizes": (-1,), "strides": (1,)}, error="negative size"),
    )

    def infer(self, x: Spec) -> Spec:
        require(len(self.starts) == len(self.sizes) == len(self.strides) == len(x.shape),
                f"starts, sizes and strides need one entry for each of the {len(x.shape)} dimensions of x")
        for i, (start, size, stride) in enumerate(zip(self.starts, self.sizes, self.strides, strict=True)):
            if size == x.shape[i] and stride == 1 and start == 0:
                continue
            require(stride != 0, f"dimension {i}: the stride must not be 0")
            require(not certainly_negative(size), f"dimension {i}: negative size {size}")
            require(not certainly_negative(start), f"dimension {i} starts at {start}, before the first element")
            if certainly_negative(dims.add(size, -1)):  # nothing, wherever it starts
                continue
            last = dims.add(start, dims.mul(dims.add(size, -1), stride))
            inside = not certainly_negative(last) and not certainly_negative(minus(x.shape[i], last, 1))
            require(inside, f"dimension {i} reaches {last}, and x has {x.shape[i]} elements there")
            require(dims.bounds(size)[0] < 1 or not certainly_negative(minus(x.shape[i], start, 1)),
                    f"dimension {i} starts at {start}, and x has {x.shape[i]} elements there")
        return Spec(self.sizes, x.dtype)

    def reference(self, x: Array) -> Array:
        self.infer(Spec.of(x))
        return self.on_dims(x)

    def on_dims(self, x: Array) -> Array:
        index = [int(start) + np.arange(int(size)) * stride
                 for start, size, stride in zip(self.starts, self.sizes, self.strides, strict=True)]
        return x[np.ix_(*index)] if index else x

    def torch(self, torch: Any, x: Any) -> Any:
        box = [*zip(map(int, self.starts), map(int, self.sizes), self.strides, strict=True)]  # sizes are known by now
        if any(size == 0 for _, size, _ in box):
            return x.new_empty([size for _, size, _ in box])
        for axis, (start, size, stride) in enumerate(box):
            last = start + (size - 1) * stride
            if min(start, last) < 0:  # which torch counts from the end
                raise ValueFault(f"slice: dimension {axis} begins at {min(start, last)}, before the first element")
            whole = x.narrow(axis, min(start, last), abs(last - start) + 1)
            whole = whole[(*[slice(None)] * axis, slice(None, None, abs(stride)))]
            x = whole.flip(axis) if stride < 0 else whole
        return x


@op("concat")
class Concat(Op):
    """Tensors joined along `dim`; all other sizes agree."""

    dim: int = 0
    in_scope = "moves"
    cases = (
        Case("columns", (bf16("T", 4), bf16("T", 6)), {"dim": -1}),
        Case("unknown sizes add up", (f32("T", 3), f32("S", 3), f32(2, 3))),
        Case("one", (f32(2, 3),), {"dim": 1}),
        Case("with nothing", (i32(0, 3), i32(2, 3))),
        Case("other sizes differ", (f32(2, 3), f32(2, 4)), error="operand 1 has size 4 at dimension 1, operand 0"),
        Case("ranks differ", (f32(2, 3), f32(3)), error="operand 1 has rank 1"),
        Case("dtypes differ", (f32(2), bf16(2)), error="operand 1 is bfloat16, operand 0 float32"),
        Case("none", (), error="at least one"),
    )

    def infer(self, *xs: Spec) -> Spec:
        require(len(xs) > 0, "needs at least one tensor")
        first = xs[0]
        dim = axis_of(self.dim, len(first.shape), "dim")
        for i, x in enumerate(xs):
            require(x.dtype is first.dtype, f"operand {i} is {x.dtype.name}, operand 0 {first.dtype.name}; cast one")
            require(x.rank == first.rank, f"operand {i} has rank {x.rank}, operand 0 {first.rank}")
            for axis, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)):
                require(axis == dim or a == b, f"operand {i} has size {a} at dimension {axis}, operand 0 has {b}")
        return Spec((*first.shape[:dim], dims.add(*(x.shape[dim] for x in xs)), *first.shape[dim + 1 :]), first.dtype)

    def reference(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.dim)

    on_dims = moved

    def torch(self, torch: Any, *xs: Any) -> Any:
        return torch.cat(xs, self.dim)


def _left(size: Dimension, before: Dimension, after: Dimension) -> Dimension:
    """What negative counts leave of a dimension."""
    return dims.add(size, *(dims.mul(positive(minus(0, n)), -1) for n in (before, after)))


@op("pad")
class Pad(Op):
    """`before[d]` and `after[d]` elements of `value` around dimension d; negative counts cut off instead."""

    before: Shape
    after: Shape
    value: float = 0.0
    in_scope = "moves"
    cases = (
        Case("zeros around", (f32(3, 4),), {"before": (1, 0), "after": (0, 2)}),
        Case("a value, unknown rows", (bf16("T", 3),), {"before": (1, 1), "after": (2, 0), "value": -1.5}),
        Case("cut off", (f32(6),), {"before": (-2,), "after": (1,)}),
        Case("a count that is a dim", (f32("T", 2),), {"before": ("T", 0), "after": (0, 1)}),
        Case("up to a size, or cut off down to it", (f32("T", 2),),
             {"before": (0, 0), "after": (minus(5, dims.Dim("T")), 0)}),
        Case("int8", (i8(3),), {"before": (1,), "after": (1,), "value": 7}),
        Case("masks", (boolean(3),), {"before": (1,), "after": (0,)}),
        Case("cut off too much", (f32(3),), {"before": (-2,), "after": (-2,)}, error="would leave -1"),
        Case("cut off more than there is, though as much is added", (f32(3),), {"before": (-5,), "after": (7,)},
             error="would leave -2"),
        Case("a value that is no number", (i8(3),), {"before": (1,), "after": (1,), "value": float("inf")},
             error="value inf is not a int8"),
        Case("a value beyond the dtype", (i8(3),), {"before": (1,), "after": (1,), "value": 300.0},
             error="value 300.0 is not a int8"),
        Case("too few", (f32(3, 4),), {"before": (1,), "after": (1,)}, error="one entry for each"),
        Case("half an integer", (i8(3),), {"before": (1,), "after": (1,), "value": 0.5}, error="0.5 is not a int8"),
    )

    def infer(self, x: Spec) -> Spec:
        require(len(self.before) == len(self.after) == len(x.shape),
                f"before and after need one entry for each of the {len(x.shape)} dimensions of x")
        require(x.dtype.is_float or holds(x.dtype, self.value), f"value {self.value} is not a {x.dtype.name}")
        for i, (d, a, b) in enumerate(zip(x.shape, self.before, self.after, strict=True)):
            left = _left(d, a, b)
            require(not certainly_negative(left), f"dimension {i} would leave {left} elements")
        return Spec([dims.add(d, a, b) for d, a, b in zip(x.shape, self.before, self.after, strict=True)], x.dtype)

    def reference(self, x: Array) -> Array:
        self.infer(Spec.of(x))
        counts = [(int(a), int(b)) for a, b in zip(self.before, self.after, strict=True)]
        inner = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, counts, strict=True))]
        widths = [(max(a, 0), max(b, 0)) for a, b in counts]
        out = np.full([n + a + b for n, (a, b) in zip(inner.shape, widths, strict=True)], self.value, x.dtype)
        out[tuple(slice(a, a + n) for n, (a, _) in zip(inner.shape, widths, strict=True))] = inner
        return out

    def decompose(self, x: Any) -> Any:
        fill = np.array(self.value, dtypes.get(x.dtype).numpy)
        for axis, (a, b) in enumerate(zip(self.before, self.after, strict=True)):
            size = _left(x.shape[axis], a, b)
            sizes = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            rank = len(sizes)
            if size != x.shape[axis]:
                starts = tuple(positive(minus(0, a)) if i == axis else 0 for i in range(rank))
                x = F.slice(x, starts, sizes, (1,) * rank)
            parts = [x]
            for n, at in ((positive(b), 1), (positive(a), 0)):
                if n != 0:
                    block = (*sizes[:axis], n, *sizes[axis + 1 :])
                    parts.insert(at, F.expand(x.network.constant(fill) if isinstance(x, Value) else fill, block))
            x = F.concat(parts, axis) if len(parts) > 1 else x
        return x

    def torch(self, torch: Any, x: Any) -> Any:
        counts = zip(reversed(self.before), reversed(self.after), strict=True)
        widths = [int(n) for pair in counts for n in pair]
        return torch.nn.functional.pad(x, widths, value=self.value)
