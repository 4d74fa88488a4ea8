"""Functions of the retired API: every name of its section of plain functions is here, and those that are composed agree
with NumPy or torch, computed at once, recorded, and as engines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.compat.signatures import SIGNATURES, signature
from ingot.dims import Dim
from ingot.errors import OpError, ValueFault
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(3)

# Every plain function that the retired API had in some version, with the arguments of the newest one.
NAMES = [
    "activation", "relu", "tanh", "sigmoid", "clip", "int_clip", "silu", "swiglu", "squared_relu", "gelu", "geglu",
    "quick_gelu", "gegelu", "softplus", "cast", "unary", "round", "sqrt", "exp", "sin", "cos", "abs", "log",
    "not_op", "elementwise_binary", "add", "sub", "mul", "div", "gt", "lt", "eq", "minimum", "maximum", "pow",
    "floordiv", "op_and", "op_or", "op_xor", "modulo", "where", "identity", "log_softmax", "softmax", "mean", "max",
    "sum", "reduce", "prod", "min", "argmax", "topk", "cumsum", "nonzero", "masked_select", "masked_scatter",
    "gather", "gather_nd", "scatter", "scatter_nd", "select", "index_select", "embedding", "categorical_sample",
    "rand", "constant", "constant_to_tensor_", "constants_to_tensors_", "arange", "shape", "view", "flatten",
    "permute", "transpose", "expand", "expand_dims", "expand_dims_like", "unsqueeze", "squeeze", "stack", "concat",
    "split", "chunk", "unbind", "slice", "pad", "flip", "interpolate", "repeat", "repeat_interleave", "meshgrid2d",
    "rearrange", "broadcast_helper", "matmul", "einsum", "outer", "conv1d", "conv2d", "conv3d", "conv_transpose2d",
    "avg_pool2d", "layer_norm", "rms_norm", "group_norm", "assertion", "Conditional", "generate_alibi_slopes",
    "generate_alibi_biases", "generate_logn_scaling", "expand_mask", "gather_last_token_logits",
    "is_gated_activation", "non_gated_version", "ACT2FN", "GATED_ACT_2_ACT",
]  # fmt: skip


# What differs from the newest signature of the retired API on purpose, and why. Further arguments behind its own, and
# defaults where it had none, change no call that it knew.
DELIBERATE = {
    "rms_norm": "the weight is third, as in its versions up to 0.20 and as torch has it; num_groups is given by name",
    "einsum": "operands follow one by one, as torch has it, or as one list, as there",
}
# The functions that ingot.compat writes out itself, so that its table has no line for them.
WRITTEN_OUT = {
    "embedding": "input, weight, tp_size=1, tp_group=None, sharding_dim=0, tp_rank=None, per_token_scale=None, "
                 "padding=None",
    "slice": "input, starts, sizes, strides=None, mode=None, fill_value=None",
    "rms_norm": "input, normalized_shape, num_groups=1, weight=None, eps=1e-06",
    "generate_alibi_slopes": "num_heads, tp_size=1, tp_rank=0, alibi_scale=1.0, alibi_bias_max=8",
    "gather_last_token_logits": "hidden_states, last_token_ids, remove_input_padding",
    "Conditional": "condition",
}  # fmt: skip
TABLES = ("ACT2FN", "GATED_ACT_2_ACT")  # names of dicts


def changed(ours: inspect.Signature, theirs: inspect.Signature) -> str:
    """What a call by `theirs` would meet in `ours`, or nothing."""
    empty = inspect.Parameter.empty
    have, want = list(ours.parameters.values()), list(theirs.parameters.values())
    for i, parameter in enumerate(want):
        if i >= len(have) or (have[i].name, have[i].kind) != (parameter.name, parameter.kind):
            return f"argument {i} is not {parameter.name}"
        if have[i].default != parameter.default and parameter.default is not empty:
            return f"{parameter.name} is {have[i].default!r}, not {parameter.default!r}"
    needed = [p.name for p in have[len(want) :] if p.default is empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return f"{', '.join(needed)} must be given" if needed else ""


def test_every_name_is_here() -> None:
    assert len(NAMES) == len(set(NAMES)) == 115
    assert [name for name in NAMES if not hasattr(F, name)] == []
    assert [name for name in NAMES if name not in F.__all__] == []


def test_signatures() -> None:
    """Names, order and defaults of the arguments are those of the newest version, but for what DELIBERATE lists."""
    known = {name: signature(text) for name, text in {**SIGNATURES, **WRITTEN_OUT}.items()}
    assert [name for name in NAMES if name not in known] == list(TABLES)
    found = {name: changed(inspect.signature(getattr(F, name)), known[name]) for name in NAMES if name in known}
    assert {name: why for name, why in found.items() if why and name not in DELIBERATE} == {}
    assert [name for name in DELIBERATE if not found[name]] == []
    text = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
    assert [name for name in DELIBERATE if f"`functional.{name}`" not in text] == []


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


class Case(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any]  # NumPy
    arrays: tuple[Array, ...]
    dims: tuple[str, ...] = ()  # the first sizes of every array, as named dims of an engine


def masked(x: Array, mask: Array, source: Array) -> Array:
    out = x.copy()
    out[np.broadcast_to(mask, x.shape)] = source.ravel()[: np.broadcast_to(mask, x.shape).sum()]
    return out


def put(x: Array, axis: int, index: Array, updates: Array) -> Array:
    out = x.copy()
    np.put_along_axis(out, index, updates, axis)
    return out


def put_nd(x: Array, index: Array, updates: Array) -> Array:
    out = x.copy()
    for place, update in zip(
        index.reshape(-1, index.shape[-1]), updates.reshape(-1, *x.shape[index.shape[-1] :]), strict=True
    ):
        out[tuple(place)] = update
    return out


BITS = rng.integers(0, 2, (4, 6)).astype(bool)
CASES: dict[str, Case] = {
    "masked_scatter": Case(F.masked_scatter, masked, (normal(4, 6), BITS, normal(30))),
    "masked_scatter by rows": Case(F.masked_scatter, masked, (normal(4, 6), BITS[:, :1], normal(4, 6)), ("N",)),
    "masked_scatter of nothing": Case(F.masked_scatter, masked, (normal(0, 6), BITS[:0], normal(0))),
    "gather_nd": Case(
        lambda x, i: F.gather_nd(x, i),
        lambda x, i: np.stack([x[b, i[b, :, 0]] for b in range(len(x))]),
        (normal(3, 5, 2), rng.integers(-5, 5, (3, 4, 1))),
        ("N",),
    ),
    "gather_nd without batches": Case(
        lambda x, i: F.gather_nd(x, i, 0),
        lambda x, i: x[i[:, 0], i[:, 1]],
        (normal(3, 5), rng.integers(-3, 3, (7, 2)).astype(np.int32)),
    ),
    "scatter": Case(
        lambda x, i, u: F.scatter(x, -1, i, u),
        lambda x, i, u: put(x, -1, i, u),
        (normal(4, 6), np.array([[0, 5], [1, -2], [2, 3], [-6, 4]]), normal(4, 2)),
        ("N",),
    ),
    "scatter rows": Case(
        lambda x, i, u: F.scatter(x, 0, i, u),
        lambda x, i, u: put(x, 0, i, u),
        (normal(4, 2), np.array([[3, 0]]), normal(1, 2)),
    ),
    "scatter_nd": Case(F.scatter_nd, put_nd, (normal(4, 6), np.array([[0, 1], [3, -1], [2, 2]]), normal(3))),
    "scatter_nd of rows, the later one stays": Case(
        F.scatter_nd, put_nd, (normal(4, 6), np.array([[1], [0], [1]]), normal(3, 6))
    ),
    "generate_alibi_biases": Case(
        lambda s: F.generate_alibi_biases(s, 5),
        lambda s: s[None, :, None, None] * np.arange(5, dtype=np.float32),
        (normal(4),),
    ),
    "generate_alibi_biases of a computed length": Case(
        lambda s, x: F.generate_alibi_biases(F.view(s, (1, 4, 1, 1)), F.shape(x, 0)),
        lambda s, x: s[None, :, None, None] * np.arange(len(x), dtype=np.float32),
        (normal(4), normal(7)),
    ),
    "expand_mask": Case(
        F.expand_mask,
        lambda m: np.broadcast_to(np.where(m == 0, -np.inf, 0)[:, None, None], (4, 1, 6, 6)).astype(np.float32),
        (BITS.astype(np.int32),),
        ("B", "L"),
    ),
    "expand_mask of bools, for a number of queries": Case(
        lambda m: F.expand_mask(m, tgt_len=2),
        lambda m: np.broadcast_to(np.where(m, 0, -np.inf)[:, None, None], (4, 1, 2, 6)).astype(np.float32),
        (BITS,),
        ("B", "L"),
    ),
    "Conditional": Case(
        lambda x, c: (lambda d: d.add_output(d.add_input(x) * np.float32(2), d.add_input(x) - np.float32(1)))(
            F.Conditional(c)
        ),
        lambda x, c: x * 2 if c.item() else x - 1,
        (normal(3, 4), np.array([True])),
    ),
    "categorical_sample": Case(
        F.categorical_sample,
        lambda p, r: (np.cumsum(p, -1) >= r[..., None] * p.sum(-1, keepdims=True)).argmax(-1),
        (rng.random((5, 7)).astype(np.float32), rng.random(5).astype(np.float32)),
    ),
    "rearrange: heads": Case(
        lambda x: F.rearrange(x, "b (h d) s -> b h s d", h=2),
        lambda x: x.reshape(3, 2, 4, 5).transpose(0, 1, 3, 2),
        (normal(3, 8, 5),),
        ("B",),
    ),
    "rearrange: joined": Case(
        lambda x: F.rearrange(x, "b h s d->b s (h d)"),
        lambda x: x.transpose(0, 2, 1, 3).reshape(2, 5, 12),
        (normal(2, 3, 5, 4),),
        ("B",),
    ),
    "rearrange: patches": Case(
        lambda x: F.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=3),
        lambda x: x.reshape(2, 3, 2, 2, 2, 3).transpose(0, 2, 4, 3, 5, 1).reshape(2, 4, 18),
        (normal(2, 3, 4, 6),),
    ),
    "rearrange: ... and ones": Case(
        lambda x: F.rearrange(x, "... (a b) 1 -> b 1 ... a", b=3),
        lambda x: np.moveaxis(x.reshape(2, 5, 2, 3), 3, 0)[:, None],
        (normal(2, 5, 6, 1),),
    ),
    "rearrange: ... joined": Case(
        lambda x: F.rearrange(x, "b ... c -> (b ...) c"), lambda x: x.reshape(-1, 4), (normal(2, 3, 5, 4),), ("B",)
    ),
    "rearrange: several": Case(
        lambda x, y: F.rearrange([x, y], "n b c -> c (n b)"),
        lambda x, y: np.stack([x, y]).transpose(2, 0, 1).reshape(3, 4),
        (normal(2, 3), normal(2, 3)),
    ),
    "rearrange: nothing": Case(lambda x: F.rearrange(x, "a b -> b a"), lambda x: x.T, (normal(0, 3),)),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy(name: str) -> None:
    """At once, as a network of known sizes, and (where some are named) of sizes that a run shows."""
    ours, theirs, arrays, named = CASES[name]
    want = np.asarray(theirs(*arrays))
    got = np.asarray(ours(*arrays))
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for dims in {(), named}:
        network = Network()
        known = [Dim(n) for n in dims]
        values = [network.input(f"x{i}", Spec.of(a).like(shape=(*known[: a.ndim], *a.shape[len(known) :])))
                  for i, a in enumerate(arrays)]  # fmt: skip
        network.output("y", ours(*values))
        feeds = {f"x{i}": a for i, a in enumerate(arrays)}
        for run in (lambda feeds, n=network: interpret(n, feeds), build_network(network, {}).run):
            made = run(feeds)["y"]
            assert made.dtype == want.dtype and made.shape == want.shape
            np.testing.assert_allclose(made, want, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ random numbers


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rand_is_spread_evenly(dtype: str) -> None:
    """Kolmogorov's distance of 40,000 numbers from an even spread is below 1.95/√n in 999 of 1000 seeds."""
    x = np.sort(np.asarray(F.rand((200, 200), -1, 3, dtype)).astype(np.float64).ravel())
    assert x[0] >= -1 and x[-1] <= 3
    even = -1 + 4 * (np.arange(x.size) + 0.5) / x.size
    assert np.abs(x - even).max() / 4 < 1.95 / np.sqrt(x.size) + (0.004 if dtype == "bfloat16" else 0.001)
    assert not np.array_equal(F.rand((50,), dtype=dtype), F.rand((50,), dtype=dtype, seed=1))


def test_rand_of_neighbouring_seeds_and_places_is_not_related() -> None:
    x = np.stack([np.asarray(F.rand((4000,), seed=s)) for s in range(4)]).astype(np.float64)
    related = np.corrcoef(np.concatenate([x, np.roll(x, 1, 1)]))
    assert np.abs(related - np.eye(8)).max() < 0.08  # 5 standard deviations of independent numbers


def test_rand_in_an_engine_is_native_and_the_same() -> None:
    network = Network()
    x = network.input("x", Spec((Dim("N"), 3), "float32"))
    network.output("y", F.rand(F.shape(x), 0, 2) + x)
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    for n in (5, 1, 0):
        zeros = np.zeros((n, 3), np.float32)
        np.testing.assert_array_equal(engine.run({"x": zeros})["y"], F.rand((n, 3), 0, 2))


def test_categorical_sample_follows_its_probabilities() -> None:
    probs = np.broadcast_to(np.array([0, 2, 0, 6, 2], np.float32), (20_000, 5))
    counts = np.bincount(np.asarray(F.categorical_sample(probs)), minlength=5) / len(probs)
    np.testing.assert_allclose(counts, [0, 0.2, 0, 0.6, 0.2], atol=0.02)
    edges = np.array([0, 1], np.float32)  # the draws that rounding can put outside
    np.testing.assert_array_equal(F.categorical_sample(probs[:2], edges), [1, 4])


# ------------------------------------------------------------------------------------------------- values and refusals


def test_constants_to_tensors() -> None:
    small, large = np.ones(2, np.int32), np.ones(2, np.int64)
    assert [x.dtype.name for x in F.constants_to_tensors_(3, small, 2.5, True)] == ["int32", "int32", "float32", "bool"]
    assert [x.dtype.name for x in F.constants_to_tensors_(3, small, large)] == ["int64"] * 3
    assert [x.dtype.name for x in F.constants_to_tensors_(2**40, small)] == ["int64"] * 2
    assert [x.dtype.name for x in F.constants_to_tensors_(3)] == ["int64"]
    value = Network().input("x", Spec((2,), "int32"))
    assert [x.dtype.name for x in F.constants_to_tensors_(value, large)] == ["int64", "int64"]


def test_logn_scaling_and_alibi_slopes() -> None:
    scaling = F.generate_logn_scaling(8, 64)
    assert scaling.shape == (64,) and (scaling[:8] == 1).all()
    np.testing.assert_allclose(scaling[63], 2, rtol=1e-6)  # log 64 / log 8
    whole = F.generate_alibi_slopes(8)
    np.testing.assert_array_equal(np.concatenate([F.generate_alibi_slopes(8, 2, r) for r in (0, 1)]), whole)


def test_assertion() -> None:
    network = Network()
    x = network.input("x", Spec((Dim("N"),), "int32"))
    F.assertion(F.gt(x, 0), "numbers must be above 0")
    F.assertion(F.eq(F.shape(x, 0), x.size(0)), "certainly so: nothing is left of it")
    network.output("y", x + 1)
    assert [node.op.name for node in network.nodes].count("assertion") == 1
    engine = build_network(network, {})
    good = np.array([1, 2], np.int32)
    for run in (engine.run, lambda feeds: interpret(network, feeds)):
        np.testing.assert_array_equal(run({"x": good})["y"], good + 1)
        with pytest.raises(ValueFault, match="numbers must be above 0"):
            run({"x": good - 1})
    with pytest.raises(OpError, match="assertion failed: never"):
        F.assertion(F.lt(F.shape(x, 0), 0), "never")
    with pytest.raises(OpError, match="assertion failed"):
        F.assertion(np.array([True, False]))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rand of integers": (lambda: F.rand((3,), dtype="int32"), "random numbers are floats"),
    "rand crossed": (lambda: F.rand((3,), 2, 1), "low 2 is above high 1"),
    "a scalar of probabilities": (lambda: F.categorical_sample(np.float32(1)), "needs a last dimension"),
    "no arrow": (lambda: F.rearrange(normal(2), "a"), "must have one ->"),
    "a name that is lost": (lambda: F.rearrange(normal(2, 3), "a b -> a"), "b does not"),
    "a name twice": (lambda: F.rearrange(normal(2, 2), "a a -> a a"), "a does not"),
    "unknown sizes": (lambda: F.rearrange(normal(6), "(a b) -> a b"), "all but one of a, b"),
    "a size that does not divide": (lambda: F.rearrange(normal(6), "(a b) -> a b", a=4), "has size 6, which"),
    "a size of 0": (lambda: F.rearrange(normal(6), "(a b) -> a b", a=0), "has size 6, which"),
    "another rank": (lambda: F.rearrange(normal(6), "a b -> b a"), "has 2 dimensions on the left, the tensor 1"),
    "a size for no name": (lambda: F.rearrange(normal(6), "a -> a", b=2), "b is no name"),
    "no expression": (lambda: F.rearrange(normal(6), "a+ -> a"), "is no expression"),
    "parentheses in another": (lambda: F.rearrange(normal(6), "((a)) -> a"), "is no expression"),
    "not closed": (lambda: F.rearrange(normal(6), "(a -> a"), "is no expression"),
    "two ellipses": (lambda: F.rearrange(normal(6), "... ... -> ..."), r"one \.\.\. on each side"),
    "a condition of many": (lambda: F.Conditional(np.ones(2, bool)), "must be one bool"),
    "values of two shapes": (
        lambda: F.Conditional(np.array(True)).add_output(normal(2), normal(3)),
        "they must be the same",
    ),
    "an index outside": (lambda: F.scatter(normal(3), 0, np.array([3]), normal(1)), "index 3 is out of range -3..2"),
    "coordinates outside": (
        lambda: F.scatter_nd(normal(3, 2), np.array([[0, 2]]), normal(1)),
        "coordinate 1: index 2 is out of range -2..1",
    ),
    "a source that ends": (
        lambda: F.masked_scatter(normal(3), np.ones(3, bool), normal(2)),
        "the mask has 3 places, the source 2 elements",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises((OpError, ValueFault), match=message):
        call()


# --------------------------------------------------------------------------------------------- what differs, or not


def test_quirks_of_the_retired_api() -> None:
    """What docs/migrating.md says of them: each is kept, or does what its name says."""
    x = normal(2, 3, 4, 5)
    t = torch.from_numpy(x)
    nn = torch.nn.functional
    for mode in ("bilinear", "bicubic"):
        how: Any = {"mode": mode, "align_corners": True}
        theirs = nn.interpolate(t, (7, 9), **how)
        np.testing.assert_allclose(F.interpolate(x, (7, 9), **how), theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(F.interpolate(x, (7, 9)), nn.interpolate(t, (7, 9)))
    np.testing.assert_allclose(F.gelu(x), nn.gelu(t, approximate="tanh"), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(F.gelu(x, approximate="none"), nn.gelu(t), rtol=2e-5, atol=1e-6)

    network = Network()
    known = Dim("N"), 3, Dim("H"), Dim("W")
    value, row = network.input("x", Spec(known, "float32")), network.input("row", Spec((Dim("W"),), "int64"))
    weight = network.input("weight", Spec((2, 3, 2, 2), "float32"))
    assert value.is_dynamic() and value.is_dynamic(0) and not value.is_dynamic(1)
    assert not network.input("fixed", Spec((2, 3), "float32")).is_dynamic()
    network.output("at least", value >= 0)
    network.output("at most", value <= 0)
    network.output("conv", F.conv2d(value, F.mul(weight, 2)))
    network.output("resized", F.interpolate(value, scale_factor=2))
    network.output("part", F.split(value, 1, 1)[2])
    network.output("number", row + 1)
    network.output("broadcast", F.add(value, F.cast(row, "float32")))
    network.output("place", F.argmax(value, -1))
    feeds = {"x": np.where(x > 1, 0, x), "row": np.arange(5), "weight": normal(2, 3, 2, 2), "fixed": normal(2, 3)}
    x, t = feeds["x"], torch.from_numpy(feeds["x"])
    want = {
        "at least": x >= 0, "at most": x <= 0, "conv": torch.conv2d(t, torch.from_numpy(feeds["weight"]) * 2).numpy(),
        "resized": x.repeat(2, 2).repeat(2, 3), "part": x[:, 2:], "number": np.arange(5) + 1,
        "broadcast": x + np.arange(5), "place": x.argmax(-1),
    }  # fmt: skip
    for name, found in build_network(network, {}).run(feeds).items():
        assert found.dtype == (np.float32 if name == "broadcast" else want[name].dtype)
        np.testing.assert_allclose(found, want[name], rtol=1e-5, atol=1e-5)
