"""ONNX's optimisers, a step of each: arithmetic like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.frontends.onnx.ops.common import cast, number
from ingot.frontends.onnx.table import onnx
from ingot.frontends.table import Results, Tensor, Unsupported
from ingot.ir import F

DOMAIN = "ai.onnx.preview.training"


def _groups(xs: Sequence[Any], kinds: int) -> list[tuple[Any, ...]]:
    """For each tensor that is trained what belongs to it."""
    count, rest = divmod(len(xs), kinds)
    if rest or not count:
        raise Unsupported(f"{len(xs)} tensors are no multiple of {kinds}")
    return [tuple(xs[i + k * count] for k in range(kinds)) for i in range(count)]


def _joined(rows: list[tuple[Any, ...]]) -> Results:
    return tuple(x for kind in zip(*rows, strict=True) for x in kind)


def _below(x: Any, t: Any, decay: float, rate: Any) -> Any:
    """The rate after t steps of its decay."""
    return F.div(cast(rate, x.dtype), F.add(F.mul(cast(t, x.dtype), decay), 1.0))


@onnx("Adagrad", domain=DOMAIN)
def adagrad(
    rate: Tensor, t: Tensor, *xs: Tensor, decay_factor: float = 0.0, epsilon: float = 0.0, norm_coefficient: float = 0.0
) -> Results:
    rows = []
    for x, gradient, squares in _groups(xs, 3):
        step = F.add(F.mul(x, norm_coefficient), gradient)
        total = F.add(squares, F.mul(step, step))
        now = _below(x, t, decay_factor, rate)
        rows.append((F.sub(x, F.div(F.mul(step, now), F.add(F.sqrt(total), epsilon))), total))
    return _joined(rows)


@onnx("Momentum", domain=DOMAIN)
def momentum(
    rate: Tensor, t: Tensor, *xs: Tensor, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Results:
    rows = []
    for x, gradient, before in _groups(xs, 3):
        step = F.add(F.mul(x, norm_coefficient), gradient)
        first = F.equal(cast(t, x.dtype), number(x, 0))
        share = F.where(first, number(x, 1), number(x, beta))
        v = F.add(F.mul(before, alpha), F.mul(step, share))
        moved = F.add(step, F.mul(v, alpha)) if mode == "nesterov" else v
        rows.append((F.sub(x, F.mul(moved, cast(rate, x.dtype))), v))
    return _joined(rows)


@onnx("Adam", domain=DOMAIN)
def adam(
    rate: Tensor, t: Tensor, *xs: Tensor, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> Results:  # fmt: skip
    rows = []
    for x, gradient, first, second in _groups(xs, 4):
        step = F.add(F.mul(x, norm_coefficient), gradient)
        v = F.add(F.mul(first, alpha), F.mul(step, 1 - alpha))
        h = F.add(F.mul(second, beta), F.mul(F.mul(step, step), 1 - beta))
        power = cast(t, x.dtype)
        left = [F.sub(1.0, F.pow(number(x, base), power)) for base in (beta, alpha)]
        adjusted = F.mul(cast(rate, x.dtype), F.div(F.sqrt(left[0]), left[1]))
        now = F.where(F.greater(power, 0.0), adjusted, cast(rate, x.dtype))
        moved = F.sub(x, F.div(F.mul(v, now), F.add(F.sqrt(h), epsilon)))
        rows.append((F.mul(moved, 1 - norm_coefficient_post), v, h))
    return _joined(rows)
