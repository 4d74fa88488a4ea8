"""Recurrent layers: one layer in one direction, over all steps of a sequence.

What a step's sums have beside the state, `gates` [T, N, G·H], is a product over all steps at once and made outside. The
state stays in float32 (float64 of float64) from the first step to the last; results are rounded once.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.ir import Case, Op, Spec, op, require
from ingot.ops.common import (
    PYTHON_STEPS,
    Array,
    bf16,
    f16,
    f32,
    f64,
    i32,
    i64,
    product_steps,
    require_float,
    require_index,
    rounded,
    same_dtype,
    show,
    widen,
)
from ingot.ops.indexing import in_range

FLOAT64 = "float64 sums are the interpreter's"
ACTIVATIONS = ("tanh", "relu")


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1) / (1 + small))


class Operands(NamedTuple):
    """The operands of a recurrent op by their names; arrays, tensors or specs."""

    gates: Any
    weight: Any
    states: tuple[Any, ...]
    bias: Any
    lengths: Any = None
    projection: Any = None


class Recurrent(Op):
    """What LSTM, GRU and RNN share: `gates_each` blocks of H rows in weight and bias, and a step of their own."""

    reverse: bool = False
    gates_each = 1
    weights: ClassVar[tuple[int, ...]] = (1,)  # the places of operands that multiply the state
    stored = ("weight", "projection")

    def _operands(self, gates: Any, weight: Any, *rest: Any) -> Operands:
        states = self.outputs - 1 if self.outputs else 1
        return Operands(gates, weight, rest[:states], *rest[states:])

    def _infer(self, given: Operands) -> tuple[Spec, Spec, Spec]:
        gates, weight, states, bias, lengths, projection = given
        tensors = {"gates": gates, "weight": weight, "h0": states[0], "bias": bias, "projection": projection}
        if len(states) > 1:
            tensors["c0"] = states[1]
        require_float(gates=gates)
        same_dtype(**{name: spec for name, spec in tensors.items() if spec is not None})
        require(len(gates.shape) == 3, f"gates must be [T, N, {self.gates_each}·H], not {show(gates.shape)}")
        steps, rows, wide = gates.shape
        require(isinstance(wide, int) and wide > 0 and wide % self.gates_each == 0,
                f"the last dimension of gates must be {self.gates_each} times the units, not {wide}")
        units = wide // self.gates_each
        width = units
        if projection is not None:
            require(len(projection.shape) == 2 and projection.shape[1] == units and isinstance(projection.shape[0], int)
                    and projection.shape[0] > 0, f"projection must be [K, {units}], not {show(projection.shape)}")
            width = projection.shape[0]
        wanted: dict[str, tuple[Any, ...]] = {
            "weight": (wide, width), "h0": (rows, width), "c0": (rows, units), "bias": (wide,)}
        for name, shape in wanted.items():
            spec = tensors.get(name)
            require(spec is None or spec.shape == shape, f"{name} must be {show(shape)}, not "
                    f"{show(spec.shape) if spec is not None else ''}")
        if lengths is not None:
            require_index(lengths=lengths)
            require(lengths.shape == (rows,), f"lengths must be {show((rows,))}, not {show(lengths.shape)}")
        y, h, c = (Spec(shape, gates.dtype) for shape in ((steps, rows, width), (rows, width), (rows, units)))
        return y, h, c

    def working(self, *specs: Any) -> int:
        """The operands in float32, and a few arrays of a step."""
        return 8 * sum(int(s.elements) for s in specs if s is not None) + 16 * int(specs[2].elements) * self.gates_each

    def _products(self) -> int:
        """Of the state with the weight, in a step of the reference."""
        return 1

    def steps(self, *specs: Any) -> int:
        """The products and a few calls for each step."""
        given = self._operands(*specs)
        steps, rows, wide = map(int, given.gates.shape)
        each = product_steps(rows * wide * int(given.weight.shape[1]), given.gates.dtype)
        return steps * (2 * each * self._products() + 24 * rows * wide + 24 * PYTHON_STEPS)

    # ------------------------------------------------------------------------------------------------------- meaning
    def _step(self, x: Array, sums_of: Callable[[Any], Any], states: list[Array]) -> list[Array]:
        """The states after a step: x are its gates, and sums_of(h) is weight·h + bias."""
        raise NotImplementedError

    def _reference(self, given: Operands) -> tuple[Array, ...]:
        like = given.gates
        gates, weight = widen(given.gates), widen(given.weight)
        steps, rows = gates.shape[:2]
        states = [widen(s).copy() for s in given.states]
        bias = widen(given.bias)
        lengths = np.full(rows, steps)
        if given.lengths is not None:
            lengths = in_range("lengths of a recurrent layer", given.lengths, 0, steps + 1)
        projection = None if given.projection is None else widen(given.projection)
        y = np.zeros((steps, rows, states[0].shape[1]), gates.dtype)
        each = np.arange(rows)
        with np.errstate(all="ignore"):
            for step in range(steps):
                live = each[step < lengths]
                times = lengths[live] - 1 - step if self.reverse else np.full(len(live), step)
                before = [s[live] for s in states]
                after = self._step(gates[times, live], lambda h: h @ weight.T + bias, before)
                if projection is not None:
                    after[0] = after[0] @ projection.T
                for state, new in zip(states, after, strict=True):
                    state[live] = new
                y[times, live] = after[0]
        return tuple(rounded(a, like) for a in (y, *states))

    # --------------------------------------------------------------------------------------------------------- torch
    def _torch_step(self, torch: Any, x: Any, sums_of: Callable[[Any], Any], states: list[Any]) -> list[Any]:
        raise NotImplementedError

    def _torch(self, torch: Any, given: Operands) -> Any:
        """Every step on all rows; a row that is over keeps its state."""
        narrow = given.gates.dtype
        gates, weight, *states = (t if t.dtype == torch.float64 else t.float()
                                  for t in (given.gates, given.weight, *given.states))
        steps, rows = gates.shape[:2]
        device = gates.device
        lengths = torch.full((rows,), steps, device=device) if given.lengths is None else given.lengths.long()
        each, results = torch.arange(rows, device=device), []
        order = torch.arange(steps, device=device)[:, None]
        back = (lengths - 1 - order) % max(steps, 1) if self.reverse else order.expand(steps, rows)
        times = torch.where(order < lengths, back, order)  # of each step and row
        for step in range(steps):
            after = self._torch_step(
                torch, gates[times[step], each], lambda h: h @ weight.T + given.bias.to(weight.dtype), states
            )
            if given.projection is not None:
                after[0] = after[0] @ given.projection.to(weight.dtype).T
            live = (step < lengths)[:, None]
            results.append(torch.where(live, after[0], 0))
            states = [torch.where(live, new, old) for new, old in zip(after, states, strict=True)]
        y = torch.stack(results) if results else torch.empty((0, *states[0].shape), device=device, dtype=gates.dtype)
        if self.reverse and steps:
            y = torch.empty_like(y).scatter_(0, times[:, :, None].expand_as(y), y)
        return tuple(t.to(narrow) for t in (y, *states))

    def torch_fault(self, torch: Any, *tensors: Any) -> Any:
        lengths = self._operands(*tensors).lengths
        if lengths is None:
            return torch.zeros((), dtype=torch.bool, device=tensors[0].device)
        return ((lengths < 0) | (lengths > tensors[0].shape[0])).any()

    fault = "a length of a recurrent layer's rows is below 0 or above the number of steps"

    def sample(self, rng: np.random.Generator, *specs: Any) -> tuple[Array, ...]:
        """Numbers that keep the gates away from their ends."""
        given = self._operands(*specs)
        arrays = []
        for spec in specs:
            if spec is None:
                continue
            shape = spec.evaluate({})
            if spec is given.lengths:
                arrays.append(rng.integers(0, int(given.gates.shape[0]) + 1, shape).astype(spec.dtype.numpy))
            else:
                scale = 1 / math.sqrt(shape[-1]) if spec is given.weight or spec is given.projection else 1
                arrays.append((rng.standard_normal(shape) * scale).astype(spec.dtype.numpy))
        return tuple(arrays)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        steps, rows, units = draw.size(), draw.size(), draw.size(1)
        dtype, each = draw.choice([dtypes.float32, dtypes.bfloat16]), cls.gates_each
        states = [Spec((rows, units), dtype)] * ((cls.outputs or 2) - 1)
        specs: list[Any] = [Spec((steps, rows, each * units), dtype), Spec((each * units, units), dtype), *states,
                            Spec((each * units,), dtype)]
        if draw.boolean():
            specs.append(i32(rows))
        return Case("random", tuple(specs), {"reverse": draw.boolean()})



@op("lstm")
class Lstm(Recurrent):
    """An LSTM over gates [T, N, 4·H] (in, forget, cell, out): y [T, N, K], and the last states h [N, K] and c [N, H].

    A step: i, f, o = σ(·), g = tanh(·) of gates + weight·h + bias; c = f·c + i·g; h = o·tanh(c), through projection
    [K, H] if there is one; else K is H. weight [4·H, K], bias [4·H], h0 [N, K], c0 [N, H]. `lengths` [N] (int): how
    many steps a row has; behind them y is 0. `reverse`: from a row's last step to its first.
    """

    gates_each = 4
    weights = (1, 6)
    cases = (
        Case("a sequence", (f32("T", 3, 20), f32(20, 5), f32(3, 5), f32(3, 5), f32(20))),
        Case("backwards, rows of their own lengths",
             (f32(7, "N", 12), f32(12, 3), f32("N", 3), f32("N", 3), f32(12), i64("N")), {"reverse": True}),
        Case("a projection", (f32(6, 2, 140), f32(140, 3), f32(2, 3), f32(2, 35), f32(140), i32(2), f32(3, 35))),
        Case("a projection and lengths",
             (f32(6, 4, 20), f32(20, 3), f32(4, 3), f32(4, 5), f32(20), i32(4), f32(3, 5)), {"reverse": True}),
        Case("weights that are computed", (f32(3, 2, 20), f32(20, 5), f32(2, 5), f32(2, 5), f32(20)), stored=()),
        Case("bfloat16 rounds at the end", (bf16(9, 2, 20), bf16(20, 5), bf16(2, 5), bf16(2, 5), bf16(20))),
        Case("float16, a projection", (f16(3, 2, 20), f16(20, 2), f16(2, 2), f16(2, 5), f16(20), i64(2), f16(2, 5))),
        Case("float64", (f64(4, 2, 8), f64(8, 2), f64(2, 2), f64(2, 2), f64(8)), host=FLOAT64),
        Case("no steps", (f32(0, 2, 8), f32(8, 2), f32(2, 2), f32(2, 2), f32(8))),
        Case("no rows", (f32(3, 0, 8), f32(8, 2), f32(0, 2), f32(0, 2), f32(8))),
        Case("three gates", (f32(3, 2, 9), f32(9, 3), f32(2, 3), f32(2, 3), f32(9)), error="4 times the units, not 9"),
        Case("another weight", (f32(3, 2, 8), f32(8, 3), f32(2, 2), f32(2, 2), f32(8)),
             error=r"weight must be \(8, 2\)"),
        Case("another row of states", (f32(3, 2, 8), f32(8, 2), f32(3, 2), f32(2, 2), f32(8)),
             error=r"h0 must be \(2, 2\)"),
        Case("other types", (f32(3, 2, 8), bf16(8, 2), f32(2, 2), f32(2, 2), f32(8)),
             error="nothing is promoted silently"),
        Case("lengths of floats", (f32(3, 2, 8), f32(8, 2), f32(2, 2), f32(2, 2), f32(8), f32(2)),
             error="lengths must be int32 or int64"),
        Case("lengths of other rows", (f32(3, 2, 8), f32(8, 2), f32(2, 2), f32(2, 2), f32(8), i32(3)),
             error=r"lengths must be \(2,\)"),
        Case("a projection of other units", (f32(3, 2, 8), f32(8, 2), f32(2, 2), f32(2, 2), f32(8), i32(2), f32(2, 3)),
             error=r"projection must be \[K, 2\]"),
    )  # fmt: skip

    def infer(self, gates: Spec, weight: Spec, h0: Spec, c0: Spec, bias: Spec,
              lengths: Spec | None = None, projection: Spec | None = None) -> tuple[Spec, Spec, Spec]:  # fmt: skip
        return self._infer(Operands(gates, weight, (h0, c0), bias, lengths, projection))

    def reference(self, gates: Array, weight: Array, h0: Array, c0: Array, bias: Array,
                  lengths: Array | None = None, projection: Array | None = None) -> tuple[Array, ...]:  # fmt: skip
        return self._reference(Operands(gates, weight, (h0, c0), bias, lengths, projection))

    def _step(self, x: Array, sums_of: Callable[[Any], Any], states: list[Array]) -> list[Array]:
        i, f, g, o = np.split(x + sums_of(states[0]), 4, -1)
        c = _sigmoid(f) * states[1] + _sigmoid(i) * np.tanh(g)
        return [_sigmoid(o) * np.tanh(c), c]

    def torch(self, torch: Any, gates: Any, weight: Any, h0: Any, c0: Any, bias: Any, lengths: Any = None,
              projection: Any = None) -> Any:  # fmt: skip
        return self._torch(torch, Operands(gates, weight, (h0, c0), bias, lengths, projection))

    def _torch_step(self, torch: Any, x: Any, sums_of: Callable[[Any], Any], states: list[Any]) -> list[Any]:
        i, f, g, o = (x + sums_of(states[0])).chunk(4, -1)
        c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]


@op("gru")
class Gru(Recurrent):
    """A GRU over gates [T, N, 3·H] (reset, update, new): y [T, N, H] and the last state h [N, H].

    A step: s = weight·h + bias; r, z = σ(gates + s); n = tanh(gate + r·s); h = n + z·(h − n). Without `reset_after`
    the new gate's s is weight·(r·h) + bias, and n = tanh(gate + s). weight [3·H, H], bias [3·H], h0 [N, H]; `lengths`
    and `reverse` as lstm has them.
    """

    version = 2  # 1 had no reset_after
    reset_after: bool = True
    gates_each = 3
    cases = (
        Case("a sequence", (f32("T", 3, 15), f32(15, 5), f32(3, 5), f32(15))),
        Case("backwards, rows of their own lengths", (f32(7, "N", 105), f32(105, 35), f32("N", 35), f32(105), i64("N")),
             {"reverse": True}),
        Case("the state is reset before the product", (f32("T", 3, 15), f32(15, 5), f32(3, 5), f32(15)),
             {"reset_after": False}),
        Case("the same backwards, rows of their own lengths",
             (f32(7, "N", 105), f32(105, 35), f32("N", 35), f32(105), i64("N")),
             {"reverse": True, "reset_after": False}),
        Case("the same, bfloat16", (bf16(9, 2, 15), bf16(15, 5), bf16(2, 5), bf16(15)), {"reset_after": False}),
        Case("weights that are computed", (f32(3, 2, 15), f32(15, 5), f32(2, 5), f32(15)), stored=()),
        Case("bfloat16 rounds at the end", (bf16(9, 2, 15), bf16(15, 5), bf16(2, 5), bf16(15))),
        Case("float16", (f16(3, 2, 15), f16(15, 5), f16(2, 5), f16(15))),
        Case("float64", (f64(4, 2, 6), f64(6, 2), f64(2, 2), f64(6)), host=FLOAT64),
        Case("four gates", (f32(3, 2, 8), f32(8, 2), f32(2, 2), f32(8)), error="3 times the units, not 8"),
        Case("a bias of other gates", (f32(3, 2, 6), f32(6, 2), f32(2, 2), f32(2)), error=r"bias must be \(6,\)"),
    )

    def infer(self, gates: Spec, weight: Spec, h0: Spec, bias: Spec,
              lengths: Spec | None = None) -> tuple[Spec, Spec]:  # fmt: skip
        return self._infer(Operands(gates, weight, (h0,), bias, lengths))[:2]

    def reference(self, gates: Array, weight: Array, h0: Array, bias: Array,
                  lengths: Array | None = None) -> tuple[Array, ...]:  # fmt: skip
        return self._reference(Operands(gates, weight, (h0,), bias, lengths))

    def _products(self) -> int:
        return 1 if self.reset_after else 2

    def _step(self, x: Array, sums_of: Callable[[Any], Any], states: list[Array]) -> list[Array]:
        (xr, xz, xn), (sr, sz, sn) = np.split(x, 3, -1), np.split(sums_of(states[0]), 3, -1)
        reset = _sigmoid(xr + sr)
        own = reset * sn if self.reset_after else np.split(sums_of(reset * states[0]), 3, -1)[2]
        fresh = np.tanh(xn + own)
        return [fresh + _sigmoid(xz + sz) * (states[0] - fresh)]

    def torch(self, torch: Any, gates: Any, weight: Any, h0: Any, bias: Any, lengths: Any = None) -> Any:
        return self._torch(torch, Operands(gates, weight, (h0,), bias, lengths))

    def _torch_step(self, torch: Any, x: Any, sums_of: Callable[[Any], Any], states: list[Any]) -> list[Any]:
        (xr, xz, xn), (sr, sz, sn) = x.chunk(3, -1), sums_of(states[0]).chunk(3, -1)
        reset = (xr + sr).sigmoid()
        own = reset * sn if self.reset_after else sums_of(reset * states[0]).chunk(3, -1)[2]
        fresh = (xn + own).tanh()
        return [fresh + (xz + sz).sigmoid() * (states[0] - fresh)]


@op("rnn")
class Rnn(Recurrent):
    """h = activation(gates + weight·h + bias) over gates [T, N, H]: y [T, N, H] and the last state h [N, H].

    `activation`: tanh or relu. weight [H, H], bias [H], h0 [N, H]; `lengths` and `reverse` as lstm has them.
    """

    activation: str = "tanh"
    cases = (
        Case("a sequence", (f32("T", 3, 5), f32(5, 5), f32(3, 5), f32(5))),
        Case("relu, backwards, rows of their own lengths", (f32(7, "N", 150), f32(150, 150), f32("N", 150), f32(150),
             i32("N")), {"reverse": True, "activation": "relu"}),
        Case("weights that are computed", (f32(3, 2, 5), f32(5, 5), f32(2, 5), f32(5)), stored=()),
        Case("bfloat16 rounds at the end", (bf16(9, 2, 5), bf16(5, 5), bf16(2, 5), bf16(5))),
        Case("float64", (f64(4, 2, 3), f64(3, 3), f64(2, 3), f64(3)), host=FLOAT64),
        Case("another activation", (f32(3, 2, 5), f32(5, 5), f32(2, 5), f32(5)), {"activation": "gelu"},
             error="activation must be tanh or relu, not 'gelu'"),
        Case("an unknown width", (f32(3, 2, "H"), f32("H", "H"), f32(2, "H"), f32("H")),
             error="the last dimension of gates"),
    )  # fmt: skip

    def infer(self, gates: Spec, weight: Spec, h0: Spec, bias: Spec,
              lengths: Spec | None = None) -> tuple[Spec, Spec]:  # fmt: skip
        require(self.activation in ACTIVATIONS, f"activation must be tanh or relu, not {self.activation!r:.40}")
        return self._infer(Operands(gates, weight, (h0,), bias, lengths))[:2]

    def reference(self, gates: Array, weight: Array, h0: Array, bias: Array,
                  lengths: Array | None = None) -> tuple[Array, ...]:  # fmt: skip
        return self._reference(Operands(gates, weight, (h0,), bias, lengths))

    def _step(self, x: Array, sums_of: Callable[[Any], Any], states: list[Array]) -> list[Array]:
        whole = x + sums_of(states[0])
        return [np.tanh(whole) if self.activation == "tanh" else np.maximum(whole, 0)]

    def torch(self, torch: Any, gates: Any, weight: Any, h0: Any, bias: Any, lengths: Any = None) -> Any:
        return self._torch(torch, Operands(gates, weight, (h0,), bias, lengths))

    def _torch_step(self, torch: Any, x: Any, sums_of: Callable[[Any], Any], states: list[Any]) -> list[Any]:
        whole = x + sums_of(states[0])
        return [whole.tanh() if self.activation == "tanh" else whole.relu()]
