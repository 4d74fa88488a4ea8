"""The ops' torch forms as other devices than the CPU need them: of every dtype, and by what all devices have."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import IngotError, UserError, ValueFault
from ingot.ir import OPS, Case, Network, Op, Spec
from ingot.ir.spec import StateSpec
from ingot.ops import attention, in_torch
from ingot.ops.attention import PagedAttention
from ingot.ops.binary import FloorDiv, Fmod, Mod
from ingot.ops.contraction import Einsum
from ingot.ops.conversion import Cast
from ingot.ops.elementwise import Clip
from ingot.ops.in_torch import array_over, call, known, to_array, to_arrays, to_tensor
from ingot.ops.indexing import Embedding, Gather
from ingot.ops.mixture import Moe
from ingot.ops.order import Sort
from ingot.ops.product import Matmul, integer_product
from tests.ops.check import assert_close, make_network, sample, sizes_for

Array = np.ndarray[Any, Any]

CPU = torch.device("cpu")
ARITHMETIC = (*dtypes.INTEGERS, *dtypes.FLOATS, dtypes.bool_)


# ------------------------------------------------------------------------------------------------- products of integers


class NoIntegerProducts(TorchDispatchMode):
    """A device that multiplies matrices of floats only, as NVIDIA's do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm", "dot", "mv", "addmv") and not args[0].is_floating_point():
            raise RuntimeError(f'"{name}_cuda" not implemented for {args[0].dtype}')
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("out", ["int8", "int32", "int64"])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize(
    ("a", "b"), [((3, 5), (5, 4)), ((2, 1, 3, 1030), (4, 1030, 2)), ((2, 0), (0, 3)), ((1, 2048), (2048, 1))]
)
def test_products_of_integers(a: tuple[int, ...], b: tuple[int, ...], dtype: str, out: str) -> None:
    """Every bit, with the largest numbers and the smallest ones, of more than one piece of k."""
    rng, ends = np.random.default_rng(0), np.iinfo(dtype)
    for choose in (lambda shape: rng.integers(ends.min, ends.max, shape, dtype, endpoint=True),
                   lambda shape: rng.choice(np.array([ends.min, ends.max, -1, 1], dtype), shape),
                   lambda shape: np.full(shape, ends.min, dtype)):  # fmt: skip
        x, y = choose(a), choose(b)
        want = np.matmul(x.astype(np.int64), y.astype(np.int64)).astype(out)
        with NoIntegerProducts():
            got = integer_product(torch, torch.from_numpy(x), torch.from_numpy(y), getattr(torch, out))
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(
    ("op", "specs"),
    [
        (Matmul(transpose_b=True), ("int8[3, 70]", "int8[5, 70]")),
        (Matmul(transpose_a=True), ("int64[70, 3]", "int64[70, 5]")),
        (Einsum("bij,bkj->bik"), ("int32[2, 3, 4]", "int32[2, 5, 4]")),
        (Einsum("ii,ij,jk"), ("int64[3, 3]", "int64[3, 4]", "int64[4, 2]")),
        (Einsum("i,j->ij"), ("int32[3]", "int32[4]")),
        (Einsum("...i->..."), ("int64[2, 3]",)),
        (Einsum("ab->ba"), ("int32[2, 3]",)),
        (Einsum("ab->ab"), ("int32[2, 3]",)),
    ],
    ids=str,
)
def test_ops_on_integers_need_no_integer_products(op: Op, specs: tuple[str, ...]) -> None:
    rng, arrays = np.random.default_rng(0), []
    for text in specs:
        dtype, _, shape = text.rstrip("]").partition("[")
        ends = np.iinfo(dtype)
        arrays.append(rng.integers(ends.min, ends.max, [int(n) for n in shape.split(",")], dtype, endpoint=True))
    with NoIntegerProducts():
        got = op.torch(torch, *map(torch.from_numpy, arrays))  # type: ignore[misc]
    np.testing.assert_array_equal(got.numpy(), op.reference(*arrays), strict=True)


# --------------------------------------------------------------------------------------------------------- every dtype

# Of uint64 torch computes little, on any device, and no wider integers hold its numbers: the references answer.
UINT64 = {
    "abs", "add", "argmax", "bucketize", "cast", "clip", "cummax", "cummin", "floordiv", "fmod", "gather", "greater",
    "greater_equal", "less", "less_equal", "masked_scatter", "maximum", "minimum", "mod", "neg", "nonzero",
    "reduce_max", "reduce_min", "reduce_prod", "relu", "scatter", "scatter_nd", "slice", "sub", "take",
}  # fmt: skip


def with_dtype(case: Case, dtype: DType) -> Case | None:
    """The case with another element type in the place of the first operand's; None when its op refuses that."""
    if not case.specs or isinstance(case.specs[0], StateSpec):
        return None
    first = case.specs[0].dtype
    specs = tuple(s.like(dtype=dtype) if isinstance(s, Spec) and s.dtype is first else s for s in case.specs)
    return case._replace(specs=specs)


def varied() -> Iterator[tuple[type[Op], Case, DType]]:
    for _, cls in sorted(OPS.items()):
        if cls.torch is None or cls.reads_back:
            continue
        for case in cls.cases:
            if case.error is None and case.no_engine is None:
                yield from ((cls, found, d) for d in ARITHMETIC if (found := with_dtype(case, d)) is not None)


VARIED: dict[str, list[tuple[type[Op], Case, DType]]] = {}
for _varied in varied():
    VARIED.setdefault(_varied[0].name, []).append(_varied)


@pytest.mark.parametrize("name", sorted(VARIED))
def test_every_dtype(name: str) -> None:
    """Each case of an op in every dtype that its rule takes: the reference's numbers, by the torch form unless said."""
    answered: set[str] = set()
    tried: set[str] = set()
    for cls, case, dtype in VARIED[name]:
        try:
            network, _ = make_network(cls, case)
            arrays = [np.asarray(a) for a in sample(network.nodes[-1].op, case.specs, sizes_for(case), 0)]
        except IngotError:
            continue
        node, sizes = network.nodes[-1], sizes_for(case)
        op = known(node.op, sizes)
        wanted = op.reference(*arrays)
        found, by_reference = call(torch, node, op, [to_tensor(torch, a, CPU) for a in arrays], CPU, sizes)
        tried.add(dtype.name)
        if by_reference:
            answered.add(dtype.name)
        for got, want in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            what = f"{name} of {dtype}: {case.why}"
            want = np.asarray(want)
            whole = want.astype(np.int8) if dtypes.get(want.dtype).bits < 8 else want  # one in a byte there
            assert_close(to_array(torch, got), whole, what, 2 * cls.tolerance)
    assert tried
    assert answered == ({"uint64"} if name in UINT64 else set())


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("target", [d for d in ARITHMETIC if d.is_integer], ids=str)
@pytest.mark.parametrize("source", dtypes.FLOATS, ids=str)
def test_floats_to_integers(source: DType, target: DType, saturate: bool) -> None:
    """Out of range each device has numbers of its own; here they are x86's, or saturate."""
    powers = [s * 2.0**n for n in (0, 7, 8, 15, 16, 31, 32, 62, 63, 64, 70) for s in (1, -1)]
    edges = [x + d for x in powers for d in (0, 0.5, -0.5, 1)]
    with np.errstate(all="ignore"):
        x = np.array([*edges, 0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf]).astype(source.numpy)
    op = Cast(target, saturate)
    got = op.torch(torch, to_tensor(torch, x, CPU))
    np.testing.assert_array_equal(to_array(torch, got), op.reference(x), strict=True)


@pytest.mark.parametrize("dtype", [d for d in dtypes.INTEGERS if d.kind == "int"], ids=str)
@pytest.mark.parametrize("op", [FloorDiv(), Mod(), Fmod()], ids=str)
def test_integers_divided_by_0_and_by_minus_1(op: Op, dtype: DType) -> None:
    """The smallest number has no counterpart, and processors stop there."""
    least = np.iinfo(dtype.numpy).min
    x = np.array([least, least, -7, 7, least], dtype.numpy)
    y = np.array([-1, 0, -1, -1, 3], dtype.numpy)
    got = op.torch(torch, *map(torch.from_numpy, (x, y)))  # type: ignore[misc]
    np.testing.assert_array_equal(got.numpy(), op.reference(x, y), strict=True)


def test_integers_are_clipped_as_integers() -> None:
    x = np.array([2**24 + 1, 2**40 + 1, -5, 2**62], np.int64)
    op = Clip(-2.0, 2.0**60)
    np.testing.assert_array_equal(op.torch(torch, torch.from_numpy(x)).numpy(), [2**24 + 1, 2**40 + 1, -2, 2**60])
    np.testing.assert_array_equal(op.reference(x), [2**24 + 1, 2**40 + 1, -2, 2**60])


def test_nan_with_a_sign_is_sorted_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA sorts it in front of everything (pytorch 190781): what is sorted has no such NaN."""
    seen = []
    whole = torch.sort

    def sort(x: Any, **how: Any) -> Any:
        seen.append(x.view(torch.int32).tolist())
        return whole(x, **how)

    monkeypatch.setattr(torch, "sort", sort)
    x = np.array([1, -np.nan, -np.inf, np.nan], np.float32)
    assert np.signbit(x[1])
    values, places = Sort().torch(torch, torch.from_numpy(x))
    assert places.tolist() == [2, 0, 1, 3] and torch.isnan(values[2:]).all()
    assert seen[0][1] == seen[0][3] > 0


def test_equal_experts_and_experts_of_other_rows() -> None:
    """The lower number wins, and an expert that overflows spoils no row that has not chosen it."""
    experts = 64
    rng = np.random.default_rng(0)
    x, router = rng.standard_normal((3, 6)).astype(np.float32), np.zeros((3, experts), np.float32)
    router[0, 5] = 1
    gates, ups = (rng.standard_normal((experts, 5, 6)).astype(np.float32) for _ in range(2))
    downs = rng.standard_normal((experts, 6, 5)).astype(np.float32)
    downs[5] = np.inf
    op, weights = Moe(top_k=3), [*gates, *ups, *downs]
    want = op.reference(x, router, *weights)
    assert not np.isfinite(want[0]).any() and np.isfinite(want[1:]).all()
    got = op.torch(torch, *map(torch.from_numpy, (x, router, *weights))).numpy()
    np.testing.assert_allclose(got[1:], want[1:], rtol=1e-5, atol=1e-5)
    assert not np.isfinite(got[0]).any()


@pytest.mark.parametrize(
    ("op", "shapes"), [(Embedding(), ((0, 4), (2,))), (Gather(axis=1), ((2, 0), (2, 3)))], ids=lambda x: str(x)
)
def test_nothing_to_choose_from(op: Op, shapes: tuple[tuple[int, ...], ...]) -> None:
    """A fault on the device, not an error of a kernel, which would end a GPU's context."""
    table, index = torch.zeros(shapes[0]), torch.zeros(shapes[1], dtype=torch.int64)
    operands = (index, table) if isinstance(op, Embedding) else (table, index)
    op.torch(torch, *operands)  # type: ignore[misc]
    assert op.torch_fault(torch, *operands).item()  # type: ignore[misc]
    with pytest.raises(ValueFault):
        op.reference(*(x.numpy() for x in operands))


# ---------------------------------------------------------------------------------------------------- paged attention


def requests_of(rows: list[int], contexts: list[int], columns: int, heads: int, kv: int, width: int) -> list[Array]:
    """q, cache, query_start, context_len, block_table: requests of so many rows, blocks in random order, two rows of
    padding, and NaN wherever no request's tokens are."""
    rng = np.random.default_rng(len(rows))
    block, total = 4, len(rows) * columns
    table = rng.permutation(total).reshape(len(rows), columns).astype(np.int32)
    cache = np.full((max(total, 1), block, 2, kv, width), np.nan, np.float32)
    for b, length in enumerate(contexts):
        for at in range(length):
            cache[table[b, at // block], at % block] = rng.standard_normal((2, kv, width))
    q = rng.standard_normal((sum(rows) + 2, heads, width)).astype(np.float32)
    return [q, cache, np.cumsum([0, *rows]).astype(np.int32), np.array(contexts, np.int32), table]


STEPS = [
    ([1] * 9, [1, 5, 9, 30, 31, 32, 2, 3, 17]),  # decodes
    ([40], [40]), ([7], [32]),
    ([20, 1, 1, 1, 0, 13], [20, 8, 32, 1, 0, 29]),  # prompts beside them
    ([0, 0, 3], [0, 0, 3]), ([1, 0], [5, 0]),
]  # fmt: skip


@pytest.mark.parametrize("gathered", [1, 3000, attention.GATHERED])
@pytest.mark.parametrize(("rows", "contexts"), STEPS)
@pytest.mark.parametrize("attributes", [{}, {"window": 3}, {"softcap": 2.0}], ids=str)
def test_paged_attention(
    rows: list[int], contexts: list[int], attributes: dict[str, Any], gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "GATHERED", gathered)
    operands = requests_of(rows, contexts, columns=10, heads=4, kv=2, width=8)
    op = PagedAttention(0.35, **attributes)
    want = op.reference(*operands)
    got = op.torch(torch, *map(torch.from_numpy, operands)).numpy()
    assert np.abs(got - want).max() <= 1e-5 * max(np.abs(want).max(), 1e-30)


@pytest.mark.parametrize(("rows", "contexts"), STEPS)
def test_paged_attention_is_one_computation(
    rows: list[int], contexts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two products whatever the requests, of at most twice as many tiles of rows as requests; pieces bound memory."""
    shapes: list[list[int]] = []
    whole = torch.einsum

    def einsum(equation: str, *xs: Any) -> Any:
        shapes.append(list(xs[0].shape))
        return whole(equation, *xs)

    monkeypatch.setattr(torch, "einsum", einsum)
    operands = [torch.from_numpy(x) for x in requests_of(rows, contexts, columns=10, heads=4, kv=2, width=8)]
    PagedAttention(0.35).torch(torch, *operands)
    assert len(shapes) == 2
    tiles, tile = shapes[0][:2]
    assert tiles <= max(2 * len(rows), sum(rows) + 2) and tiles * tile <= 2 * (sum(rows) + 2) + len(rows)
    shapes.clear()
    monkeypatch.setattr(attention, "GATHERED", 2000)
    PagedAttention(0.35).torch(torch, *operands)
    for count, tile, *_ in shapes[::2]:
        assert count == tile == 1 or count * 40 * max(2 * 2 * 8, tile * 4) <= 2000


# ------------------------------------------------------------------------------------------------------ what is lacking


def one_of(op: Op, *specs: Spec) -> Any:
    network = Network("n")
    network.output("y", network.emit(op, tuple(network.input(f"x{i}", spec) for i, spec in enumerate(specs))))
    return network.nodes[-1]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("\"addmm_cuda\" not implemented for 'Long'"),
        NotImplementedError("The operator 'aten::x' is not currently implemented for the MPS device"),
        NotImplementedError("nothing that we know"),
        TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"),
        RuntimeError("Unsupported type byte"),
    ],
)
def test_what_a_device_does_not_compute_is_answered_by_the_reference(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def form(self: Op, torch: Any, x: Any) -> Any:
        raise error

    node = one_of(OPS["neg"](), Spec((2,), "float32"))
    monkeypatch.setattr(OPS["neg"], "torch", form)
    (found,), by_reference = call(torch, node, node.op, [torch.ones(2)], CPU, {})
    assert by_reference and found.tolist() == [-1, -1]


def test_other_errors_of_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    node = one_of(OPS["neg"](), Spec((2,), "float32"))
    for error, kind in ((RuntimeError("no such luck\nstack"), ValueFault), (TypeError("a fault of ours"), TypeError),
                        (torch.AcceleratorError("CUDA error: an illegal memory access"), torch.AcceleratorError)):

        def form(self: Op, torch: Any, x: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(OPS["neg"], "torch", form)
        with pytest.raises(kind):
            call(torch, node, node.op, [torch.ones(2)], CPU, {})


def test_a_dtype_that_a_device_does_not_hold() -> None:
    class Held:
        """What `Tensor.to` of a device without float64 does."""

    with pytest.raises(UserError, match="holds no float64"):
        to_tensor(torch, np.ones(2), Held())


def test_arrays_come_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any dtypes and shapes, views too."""
    arrays: list[Array] = [
        np.arange(6, dtype=np.float32).reshape(2, 3), np.array(True), np.zeros((0, 3), np.int64),
        np.arange(5, dtype=np.uint8), np.array([1.5, -2]).astype(dtypes.bfloat16.numpy), np.arange(3.0),
        np.array([0.5, 2]).astype(dtypes.float8_e4m3fn.numpy), np.array(7, np.int16),
    ]  # fmt: skip
    tensors = [to_tensor(torch, a, CPU) for a in arrays]
    tensors.append(tensors[0].T)
    arrays.append(arrays[0].T)
    tensors.append(torch.arange(9)[::2])
    arrays.append(np.arange(9)[::2])
    for apart in (False, True):
        monkeypatch.setattr(in_torch, "away", lambda device, apart=apart: apart)
        for got, want in zip(to_arrays(torch, tensors), arrays, strict=True):
            np.testing.assert_array_equal(got, want, strict=True)
            assert got.flags.writeable and not np.shares_memory(got, want)
    assert to_arrays(torch, []) == []


# --------------------------------------------------------------------------------------------------- memory of the host


@pytest.mark.parametrize("dtype", [*ARITHMETIC, *(d for d in dtypes.ALL if d not in ARITHMETIC)], ids=str)
def test_arrays_over_tensors(dtype: DType) -> None:
    """What NumPy writes into an array over a tensor is in the tensor, whatever the steps of what is written."""
    given = np.arange(1, 13).reshape(4, 3).astype(np.int8).astype(dtype.numpy)
    tensor = to_tensor(torch, np.zeros((3, 4), dtype.numpy), CPU)
    array_over(torch, tensor)[...] = given.T
    np.testing.assert_array_equal(to_array(torch, tensor), to_array(torch, to_tensor(torch, given.T, CPU)))


def test_constants_of_what_an_op_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are brought to a device once, go with the network, and are nobody's to change."""
    network, brought = Network("body"), []
    network.output("y", network.constant(np.arange(3.0, dtype=np.float32)))
    bring = in_torch.to_tensor
    monkeypatch.setattr(in_torch, "to_tensor", lambda *words: brought.append(bring(*words)) or brought[-1])
    for _ in range(2):
        (found,) = in_torch.run(torch, network, (), CPU, keep=True)
        assert found.tolist() == [0, 1, 2]
        found += 1
    assert len(brought) == 1
    kept, gone = weakref.ref(brought.pop()), weakref.ref(network)
    del network
    gc.collect()
    assert kept() is None and gone() is None
