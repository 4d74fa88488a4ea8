"""Recurrent networks over whole sequences, under torch's names: layers and directions of the ops lstm, gru and rnn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.linear import linear
from ingot.functional.shape import expand, select
from ingot.functional.tensor import Tensor
from ingot.ir import F, Value

Run = Callable[..., tuple[Any, ...]]  # an op: gates, weight, states, bias, lengths, projection? → y, states


class Direction(NamedTuple):
    """The weights of one direction of a layer: torch's weight_ih, weight_hh, bias_ih, bias_hh and weight_hr."""

    input: Tensor
    state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    projection: Tensor | None


def lstm(
    input: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    params: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Any, Any, Any]:
    """An LSTM: [T, N, I] → the output [T, N, D·K] and the last states [L·D, N, K] and [L·D, N, H].

    There are D directions of L layers. Without projections K is H. A float32 state goes from step to step in every
    dtype, and results are rounded once.

    Args:
        input: [T, N, I], with batch_first [N, T, I], or [T, I] of one sequence (results then lack N as well).
        hx: the first states, as the last ones are given; None: zeros.
        params: torch's flat weights, for each layer its directions, for each of these weight_ih [4·H, I], weight_hh
            [4·H, K], with biases bias_ih [4·H] and bias_hh [4·H], with projections weight_hr [K, H].
        lengths: int32 or int64 [N]: how many steps each sequence has, as in a packed one. Behind them the output is 0,
            the last state is that of a sequence's own last step, and the other direction begins there.

    Raises:
        OpError: weights of another number or shape, states or lengths that do not fit. A length outside 0..T is a
            ValueFault at run time.
    """
    found = _layers("lstm", input, hx, params, (has_biases, num_layers, bidirectional, batch_first), lengths, 4, F.lstm)
    return found[0], found[1], found[2]


def gru(
    input: Tensor,
    hx: Tensor | None,
    params: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Any, Any]:
    """A GRU: [T, N, I] → the output [T, N, D·H] and the last state [L·D, N, H]. Arguments and errors as of
    `lstm`; weights have 3·H rows: reset, update, new."""
    options = (has_biases, num_layers, bidirectional, batch_first)
    found = _layers("gru", input, None if hx is None else (hx,), params, options, lengths, 3, F.gru)
    return found[0], found[1]


def _rnn(activation: str, input: Tensor, hx: Tensor | None, params: Sequence[Tensor], options: Any,
         lengths: Tensor | None) -> tuple[Any, Any]:  # fmt: skip
    run = partial(F.rnn, activation=activation)
    found = _layers(f"rnn_{activation}", input, None if hx is None else (hx,), params, options, lengths, 1, run)
    return found[0], found[1]


def rnn_tanh(
    input: Tensor,
    hx: Tensor | None,
    params: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Any, Any]:
    """h = tanh(W x + b + U h + c) over the steps: [T, N, I] → the output [T, N, D·H] and the last state [L·D, N, H].
    Arguments and errors as of `lstm`; weights have H rows."""
    return _rnn("tanh", input, hx, params, (has_biases, num_layers, bidirectional, batch_first), lengths)


def rnn_relu(
    input: Tensor,
    hx: Tensor | None,
    params: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    lengths: Tensor | None = None,
) -> tuple[Any, Any]:
    """The same with relu in place of tanh."""
    return _rnn("relu", input, hx, params, (has_biases, num_layers, bidirectional, batch_first), lengths)


def _layers(
    name: str, input: Tensor, hx: Sequence[Tensor] | None, params: Sequence[Tensor],
    options: tuple[bool, int, bool, bool], lengths: Tensor | None, gates: int, run: Run,
) -> list[Any]:  # fmt: skip
    """The output and the last states of all layers and directions."""
    has_biases, num_layers, bidirectional, batch_first = options
    rank = len(input.shape)
    if rank not in (2, 3):
        raise OpError(f"{name}: the input must be [T, N, I], or [T, I] of one sequence; it has {rank} dimensions")
    x = input
    if rank == 2:
        x, batch_first = F.reshape(input, (input.shape[0], 1, input.shape[1])), False
        hx = None if hx is None else [F.reshape(h, (h.shape[0], 1, *h.shape[1:])) for h in hx]
    directions = 2 if bidirectional else 1
    weights = _split(name, params, has_biases, num_layers * directions, name == "lstm", gates)
    rows = x.shape[0] if batch_first else x.shape[1]
    states = _states(name, x, hx, weights, rows, gates)
    last: list[list[Any]] = [[] for _ in states]
    first_of_batch = batch_first
    for layer in range(num_layers):
        outputs = []
        for d in range(directions):
            at = layer * directions + d
            one = weights[at]
            sums = linear(x, one.input, one.input_bias)
            if first_of_batch:
                sums = F.permute(sums, (1, 0, 2))
            bias = one.state_bias
            if bias is None:
                bias = np.zeros(one.state.shape[0], dtypes.get(x.dtype).numpy)
            projection = () if one.projection is None else (one.projection,)
            y, *ends = run(sums, one.state, *(s[at] for s in states), bias, lengths, *projection, reverse=d == 1)
            outputs.append(y)
            for kept, end in zip(last, ends, strict=True):
                kept.append(F.reshape(end, (1, *end.shape)))
        x = outputs[0] if len(outputs) == 1 else F.concat(*outputs, dim=-1)
        first_of_batch = False
    results = [F.permute(x, (1, 0, 2)) if batch_first else x]
    results += [one[0] if len(one) == 1 else F.concat(*one, dim=0) for one in last]
    if rank == 2:
        results = [F.reshape(r, (r.shape[0], r.shape[2])) for r in results]
    return results


def _split(
    name: str, params: Sequence[Tensor], has_biases: bool, count: int, projects: bool, gates: int
) -> list[Direction]:
    """The flat weights of so many directions; the last one of each may be a projection."""
    if count < 1:
        raise OpError(f"{name}: num_layers must be at least 1")
    plain = 4 if has_biases else 2
    each, rest = divmod(len(params), count)
    if rest or each not in ((plain, plain + 1) if projects else (plain,)):
        wanted = f"{plain} (or {plain + 1} with a projection)" if projects else str(plain)
        raise OpError(f"{name}: {len(params)} weights for {count} directions of layers, each of which has {wanted}")
    found = []
    for i in range(count):
        own = list(params[i * each : (i + 1) * each])
        biases = own[2:4] if has_biases else [None, None]
        made = Direction(own[0], own[1], biases[0], biases[1], own[-1] if each > plain else None)
        for what, weight in (("weight_ih", made.input), ("weight_hh", made.state)):
            if len(weight.shape) != 2 or not isinstance(weight.shape[0], int) or weight.shape[0] % gates:
                raise OpError(f"{name}: {what} {i} must be [{gates}·H, …], not {list(weight.shape)}")
        found.append(made)
    return found


def _states(
    name: str, x: Tensor, hx: Sequence[Tensor] | None, weights: Sequence[Direction], rows: Dimension, gates: int
) -> list[list[Any]]:
    """The first states of each direction."""
    count, width, units = len(weights), weights[0].state.shape[1], weights[0].state.shape[0] // gates
    wanted = [(count, rows, width), (count, rows, units)][: 2 if name == "lstm" else 1]
    if hx is None:
        return [[_zeros(x, shape[1:])] * count for shape in wanted]
    if len(hx) != len(wanted):
        raise OpError(f"{name}: takes {len(wanted)} first states, not {len(hx)}")
    for h, shape in zip(hx, wanted, strict=True):
        if tuple(h.shape) != shape:
            raise OpError(f"{name}: a first state must be {list(shape)}, not {list(h.shape)}")
    return [[select(h, 0, i) for i in range(count)] for h in hx]


def _zeros(x: Tensor, shape: Any) -> Any:
    """[N, width] zeros of x's dtype: one row, repeated."""
    zeros = np.zeros((1, shape[1]), dtypes.get(x.dtype).numpy)
    return expand(x.network.constant(zeros) if isinstance(x, Value) else zeros, shape)
