"""What every op promises, checked on one of its cases. No op has a test of its own."""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest

from ingot import dims, dtypes
from ingot.errors import IngotError
from ingot.ir import Case, ExprBuilder, Network, Op, Spec, StateSpec, Value, functions, interpret, verify
from ingot.ir.expr import NoExpression, evaluate
from ingot.ir.text import from_json, parse, to_json

try:
    import torch
except ImportError:
    torch = None

Array = np.ndarray[Any, Any]

# Allowance for one result: a few roundings of its dtype, relative to its size and to that of the largest result (sums
# of many products lose digits in proportion to what was summed).
ROUNDING = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 2**-8, "float16": 2**-11}


def sizes_for(case: Case) -> dict[str, int]:
    """Values of the case's named dims: given ones, then 5, 6, … so that no two are equal."""
    names: dict[str, dims.Dim] = {}
    for spec in case.specs:
        if isinstance(spec, Spec):
            names |= dims.dims_of(spec.shape)
    for value in case.attrs.values():
        names |= {value: dims.Dim(value)} if isinstance(value, str) and value in ("T", "S", "R", "B") else {}
        names |= dims.dims_of(map(dims.as_dim, value)) if isinstance(value, tuple) and any(
            isinstance(d, str | dims.Expr) for d in value) else {}
    return {name: case.dims.get(name, 5 + i) for i, name in enumerate(sorted(names))}


def sample(op: Op, specs: tuple[Any, ...], sizes: Mapping[str, int], seed: int) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    static = tuple(Spec(s.evaluate(sizes), s.dtype) if isinstance(s, Spec) else s for s in specs)
    if op.sample is not None:
        return tuple(np.asarray(a) for a in op.sample(rng, *static))
    return tuple(random_array(rng, s) for s in static)


def random_array(rng: np.random.Generator, spec: Spec) -> Array:
    shape = spec.evaluate({})
    if spec.dtype is dtypes.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if spec.dtype.is_integer:
        low = 0 if spec.dtype.kind == "uint" else -100
        return rng.integers(low, 100, shape).astype(spec.dtype.numpy)
    return (rng.standard_normal(shape) * 2).astype(spec.dtype.numpy)


def assert_close(got: Array, want: Array, what: str, tolerance: float = 1.0) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    name = dtypes.get(want.dtype).name
    if name not in ROUNDING:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    allowance = 4 * tolerance * ROUNDING[name]
    np.testing.assert_allclose(a, b, rtol=allowance, atol=allowance * max(scale, 1e-3), err_msg=what)


def assert_same(got: Array, want: Array) -> None:
    """Equal numbers, and NaN in the same places (NumPy takes no NaN of a bfloat16 for one)."""
    assert got.dtype == want.dtype
    wide = np.float32 if dtypes.get(want.dtype).name in ("bfloat16", "float16") else want.dtype
    np.testing.assert_array_equal(got.astype(wide), want.astype(wide))


def make_network(cls: type[Op], case: Case, stored: Collection[str] = ()) -> tuple[Network, Any]:
    """A network with one call of the op, through the function that users call; operands in `stored` are parameters."""
    network = Network("case")
    operands = [*cls.operands, *[cls.operands[-1]] * len(case.specs)] if cls.operands else []
    values = []
    for i, (operand, spec) in enumerate(zip(operands, case.specs, strict=False)):
        name = f"x{i}" if operand.variadic else operand.name
        make = network.parameter if operand.name in stored else network.input
        values.append(network.state(name, spec) if isinstance(spec, StateSpec) else make(name, spec))
    shown = {n for v in network.inputs for n in dims.dims_of(v.shape)}
    for name in sorted(sizes_for(case).keys() - shown):  # dims that only attributes name come from somewhere too
        network.input(f"shows_{name}", Spec((name,), "bool"))
    with network.scope("model.layers.3"):
        result = functions[cls.name](*values, **case.attrs)
    for i, value in enumerate(result if isinstance(result, tuple) else (result,)):
        if isinstance(value, Value) and isinstance(value.spec, Spec):
            network.output(f"y{i}", value)
    return network, result


def check_case(cls: type[Op], case: Case, seed: int = 0) -> None:
    """Shape rule against reference, reference against torch, decomposition and expression; text and JSON forms."""
    if case.error is not None:
        with pytest.raises(IngotError, match=re.compile(case.error, re.S)) as raised:
            make_network(cls, case)
        assert cls.name in str(raised.value), f"the message names the op: {raised.value}"
        return
    network, result = make_network(cls, case)
    sizes = sizes_for(case)
    if not network.nodes:  # everything was known: it was computed at once
        check_numbers(cls, cls(**case.attrs), (), (result,))
        return
    node = network.nodes[-1]
    verify(network)
    arrays = sample(node.op, case.specs, sizes, seed)
    results = run(network, node, arrays, sizes)
    check_numbers(cls, node.op if node.op.binds else node.op.evaluate(sizes), arrays, results)
    check_decompose(cls, node.op, case, arrays, results, sizes)
    check_forms(network, node, arrays, results, sizes)


def run(network: Network, node: Any, arrays: tuple[Array, ...], sizes: Mapping[str, int]) -> tuple[Array, ...]:
    """The node's results by interpretation, which also checks them against the shape rule."""
    got: list[tuple[Array, ...]] = []
    before = [a.copy() for a in arrays]
    by_name = {v.name: a for v, a in zip(node.inputs, arrays, strict=True)}
    states = {v.name: by_name[v.name] for v in network.states}
    feeds = {v.name: by_name[v.name] if v.name in by_name else np.zeros(v.spec.evaluate(sizes), np.bool_)
             for v in network.inputs}
    interpret(network, feeds, states=states, taps=lambda n, r: got.append(r) if n is node else None)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b, err_msg="a reference changed its operand")
    return got[0]


def check_numbers(cls: type[Op], op: Op, arrays: tuple[Array, ...], results: tuple[Array, ...]) -> None:
    expected = op.torch(torch, *map(to_torch, arrays)) if torch is not None and op.torch is not None else None
    if expected is not None:  # None: torch has no such dtype
        for got, want in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
            assert_close(got, from_torch(want), f"{op} against torch", cls.tolerance)
    if op.expr is not None:
        builder = ExprBuilder()
        try:
            scalars = [builder.input(i, dtypes.get(a.dtype)) for i, a in enumerate(arrays)]
            out = op.expr(builder, *scalars)
        except NoExpression:
            return
        builder.output(out)
        (got,) = evaluate(builder.json(), arrays, [dtypes.get(results[0].dtype)])
        assert_close(got, results[0], f"{op}: its expression against its reference", cls.tolerance)


def check_decompose(cls: type[Op], op: Op, case: Case, arrays: tuple[Array, ...], results: tuple[Array, ...],
                    sizes: dict[str, int]) -> None:
    """The simpler ops give the same specs on symbols and the same numbers."""
    if op.decompose is None or any(isinstance(s, StateSpec) for s in case.specs):
        return
    network = Network("decomposed")
    values = [network.input(f"x{i}", spec) for i, spec in enumerate(case.specs)]
    made = op.decompose(*values)
    made = made if isinstance(made, tuple) else (made,)
    for i, value in enumerate(made):
        network.output(f"y{i}", value)
    made = tuple(network.outputs.values())
    verify(network)
    assert all(n.op.name != cls.name for n in network.nodes), "a decomposition uses simpler ops"
    got = interpret(network, {v.name: a for v, a in zip(values, arrays, strict=True)})
    for a, b, value in zip(got.values(), results, made, strict=True):
        assert_close(a, b, f"{op}: its decomposition against its reference", 2 * cls.tolerance)
        assert value.spec.evaluate(sizes) == b.shape
    if not op.symbolic:
        eager = op.decompose(*arrays)
        for a, b in zip(eager if isinstance(eager, tuple) else (eager,), results, strict=True):
            assert_close(a, b, f"{op}: its decomposition at once", 2 * cls.tolerance)


def check_forms(network: Network, node: Any, arrays: tuple[Array, ...], results: tuple[Array, ...],
                sizes: Mapping[str, int]) -> None:
    """Text and JSON read back to the same network, which gives the same numbers; so does the op on plain arrays."""
    again = parse(str(network))
    assert str(again) == str(network)
    data = to_json(network)
    other = from_json(data)
    assert to_json(other) == data
    assert str(other) == str(network)
    for copy in (again, other):
        for a, b in zip(run(copy, copy.nodes[-1], arrays, sizes), results, strict=True):
            assert_same(a, b)
    if not any(isinstance(v.spec, StateSpec) for v in node.inputs) and node.inputs and not node.op.symbolic:
        eager = functions[node.op.name](*arrays, **node.op.attrs())
        for a, b in zip(eager if isinstance(eager, tuple) else (eager,), results, strict=True):
            assert_same(a, b)


def to_torch(array: Array) -> Any:
    array = np.array(array)  # a copy in C order that torch may hold
    if dtypes.get(array.dtype) is dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if dtypes.get(array.dtype) is dtypes.float8_e4m3fn:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    if dtypes.get(array.dtype).bits < 8:
        array = array.astype(np.int8)  # one element per byte
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Array:
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtypes.bfloat16.numpy)
    if tensor.dtype.is_floating_point and tensor.itemsize == 1:
        return tensor.view(torch.uint8).numpy().view(dtypes.get(str(tensor.dtype).removeprefix("torch.")).numpy)
    return tensor.numpy()

