"""Choices, loops and assertions: what depends on values that are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.tensor import Tensor
from ingot.ir import F, Spec, Value
from ingot.ir.sizes import as_size
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
        body_fn: gives tensors of the dtypes and shapes that it takes. What it gives beyond them is kept of every round:
            a result [rounds, …], whose first size only the run shows.
        limit: rounds after which a loop that still goes on is a fault at run time.
    """
    condition, body = branch(cond_fn, *carried_inputs, name="cond_fn"), branch(body_fn, *carried_inputs, name="body_fn")
    return F.while_loop(*carried_inputs, condition=condition, body=body, limit=limit)


def scan(
    body_fn: Callable[..., Any], carried_inputs: Sequence[Tensor], scanned_inputs: Sequence[Tensor] = (),
    constant_inputs: Sequence[Tensor] = (), length: Dimension | Tensor | None = None, reverse: bool = False,
) -> Any:  # fmt: skip
    """Calls `body_fn(*carried, *parts, *constant)` for each part of what is scanned, in order; it gives the next
    carried tensors, and any number beside them.

    The results are the last carried tensors, and what the rounds gave beside them, as [length, …].

    Args:
        scanned_inputs: [length, …] each; a round gets a part […] of them.
        constant_inputs: what all rounds read. Tensors that body_fn reads have to be operands.
        length: the number of rounds: a size, or an integer tensor. None: that of what is scanned.
        reverse: from the last part to the first; results lie in the order of the parts all the same.

    Raises:
        OpError: nothing is scanned and no length given, or lengths differ.
    """
    if length is None and not scanned_inputs:
        raise OpError("scan: length must be given where nothing is scanned")
    if any(not len(x.shape) for x in scanned_inputs):
        raise OpError("scan: what is scanned must have a dimension")
    rounds = scanned_inputs[0].shape[0] if length is None else as_size(length)
    parts = [Spec(x.shape[1:], dtypes.get(x.dtype)) for x in scanned_inputs]
    body = branch(body_fn, *carried_inputs, *parts, *constant_inputs, name="body_fn")
    return F.scan(*carried_inputs, *scanned_inputs, *constant_inputs, body=body, length=rounds,
                  carried=len(carried_inputs), scanned=len(scanned_inputs), reverse=reverse)  # fmt: skip


def assertion(condition: Tensor, message: str = "") -> None:
    """A run in which the condition (bool) does not hold everywhere ends in a ValueFault that says `message`.

    Raises:
        OpError: a condition that certainly does not hold, as far as it follows from sizes.
    """
    known = condition.known if isinstance(condition, Value) else np.asarray(condition, object)
    if known is not None and all(known.flat):
        return
    if known is not None:
        raise OpError(f"assertion failed{': ' if message else ''}{message}")
    F.assertion(condition, message=message)


class Conditional:
    """A choice between two values, written as the retired API has it. Both are computed; `cond` computes one of them.

        conditional = Conditional(condition)
        x = conditional.add_input(x)
        y = conditional.add_output(x * 2, x + 1)
    """

    def __init__(self, condition: Tensor) -> None:
        """condition: one bool.

        Raises:
            OpError: more than one, or another dtype.
        """
        if any(d != 1 for d in condition.shape):
            raise OpError(f"Conditional: the condition must be one bool, not {list(condition.shape)} of them")
        self.condition = F.reshape(condition, ()) if len(condition.shape) else condition

    def add_input(self, input: Tensor) -> Tensor:
        """The tensor itself, as both values read it."""
        return input

    def add_output(self, true_value: Tensor, false_value: Tensor) -> Tensor:
        """true_value where the condition holds, else false_value. They have one dtype and one shape.

        Raises:
            OpError: values whose shapes or dtypes differ.
        """
        if tuple(true_value.shape) != tuple(false_value.shape):
            shapes = f"{list(true_value.shape)} and {list(false_value.shape)}"
            raise OpError(f"Conditional: the values have shapes {shapes}; they must be the same")
        return F.where(self.condition, true_value, false_value)
