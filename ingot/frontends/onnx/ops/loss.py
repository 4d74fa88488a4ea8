"""ONNX's losses."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.frontends.onnx.ops.common import cast, number
from ingot.frontends.onnx.table import Call, onnx
from ingot.frontends.table import MaybeInt, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F


def _loss(scores: Any, target: Tensor, weight: Any, ignored: int | None, reduction: str) -> Any:
    """Of log probabilities [N, C, …] the ones that the target [N, …] names, weighted, negative."""
    kind = scores.dtype
    place = cast(target, dtypes.int64)
    counts: Any = None
    if ignored is not None:
        counts = F.not_equal(place, number(place, ignored))
        place = F.where(counts, place, number(place, 0))
    picked = F.gather(scores, F.reshape(place, (place.shape[0], 1, *place.shape[1:])), axis=1)
    loss = F.neg(F.reshape(picked, target.shape))
    each: Any = None
    if weight is not None:
        each = F.take(weight, place, axis=0)
    if counts is not None:
        each = cast(counts, kind) if each is None else F.where(counts, each, number(each, 0))
        loss = F.where(counts, loss, number(loss, 0))
    if weight is not None:
        loss = F.mul(loss, each)
    if reduction == "none":
        return loss
    axes = tuple(range(len(target.shape)))
    total = F.reduce_sum(loss, axes=axes, keepdims=False)
    if reduction == "sum":
        return total
    if reduction != "mean":
        raise Unsupported(f"the reduction {reduction:.40} is not none, sum or mean")
    if each is None:
        return F.reduce_mean(loss, axes=axes, keepdims=False)
    return F.div(total, F.reduce_sum(each, axes=axes, keepdims=False))


@onnx("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    scores: Tensor, target: Tensor, weight: MaybeTensor = None, *, ignore_index: MaybeInt = None,
    reduction: str = "mean",
) -> Result:  # fmt: skip
    return _loss(scores, target, weight, ignore_index, reduction)


@onnx("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    call: Call, scores: Tensor, target: Tensor, weight: MaybeTensor = None, *, ignore_index: MaybeInt = None,
    reduction: str = "mean",
) -> Result:  # fmt: skip
    logs = F.log_softmax(scores, axis=1)
    loss = _loss(logs, target, weight, ignore_index, reduction)
    return (loss, logs) if call.outputs > 1 else loss
