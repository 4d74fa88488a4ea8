"""Windows: how a value lies in memory, and which view ops only change how it is walked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot import dims
from ingot.dims import Dimension
from ingot.ir.network import Node

Shape = tuple[Dimension, ...]


@dataclass(frozen=True)
class Window:
    """Where a value lies: a buffer that is no view, and how it is walked. Strides and offset count elements."""

    buffer: int
    shape: Shape
    stride: Shape
    offset: Dimension = 0
    whole: bool = True  # exactly the buffer as it is

    @property
    def dense(self) -> bool:
        return is_dense(self.shape, self.stride)


def dense_strides(shape: Shape) -> Shape:
    """Row-major strides."""
    out: list[Dimension] = [1] if shape else []
    for size in reversed(shape[1:]):
        out.append(dims.mul(out[-1], size))
    return tuple(reversed(out))


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Row-major without gaps; a dimension of size 1 may have any stride."""
    return all(n == 1 or s == d for n, s, d in zip(shape, stride, dense_strides(shape), strict=True))


def merged(shape: Shape, stride: Shape) -> Dimension | None:
    """The one stride with which all dims can be walked as a single one, or None."""
    step: Dimension | None = None
    length: Dimension = 1
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if n == 1:
            continue
        if step is not None and s != dims.mul(step, length):
            return None
        step = s if step is None else step
        length = dims.mul(length, n)
    return 1 if step is None else step


def reshaped(window: Window, shape: Shape) -> Window | None:
    """The same elements in another shape without moving them, or None."""
    if window.dense:
        return Window(window.buffer, shape, dense_strides(shape), window.offset, False)
    old, new = list(zip(window.shape, window.stride, strict=True)), list(shape)
    head: list[Dimension] = []
    while old and new and old[0][0] == new[0]:  # leading dims that stay
        head.append(old.pop(0)[1])
        new.pop(0)
    tail: list[Dimension] = []
    while old and new and old[-1][0] == new[-1]:
        tail.insert(0, old.pop()[1])
        new.pop()
    step = merged(tuple(n for n, _ in old), tuple(s for _, s in old))
    if step is None:
        return None
    middle = [dims.mul(step, s) for s in dense_strides(tuple(new))]
    return Window(window.buffer, shape, (*head, *middle, *tail), window.offset, False)


def split(window: Window, shape: Shape, axis: int) -> Window | None:
    """The same elements in a shape whose dimension `axis` is two that one stride each walks, or None."""
    inner, sizes = _elements(shape[axis + 1 :]), window.shape
    ends = [end for end in range(len(sizes), 0, -1) if _elements(sizes[end:]) == inner]
    for end in ends:
        for start in range(end - 2, -1, -1):
            if _elements(sizes[start:end]) != shape[axis]:
                continue
            for cut in range(start + 1, end):
                halves = (_elements(sizes[start:cut]), _elements(sizes[cut:end]))
                if found := reshaped(window, (*shape[:axis], *halves, *shape[axis + 1 :])):
                    return found
    return None


def _elements(shape: Shape) -> Dimension:
    return dims.mul(*shape)


def view(window: Window, node: Node) -> Window | None:
    """The result of a view op as a window into its operand's buffer, or None when a copy is needed."""
    op: Any = node.op
    shape: Shape = node.output.shape
    match op.name:
        case "reshape":
            return reshaped(window, shape)
        case "permute":
            return Window(
                window.buffer, shape, tuple(window.stride[d] for d in op.order(len(shape))), window.offset, False
            )
        case "expand":
            extra = len(shape) - len(window.shape)
            kept = [
                0 if n == 1 and m != 1 else s
                for n, m, s in zip(window.shape, shape[extra:], window.stride, strict=True)
            ]
            return Window(window.buffer, shape, (*[0] * extra, *kept), window.offset, False)
        case "with_shape":
            if not op.broadcast:  # a program checks that the sizes are the same
                same = dense_strides(shape) if window.dense else window.stride
                return Window(window.buffer, shape, same, window.offset, False)
            walked = [
                s if n == m else dims.mul(s, dims.minimum(dims.add(n, -1), 1))  # 0 where it repeats
                for n, m, s in zip(window.shape, shape, window.stride, strict=True)
            ]
            return Window(window.buffer, shape, tuple(walked), window.offset, False)
        case "slice":
            if any(step < 0 for step in op.strides):
                return None
            offset = dims.add(window.offset, *map(dims.mul, op.starts, window.stride))
            return Window(window.buffer, shape, tuple(map(dims.mul, window.stride, op.strides)), offset, False)
        case "unfold":
            step = window.stride[op.axis]
            stride = [*window.stride, step]
            stride[op.axis if op.axis >= 0 else op.axis - 1] = dims.mul(step, op.step)
            return Window(window.buffer, shape, tuple(stride), window.offset, False)
    return None
