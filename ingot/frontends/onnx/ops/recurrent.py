"""LSTM, GRU and RNN of ONNX: with the plain activations the recurrent kernels, else a scan of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.frontends.onnx.ops.attention import counting
from ingot.frontends.onnx.ops.common import cast, number
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import Call, onnx
from ingot.frontends.table import MaybeFloat, MaybeFloats, MaybeTensor, Result, Strs, Tensor, Unsupported
from ingot.ir import F
from ingot.ir.checked import to_shape

Activation = Callable[[Any], Any]

ACTIVATIONS: dict[str, Callable[[float, float], Activation]] = {
    "relu": lambda a, b: F.relu,
    "tanh": lambda a, b: F.tanh,
    "sigmoid": lambda a, b: F.sigmoid,
    "affine": lambda a, b: lambda x: F.add(F.mul(x, a), b),
    "leakyrelu": lambda a, b: lambda x: F.where(F.less(x, 0.0), F.mul(x, a), x),
    "thresholdedrelu": lambda a, b: lambda x: F.where(F.greater(x, a), x, number(x, 0)),
    "scaledtanh": lambda a, b: lambda x: F.mul(F.tanh(F.mul(x, b)), a),
    "hardsigmoid": lambda a, b: lambda x: F.clip(F.add(F.mul(x, a), b), minimum=0.0, maximum=1.0),
    "elu": lambda a, b: lambda x: F.where(F.less(x, 0.0), F.mul(F.sub(F.exp(F.minimum(x, 0.0)), 1.0), a), x),
    "softsign": lambda a, b: lambda x: F.div(x, F.add(F.abs(x), 1.0)),
    "softplus": lambda a, b: lambda x: F.softplus(x),
}
DEFAULTS = {"affine": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "scaledtanh": (1.0, 1.0),
             "hardsigmoid": (0.2, 0.5), "elu": (1.0, 0.0)}  # fmt: skip


class Layer(NamedTuple):
    """One direction of a layer: weights [G·H, I] and [G·H, H], maybe Scaled, biases [G·H] or None, first states [N, H].
    """

    input: Any
    state: Any
    input_bias: Any
    state_bias: Any
    peephole: Any
    first: list[Any]
    reverse: bool
    names: tuple[str, ...]
    functions: tuple[Activation, ...]


class Sequences(NamedTuple):
    """What the three kinds share."""

    x: Any  # [T, N, I]
    lengths: Any
    hidden: Any
    clip: float | None


class Scaled(NamedTuple):
    """A weight [D, O, I] of integers [D, I, O], with scales and zero points of each direction [D], or of each output
    [D, O]; `zeros` may be one number for all, or None. Of one direction it is the same without D."""

    integers: Any
    scales: Any
    zeros: Any

    @property
    def shape(self) -> tuple[Any, ...]:
        *first, inputs, outputs = self.integers.shape
        return (*first, outputs, inputs)

    def each(self, part: Callable[[Any], Any]) -> Scaled:
        """The same of a part of each tensor, and of no single number."""
        return Scaled(*(v if v is None or not v.shape else part(v) for v in self))


def _floats(x: Any) -> Any:
    """A weight [O, I] as floats, made last: a layer may then read the integers."""
    if not isinstance(x, Scaled):
        return x
    scales, zeros = (v if v is None or not v.shape else F.reshape(v, (v.shape[0], 1)) for v in x[1:])
    operands = [F.permute(x.integers, (1, 0)), cast(scales, dtypes.float32), *([] if zeros is None else [zeros])]
    return F.dequantize(*operands, dtype=dtypes.float32)


def _direction(x: Any, at: int) -> Any:
    """The slice of one direction."""
    if isinstance(x, Scaled):
        return x.each(lambda v: _direction(v, at))
    if x.kind == "parameter":
        return F.take(x, x.network.constant(np.array(at, np.int64)), axis=0)
    return F.reshape(part(x, 0, at, 1), x.shape[1:])


def _rows(x: Any, start: int, count: int) -> Any:
    """Rows of a weight by their indices: of what is stored these are rows that are stored by themselves."""
    return F.take(x, x.network.constant(np.arange(start, start + count)), axis=0)


def _activations(
    names: tuple[str, ...] | None, usual: tuple[str, ...], count: int, alpha: Any, beta: Any
) -> list[tuple[tuple[str, ...], tuple[Activation, ...]]]:
    """The activations of every direction, in order."""
    words = tuple(n.lower() for n in names) if names else usual * count
    if len(words) != len(usual) * count or any(n not in ACTIVATIONS for n in words):
        raise Unsupported(f"the activations {', '.join(words)[:200]} are not {len(usual) * count} known ones")
    alphas, betas = iter(alpha or ()), iter(beta or ())
    made = []
    for n in words:
        a, b = DEFAULTS.get(n, (0.0, 0.0))
        takes_b = n in ("affine", "scaledtanh", "hardsigmoid")
        a = next(alphas, a) if n in DEFAULTS else a
        b = next(betas, b) if takes_b else b
        made.append(ACTIVATIONS[n](a, b))
    size = len(usual)
    return [(words[i * size : (i + 1) * size], tuple(made[i * size : (i + 1) * size])) for i in range(count)]


def _swapped(x: Any, order: list[int], hidden: int) -> Any:
    """Blocks of rows [G·H, …] in another order of gates."""
    if order == [0]:
        return x
    if isinstance(x, Scaled):
        return x.each(lambda v: F.concat(*(part(v, len(v.shape) - 1, i * hidden, hidden) for i in order), dim=-1))
    rows = np.concatenate([np.arange(i * hidden, (i + 1) * hidden) for i in order])
    return F.take(x, x.network.constant(rows), axis=0)


def _layers(
    call: Call, x: Any, w: Any, r: Any, b: Any, firsts: list[Any], peephole: Any, direction: str, gates: int,
    usual: tuple[str, ...], names: Any, alpha: Any, beta: Any,
) -> list[Layer]:  # fmt: skip
    if direction not in ("forward", "reverse", "bidirectional"):
        raise Unsupported(f"the direction {direction:.40} is not known")
    count = 2 if direction == "bidirectional" else 1
    hidden, rows = r.shape[2], x.shape[1]
    if w.shape[0] != count or not isinstance(hidden, int):
        raise Unsupported(f"{count} directions, and weights of {w.shape[0]}, of {hidden} hidden units")
    for v, size in ((w, gates * hidden), (r, gates * hidden), *([] if b is None else [(b, 2 * gates * hidden)])):
        if any(isinstance(n, int) and n != m for n, m in zip(v.shape, (count, size), strict=False)):
            raise Unsupported(f"weights or biases of {v.shape}, and not of {count} times {size} for {hidden} units")
    found = []
    for i, (words, functions) in enumerate(_activations(names, usual, count, alpha, beta)):
        bias = None if b is None else _direction(b, i)
        own = [F.expand(number(x, 0), (rows, hidden)) if h is None else to_shape(_direction(h, i), (rows, hidden))
               for h in firsts]  # fmt: skip
        size = gates * hidden
        found.append(Layer(
            _direction(w, i), _direction(r, i), None if bias is None else _rows(bias, 0, size),
            None if bias is None else _rows(bias, size, size), None if peephole is None else _direction(peephole, i),
            own, direction == "reverse" or i == 1, words, functions,
        ))  # fmt: skip
    return found


def _bounded(x: Any, clip: float | None) -> Any:
    return x if clip is None else F.clip(x, minimum=-clip, maximum=clip)


def _stepped(
    s: Sequences, layer: Layer, gates: int, step: Callable[..., tuple[Any, ...]], reads: list[Any]
) -> tuple[Any, list[Any]]:
    """Step after step as a scan: `step(sums, states, weights)` gives the next states, the first of which is the output.
    """
    t, n = s.x.shape[:2]
    sums = F.matmul(s.x, layer.input, transpose_b=True)
    if layer.input_bias is not None:
        sums = F.add(sums, layer.input_bias)
    count = len(layer.first)
    scanned = [sums]
    if s.lengths is not None:
        scanned.append(counting(s.x, t))
        reads = [*reads, F.reshape(cast(s.lengths, dtypes.int64), (n, 1))]

    def body(*parts: Any) -> tuple[Any, ...]:
        states, now = parts[:count], parts[count]
        rest = list(parts[count + len(scanned) :])
        if s.lengths is None:
            found = step(now, states, rest)
            return (*found, found[0])
        inside = F.less(parts[count + 1], rest.pop())
        found = tuple(F.where(inside, new, old) for new, old in zip(step(now, states, rest), states, strict=True))
        return (*found, F.where(inside, found[0], number(found[0], 0)))

    found = fn.scan(body, layer.first, scanned, reads, reverse=layer.reverse)
    return found[-1], list(found[:-1])


def _outputs(call: Call, found: list[tuple[Any, list[Any]]], layout: int, lengths: Any) -> Result:
    """Y [T, D, N, H] and the last states [D, N, H]; with layout 1 the batch stands first. A sequence of length 0 leaves
    states of 0, whatever the first ones are: the standard does not say, and ONNX Runtime has it so."""
    if lengths is not None:
        some = F.reshape(F.greater(lengths, number(lengths, 0)), (lengths.shape[0], 1))
        found = [(y, [F.where(some, h, number(h, 0)) for h in last]) for y, last in found]
    y = [F.reshape(one, (one.shape[0], 1, *one.shape[1:])) for one, _ in found]
    results = [y[0] if len(y) == 1 else F.concat(*y, dim=1)]
    for i in range(len(found[0][1])):
        ends = [F.reshape(last[i], (1, *last[i].shape)) for _, last in found]
        results.append(ends[0] if len(ends) == 1 else F.concat(*ends, dim=0))
    if layout:
        results = [F.permute(results[0], (2, 0, 1, 3)), *(F.permute(h, (1, 0, 2)) for h in results[1:])]
    return tuple(results[: max(call.outputs, 1)]) if call.outputs > 1 else results[0]


def _given(x: Any, layout: int, *states: Any) -> tuple[Any, ...]:
    """Input and first states with the steps, or the directions, first."""
    if not layout:
        return (x, *states)
    return (F.permute(x, (1, 0, 2)), *(None if h is None else F.permute(h, (1, 0, 2)) for h in states))


def _by_kernel(s: Sequences, layer: Layer, op: Callable[..., Any], order: list[int], **words: Any) -> Any:
    """The recurrent op with its gates in its own order."""
    h = s.hidden
    weight, state = (_floats(_swapped(m, order, h)) for m in (layer.input, layer.state))
    sums = F.matmul(s.x, weight, transpose_b=True)
    bias = F.expand(number(s.x, 0), (len(order) * h,))
    if layer.input_bias is not None:
        sums = F.add(sums, _swapped(layer.input_bias, order, h))
        bias = _swapped(layer.state_bias, order, h)
    y, *last = op(sums, state, *layer.first, bias, s.lengths, reverse=layer.reverse, **words)
    return y, last


@onnx("LSTM", folds=False)
def lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: MaybeTensor = None, lengths: MaybeTensor = None,
    h0: MaybeTensor = None, c0: MaybeTensor = None, p: MaybeTensor = None, *, hidden_size: int = 0,
    direction: str = "forward", activations: Strs = (), activation_alpha: MaybeFloats = None,
    activation_beta: MaybeFloats = None, clip: MaybeFloat = None, input_forget: bool = False, layout: int = 0,
) -> Result:  # fmt: skip
    x, h0, c0 = _given(x, layout, h0, c0)
    usual = ("sigmoid", "tanh", "tanh")
    layers = _layers(call, x, w, r, b, [h0, c0], p, direction, 4, usual, activations, activation_alpha, activation_beta)
    s = Sequences(x, lengths, r.shape[2], clip)
    h = s.hidden
    found = []
    for layer in layers:
        if layer.names == usual and layer.peephole is None and clip is None and not input_forget:
            found.append(_by_kernel(s, layer, F.lstm, [0, 2, 3, 1]))  # ONNX: in, out, forget, cell
            continue
        layer = layer._replace(input=_floats(layer.input), state=_floats(layer.state))
        reads = [layer.state] + ([] if layer.state_bias is None else [layer.state_bias])
        reads += [] if layer.peephole is None else [layer.peephole]

        def step(now: Any, states: Any, rest: Any, layer: Layer = layer) -> tuple[Any, Any]:
            hidden, cell = states
            gate, inner, outer = layer.functions
            total = F.add(now, F.matmul(hidden, rest[0], transpose_b=True))
            if layer.state_bias is not None:
                total = F.add(total, rest[1])
            i, o, f, c = (part(total, 1, k * h, h) for k in range(4))
            holes = [part(rest[-1], 0, k * h, h) for k in range(3)] if layer.peephole is not None else None
            if holes is not None:
                i, f = F.add(i, F.mul(holes[0], cell)), F.add(f, F.mul(holes[2], cell))
            i = gate(_bounded(i, clip))
            f = F.sub(1.0, i) if input_forget else gate(_bounded(f, clip))
            new = F.add(F.mul(f, cell), F.mul(i, inner(_bounded(c, clip))))
            if holes is not None:
                o = F.add(o, F.mul(holes[1], new))
            return F.mul(gate(_bounded(o, clip)), outer(new)), new

        found.append(_stepped(s, layer, 4, step, reads))
    return _outputs(call, found, layout, None if h0 is None and c0 is None else lengths)


@onnx("GRU", folds=False)
def gru(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: MaybeTensor = None, lengths: MaybeTensor = None,
    h0: MaybeTensor = None, *, hidden_size: int = 0, direction: str = "forward", activations: Strs = (),
    activation_alpha: MaybeFloats = None, activation_beta: MaybeFloats = None, clip: MaybeFloat = None,
    linear_before_reset: bool = False, layout: int = 0,
) -> Result:  # fmt: skip
    x, h0 = _given(x, layout, h0)
    usual = ("sigmoid", "tanh")
    layers = _layers(call, x, w, r, b, [h0], None, direction, 3, usual, activations, activation_alpha, activation_beta)
    s = Sequences(x, lengths, r.shape[2], clip)
    h = s.hidden
    found = []
    for layer in layers:
        if layer.names == usual and clip is None:
            found.append(_by_kernel(s, layer, F.gru, [1, 0, 2], reset_after=linear_before_reset))  # update, reset, new
            continue
        reads = [_rows(layer.state, 0, 2 * h), _rows(layer.state, 2 * h, h)]
        reads += [] if layer.state_bias is None else [layer.state_bias]

        def step(now: Any, states: Any, rest: Any, layer: Layer = layer) -> tuple[Any, ...]:
            (hidden,) = states
            gate, inner = layer.functions
            gates = F.add(part(now, 1, 0, 2 * h), F.matmul(hidden, rest[0], transpose_b=True))
            bias = rest[2] if layer.state_bias is not None else None
            if bias is not None:
                gates = F.add(gates, part(bias, 0, 0, 2 * h))
            z, reset = (gate(_bounded(part(gates, 1, k * h, h), clip)) for k in (0, 1))
            if linear_before_reset:
                own = F.matmul(hidden, rest[1], transpose_b=True)
                own = F.mul(reset, own if bias is None else F.add(own, part(bias, 0, 2 * h, h)))
            else:
                own = F.matmul(F.mul(reset, hidden), rest[1], transpose_b=True)
                own = own if bias is None else F.add(own, part(bias, 0, 2 * h, h))
            new = inner(_bounded(F.add(part(now, 1, 2 * h, h), own), clip))
            return (F.add(F.mul(F.sub(1.0, z), new), F.mul(z, hidden)),)

        found.append(_stepped(s, layer, 3, step, reads))
    return _outputs(call, found, layout, None if h0 is None else lengths)


@onnx("RNN", folds=False)
def rnn(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: MaybeTensor = None, lengths: MaybeTensor = None,
    h0: MaybeTensor = None, *, hidden_size: int = 0, direction: str = "forward", activations: Strs = (),
    activation_alpha: MaybeFloats = None, activation_beta: MaybeFloats = None, clip: MaybeFloat = None,
    layout: int = 0,
) -> Result:  # fmt: skip
    x, h0 = _given(x, layout, h0)
    layers = _layers(call, x, w, r, b, [h0], None, direction, 1, ("tanh",), activations, activation_alpha,
                     activation_beta)  # fmt: skip
    s = Sequences(x, lengths, r.shape[2], clip)
    found = []
    for layer in layers:
        if layer.names[0] in ("tanh", "relu") and clip is None:
            found.append(_by_kernel(s, layer, F.rnn, [0], activation=layer.names[0]))
            continue
        reads = [layer.state] + ([] if layer.state_bias is None else [layer.state_bias])

        def step(now: Any, states: Any, rest: Any, layer: Layer = layer) -> tuple[Any, ...]:
            total = F.add(now, F.matmul(states[0], rest[0], transpose_b=True))
            total = total if layer.state_bias is None else F.add(total, rest[1])
            return (layer.functions[0](_bounded(total, clip)),)

        found.append(_stepped(s, layer, 1, step, reads))
    return _outputs(call, found, layout, None if h0 is None else lengths)


