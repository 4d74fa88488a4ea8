"""Scatters that reduce, classes, counts and sorted places against torch: at once, recorded, and as engines."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError, ValueFault
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret
from ingot.nn.parameter import as_array

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(8)


def agree(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Array, exact: bool = True) -> None:
    """The same with fixed sizes and with named ones; of bfloat16 up to one rounding."""
    narrow = {"bfloat16": torch.bfloat16}
    given = [torch.tensor(a.astype(np.float32)).to(narrow[a.dtype.name]) if a.dtype.name in narrow
             else torch.from_numpy(a) for a in arrays]  # fmt: skip
    want = [as_array(y) for y in _several(theirs(*given))]
    check(_several(ours(*arrays)), want, exact)
    for named in (False, True):
        network = Network()
        known: dict[tuple[int, int], Dim] = {}
        values = []
        for i, a in enumerate(arrays):
            shape = [known.setdefault((j, n), Dim(f"N{j}_{n}")) if named else n for j, n in enumerate(a.shape)]
            values.append(network.input(f"x{i}", Spec.of(a).like(shape=tuple(shape))))
        for i, y in enumerate(_several(ours(*values))):
            network.output(f"y{i}", y)
        feeds = {f"x{i}": a for i, a in enumerate(arrays)}
        engine = build_network(network, {})
        assert engine._native.host_calls("main") == []
        for run in (lambda f, n=network: interpret(n, f), engine.run):
            check(list(run(feeds).values()), want, exact)


def _several(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def check(got: list[Array], want: list[Array], exact: bool) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = [x.astype(np.float64) for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=0 if exact else 2e-2, atol=0)


@pytest.mark.sampled(5, by=lambda given: given["shape"])
@pytest.mark.parametrize("shape", [(5, 7), (0, 3), (40,), ()], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8"])
def test_unique(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.asarray(rng.integers(0, 5, shape)).astype(dtype)
    for how in ({}, {"return_inverse": True}, {"return_counts": True}, {"return_inverse": True, "return_counts": True}):
        agree(lambda x, how=how: F.unique(x, **how), lambda t, how=how: torch.unique(t, **how), x)
        agree(lambda x, how=how: F.unique(x, consecutive=True, **how),
              lambda t, how=how: torch.unique_consecutive(t, **how), x)  # fmt: skip


def test_unique_of_special_numbers() -> None:
    """Every NaN is one of its own, and both zeros are one."""
    x = np.array([np.nan, 1, -0.0, 0, -np.inf, np.nan, 1, np.inf], np.float32)
    agree(lambda x: F.unique(x, True, True), lambda t: torch.unique(t, return_inverse=True, return_counts=True), x)


@pytest.mark.parametrize(
    ("shape", "dim"), [((9, 5), 0), ((3, 8), 1), ((2, 7, 3), -2), ((40, 1), 0), ((0, 3), 0), ((6,), 0)]
)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_unique_slices(dtype: str, shape: tuple[int, ...], dim: int) -> None:
    """Whole slices, ascending or in runs; how many there are known and not."""
    x = np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    for consecutive, named in itertools.product((False, True), (False, True)):
        network = Network()
        size: list[Any] = list(shape)
        size[dim] = Dim("N") if named else size[dim]
        value = network.input("x", Spec(tuple(size), dtype))
        for i, y in enumerate(_several(F.unique(value, True, True, consecutive=consecutive, dim=dim))):
            network.output(f"y{i}", y)
        their = torch.unique_consecutive if consecutive else torch.unique
        want = [y.numpy() for y in their(torch.from_numpy(x), return_inverse=True, return_counts=True, dim=dim)]
        engine = build_network(network, {})
        assert engine._native.host_calls("main") == []
        for found in (interpret(network, {"x": x}), engine.run({"x": x})):
            check(list(found.values()), want, exact=True)


def test_slices_that_have_no_order() -> None:
    network = Network()
    with pytest.raises(OpError, match="slices along dimension 0 of .* have no elements"):
        F.unique(network.input("x", Spec((3, 0), "float32")), dim=0)
    with pytest.raises(OpError, match="slices of N elements, a size that only a run shows"):
        F.unique(network.input("y", Spec((3, Dim("N")), "float32")), dim=0)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8"])
def test_scatter_reduce(dtype: str, reduce: str) -> None:
    """Numbers whose sums and products are exact in any order."""
    x, u = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((6, 4), (9, 4)))
    index = rng.integers(0, 6, (9, 4))
    for own in (True, False):
        agree(lambda x, i, u, own=own: F.scatter_reduce(x, 0, i, u, reduce, own),
              lambda x, i, u, own=own: torch.scatter_reduce(x, 0, i, u, reduce, include_self=own), x, index, u,
              exact=reduce != "mean")  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_add_up_in_float32(dtype: str) -> None:
    """1000 times 0.001: 1 after one rounding; in the type itself the sum would stop growing."""
    kind = Spec((), dtype).dtype.numpy
    ones = np.full(1000, 0.001, kind)
    found = F.scatter_add(np.zeros(1, kind), 0, np.zeros(1000, np.int64), ones)
    np.testing.assert_array_equal(found, np.add.reduce(ones.astype(np.float64)).astype(kind))
    x, u, i = rng.random((6, 4)).astype(kind), rng.random((9, 4)).astype(kind), rng.integers(0, 6, (9, 4))
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        agree(lambda x, i, u, r=reduce: F.scatter_reduce(x, 0, i, u, r),
              lambda x, i, u, r=reduce: torch.scatter_reduce(x, 0, i, u, r), x, i, u, exact=False)  # fmt: skip


def test_counts_and_classes() -> None:
    for n, least in itertools.product((0, 1, 30), (0, 3, 40)):
        x = rng.integers(0, 9, n)
        agree(lambda x, least=least: F.bincount(x, None, least),
              lambda t, least=least: torch.bincount(t, minlength=least), x)  # fmt: skip
        for dtype in ("float32", "int32", "float64") if n else ():  # of nothing torch gives integers
            agree(F.bincount, torch.bincount, x, rng.integers(0, 9, n).astype(dtype))
    for shape in ((), (4,), (2, 0), (2, 3)):
        classes = np.asarray(rng.integers(0, 6, shape))
        agree(lambda x: F.one_hot(x, 6), lambda t: torch.nn.functional.one_hot(t, 6), classes)


def test_sorted_places_and_scans() -> None:
    marks, x = np.sort(rng.integers(0, 9, (3, 8)), -1), rng.integers(0, 9, (3, 5))
    for right in (False, True):
        agree(lambda x, m, r=right: F.bucketize(x, m, r),
              lambda x, m, r=right: torch.bucketize(x, m, right=r), x, marks[0])  # fmt: skip
        network = Network()
        rows = network.input("rows", Spec((Dim("N"), 8), "int64"))
        values = network.input("values", Spec((Dim("N"), 5), "int64"))
        network.output("y", F.searchsorted(rows, values, right))
        found = build_network(network, {}).run({"rows": marks, "values": x})["y"]
        np.testing.assert_array_equal(found, torch.searchsorted(*map(torch.from_numpy, (marks, x)), right=right))
    loose = rng.permuted(marks, axis=-1)
    agree(
        lambda m, x, s: F.searchsorted(m, x, sorter=s),
        lambda m, x, s: torch.searchsorted(m, x, sorter=s),
        loose,
        x,
        np.argsort(loose, -1, kind="stable"),
    )
    for name, dim in itertools.product(("cumprod", "cummax", "cummin", "cumsum"), (0, -1)):
        agree(lambda x, n=name, d=dim: getattr(F, n)(x, d), lambda t, n=name, d=dim: tuple(_several(
            getattr(torch, n)(t, d))), x)  # fmt: skip
    x = x.astype(np.float32)
    np.testing.assert_allclose(F.logcumsumexp(x, 1), torch.logcumsumexp(torch.from_numpy(x), 1), rtol=1e-6)


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def each(*given: int) -> Array:
    return np.array(given)


def column(*given: int) -> Array:
    return each(*given)[:, None]


# What takes indices, on which arrays; the index that is out of range and its element in its tensor.
FAULTS: dict[str, tuple[Callable[..., Any], tuple[Array, ...], int, int]] = {
    "embedding": (F.embedding, (each(0, 3, 4), ROWS), 4, 2),
    "embedding below": (F.embedding, (each(0, -1), ROWS), -1, 1),
    "embedding with scales": (lambda i, x, s: F.embedding(i, x, per_token_scale=s), (each(9), ROWS, ROWS[:, 0]), 9, 0),
    "gather": (lambda x, i: F.gather(x, 1, i), (ROWS, np.array([[0, 1], [2, 3]])), 3, 3),
    "gather below": (lambda x, i: F.gather(x, 0, i), (ROWS, np.array([[0, -5, 2]])), -5, 1),
    "index_select": (lambda x, i: F.index_select(x, 0, i), (ROWS, each(1, 0, 2, 4)), 4, 3),
    "index_select below": (lambda x, i: F.index_select(x, -1, i), (ROWS, each(-3, -4)), -4, 1),
    "index_select of int32": (lambda x, i: F.index_select(x, 1, i), (ROWS, each(2**30).astype(np.int32)), 2**30, 0),
    "index_select of nothing": (lambda x, i: F.index_select(x, 0, i), (ROWS[:0], each(0)), 0, 0),
    "select": (lambda x, i: F.select(x, 1, i), (ROWS, np.array(3)), 3, 0),
    "select below": (lambda x, i: F.select(x, 1, i), (ROWS, np.array(-4)), -4, 0),
    "gather_nd": (lambda x, i: F.gather_nd(x, i, 0), (ROWS, np.array([[3, 2], [1, 3]])), 3, 3),
    "gather_nd in batches": (lambda x, i: F.gather_nd(x, i, 1), (ROWS, column(0, 1, -4, 2)), -4, 2),
    "scatter": (lambda x, i: F.scatter(x, 0, i, x), (ROWS, np.array([[0] * 3] * 3 + [[0, 1, 4]])), 4, 11),
    "scatter below": (lambda x, i, u: F.scatter(x, 1, i, u), (ROWS, column(0, -4), ROWS[:2, :1]), -4, 1),
    "scatter_add": (lambda x, i, u: F.scatter_add(x, 0, i, u), (np.zeros(3), each(0, 3), np.ones(2)), 3, 1),
    "scatter_reduce": (
        lambda x, i, u: F.scatter_reduce(x, 0, i, u, "mean", False), (np.zeros(3), each(-4), np.ones(1)), -4, 0
    ),
    "scatter_nd": (F.scatter_nd, (ROWS, column(0, 1, 7), ROWS[:3]), 7, 2),
    "scatter_nd below": (F.scatter_nd, (ROWS, np.array([[0, 1], [0, -4]]), ROWS[0, :2]), -4, 3),
    "one_hot": (lambda x: F.one_hot(x, 4), (each(0, 4),), 4, 1),
    "one_hot below": (lambda x: F.one_hot(x, 4), (each(0, 3, -1),), -1, 2),
    "bincount below": (F.bincount, (each(*[3] * 9, -2),), -2, 9),
    "gather_last_token_logits": (lambda x, n: F.gather_last_token_logits(x, n, True), (ROWS, each(3, 5) + 0), 4, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_an_index_out_of_range_is_named(name: str) -> None:
    """Its value and where it stands: computed at once, interpreted, and in an engine, with fixed and unknown sizes."""
    call, arrays, value, element = FAULTS[name]
    said = f"index {value} is out of range .*, at element {element}$"
    with pytest.raises(ValueFault, match=said):
        call(*arrays)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    for named in (False, True):
        network = Network()
        shapes = [(Dim(f"N{a.shape[0]}"), *a.shape[1:]) if named and a.ndim else a.shape for a in arrays]
        values = [network.input(x, Spec.of(a).like(shape=s)) for (x, a), s in zip(feeds.items(), shapes, strict=True)]
        network.output("y", call(*values))
        with pytest.raises(ValueFault, match=said):
            interpret(network, feeds)
        engine = build_network(network, {})
        assert engine._native.host_calls("main") == []
        with pytest.raises(ValueFault, match=rf"out of range \({value} at element {element}, limit "):
            engine.run(feeds)


# ------------------------------------------------------------------------------------------------------ slices

# Boxes of a [5, 4] array by start, size and stride of each dimension.
BOXES = [((-3, 2), (9, 1), (1, 1)), ((1, 5), (3, 6), (1, -2)), ((4, -1), (3, 3), (-3, 2)), ((0, 0), (5, 0), (1, 1)),
         ((-8, -8), (20, 17), (1, 1))]  # fmt: skip
PADDED = {"wrap": "wrap", "clamp": "edge", "reflect": "reflect", "fill": "constant"}


@pytest.mark.parametrize("mode", PADDED)
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_slices_beyond_the_edges(dtype: str, mode: str) -> None:
    """The box of an array that NumPy pads: with sizes that are known, and with ones that a run shows."""
    kind = np.dtype(dtype)
    x = rng.integers(0, 2 if dtype == "bool" else 9, (5, 4)).astype(kind)
    wide = np.pad(x, 40, PADDED[mode])
    for (starts, sizes, strides), fill in itertools.product(BOXES, (None, kind.type(1)) if mode == "fill" else (None,)):
        around = wide if fill is None else np.pad(x, 40, constant_values=fill)
        want = around[np.ix_(*(40 + a + np.arange(n) * s for a, n, s in zip(starts, sizes, strides, strict=True)))]
        call = functools.partial(F.slice, starts=starts, sizes=sizes, strides=strides, mode=mode, fill_value=fill)
        np.testing.assert_array_equal(call(x), want)
        for shape in ((5, 4), (Dim("N"), Dim("M"))):
            network = Network()
            network.output("y", call(network.input("x", Spec(shape, dtype))))
            engine = build_network(network, {})
            assert engine._native.host_calls("main") == []
            np.testing.assert_array_equal(engine.run({"x": x})["y"], want)


def test_slices_of_one_element_and_of_none() -> None:
    one = np.array([7], np.float32)
    for mode in ("wrap", "clamp", "reflect"):
        np.testing.assert_array_equal(F.slice(one, (-2,), (5,), mode=mode), np.full(5, 7))
        with pytest.raises(OpError, match="has no elements"):
            F.slice(one[:0], (0,), (2,), mode=mode)
        network = Network()
        network.output("y", F.slice(network.input("x", Spec((Dim("N"),), "float32")), (0,), (2,), mode=mode))
        engine = build_network(network, {})
        np.testing.assert_array_equal(engine.run({"x": one})["y"], [7, 7])
        with pytest.raises(ValueFault, match="out of range"):
            engine.run({"x": one[:0]})
    np.testing.assert_array_equal(F.slice(one[:0], (-1,), (2,), mode="fill", fill_value=3), [3, 3])
    with pytest.raises(OpError, match="mode must be one of strict_bounds"):
        F.slice(one, (0,), (1,), mode="mirror")


def test_refusals() -> None:
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(OpError, match="no reduction 'std'; known are sum"):
        F.scatter_reduce(x, 0, np.zeros((3, 2), np.int64), x, "std")
    with pytest.raises(OpError, match="must have one dimension"):
        F.bincount(np.zeros((3, 2), np.int64))
    with pytest.raises(OpError, match="its shape"):
        F.bincount(np.zeros(3, np.int64), np.zeros(2, np.float32))
