"""Scatters that reduce, classes, counts and sorted places against torch: at once, recorded, and as engines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ingot import functional as F
from ingot.builder.build import build_network
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
    kind = Spec(dtype, ()).dtype.numpy
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
        rows = network.input("rows", Spec("int64", (Dim("N"), 8)))
        values = network.input("values", Spec("int64", (Dim("N"), 5)))
        network.output("y", F.searchsorted(rows, values, right))
        found = build_network(network, {}).run({"rows": marks, "values": x})["y"]
        np.testing.assert_array_equal(found, torch.searchsorted(*map(torch.from_numpy, (marks, x)), right=right))
    for name, dim in itertools.product(("cumprod", "cummax", "cummin", "cumsum"), (0, -1)):
        agree(lambda x, n=name, d=dim: getattr(F, n)(x, d), lambda t, n=name, d=dim: tuple(_several(
            getattr(torch, n)(t, d))), x)  # fmt: skip
    x = x.astype(np.float32)
    np.testing.assert_allclose(F.logcumsumexp(x, 1), torch.logcumsumexp(torch.from_numpy(x), 1), rtol=1e-6)


FAULTS: dict[str, tuple[Callable[..., Any], tuple[Array, ...], str]] = {
    "one_hot": (lambda x: F.one_hot(x, 4), (np.array([0, 4]),), "index out of range .4 at element 1, limit 4"),
    "one_hot below": (lambda x: F.one_hot(x, 4), (np.array([0, -1]),), "out of range .* at element 1, limit 4"),
    "bincount below": (F.bincount, (np.array([3] * 9 + [-2]),), "out of range .* at element 9, limit 4"),
    "scatter_add": (
        lambda x, i, u: F.scatter_add(x, 0, i, u),
        (np.zeros(3, np.float32), np.array([0, 3]), np.ones(2, np.float32)),
        "index out of range .3 at element 1, limit 3",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_a_run(name: str) -> None:
    call, arrays, message = FAULTS[name]
    with pytest.raises(ValueFault, match="out of range"):
        call(*arrays)
    network = Network()
    network.output("y", call(*[network.input(f"x{i}", Spec.of(a)) for i, a in enumerate(arrays)]))
    with pytest.raises(ValueFault, match=message):
        build_network(network, {}).run({f"x{i}": a for i, a in enumerate(arrays)})


def test_refusals() -> None:
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(OpError, match="no reduction 'std'; known are sum"):
        F.scatter_reduce(x, 0, np.zeros((3, 2), np.int64), x, "std")
    with pytest.raises(OpError, match="must have one dimension"):
        F.bincount(np.zeros((3, 2), np.int64))
    with pytest.raises(OpError, match="its shape"):
        F.bincount(np.zeros(3, np.int64), np.zeros(2, np.float32))
