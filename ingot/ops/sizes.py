"""The op by which numbers of a network's data become sizes in it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dim
from ingot.errors import ValueFault
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.sizes import MAX_BOUND, MAX_SIZE
from ingot.ir.spec import Shape
from ingot.ops.common import Array, boolean, f32, i32, i64


@op("sizes_of")
class SizesOf(Op):
    """Every element of x, an integer of 0 or more, becomes a size: an unbacked dim that this op binds.

    For each a result [size, 0], which has no elements: what matters is the dim. A negative number is a fault at run
    time; `text` says there what was computed.
    """

    sizes: Shape | None = None
    text: str = ""
    in_scope = "keeps"
    binds = True
    cases = (
        Case("a length", (i64(),)),
        Case("two, int32", (i32(2),)),
        Case("no integer", (f32(),), error="x must be integers"),
        Case("a mask", (boolean(2),), error="x must be integers"),
        Case("too many", (i64(9),), error="x must have 1 to 8 elements"),
        Case("of unknown count", (i64("T"),), error="x must have 1 to 8 elements"),
        Case("sizes that are known", (i64(2),), {"sizes": (1, 2)}, error="sizes must be 2 different unbacked dims"),
    )

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        require(x.dtype.is_integer, "x must be integers")
        count = x.elements
        require(isinstance(count, int) and 0 < count <= MAX_BOUND, f"x must have 1 to {MAX_BOUND} elements")
        sizes = self.sizes or ()
        unbacked = all(isinstance(d, Dim) and d.unbacked for d in sizes)
        require(unbacked and len(set(sizes)) == len(sizes) == count,
                f"sizes must be {count} different unbacked dims: leave them out, or give Dim(name, unbacked=True)")
        return tuple(Spec((d, 0), dtypes.bool_) for d in sizes)

    def bind(self, fresh: Callable[..., Dim], *specs: Any) -> Op:
        count = specs[0].elements
        if self.sizes is not None or not isinstance(count, int) or count > MAX_BOUND:
            return self
        return replace(self, sizes=tuple(fresh(f"size{i}_" if count > 1 else "size") for i in range(count)))

    def bound_dims(self) -> tuple[Dim, ...]:
        return tuple(d for d in self.sizes or () if isinstance(d, Dim))

    def reference(self, x: Array) -> Any:
        found = [int(n) for n in x.flat]
        for d, n in zip(self.sizes or (), found, strict=True):
            if not 0 <= n <= MAX_SIZE:
                computed = f"; it is {self.text}" if self.text else ""
                raise ValueFault(f"the size {d} would be out of range{computed} ({n}, limit {MAX_SIZE})")
        made = tuple(np.empty((n, 0), np.bool_) for n in found)
        return made if len(made) > 1 else made[0]

    def torch(self, torch: Any, x: Any) -> Any:
        """A size has to be read back."""
        found = tuple(torch.empty((n, 0), dtype=torch.bool, device=x.device) for n in (e.item() for e in x.flatten()))
        return found if len(found) > 1 else found[0]

    def sample(self, rng: np.random.Generator, x: Spec) -> tuple[Array, ...]:
        return (rng.integers(0, 50, x.evaluate({})).astype(x.dtype.numpy),)
