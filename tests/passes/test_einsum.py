"""einsum on engines: the numbers of torch, and no copy where the strides can be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingot
from ingot import dtypes
from ingot import functional as fn
from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.builder.network import build_network
from ingot.errors import OpError
from ingot.ir import F, Network, Spec
from ingot.ops.contraction import MAX_OPERANDS, OPTIMAL_OPERANDS, contraction_path
from ingot.passes import pipeline

torch = pytest.importorskip("torch")
F32 = dtypes.float32


def network_of(equation: str, *shapes: tuple[Any, ...]) -> Network:
    net = Network("einsum")
    operands = [net.input(f"x{i}", Spec(shape, F32)) for i, shape in enumerate(shapes)]
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stored", [False, True], ids=["computed", "stored"])
@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        (NAMED[0][0], (4, 64, 150, 18), (64, 128)),
        (NAMED[1][0], (4, 3, 64, 150, 18), (3, 18, 18)),
        (NAMED[1][0], (1, 3, 64, 150, 18), (3, 18, 18)),
        (NAMED[2][0], (2, 8, 256, 256), (2, 64, 8, 256)),
        (NAMED[3][0], (4, 3, 64, 150, 18), (3, 64, 18, 18)),
    ],
    ids=["nctw", "nkctv", "one item of nkctv", "bhnm", "nkcvw"],
)
def test_memory(equation: str, a: tuple[int, ...], b: tuple[int, ...], stored: bool, dtype: str) -> None:
    """What `inspect` reports at sizes of a real net: inputs, output, and at most one permuted copy of each input.

    The outer product of the second and fourth equation would take 18 times their larger input. Packing takes up to
    0.4 MB for each thread whatever the sizes, and 0.1 MB where b is small.
    """
    net = Network("einsum")
    x, w = net.input("x0", Spec(a, dtype)), (net.parameter if stored else net.input)("x1", Spec(b, dtype))
    net.outputs = {"y": F.einsum(x, w, equation=equation)}
    weights = {"x1": np.ones(b, dtypes.get(dtype).numpy)} if stored else {}
    session = build_network(net, weights).session(threads=2)
    bytes_of = [math.prod(shape) * dtypes.get(dtype).bits // 8 for shape in (a, b, net.outputs["y"].shape)]
    planned, held = session.planned({}), session.memory().weights
    assert planned.working > 0
    assert planned.buffers + held <= 2 * (bytes_of[0] + bytes_of[1]) + bytes_of[2]


@pytest.mark.parametrize(("equation", "a", "b"), NAMED, ids=[e for e, *_ in NAMED])
def test_named_equations_copy_nothing(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Sums over labels that lie apart are read so, and results are written in their order; sizes known and not."""
    assert kernels(network_of(equation, a, b)) == ["matmul"]
    batch = ingot.Dim("N")
    letter = equation[0]
    shapes = [tuple(batch if c == letter else n for c, n in zip(term, shape, strict=True))
              for term, shape in zip(equation.split("->")[0].split(","), (a, b), strict=True)]  # fmt: skip
    assert kernels(network_of(equation, *shapes)) == ["matmul"]


def test_channels_last_operand_is_read_in_place() -> None:
    """A graph convolution between channels-last convolutions: one product, no copy, channels stay innermost."""
    net = Network("graph")
    y = net.input("y", Spec((2, 15, 18, 3 * 32), F32))  # what a channels-last convolution gives: [N, T, V, K·C]
    graph = net.parameter("A", Spec((3, 18, 18), F32))
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
    x = net.input("x", Spec((ingot.Dim("N"), 7, 5), F32))
    net.outputs = {"y": F.einsum(x, net.parameter("w", Spec((5, 9), F32)), equation="nti,io->nto")}
    assert kernels(net) == ["matmul_packed"]


LETTERS = "abcdefg"


@st.composite
def equations(draw: Any) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {c: draw(st.sampled_from([1, 2, 3, 5])) for c in LETTERS}
    terms = draw(st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=draw(st.sampled_from([4, 4, 10]))))
    dots = draw(st.booleans())
    hidden = [draw(st.sampled_from([1, 2])) for _ in range(2)]
    shapes = []
    for i, term in enumerate(terms):
        lead = tuple(n if draw(st.booleans()) else 1 for n in hidden[draw(st.integers(0, 2)) :]) if dots else ()
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
    """Sizes known and not, floats and integers, natively. A sum of float32 is off by 2^-20 of its terms at most."""
    equation, shapes = case
    rng = np.random.default_rng(seed)
    dtype = dtypes.get(["float32", "float32", "int32", "int64"][seed % 4])
    arrays = [rng.integers(-9, 10, s).astype(dtype.numpy) if dtype.is_integer
              else rng.standard_normal(s).astype(np.float32) for s in shapes]  # fmt: skip
    net = Network("einsum")
    dims = {n: ingot.Dim(f"D{n}", 2) for n in (2, 3, 5)}
    known = [shapes, [tuple(dims.get(n, n) for n in s) for s in shapes]][seed // 5]
    operands = [net.input(f"x{i}", Spec(shape, dtype)) for i, shape in enumerate(known)]
    net.outputs = {"y": F.einsum(*operands, equation=equation)}
    engine = build_network(net, {})
    assert not [c for c in engine.header["programs"]["cpu"]["entries"]["main"]["calls"] if "host" in c]
    found = engine.run({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    wide = [torch.from_numpy(x).to(torch.int64 if dtype.is_integer else torch.float64) for x in arrays]
    exact, sizes = (torch.einsum(equation, *terms).numpy() for terms in (wide, [x.abs() for x in wide]))
    assert found.shape == exact.shape and found.dtype == dtype.numpy
    if dtype.is_integer:
        assert np.array_equal(found, exact.astype(dtype.numpy))  # the low bits, where sums wrap
    else:
        assert (np.abs(found - exact) <= 2.0**-20 * sizes).all()


@pytest.mark.parametrize("arguments", [
    ([0, 1], [1, 2], [0, 2]), ([0, 1], [1, 2]), ([..., 2, 0], [0, 30], [30, ...]), ([51, 3], [3, 4]),
    ((0, 0), (0, 1), ()),
])  # fmt: skip
def test_lists_of_dimensions(arguments: tuple[Any, ...]) -> None:
    """torch's form without an equation."""
    x, y = np.arange(9, dtype=np.float32).reshape(3, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second, *result = arguments
    want = torch.einsum(torch.from_numpy(x), list(first), torch.from_numpy(y), list(second), *map(list, result))
    assert np.array_equal(fn.einsum(x, first, y, second, *result), want.numpy())


@pytest.mark.parametrize(("arguments", "error"), [
    ((1, 2), "followed by a list of dimensions, not a int"), (([52],), "from 0 to 51 or ..., not 52"),
    ((["i"],), "not 'i'"), (([True],), "not True"), (([-1],), "not -1"), ((), "not a ndarray"),
])  # fmt: skip
def test_bad_lists_of_dimensions(arguments: tuple[Any, ...], error: str) -> None:
    with pytest.raises(OpError, match=error):
        fn.einsum(np.ones(3, np.float32), *arguments)


def multiplications(terms: list[str], output: str, sizes: dict[str, int], path: Iterable[tuple[int, int]]) -> int:
    """How many a path takes, once labels that one term has alone are summed."""
    left: dict[int, set[str]] = {i: set(term) for i, term in enumerate(terms)}

    def needed(own: int) -> set[str]:
        return set(output).union(*(labels for i, labels in left.items() if i != own))

    left = {i: labels & needed(i) for i, labels in left.items()}
    total = 0
    for n, (a, b) in enumerate(path):
        both = left.pop(a) | left.pop(b)
        total += math.prod(sizes[label] for label in both)
        left[len(terms) + n] = both & needed(-1)
    assert len(left) == 1
    return total


def all_paths(left: list[int], new: int) -> Iterator[list[tuple[int, int]]]:
    if len(left) == 1:
        yield []
    for a, b in combinations(left, 2):
        rest = [*(i for i in left if i not in (a, b)), new]
        yield from ([(a, b), *path] for path in all_paths(rest, new + 1))


@settings(max_examples=30)
@given(
    terms=st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=5),
    output=st.sets(st.sampled_from("abcdef")), seed=st.integers(0, 99),
)  # fmt: skip
def test_no_order_takes_fewer_multiplications(terms: list[str], output: set[str], seed: int) -> None:
    """All of up to 180 orders of five operands."""
    sizes = dict(zip("abcdef", np.random.default_rng(seed).integers(1, 9, 6).tolist(), strict=True))
    kept = "".join(sorted(output & set("".join(terms))))
    found = multiplications(terms, kept, sizes, contraction_path(terms, kept, sizes))
    every = all_paths(list(range(len(terms))), len(terms))
    assert found == min(multiplications(terms, kept, sizes, path) for path in every)


def test_order_of_contraction() -> None:
    """A chain of matrices is multiplied from its small end, by the best order and, beyond eight operands, by pairs."""
    sizes = dict.fromkeys("abcd", 100) | {"e": 1}
    path = contraction_path(["ab", "bc", "cd", "de"], "ae", sizes)
    assert [sorted(pair) for pair in path] == [[2, 3], [1, 4], [0, 5]]
    many = [f"{a}{b}" for a, b in zip("abcdefghijkl", "bcdefghijklm", strict=True)]
    assert len(many) > OPTIMAL_OPERANDS
    path = contraction_path(many, "am", dict.fromkeys("abcdefghijkl", 50) | {"m": 1})
    assert len(path) == len(many) - 1 and path[0] == (10, 11)


def test_many_operands_make_no_outer_product() -> None:
    """Eight vectors and the tensor of all their labels: each vector is summed away, although two of them cost less."""
    vectors, sizes = list("abcdefgh"), dict.fromkeys("abcdefgh", 10)
    path = contraction_path([*vectors, "abcdefgh"], "", sizes)
    assert multiplications([*vectors, "abcdefgh"], "", sizes, path) == sum(10**n for n in range(1, 9))
    alone, sizes = [*"abcdefghi"], dict.fromkeys("abcdefghi", 10)  # sums of each, then products of nine numbers
    assert multiplications(alone, "", sizes, contraction_path(alone, "", sizes)) == 8


def test_an_order_of_many_operands_is_found_in_bounded_time() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    terms = [letters[i % 26] + letters[(i + 1) % 26] for i in range(MAX_OPERANDS)]
    assert len(contraction_path(terms, "a", dict.fromkeys(letters, 2))) == MAX_OPERANDS - 1
    with pytest.raises(OpError, match="at most 500 operands, got 501"):
        network_of(",".join(["a"] * (MAX_OPERANDS + 1)), *[(2,)] * (MAX_OPERANDS + 1))


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
