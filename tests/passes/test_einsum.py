"""einsum on engines: the numbers of torch, and no copy where the strides can be read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingot
from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.builder.build import build_network
from ingot.errors import OpError
from ingot.ir import F, Network, Spec
from ingot.ops.contraction import OPTIMAL_OPERANDS, contraction_path
from ingot.passes import pipeline

torch = pytest.importorskip("torch")
F32 = dtypes.float32


def network_of(equation: str, *shapes: tuple[Any, ...]) -> Network:
    net = Network("einsum")
    operands = [net.input(f"x{i}", Spec(F32, shape)) for i, shape in enumerate(shapes)]
    net.outputs = {"y": F.einsum(*operands, equation=equation)}
    return net


def kernels(net: Network) -> list[str]:
    program = ProgramBuilder(pipeline.lower(net, CPU), CPU).build()
    return [c.get("kernel") or c["host"] for c in program["calls"]]


def run(net: Network, feeds: dict[str, np.ndarray], weights: dict[str, np.ndarray] | None = None) -> np.ndarray:
    return build_network(net, weights or {}).run(feeds)["y"]


NAMED = [
    ("nctw,cd->ndtw", (2, 5, 7, 6), (5, 9)),
    ("nkctv,kvw->nctw", (2, 3, 4, 5, 6), (3, 6, 7)),
    ("bhnm,bdhm->bdhn", (2, 3, 4, 5), (2, 6, 3, 5)),
    ("nkctv,kcvw->nctw", (2, 3, 4, 5, 6), (3, 4, 6, 7)),
]


@pytest.mark.parametrize(("equation", "a", "b"), NAMED, ids=[e for e, *_ in NAMED])
def test_named_equations(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """The four equations that users asked for."""
    rng = np.random.default_rng(0)
    feeds = {f"x{i}": rng.standard_normal(s).astype(np.float32) for i, s in enumerate((a, b))}
    found = run(network_of(equation, a, b), feeds)
    want = torch.einsum(equation, *(torch.from_numpy(x) for x in feeds.values())).numpy()
    np.testing.assert_allclose(found, want, atol=2e-6 * np.abs(want).max() * 8)


def test_memory_stays_near_the_operands() -> None:
    """nkctv,kvw->nctw at a real size: the outer product would take 18 times the memory."""
    a, b = (1, 3, 40, 150, 18), (3, 18, 18)
    feeds = {"x0": np.ones(a, np.float32), "x1": np.ones(b, np.float32)}
    session = build_network(network_of(NAMED[1][0], a, b), {}).session(threads=2)
    out = session.run(feeds)["y"]
    assert session.memory().arena <= 2 * (math.prod(a) + math.prod(b)) * 4 + out.nbytes + (1 << 20)


def test_channels_last_operand_is_read_in_place() -> None:
    """A graph convolution between channels-last convolutions: one product, no copy, channels stay innermost."""
    net = Network("graph")
    y = net.input("y", Spec(F32, (2, 15, 18, 3 * 32)))  # what a channels-last convolution gives: [N, T, V, K·C]
    graph = net.parameter("A", Spec(F32, (3, 18, 18)))
    x = F.reshape(F.permute(y, (0, 3, 1, 2)), (2, 3, 32, 15, 18))
    z = F.einsum(x, graph, equation="nkctv,kvw->nctw")
    net.outputs = {"y": F.permute(z, (0, 2, 3, 1))}
    assert kernels(net) == ["matmul"]
    rng = np.random.default_rng(1)
    feed, weight = (rng.standard_normal(s).astype(np.float32) for s in ((2, 15, 18, 96), (3, 18, 18)))
    want = np.einsum("nctkv,kvw->nctw", feed.reshape(2, 15, 18, 3, 32).transpose(0, 4, 1, 3, 2), weight)
    np.testing.assert_allclose(run(net, {"y": feed}, {"A": weight}), want.transpose(0, 2, 3, 1), atol=1e-4)


def test_product_with_a_weight_is_a_linear_layer() -> None:
    net = Network("linear")
    x = net.input("x", Spec(F32, (ingot.Dim("N"), 7, 5)))
    net.outputs = {"y": F.einsum(x, net.parameter("w", Spec(F32, (5, 9))), equation="nti,io->nto")}
    assert kernels(net) == ["matmul_packed"]


LETTERS = "abcdefg"


@st.composite
def equations(draw: Any) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {c: draw(st.sampled_from([1, 2, 3, 5])) for c in LETTERS}
    terms = draw(st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=4))
    dots = draw(st.booleans())
    hidden = [draw(st.sampled_from([1, 2])) for _ in range(2)]
    shapes = []
    for i, term in enumerate(terms):
        lead = tuple(n if draw(st.booleans()) else 1 for n in hidden[draw(st.integers(0, 2)):]) if dots else ()
        shapes.append((*lead, *(sizes[c] for c in term)))
        terms[i] = ("..." if dots else "") + term
    used = sorted({c for t in terms for c in t if c.isalpha()})
    if draw(st.booleans()):
        return ",".join(terms), shapes
    output = draw(st.permutations([c for c in used if draw(st.booleans())]))
    return f"{','.join(terms)}->{'...' if dots and draw(st.booleans()) else ''}{''.join(output)}", shapes


@settings(max_examples=max(60, settings.default.max_examples // 2))
@given(case=equations(), seed=st.integers(0, 9))
def test_random_equations_agree_with_torch(case: tuple[str, list[tuple[int, ...]]], seed: int) -> None:
    equation, shapes = case
    rng = np.random.default_rng(seed)
    feeds = {f"x{i}": rng.standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)}
    want = torch.einsum(equation, *(torch.from_numpy(x) for x in feeds.values())).numpy()
    found = run(network_of(equation, *shapes), feeds)
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, atol=1e-4 * max(1.0, float(np.abs(want).max(initial=0))))


def test_order_of_contraction() -> None:
    """A chain of matrices is multiplied from its small end; beyond eight operands the cheapest pair goes first."""
    sizes = dict.fromkeys("abcd", 100) | {"e": 1}
    path = contraction_path(["ab", "bc", "cd", "de"], "ae", sizes)
    assert [sorted(pair) for pair in path] == [[2, 3], [1, 4], [0, 5]]
    many = [f"{a}{b}" for a, b in zip("abcdefghijkl", "bcdefghijklm", strict=True)]
    assert len(many) > OPTIMAL_OPERANDS
    path = contraction_path(many, "am", dict.fromkeys("abcdefghijkl", 50) | {"m": 1})
    assert len(path) == len(many) - 1 and path[0] == (10, 11)


@pytest.mark.parametrize(
    ("equation", "shapes", "error"),
    [
        ("".join(f"{c}," for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh"), [(2,)] * 61,
         "operand 60, '', names 0 dimensions"),
        ("ij,jk->iij", [(2, 3), (3, 4)], "names i twice"),
        ("ij,jk->ik", [(2, 3), (4, 4)], "dimension j has size 3 in one operand and 4 in operand 1"),
        ("i->->i", [(2,)], "'-' where a letter"),
        ("i é->i", [(2, 3)], "where a letter"),
    ],
)  # fmt: skip
def test_bad_equations(equation: str, shapes: list[tuple[int, ...]], error: str) -> None:
    with pytest.raises(OpError, match=error):
        network_of(equation, *shapes)
