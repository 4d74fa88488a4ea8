"""Which tensors of a program share memory, so that a change in place is seen under every name that has a part of it.

A network has no memory, only values. A view is remembered as the steps that made it of another tensor. A change of it
makes a new value of that tensor, with the part replaced, and so on outwards; what else views the same memory is made
anew, by its steps, when it is read next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dims
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.torch_export.aten import Complex, Unsupported
from ingot.frontends.torch_export.graph import GraphNode, TensorMeta
from ingot.ir import F, Op, Value
from ingot.ops.movement import Expand, Permute, Reshape, Slice

MAX_DEPTH = 64  # views of views
MAX_INDEX = 1 << 24  # elements of a tensor whose parts are found by an index of all its elements

Tensor = Value | Complex


@dataclass(frozen=True)
class Step:
    """One op on the way from a tensor to a part of it, and its operands but the first."""

    op: Op
    others: tuple[Value, ...]
    output: int

    def of(self, whole: Value) -> Any:
        found = whole.network.emit(self.op, (whole, *self.others))
        return found[self.output] if isinstance(found, tuple) else found


@dataclass(frozen=True)
class View:
    """What a tensor is a part of. steps: None where it is not known how."""

    of: str
    steps: tuple[Step, ...] | None


class Memory:
    """The tensors of a program by name.

    Args:
        values: their values, which this keeps up to date.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._views: dict[str, View] = {}
        self._root: dict[str, str] = {}  # the tensor whose memory it is
        self._changes: dict[str, int] = {}  # of a root: how often its memory was changed
        self._seen: dict[str, int] = {}  # the number of changes that a tensor's value has seen
        self._lost: dict[str, str] = {}  # names that cannot be read any more, and why
        self._fixed: dict[str, str] = {}  # roots that must not change, and why

    def own(self, name: str, value: Tensor, fixed: str = "") -> None:
        """A tensor with memory of its own. fixed: why that must not change."""
        self.values[name], self._root[name], self._seen[name] = value, name, 0
        if fixed:
            self._fixed[name] = fixed

    def view(self, name: str, of: str, value: Tensor, known: bool = True) -> None:
        """A tensor that is a part of another. known: it is; else it may be a copy."""
        root = self._root[of]
        self.values[name], self._root[name], self._seen[name] = value, root, self._changes.get(root, 0)
        steps = _steps(_raw(self.values[of]), _raw(value)) if known else None
        above = self._views.get(of)
        self._views[name] = above if steps == () and above is not None else View(of, steps)

    def root(self, name: str) -> str:
        """The tensor whose memory a tensor has."""
        return self._root[name]

    def read(self, name: str) -> Tensor:
        """The value of a tensor now. Raises Unsupported where that is not known."""
        if why := self._lost.get(name):
            raise Unsupported(why)
        return self._fresh(name)

    def _fresh(self, name: str) -> Tensor:
        """The value after all changes: views that have not seen the last one are made again."""
        stale = [name]
        while self._seen[stale[-1]] != self._changes.get(self._root[name], 0):
            view = self._views[stale[-1]]
            if view.steps is None:
                raise Unsupported(f"it reads {name}, which may share memory that was changed in place; {_PLAIN}")
            if len(stale) > MAX_DEPTH:
                raise Unsupported(f"it reads {name}, a view of more than {MAX_DEPTH} views; {_PLAIN}")
            stale.append(view.of)
        for one in reversed(stale[:-1]):
            view = self._views[one]
            part = _raw(self.values[view.of])
            for step in view.steps or ():
                part = step.of(part)
            self.values[one] = _like(self.values[one], part)
            self._seen[one] = self._changes[self._root[name]]
        return self.values[name]  # type: ignore[no-any-return]

    def write(self, name: str, value: Tensor) -> None:
        """Changes a tensor in place, and what it is a part of.

        Raises:
            Unsupported: it is a part of what must not change, or nobody knows which part.
        """
        root = self._root[name]
        if root in self._fixed:
            raise Unsupported(self._fixed[root])
        chain = [name]
        while (view := self._views.get(chain[-1])) is not None:
            if view.steps is None or len(chain) > MAX_DEPTH:
                raise Unsupported(
                    f"it changes {name} in place, which may share the memory of {view.of}, or be a copy; {_PLAIN}"
                )
            self._fresh(view.of)
            chain.append(view.of)
        made = {name: value}
        for part, whole in zip(chain, chain[1:], strict=False):
            steps = self._views[part].steps or ()
            made[whole] = _like(self.values[whole], _put(_raw(self.values[whole]), _raw(made[part]), steps))
        self._changes[root] = self._changes.get(root, 0) + 1
        for one, new in made.items():
            self.values[one], self._seen[one] = new, self._changes[root]

    def lose(self, name: str, why: str) -> None:
        """From here on nobody may read a tensor by this name."""
        self._lost[name] = why


_PLAIN = "clone it first, or write it without the change in place"


def shares(node: GraphNode, whole: TensorMeta, part: TensorMeta) -> bool | None:
    """Whether the result of a call of a view, as torch's own words about both say, has the operand's memory; None where
    that depends on sizes.
    """
    op = node.op.split(".")[1]
    if op in ("to", "type_as", "_to_copy"):
        copies = any(a.name == "copy" and a.value is True for a in node.arguments)
        return whole.dtype is part.dtype and op != "_to_copy" and not copies
    if op == "contiguous":
        return whole.strides == part.strides
    if op in ("reshape", "reshape_as", "flatten"):
        return _viewable(whole, part)
    return not op.endswith("_copy")


def _viewable(whole: TensorMeta, part: TensorMeta) -> bool | None:
    """Whether torch can see a tensor in another shape without a copy."""
    if whole.sizes == part.sizes:
        return whole.strides == part.strides
    if _runs(whole) == 1:
        return True
    if not dims.all_fixed((*whole.sizes, *whole.strides, *part.sizes)):
        return None
    if 0 in whole.sizes:
        return True
    sizes, strides, left = whole.sizes, whole.strides, list(part.sizes)
    base, have = strides[-1] if strides else 1, 1
    for d in reversed(range(len(sizes))):  # runs of dimensions that lie one behind the other, each cut by itself
        have *= sizes[d]  # type: ignore[assignment]
        if d and (sizes[d - 1] == 1 or strides[d - 1] == have * base):
            continue
        wanted = 1
        while left and (wanted < have or left[-1] == 1):
            wanted *= left.pop()  # type: ignore[assignment]
        if wanted != have:
            return False
        base, have = strides[d - 1], 1
    return True


def _runs(meta: TensorMeta) -> int:
    """1 where the elements lie one behind the other, else 2."""
    expected: Dimension = 1
    for size, stride in zip(reversed(meta.sizes), reversed(meta.strides), strict=True):
        if size != 1 and stride != expected:
            return 2
        expected = dims.mul(expected, size)
    return 1


def _raw(value: Tensor) -> Value:
    return value.pairs if isinstance(value, Complex) else value


def _like(old: Tensor, raw: Value) -> Tensor:
    return Complex(raw) if isinstance(old, Complex) else raw


def _steps(whole: Value, part: Value) -> tuple[Step, ...] | None:
    """The ops that made a part of the whole; None where something else than taking elements is among them."""
    found: list[Step] = []
    while part is not whole:
        node = part.node
        if node is None or len(found) > MAX_DEPTH or not (node.op.is_view or node.op.name in ("gather", "take")):
            return None
        found.append(Step(node.op, node.inputs[1:], node.outputs.index(part)))
        part = node.inputs[0]
    return tuple(reversed(found))


# ------------------------------------------------------------------------------------------------ parts put back


def _put(whole: Value, part: Value, steps: tuple[Step, ...]) -> Value:
    """The whole with the part that these steps take out of it replaced."""
    if not steps:
        return part
    first, *rest = steps
    inner = _put(first.of(whole), part, tuple(rest)) if rest else part
    op = first.op
    if isinstance(op, Reshape):
        return F.reshape(inner, whole.shape)  # type: ignore[no-any-return]
    if isinstance(op, Permute):
        order = op.order(whole.ndim())
        return F.permute(inner, tuple(order.index(i) for i in range(len(order))))  # type: ignore[no-any-return]
    if isinstance(op, Slice):
        return _put_box(whole, inner, list(zip(op.starts, op.sizes, op.strides, strict=True)))
    if isinstance(op, Expand):
        raise Unsupported(f"it changes an expanded tensor in place, of which several elements are one; {_PLAIN}")
    return _put_indexed(whole, inner, first)


def _put_box(whole: Value, part: Value, box: list[tuple[Dimension, Dimension, int]]) -> Value:
    """The whole with a box of it replaced, one dimension after the other."""
    cut = [i for i, (at, size, step) in enumerate(box) if (at, size, step) != (0, whole.shape[i], 1)]
    if not cut:
        return part
    axis, rest = cut[0], cut[1:]
    start, size, step = box[axis]
    if rest:
        outer = [(0, d, 1) if i != axis else box[i] for i, d in enumerate(whole.shape)]
        inner = fn.slice(whole, *map(list, zip(*outer, strict=True)))
        part = _put_box(inner, part, [b if i in rest else (0, inner.shape[i], 1) for i, b in enumerate(box)])
    if step != 1:
        end = dims.add(start, dims.mul(size, step))
        index = fn.arange(start, end, step=step)
        wide = F.reshape(index, tuple(size if i == axis else 1 for i in range(whole.ndim())))
        return F.scatter(whole, F.expand(wide, part.shape), part, axis=axis)  # type: ignore[no-any-return]
    high = dims.add(start, size)
    behind = dims.add(whole.shape[axis], dims.mul(high, -1))

    def rows(first: Dimension, count: Dimension) -> Any:
        starts: list[Any] = [first if i == axis else 0 for i in range(whole.ndim())]
        return fn.slice(whole, starts, [count if i == axis else d for i, d in enumerate(whole.shape)])

    pieces = [rows(0, start)] * (start != 0) + [part] + [rows(high, behind)] * (behind != 0)
    return fn.concat(pieces, axis)  # type: ignore[no-any-return]


def _put_indexed(whole: Value, part: Value, step: Step) -> Value:
    """By an index of all elements, of which the step takes those of the part."""
    count = whole.spec.elements
    if not isinstance(count, int) or count > MAX_INDEX:
        raise Unsupported(f"it changes a part of a tensor in place whose size only a run knows; {_PLAIN}")
    every = whole.network.constant(np.arange(count).reshape(whole.shape))
    places, flat = step.of(every), F.reshape(whole, (count,))
    size = (part.spec.elements,)
    return F.reshape(F.scatter(flat, F.reshape(places, size), F.reshape(part, size)), whole.shape)  # type: ignore[no-any-return]

