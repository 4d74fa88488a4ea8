"""Host calls: whatever a program says of one, the op's own rule decides; the result is right or an error of ours."""

from __future__ import annotations

import copy
import functools
import time
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from fuzz.mutate import mutated
from ingot import dims
from ingot.errors import IngotError, InputError, MemoryLimitError, OpError, ProgramError, ValueFault
from ingot.ir import OPS, F, Op, Spec, StateSpec, apply
from ingot.ir.text import attrs_json
from ingot.ops import host
from ingot.ops.common import nbytes
from ingot.ops.control import Cond, WhileLoop, branch
from ingot.ops.fused import IDENTITY
from ingot.ops.host import HostCalls
from ingot.ops.lowering import plain
from ingot.ops.panels import pack_panels
from tests.ops.check import make_network, sample, sizes_for

Array = np.ndarray[Any, Any]
Json = Any
WORKING = 8 << 20  # the bound on working memory in these tests
ROUNDS = 12  # mutations of every case
SOME = 6  # cases of an op, or a few more, in `make test`


def program_of(op: Op, operands: tuple[Array, ...], results: tuple[Spec, ...], **symbols: Json) -> Json:
    """A program whose only call is this op as a host call. Symbols: name=(bounds of an unbacked dim)."""
    buffers = [{"kind": "input", "dtype": Spec.of(a).dtype.name, "shape": list(a.shape)} for a in operands]
    buffers += [{"kind": "temp", "dtype": s.dtype.name, "shape": [dims.to_json(d) for d in s.shape]} for s in results]
    count = len(operands)
    call = {
        "host": op.name, "version": op.version, "in": list(range(count)), "out": list(range(count, len(buffers))),
        "params": attrs_json(op), "where": "layer.0", "binds": [d.name for d in op.bound_dims()],
    }  # fmt: skip
    declared = [{"name": n, "min": 0, "max": most, "unbacked": True} for n, most in symbols.items()]
    return {"symbols": declared, "buffers": buffers, "calls": [call]}


def calls_of(cls: type[Op]) -> list[tuple[Json, tuple[Array, ...]]]:
    """A program and operands for every case that the op promises to get right, without states."""
    found = []
    for case in cls.cases:
        if case.error is not None or any(isinstance(s, StateSpec) for s in case.specs):
            continue
        network, _ = make_network(cls, case)
        if not network.nodes:
            continue
        node, sizes = network.nodes[-1], sizes_for(case)
        op = node.op if node.op.binds else node.op.evaluate(sizes)
        arrays = sample(op, case.specs, sizes, 0)
        bound = {d.name: None for d in op.bound_dims()}
        known = {name: size for name, size in sizes.items() if name not in bound}
        specs = tuple(Spec([dims.substitute(d, known) for d in v.spec.shape], v.spec.dtype) for v in node.outputs)
        found.append((program_of(op, arrays, specs, **bound), arrays))
    return found


def run(program: Json, arrays: tuple[Array, ...]) -> list[Array]:
    """What the executor does: the call with its operands, and what the program declares."""
    calls = HostCalls(program)
    call, buffers = program["calls"][0], program["buffers"]
    declared = [(buffers[b]["dtype"], buffers[b]["shape"]) for b in call["out"]]
    return calls(0, [arrays[b].copy() for b in call["in"]], declared, [])


PURE = [name for name, cls in sorted(OPS.items()) if calls_of(cls)]


@pytest.mark.parametrize("name", PURE)
def test_every_op_is_a_host_call_that_its_reference_answers(name: str) -> None:
    for program, arrays in calls_of(OPS[name]):
        results = run(program, arrays)
        op = HostCalls(program)._calls[0].op
        wanted = op.reference(*arrays)
        for got, want in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("name", PURE)
def test_whatever_a_program_says_of_a_host_call(name: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random attributes, shapes, dtypes, operands: results as declared or an error of ours, in little memory and time.

    Every fault is that of the program or of its values: a reference that fails for another reason is a fault of ours.
    """
    monkeypatch.setattr(host, "MAX_WORKING", WORKING)
    rng = np.random.default_rng(list(name.encode()))
    refused = 0
    tracemalloc.start()
    try:
        calls = calls_of(OPS[name])
        for program, arrays in calls if whole else calls[:: 1 + len(calls) // SOME]:
            for _ in range(ROUNDS):
                changed = copy.deepcopy(program)
                call = changed["calls"][0]
                part, other = rng.integers(3), rng.bytes(4 * int(rng.integers(1, 3)))
                if part == 0:
                    call["params"] = mutated(call["params"], other)
                elif part == 1:
                    shapes = mutated([b["shape"] for b in changed["buffers"][len(arrays) :]], other)
                    if not _readable(shapes):
                        continue
                    changed["buffers"][len(arrays) :] = [
                        {**b, "shape": s} for b, s in zip(changed["buffers"][len(arrays) :], shapes, strict=False)
                    ]
                    call["out"] = list(range(len(arrays), len(changed["buffers"])))
                else:
                    order = rng.permutation(len(arrays))[: rng.integers(len(arrays) + 1)]
                    call["in"] = [int(i) for i in order] if len(arrays) > 1 else call["in"] * int(rng.integers(3))
                refused += _survives(changed, arrays)
    finally:
        tracemalloc.stop()
    assert refused > 0


def _readable(shapes: Json) -> bool:
    """Whether the native core, which sees a program first, would read these as shapes."""
    return isinstance(shapes, list) and all(
        isinstance(s, list) and all(type(d) is int and 0 <= d < 1 << 46 for d in s) for s in shapes
    )


def _survives(program: Json, arrays: tuple[Array, ...]) -> bool:
    """Runs; whether it was refused. Asserts that a refusal is typed, and what time and memory a run takes."""
    tracemalloc.reset_peak()
    before, started = tracemalloc.get_traced_memory()[0], time.process_time()
    results: list[Array] = []
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            results = run(program, arrays)
        except IngotError as e:
            error = e
    peak = tracemalloc.get_traced_memory()[1] - before
    assert time.process_time() - started < 20, program
    assert peak < WORKING + 64 * nbytes(*map(Spec.of, (*arrays, *results))) + (4 << 20), (peak, program)
    if error is not None:
        assert error.code != "internal", (error, program)
        assert "layer.0: host call" in str(error) and len(str(error)) < 4000
        return True
    buffers = program["buffers"]
    for got, b in zip(results, program["calls"][0]["out"], strict=True):
        shape = buffers[b]["shape"]
        assert Spec.of(got).dtype.name == buffers[b]["dtype"] and got.ndim == len(shape)
        assert all(isinstance(d, str) or n == d for n, d in zip(got.shape, shape, strict=True))
    return False


def cumsum() -> tuple[Json, tuple[Array, ...]]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    return program_of(OPS["cumsum"](axis=1), (x,), (Spec((3, 4), "float32"),)), (x,)


@pytest.mark.parametrize(
    ("raised", "wanted", "words"),
    [
        (IndexError("index 9"), ValueFault, "cannot take these values: IndexError: index 9"),
        (ZeroDivisionError("by zero"), ValueFault, "ZeroDivisionError"),
        (OverflowError("too large"), ValueFault, "OverflowError"),
        (FloatingPointError("underflow"), ValueFault, "FloatingPointError"),
        (ValueError("shapes"), ValueFault, "ValueError: shapes"),
        (np.exceptions.AxisError(3, 2), ValueFault, "AxisError: axis 3"),
        (OpError("a rule"), ValueFault, "cannot take these values: a rule"),
        (MemoryError(), MemoryLimitError, r"no memory for cumsum\(x=f32\[3, 4\]\)"),
        (ValueFault("index 7 is out of range"), ValueFault, "layer.0: host call cumsum: index 7"),
        (TypeError("None"), IngotError, r"reference of cumsum\(x=f32\[3, 4\]\) failed: TypeError: None"),
        (RecursionError("deep"), IngotError, "RecursionError"),
        (AssertionError("why"), IngotError, "AssertionError"),
        (UserWarning("old"), IngotError, "UserWarning"),
    ],
    ids=repr,
)
def test_whatever_a_reference_raises_is_an_error_of_ours(
    raised: Exception, wanted: type[IngotError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reference(self: Op, x: Array) -> Array:
        raise raised

    monkeypatch.setattr(OPS["cumsum"], "reference", reference)
    with pytest.raises(IngotError, match=words) as caught:
        run(*cumsum())
    assert type(caught.value) is wanted and "layer.0: host call cumsum" in str(caught.value)


def test_a_reference_that_gives_something_else_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (np.zeros((3, 5), np.float32), np.zeros((3, 4)), (), (np.zeros((3, 4), np.float32),) * 2):
        monkeypatch.setattr(OPS["cumsum"], "reference", lambda self, x, wrong=wrong: wrong)
        with pytest.raises(IngotError, match="gave .*, not f32") as caught:
            run(*cumsum())
        assert caught.value.code == "internal"


def test_no_warning_leaves_a_reference() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3e38, 3e38], np.float32)
    program = program_of(OPS["cumsum"](axis=0), (x,), (Spec((5,), "float32"),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(run(program, (x,))[0][1:]).all()


def test_dims_in_attributes_have_their_values_of_the_run() -> None:
    """The second half of x [2·N, 4], at sizes that fit and at two that do not."""
    program: Json = {
        "symbols": [{"name": "N", "min": 0, "max": 64}],
        "buffers": [{"kind": "input", "dtype": "float32", "shape": [["*", 2, "N"], 4]},
                    {"kind": "temp", "dtype": "float32", "shape": ["N", 4]}],
        "calls": [{"host": "slice", "version": 1, "in": [0], "out": [1], "params":
                   {"starts": ["N", 0], "sizes": ["N", 4], "strides": [1, 1]}}],
    }  # fmt: skip
    calls = HostCalls(program)
    for n in (0, 1, 5):
        x = np.arange(8 * n, dtype=np.float32).reshape(2 * n, 4)
        (got,) = calls(0, [x], [("float32", [n, 4])], [("N", n)])
        np.testing.assert_array_equal(got, x[n:])
    with pytest.raises(ProgramError, match=r"gives f32\[5, 4\], the program declares f32\[6, 4\]"):
        calls(0, [x], [("float32", [6, 4])], [("N", 5)])
    with pytest.raises(InputError, match="reaches 11, and x has 10"):
        calls(0, [x], [("float32", [6, 4])], [("N", 6)])


def test_what_has_no_elements_is_made_of_nothing() -> None:
    """Rows of a table [0, 10^9]: the zeros that index -1 chooses would be 4 GB."""
    table, index = np.empty((0, 10**9), np.float32), np.empty(0, np.int32)
    program = program_of(OPS["take"](axis=0), (table, index), (Spec((0, 10**9), "float32"),))
    assert run(program, (table, index))[0].shape == (0, 10**9)


def test_memory_beside_operands_and_results_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of attention: 16 MB for operands of 48 KB. Above the bound they are refused, else right."""
    q, k, v = (np.random.default_rng(i).standard_normal((1, 2000, 2)).astype(np.float32) for i in range(3))
    op = OPS["scaled_dot_product_attention"]()
    program = program_of(op, (q, k, v), (Spec((1, 2000, 2), "float32"),))
    monkeypatch.setattr(host, "MAX_WORKING", 32 << 20)
    with pytest.raises(MemoryLimitError, match="would need .* MiB beside its operands and results"):
        run(program, (q, k, v))
    monkeypatch.setattr(host, "MAX_WORKING", 128 << 20)
    np.testing.assert_array_equal(run(program, (q, k, v))[0], op.reference(q, k, v))
    tracemalloc.start()
    op.reference(q, k, v)
    assert tracemalloc.get_traced_memory()[1] < 1.5 * op.working(*map(Spec.of, (q, k, v)))
    tracemalloc.stop()


FAR = 1 << 18
LONG = ((("input", "float32", 0), *(("neg", "float32", i) for i in range(200))), (200,))
_AT = {"stride": (1,), "pre_padding": (0,), "post_padding": (0,), "dilation": (1,)}


def _lowered(op: str, layout: str, sizes: tuple[int, ...], **attrs: Any) -> Json:
    """A convolution whose kernel reaches far, its weight in a layout."""
    far = {**_AT, "pre_padding": (FAR,), "dilation": (FAR,), "channels_last": True, **attrs}
    return {"inner": OPS[op](**far), "layouts": (*plain(1), (layout, (1,), *sizes)), "epilogue": IDENTITY,
            "dtype": "float32"}  # fmt: skip


# Calls of few operands and results whose references hold large arrays: op, attributes, shapes of the operands.
WASTEFUL: list[tuple[str, Json, list[tuple[int, ...]]]] = [
    ("conv", {"stride": 1, "pre_padding": FAR, "post_padding": 0, "dilation": FAR}, [(1, 4, 1), (2, 4, 2)]),
    ("conv", {"stride": 1, "pre_padding": FAR, "post_padding": 0, "dilation": FAR, "channels_last": True},
     [(1, 1, 4), (2, 4, 2)]),
    ("conv_transpose", {"stride": FAR, "pre_padding": 0, "post_padding": FAR, "dilation": 1}, [(1, 3, 2), (3, 2, 1)]),
    ("conv_transpose", {"stride": FAR, "pre_padding": 0, "post_padding": FAR, "dilation": 1, "channels_last": True},
     [(1, 2, 3), (3, 2, 1)]),
    ("max_pool", {"kernel": 2, "stride": 1, "pre_padding": FAR // 2, "post_padding": FAR // 2 - 1, "dilation": FAR - 1},
     [(1, 4, 1)]),
    ("avg_pool", {"kernel": FAR, "stride": 1, "pre_padding": FAR // 2, "post_padding": FAR // 2 - 1}, [(1, 4, 1)]),
    ("lowered", _lowered("conv", "panels of groups", (2, 4, 2)), [(1, 1, 4), (1, 8, 32)]),
    ("lowered", _lowered("conv", "taps", (4, 1, 2), groups=4), [(1, 1, 4), (2, 4)]),
    ("lowered", _lowered("conv_transpose", "phases", (4, 2, 2)), [(1, 1, 4), (1, 8, 32)]),
    ("lowered", {"inner": OPS["conv"](**_AT), "layouts": plain(2), "epilogue": LONG, "dtype": "float32"},
     [(1, 1, 8000), (2, 1, 1)]),
    ("fused_elementwise", {"expression": LONG, "dtypes": ("float32",)}, [(10_000,)]),
    ("moe", {"top_k": 1}, [(3000, 2), (3000, 1), (500, 2), (500, 2), (2, 500)]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WASTEFUL)), ids=[f"{i}-{w[0]}" for i, w in enumerate(WASTEFUL)])
def test_references_say_how_much_they_hold(number: int) -> None:
    name, attrs, shapes = WASTEFUL[number]
    spatial = {"kernel", "stride", "pre_padding", "post_padding", "dilation"}
    op = OPS[name](**{k: (v,) if k in spatial else v for k, v in attrs.items()})
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    specs = [Spec.of(a) for a in arrays]
    op.infer(*specs)
    tracemalloc.start()
    result = op.reference(*arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak > 1 << 20 and peak > 20 * nbytes(*specs, Spec.of(result)), "it is wasteful"
    assert peak <= 1.2 * op.working(*specs)


def test_a_packed_table_is_not_read_from_its_end() -> None:
    """A negative id is a fault, as in `embedding` and in the kernel."""
    layouts = (("plain", (0,)), ("panels", (1,), 3, 4))
    op = OPS["lowered"](inner=OPS["embedding"](), layouts=layouts)
    table = pack_panels([np.arange(12, dtype=np.float32).reshape(3, 4)])
    for ids in ([2, -1], [3]):
        operands = (np.array(ids, np.int32), table)
        program = program_of(op, operands, (Spec((len(ids), 4), "float32"),))
        with pytest.raises(ValueFault, match=r"index -?\d is out of range 0..2"):
            run(program, operands)


def test_networks_of_many_values_are_weighed_in_time() -> None:
    """What is alive at once is kept count of, not added up anew for every node."""
    count = 20_000

    def wide(a: Any) -> Any:
        made = [F.abs(a) for _ in range(count)]
        return functools.reduce(F.add, made)

    spec = Spec((), "int32")
    network = branch(wide, spec)
    started = time.process_time()
    working = WhileLoop(condition=network, body=network).working(spec)
    assert working == 4 * (count + 1) and time.process_time() - started < 2.5


def _ones(*shape: int, dtype: Any = np.float32) -> Array:
    return np.ones(shape, dtype)


# Calls of few operands and results whose references take hours: op, attributes, operands.
ENDLESS: list[tuple[str, Json, tuple[Array, ...]]] = [
    ("einsum", {"equation": "a,b,c->"}, (_ones(10**4),) * 3),
    ("einsum", {"equation": ",".join("abcdefgh") + "->"}, (_ones(99),) * 8),
    ("matmul", {}, (_ones(6000, 6000, dtype=np.int8),) * 2),
    ("conv", {"stride": (1,), "pre_padding": (0,), "post_padding": (0,), "dilation": (1,)},
     (_ones(1, 1, 1 << 25),) * 2),
    ("conv_transpose", {"stride": (1,), "pre_padding": (0,), "post_padding": (0,), "dilation": (1,)},
     (_ones(1, 1, 1), _ones(1, 1, 1 << 25))),
    ("avg_pool", {"kernel": (1 << 21,), "stride": (1,), "pre_padding": (0,), "post_padding": (0,)},
     (_ones(1, 1, 1 << 22),)),
    ("scaled_dot_product_attention", {"causal": True}, (_ones(1 << 22, 1), _ones(1, 1), _ones(1, 1))),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ENDLESS)), ids=[f"{i}-{w[0]}" for i, w in enumerate(ENDLESS)])
def test_a_call_that_would_take_hours_is_refused(number: int) -> None:
    name, attrs, operands = ENDLESS[number]
    op = OPS[name](**attrs)
    result = op.infer(*map(Spec.of, operands))
    started = time.process_time()
    with pytest.raises(InputError, match=r"layer.0: host call .* would take about \d+ seconds, and gets at most 275"):
        run(program_of(op, operands, (result,)), operands)
    specs = tuple(map(Spec.of, operands))
    inner = branch(lambda *xs: apply(op, xs), *operands)
    assert WhileLoop(condition=inner, body=inner).steps(*specs) > 2 * op.steps(*specs) > 2 * host.MAX_STEPS
    assert Cond(then_branch=inner, else_branch=inner).steps(Spec((), "bool"), *specs) > op.steps(*specs)
    assert time.process_time() - started < 5
