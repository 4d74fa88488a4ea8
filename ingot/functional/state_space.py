"""Mamba's layers in pieces: the selective scan and the causal convolution, over sequences and from step to step."""

# ruff: noqa: N803  Mamba calls its matrices A, B, C and D

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.errors import OpError
from ingot.functional.shape import concat, expand
from ingot.functional.spatial import conv1d
from ingot.functional.tensor import Tensor
from ingot.ir import F, Value


def _zeros(like: Tensor, shape: tuple[Any, ...]) -> Any:
    """Zeros of like's dtype, one number repeated."""
    zero = np.zeros((1,) * len(shape), dtypes.get(like.dtype).numpy)
    return expand(like.network.constant(zero) if isinstance(like, Value) else zero, shape)


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
) -> tuple[Any, Any]:
    """h = exp(delta·A)·h + delta·B·u; y = C·h + D·u, step after step: [N, D, T] → y [N, D, T], last state [N, D, S].

    Arguments are those of Mamba's selective_scan_fn; one step with a state is its selective_state_update.

    Args:
        u, delta: [N, D, T].
        A: [D, S].
        B, C: [N, S, T], or [N, G, S, T] of G groups of neighbouring channels.
        D: [D], what of u goes into y; None: nothing.
        z: [N, D, T]; y is multiplied with silu(z).
        delta_bias: [D], added to delta first.
        delta_softplus: delta is log(1 + exp(delta)).
        initial_state: [N, D, S]; None: zeros. The last state has its dtype, or A's.

    Raises:
        OpError: shapes or dtypes that do not fit together.
    """
    if len(u.shape) != 3 or len(A.shape) != 2:
        raise OpError(f"selective_scan: u must be [N, D, T] and A [D, S], not {list(u.shape)} and {list(A.shape)}")
    step = delta if delta_bias is None else F.add(delta, F.reshape(delta_bias, (delta_bias.shape[0], 1)))
    if delta_softplus:
        step = F.softplus(step)
    groups = [F.reshape(m, (m.shape[0], 1, *m.shape[1:])) if len(m.shape) == 3 else m for m in (B, C)]
    b, c = (F.permute(m, (0, 3, 1, 2)) for m in groups)
    skip = _zeros(A, (A.shape[0],)) if D is None else D
    first = _zeros(A, (u.shape[0], *A.shape)) if initial_state is None else initial_state
    rows, steps = (F.permute(m, (0, 2, 1)) for m in (u, step))
    y, last = F.selective_scan(rows, steps, A, b, c, skip, first)
    y = F.permute(y, (0, 2, 1))
    return (y if z is None else F.mul(y, F.silu(z))), last


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Any, Any]:
    """A convolution of each channel by itself that sees no later step: [N, D, T] → y [N, D, T], state [N, D, K − 1].

    Args:
        weight: [D, K].
        bias: [D].
        initial_state: the K − 1 steps before, as the state before was given; None: zeros.
        activation: None, or "silu" ("swish").

    Raises:
        OpError: another activation; shapes that do not fit together.
    """
    if activation not in (None, "silu", "swish"):
        raise OpError(f"causal_conv1d: activation must be None, silu or swish, not {activation!r}")
    if len(x.shape) != 3 or len(weight.shape) != 2:
        raise OpError(f"causal_conv1d: x must be [N, D, T] and weight [D, K], not {list(x.shape)} and "
                      f"{list(weight.shape)}")
    channels, taps = weight.shape
    rows, _, steps = x.shape
    before = _zeros(x, (rows, channels, taps - 1)) if initial_state is None else initial_state
    whole = concat([before, x], dim=2)
    y = conv1d(whole, F.reshape(weight, (channels, 1, taps)), bias, groups=channels)
    state = F.slice(whole, starts=(0, 0, steps), sizes=(rows, channels, taps - 1), strides=(1, 1, 1))
    return (F.silu(y) if activation else y), state
