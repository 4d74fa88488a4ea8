"""Recurrent layers: torch's numbers with torch's weights, in every form that torch has, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot import functional as F
from ingot import ir, nn
from ingot.backends.cpu import CPU
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import ModuleError, OpError, ValueFault
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret
from ingot.ir.weight_format import FORMATS
from ingot.nn import trace
from ingot.passes import pipeline
from ingot.passes.rewrite import Log

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch", "ignore:LSTM with projections:UserWarning"
)

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)
T, N = Dim("T", 0, 100), Dim("N", 0, 40)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def weights_of(module: torch.nn.Module) -> dict[str, Array]:
    return {k: v.detach().numpy() for k, v in module.state_dict().items()}


def close(got: Any, want: Any, tolerance: float = 2e-6) -> None:
    """The greatest error that was seen is 6e-7, at 100 steps."""
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=tolerance, atol=tolerance)


def flat(outputs: Any) -> list[Any]:
    return [x for item in outputs for x in (flat(item) if isinstance(item, tuple) else [item])]


class Flat(nn.Module):
    """A layer or cell whose results are one flat tuple, its operands given one by one."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, h: Any = None, c: Any = None, lengths: Any = None) -> Any:
        more = {} if lengths is None else {"lengths": lengths}
        found = self.layer(x, h if c is None else (h, c), **more)
        return tuple(flat(found if isinstance(found, tuple) else (found,)))


def named(weights: dict[str, Array]) -> dict[str, Array]:
    return {f"layer.{k}": v for k, v in weights.items()}


# Each is made twice, from ingot.nn and from torch.nn, by the same call.
LAYERS: dict[str, Any] = {
    "LSTM": lambda n: n.LSTM(6, 20),
    "LSTM, layers in both directions": lambda n: n.LSTM(6, 35, 2, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda n: n.LSTM(6, 20, 2, proj_size=5, bidirectional=True),
    "LSTM with projections, no bias": lambda n: n.LSTM(6, 20, bias=False, proj_size=19),
    "LSTM without bias": lambda n: n.LSTM(6, 7, bias=False),
    "GRU": lambda n: n.GRU(6, 20),
    "GRU, layers in both directions": lambda n: n.GRU(6, 35, 3, bidirectional=True),
    "GRU, batch first, without bias": lambda n: n.GRU(6, 5, bias=False, batch_first=True),
    "RNN": lambda n: n.RNN(6, 20),
    "RNN of relu, in both directions": lambda n: n.RNN(6, 130, 2, nonlinearity="relu", bidirectional=True),
}


def states(layer: Any, rows: int) -> list[Array]:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    h = normal(count, rows, layer.proj_size or layer.hidden_size)
    return [h, normal(count, rows, layer.hidden_size)] if isinstance(layer, nn.LSTM | torch.nn.LSTM) else [h]


def both(name: str) -> tuple[Any, Any]:
    ours, theirs = LAYERS[name](nn), LAYERS[name](torch.nn).eval()
    assert sorted(dict(ours.named_parameters())) == sorted(dict(theirs.named_parameters()))
    return ours, theirs


def inputs_of(layer: Any, rows: Any, steps: Any) -> tuple[Any, ...]:
    return (rows, steps, 6) if layer.batch_first else (steps, rows, 6)


@pytest.mark.parametrize("name", LAYERS)
def test_against_torch(name: str) -> None:
    """Interpreted and run, at several sizes of batch and sequence, none included."""
    ours, theirs = both(name)
    network = trace(Flat(ours), {"x": Spec(inputs_of(ours, N, T), "float32")})
    weights = named(weights_of(theirs))
    engine = build_network(network, weights)
    assert engine._native.host_calls("main") == []
    for rows, steps in ((1, 1), (3, 12), (40, 7), (2, 0), (0, 5)):
        x = normal(*inputs_of(ours, rows, steps))
        for got in (engine.run({"x": x}), interpret(network, {"x": x}, weights)):
            if rows and steps:  # torch takes no other
                for a, b in zip(got.values(), flat(theirs(torch.from_numpy(x))), strict=True):
                    close(a, b)
            assert next(iter(got.values())).shape[:2] == x.shape[:2]


def rounded(weight: Array) -> Array:
    """What int8 with a scale for each output holds of a weight."""
    scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)
    return (np.rint(weight / scale) * scale).astype(np.float32)


@pytest.mark.parametrize("word", ["int8", "int4-g32"])
@pytest.mark.parametrize("name", LAYERS)
def test_weights_of_int8(name: str, word: str) -> None:
    """What multiplies the state is stored as int8 in every format; a projection stays float, and the build says so. 6
    inputs make no groups."""
    ours, theirs = both(name)
    network = trace(Flat(ours), {"x": Spec(inputs_of(ours, N, T), "float32")})
    weights = named(weights_of(theirs))
    engine = build_network(network, weights, format=FORMATS[word], report=False)
    shown = {key: a for key in engine.header["weights"] if (a := engine.tensor(key)).ndim > 1}
    floats = [key for key, a in shown.items() if a.dtype == np.float32 and "weight_h" in key]
    assert floats == [key for key in floats if "weight_hr" in key] and any("weight_hh" in key for key in shown)
    projects = any("weight_hr" in key for key in weights)
    assert any("weight_hr_l0 stays float32: lstm reads it" in str(event) for event in engine.log) == projects
    near = {k: rounded(v) if "weight_hh" in k or "weight_ih" in k else v for k, v in weights.items()}
    theirs.load_state_dict({k.removeprefix("layer."): torch.from_numpy(v) for k, v in near.items()})
    if word != "int8" and ours.num_layers > 1:
        return  # what later layers read has groups
    for rows, steps in ((1, 5), (7, 4)):
        x = normal(*inputs_of(ours, rows, steps))
        for got in (engine.run({"x": x}), engine.session(device="torch:cpu").run({"x": x})):
            for a, b in zip(got.values(), flat(theirs(torch.from_numpy(x))), strict=True):
                close(a, b, 5e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_first_states_and_single_sequences(name: str) -> None:
    ours, theirs = both(name)
    weights = weights_of(theirs)
    first = states(ours, 4)
    x = normal(*inputs_of(ours, 4, 9))
    for single in (False, True):
        given = [s[:, 0] for s in first] if single else first
        seen = (x[0] if ours.batch_first else x[:, 0]) if single else x
        specs = {"x": Spec(seen.shape, "float32")}
        names = ["h", "c"][: len(given)]
        shaped = {n: Spec(s.shape, "float32") for n, s in zip(names, given, strict=True)}

        network = trace(Flat(ours), {**specs, **shaped})
        engine = build_network(network, named(weights))
        got = engine.run({"x": seen, **dict(zip(names, given, strict=True))})
        tensors = [torch.from_numpy(s.copy()) for s in given]
        want = theirs(torch.from_numpy(seen.copy()), tensors[0] if len(tensors) == 1 else tuple(tensors))
        for a, b in zip(got.values(), flat(want), strict=True):
            close(a, b)


@pytest.mark.parametrize("name", LAYERS)
def test_lengths_are_those_of_packed_sequences(name: str) -> None:
    ours, theirs = both(name)
    weights = weights_of(theirs)
    specs = {"x": Spec(inputs_of(ours, N, T), "float32"), "lengths": Spec((N,), "int64")}

    engine = build_network(trace(Flat(ours), specs), named(weights))
    assert engine._native.host_calls("main") == []
    lengths = np.array([7, 1, 12, 12, 3])
    x = normal(*inputs_of(ours, 5, 12))
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.from_numpy(x), torch.from_numpy(lengths), batch_first=ours.batch_first, enforce_sorted=False
    )
    y, last = theirs(packed)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=ours.batch_first, total_length=12)
    for a, b in zip(engine.run({"x": x, "lengths": lengths}).values(), flat((padded, last)), strict=True):
        close(a, b)
    for wrong in (13, -1):
        with pytest.raises(ValueFault, match=rf"length.* \({wrong} at element 2, limit 13\)"):
            engine.run({"x": x, "lengths": np.array([7, 1, wrong, 12, 3])})


@pytest.mark.parametrize("name", ["LSTM, layers in both directions", "GRU", "RNN"])
def test_a_row_alone_has_the_bits_that_it_has_in_company(name: str) -> None:
    ours, theirs = both(name)
    network = trace(Flat(ours), {"x": Spec(inputs_of(ours, N, T), "float32")})
    weights = named(weights_of(theirs))
    x = normal(*inputs_of(ours, 40, 9))
    engine, results = build_network(network, weights), []
    for threads in (1, 2, 3):
        session = engine.session(threads=threads)
        for rows in (1, 2, 5, 16, 40):
            part = x[:rows] if ours.batch_first else x[:, :rows]
            y = next(iter(session.run({"x": np.ascontiguousarray(part)}).values()))
            results.append((y if ours.batch_first else np.swapaxes(y, 0, 1))[0].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_keep_the_state_in_float32(dtype: str) -> None:
    """Against float64 arithmetic on the same rounded numbers: one rounding of the gates and one of the result."""
    layer, theirs = nn.LSTM(6, 20, dtype=dtype), torch.nn.LSTM(6, 20).double().eval()
    weights = {k: v.astype(ingot.dtypes.get(dtype).numpy) for k, v in weights_of(torch.nn.LSTM(6, 20)).items()}
    theirs.load_state_dict({k: torch.from_numpy(v.astype(np.float64)) for k, v in weights.items()})
    x = normal(100, 3, 6).astype(ingot.dtypes.get(dtype).numpy)
    engine = build_network(trace(Flat(layer), {"x": Spec((T, N, 6), dtype)}), named(weights))
    assert engine._native.host_calls("main") == []
    want = flat(theirs(torch.from_numpy(x.astype(np.float64))))
    for a, b in zip(engine.run({"x": x}).values(), want, strict=True):
        close(a.astype(np.float64), b, 2**-7 if dtype == "bfloat16" else 2**-10)


CELLS = {
    "LSTMCell": lambda n: n.LSTMCell(6, 20), "GRUCell": lambda n: n.GRUCell(6, 20, bias=False),
    "RNNCell": lambda n: n.RNNCell(6, 20), "RNNCell of relu": lambda n: n.RNNCell(6, 20, nonlinearity="relu"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), [*itertools.product(CELLS, [(3, 6), (6,)])])
def test_cells(name: str, shape: tuple[int, ...]) -> None:
    ours, theirs = CELLS[name](nn), CELLS[name](torch.nn).eval()
    x, h, c = normal(*shape), normal(*shape[:-1], 20), normal(*shape[:-1], 20)

    given = (h, c) if name == "LSTMCell" else (h,)
    tensors = tuple(map(torch.from_numpy, given))
    for used, state in (((), None), (given, tensors if len(given) > 1 else tensors[0])):
        feeds = dict(zip(("x", "h", "c"), (x, *used), strict=False))
        network = trace(Flat(ours), {k: Spec(v.shape, "float32") for k, v in feeds.items()})
        engine = build_network(network, named(weights_of(theirs)))
        want = theirs(torch.from_numpy(x), state)
        for a, b in zip(engine.run(feeds).values(), flat([want]), strict=True):
            close(a, b)


class Tagger(torch.nn.Module):
    """An embedding, a recurrent layer, a projection of its last state and of all steps."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = torch.nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 4)

    def forward(self, x: torch.Tensor) -> Any:
        y, last = self.layer(x)
        return self.head(y), flat([last])[0]


@pytest.mark.parametrize("name", ["LSTM, layers in both directions", "GRU, batch first, without bias", "RNN"])
def test_torch_modules_are_built(name: str) -> None:
    net = Tagger(LAYERS[name](torch.nn)).eval()
    first = net.layer.batch_first  # torch.export walks every step, and fixes their number
    engine = ingot.build(net, (torch.randn(*((5, 3, 6) if first else (3, 5, 6))),), dynamic={"x": {1 - first: "N"}})
    assert engine.report.source.startswith("against torch"), engine.report.source
    assert engine._native.host_calls("main") == []
    for rows in (3, 1):
        x = normal(*((rows, 3, 6) if first else (3, rows, 6)))
        for a, b in zip(engine.run({"x": x}).values(), flat(net(torch.from_numpy(x))), strict=True):
            close(a, b, 4e-6)


@pytest.mark.parametrize("name", CELLS)
def test_torch_cells_are_built(name: str) -> None:
    """Steps written out, as a decoder does it."""

    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = CELLS[name](torch.nn)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = None
            for t in range(3):
                state = self.cell(x[t], state)
            return flat([state])[0]

    net, x = Steps().eval(), normal(3, 2, 6)
    engine = ingot.build(net, (torch.from_numpy(x),))
    close(next(iter(engine.run({"x": x}).values())), net(torch.from_numpy(x)))


def test_fixed_weights_are_packed_once() -> None:
    """Those of both products and a projection's; computed ones at every run, which is said."""

    class First(nn.Module):
        def __init__(self, computed: bool) -> None:
            super().__init__()
            self.layer, self.computed = nn.LSTM(8, 16, proj_size=4), computed

        def forward(self, x: Any) -> Any:
            if not self.computed:
                return self.layer(x)[0]
            weights = [F.mul(getattr(self.layer, name), 2.0) for name, _ in self.layer.named_parameters()]
            return F.lstm(x, None, weights, True)[0]

    for computed in (False, True):
        log: Log = []
        low = pipeline.lower(trace(First(computed), {"x": Spec((5, "N", 8), "float32")}), CPU, log=log)
        packed = [v for node in low.nodes for v in node.inputs if v.name.endswith(".packed")]
        assert len(packed) == (0 if computed else 3)
        assert any("packed at every run" in event.verdict for event in log) == computed


@pytest.mark.parametrize(("scales", "zero", "dtype", "why"), [
    ((12, 1), None, "float32", ""), ((), None, "float32", ""), ((12, 1), 0, "float32", ""),
    ((12, 1), 3, "float32", "its weight has a zero point"),
    ((1, 4), None, "float32", "its weight has scales of more than its outputs"),
    ((12, 1), None, "float64", "there are no recurrent layers of float64 with them"),
])  # fmt: skip
def test_integers_that_a_layer_reads(scales: Any, zero: int | None, dtype: str, why: str) -> None:
    """int8 with a scale for all or each output, and no zero point; else they become floats, and the log says why."""
    network = Network("net")
    gates, h0, bias = (network.input(n, Spec(s, dtype)) for n, s in (("x", (5, 3, 12)), ("h", (3, 4)), ("b", (12,))))
    q, scale = network.parameter("q", Spec((12, 4), "int8")), network.parameter("s", Spec(scales, "float32"))
    zeros = () if zero is None else (network.constant(np.int8(zero)),)
    network.output("y", ir.F.gru(gates, ir.F.dequantize(q, scale, *zeros, dtype=dtype), h0, bias)[0])
    feeds = {"x": normal(5, 3, 12), "h": normal(3, 4), "b": normal(12)}
    feeds = {k: v.astype(dtype) for k, v in feeds.items()}
    weights = {"q": rng.integers(-128, 128, (12, 4)).astype(np.int8),
               "s": np.asarray(rng.uniform(0.01, 0.02, scales), np.float32)}  # fmt: skip
    engine = build_network(network, weights, report=False)
    said = [line.partition("%")[2].partition(": ")[2] for line in engine.log if "becomes" in line]
    assert said == ([f"q becomes {dtype} in the engine: {why}"] if why else [])
    wanted = interpret(network, feeds, weights)["y"]
    np.testing.assert_allclose(engine.run(feeds)["y"], wanted, rtol=2e-5, atol=2e-5)


def test_what_is_refused() -> None:
    for wrong, message in (
        (lambda: nn.LSTM(0, 4), "input_size=0 must be positive ints"),
        (lambda: nn.LSTM(4, 4, proj_size=4), "proj_size=4 must be an int from 0 to hidden_size"),
        (lambda: nn.GRU(4, 4, dropout=2.0), "dropout=2.0 must be a number from 0 to 1"),
        (lambda: nn.RNN(4, 4, nonlinearity="gelu"), "nonlinearity='gelu' must be 'tanh' or 'relu'"),
        (lambda: nn.GRUCell(4, -1), "hidden_size=-1 must be positive ints"),
    ):
        with pytest.raises(ModuleError, match=message):
            wrong()
    x, h, weights = normal(3, 2, 4), normal(1, 2, 5), [normal(20, 4), normal(20, 5), normal(20), normal(20)]
    for call, message in (
        (lambda: F.lstm(x, None, weights[:3]), "3 weights for 1 directions of layers, each of which has 4"),
        (lambda: F.lstm(x, (h,), weights), "takes 2 first states, not 1"),
        (lambda: F.lstm(x, (h, h[:, :1]), weights), r"a first state must be \[1, 2, 5\], not \[1, 1, 5\]"),
        (lambda: F.lstm(x[0, 0], None, weights), "it has 1 dimensions"),
        (lambda: F.lstm(x, None, weights, num_layers=0), "num_layers must be at least 1"),
        (lambda: F.gru(x, None, weights), r"weight_ih 0 must be \[3·H, …\], not \[20, 4\]"),
        (lambda: F.lstm(x, None, weights, lengths=np.array([3, 2, 1])), r"lengths must be \(2,\)"),
    ):
        with pytest.raises(OpError, match=message):
            call()
