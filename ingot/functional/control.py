"""Choices and loops whose course is known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot.functional.tensor import Tensor
from ingot.ir import F
from ingot.ops.control import branch


def cond(
    pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Tensor] = ()
) -> Any:
    """The results of `true_fn(*operands)` where `pred` (a bool scalar) holds, else of `false_fn(*operands)`.

    Args:
        true_fn, false_fn: recorded once each; both give one tensor or a tuple of them, of equal dtypes and shapes.
            Tensors that they read have to be operands.
    """
    yes, no = branch(true_fn, *operands, name="true_fn"), branch(false_fn, *operands, name="false_fn")
    return F.cond(pred, *operands, then_branch=yes, else_branch=no)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Tensor], limit: int = 1_000_000
) -> Any:
    """Repeats `carried = body_fn(*carried)` while `cond_fn(*carried)`, a bool scalar, holds; gives the last ones.

    Args:
        body_fn: gives tensors of the dtypes and shapes that it takes.
        limit: rounds after which a loop that still goes on is a fault at run time.
    """
    condition, body = branch(cond_fn, *carried_inputs, name="cond_fn"), branch(body_fn, *carried_inputs, name="body_fn")
    return F.while_loop(*carried_inputs, condition=condition, body=body, limit=limit)
