"""Every kernel on views of every kind of stride: the numbers of the same call on contiguous copies, or a refusal.

A view keeps the values of an operand and changes how they lie: backwards, with gaps, permuted, repeated (stride 0),
overlapping. What lies in the gaps is NaN or out of range, so that a value read from there shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ingot import _native, dtypes
from tests.kernels.every_kernel import BF16, BIAS, CASES, F16, F32, Case, linear, random
from tests.kernels.support import Array, session

# ---- views


def unreadable(dtype: np.dtype[Any]) -> Any:
    """What a gap holds: a value that spoils whatever it gets into."""
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.nan


def laid_out(a: Array, order: Sequence[int], steps: Sequence[int]) -> Array:
    """The values of a at other places: dimensions in memory in this order, each with its step (negative: backwards)."""
    whole = np.full([a.shape[d] * abs(steps[d]) + 1 for d in order], unreadable(a.dtype), a.dtype)
    places = tuple(slice(1, 1 + n * abs(s), abs(s)) for n, s in zip(a.shape, steps, strict=True))
    backwards = tuple(slice(None, None, -1 if s < 0 else 1) for s in steps)
    view = whole.transpose(np.argsort(order))[places][backwards]
    view[...] = a
    return view


def sliding(a: Array) -> Array:
    """Values of a in windows that overlap: each row begins one element after the one before."""
    flat = np.resize(a, sum(n - 1 for n in a.shape) + 1)
    return np.ndarray(a.shape, a.dtype, flat.copy(), 0, (a.itemsize,) * a.ndim)


def views(a: Array) -> Iterator[tuple[str, Array]]:
    plain, ones = tuple(range(a.ndim)), (1,) * a.ndim
    for d in range(a.ndim):
        for step in (-1, 2, -3):
            yield f"dim {d} by {step}", laid_out(a, plain, (*ones[:d], step, *ones[d + 1 :]))
        if a.size:
            yield f"dim {d} repeated", np.broadcast_to(a.take([0], d), a.shape)
    if a.ndim > 1 and a.size:
        yield "turned", laid_out(a, plain[::-1], ones)
        yield "turned, backwards", laid_out(a, plain[::-1], (-1,) * a.ndim)
        yield "overlapping", sliding(a)
        yield "one value", np.broadcast_to(a[(0,) * a.ndim], a.shape)


def result_layouts(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[tuple[int, ...], int, int]]]:
    """Strides, offset and elements of the buffer of results: with gaps, backwards, permuted."""
    for name, a in views(np.zeros(shape, np.int8)):
        strides = a.strides
        if "repeated" in name or name in ("overlapping", "one value"):
            continue
        low = sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
        high = sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
        yield name, (strides, -low, high - low + 1)


# ---- running


@dataclass
class Maker:
    """Buffers of a program and what is given to it."""

    buffers: list[dict[str, Any]] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)

    def add(self, **buffer: Any) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def array(self, a: Array, stored: bool) -> int:
        """An operand: whole, or a view into what it is a view of."""
        whole = a.copy() if a.flags.c_contiguous else a
        a = whole
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        assert whole.flags.c_contiguous
        offset = (a.__array_interface__["data"][0] - whole.__array_interface__["data"][0]) // max(a.itemsize, 1)
        name, described = f"x.{len(self.buffers)}", {"dtype": a.dtype.name, "shape": [whole.size]}
        if a.dtype == np.bool_:
            described["dtype"] = "bool"
        (self.tensors if stored else self.feeds)[name] = whole.reshape(-1)
        kind = {"kind": "weight", "tensor": name} if stored else {"kind": "input", "name": name}
        base = self.add(**kind, **described)
        strides = [s // a.itemsize for s in a.strides]
        return self.add(kind="view", of=base, shape=list(a.shape), stride=strides, offset=offset)


def run(case: Case, result: tuple[int, int, Any] | None = None, threads: int = 1) -> list[Array]:
    """All results; `result` lays one of them out: (call, number, (strides, offset, elements))."""
    made = Maker()
    calls, first, outputs = [], [], {}
    state = None
    for i, call in enumerate(case):
        operands = []
        for j, operand in enumerate(call.operands):
            if isinstance(operand, str):
                if state is None:
                    cache = {"type": "kv_cache", "heads": 2, "head_dim": 16}
                    state = made.add(kind="state", name="kv", dtype="float32", state=cache)
                operands.append(state)
            else:
                operands.append(first[operand] if isinstance(operand, int) else made.array(operand, j in call.weights))
        written = []
        for number, (dtype, shape) in enumerate(call.results):
            name = np.dtype(dtype).name
            if result is not None and result[:2] == (i, number):
                strides, offset, elements = result[2]
                base = made.add(kind="temp", dtype=name, shape=[elements])
                written.append(made.add(kind="view", of=base, shape=list(shape), stride=list(strides), offset=offset))
                calls += [copy(made, base, name, gap) for gap in gaps(shape, strides, offset, elements)]
            else:
                base = made.add(kind="temp", dtype=name, shape=list(shape))
                written.append(base)
            outputs[f"y.{i}.{number}"] = base
        first.append(written[0] if written else -1)
        calls.append({"kernel": call.kernel, "in": operands, "out": written, "params": call.params})
    options = {"kv_blocks": 3, "kv_block_size": 16} if state is not None else {}
    found = session(made.buffers, calls, outputs, tensors=made.tensors, threads=threads, **options).run(made.feeds)
    results = []
    for name in outputs:
        array = found[name]
        i, number = (int(part) for part in name.split(".")[1:])
        if result is not None and result[:2] == (i, number):
            strides, offset, _ = result[2]
            shape = case[i].results[number][1]
            array = np.lib.stride_tricks.as_strided(array[offset:], shape, [s * array.itemsize for s in strides])
        results.append(np.array(array))
    return results


def gaps(shape: tuple[int, ...], strides: Sequence[int], offset: int, elements: int) -> list[tuple[int, int]]:
    """The runs (offset, length) of a buffer that a view leaves out."""
    taken = np.zeros(elements + 1, bool)
    taken[-1] = True
    np.lib.stride_tricks.as_strided(taken[offset:], shape, strides)[...] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[True], taken])))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def copy(made: Maker, base: int, dtype: str, gap: tuple[int, int]) -> dict[str, Any]:
    """Fills a gap, since every element of a buffer has to be written."""
    offset, length = gap
    source = made.array(np.zeros(length, dtypes.get(dtype).numpy), False)
    part = made.add(kind="view", of=base, shape=[length], stride=[1], offset=offset)
    return {"kernel": "copy", "in": [source], "out": [part]}


def outcome(case: Case, **options: Any) -> list[Array] | str:
    """The results, or the code of the error."""
    try:
        return run(case, **options)
    except _native.Error as error:
        return str(error.code)


# Another order of additions where elements lie otherwise: reductions (reduce.cpp), and products that pack rows.
TOLERANCE = {F32: 2e-5, BF16: 2e-2, F16: 2e-3}


def agree(got: list[Array] | str, want: list[Array] | str, what: str) -> None:
    if isinstance(got, str) or isinstance(want, str):
        assert got == want, what
        return
    for a, b in zip(got, want, strict=True):
        tolerance = TOLERANCE.get(a.dtype, 0)
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=what
        )


def changed(case: Case, i: int, j: int, operand: Array) -> Case:
    operands = [*case[i].operands]
    operands[j] = operand
    return [*case[:i], replace(case[i], operands=operands), *case[i + 1 :]]


@pytest.mark.sampled(4, by=lambda given: given["name"].split()[0])
@pytest.mark.parametrize("name", CASES)
def test_operands(name: str) -> None:
    case = CASES[name]
    assert not isinstance(outcome(case), str), "the case itself runs"
    for i, call in enumerate(case):
        for j, operand in enumerate(call.operands):
            if not isinstance(operand, np.ndarray):
                continue
            for how, view in views(operand):
                got = outcome(changed(case, i, j, view), threads=1 + (i + j) % 2)
                if got != "kernel_refused":
                    want = outcome(changed(case, i, j, np.ascontiguousarray(view)))
                    agree(got, want, f"{call.kernel}, operand {j}: {how}")


@pytest.mark.sampled(12, by=lambda given: given["name"].split()[0])
@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    check_results(CASES[name], 0, FEW_GAPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_results_with_many_gaps(name: str) -> None:
    check_results(CASES[name], FEW_GAPS, 1 << 14)


FEW_GAPS = 600  # a call for each takes more than its share: 4,000 of them 10 s


def check_results(case: Case, least: int, most: int) -> None:
    """Results in layouts with so many gaps."""
    want = outcome(case)
    for i, call in enumerate(case):
        for number, (_, shape) in enumerate(call.results):
            for how, layout in result_layouts(shape):
                if layout[2] > 1 << 14 or not least <= len(gaps(shape, *layout)) < most:
                    continue  # a call for each gap
                got = outcome(case, result=(i, number, layout))
                if got != "kernel_refused":
                    agree(got, want, f"{call.kernel}, result {number}: {how}")


def test_a_long_row_backwards() -> None:
    """A per-column operand read as if it lay forwards would leave its buffer by megabytes."""
    columns = 1 << 20
    case = linear(F32, (2,), columns, 1, BIAS, [random(F32, columns)])
    backwards = laid_out(random(F32, columns), (0,), (-1,))
    agree(run(changed(case, 0, 2, backwards)), run(changed(case, 0, 2, backwards.copy())), "a bias")


def test_every_kernel_is_here() -> None:
    assert {call.kernel for case in CASES.values() for call in case} == {k["name"] for k in _native.kernels()}


READS_ANY: dict[str, Callable[[int], bool]] = {
    "elementwise": lambda operand: True,
    "copy": lambda operand: True,
    "bitcast": lambda operand: True,
    "concat": lambda operand: True,
    "take": lambda operand: True,
    "gather": lambda operand: True,
    "reduce": lambda operand: True,
    "argmax": lambda operand: True,
    "sort": lambda operand: True,
    "top_k": lambda operand: True,
    "cumsum": lambda operand: True,
    "selective_scan": lambda operand: True,
    "fft": lambda operand: True,
    "rfft": lambda operand: True,
    "irfft": lambda operand: True,
    "bucketize": lambda operand: True,
    "cumprod": lambda operand: True,
    "logcumsumexp": lambda operand: True,
    "cummax": lambda operand: True,
    "cummin": lambda operand: True,
    "scatter": lambda operand: True,
    "scatter_nd": lambda operand: True,
    "gather_nd": lambda operand: True,
    "masked_scatter": lambda operand: True,
    "assertion": lambda operand: True,
    "count_nonzero": lambda operand: True,
    "read_sizes": lambda operand: True,
    "sizes_of": lambda operand: True,
    "softmax": lambda operand: True,
    "matmul": lambda operand: True,
    "matmul_float64": lambda operand: True,
    "conv_depthwise": lambda operand: operand >= 2,
    "grid_sample": lambda operand: operand == 1,
}


@pytest.mark.sampled(4, by=lambda given: given["name"].split()[0])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0].kernel in READS_ANY])
def test_what_reads_any_strides_refuses_none(name: str) -> None:
    case = CASES[name]
    for j, operand in enumerate(case[0].operands):
        if READS_ANY[case[0].kernel](j):
            for how, view in views(operand):
                assert outcome(changed(case, 0, j, view)) != "kernel_refused", f"operand {j}: {how}"


@pytest.mark.parametrize(
    "name", ["conv_packed winograd", *(f"matmul_packed strassen {d}" for d in ("float32", "float16", "bfloat16"))]
)
def test_a_window_on_a_weight_that_moves_is_read_anew(name: str) -> None:
    """A kernel that keeps what it made of a constant weight must not do so of a window that moves."""
    case = CASES[name]
    x, panels, *more = case[0].operands
    two = np.concatenate([np.asarray(panels), 2 * np.asarray(panels)])
    count = len(np.asarray(panels))
    made = Maker()
    operands = [made.array(np.asarray(a), False) for a in (x, *more)]
    shift = made.add(kind="input", name="shift", dtype="float32", shape=["S"])
    weight = made.add(kind="weight", tensor="w", dtype=two.dtype.name, shape=list(two.shape))
    size = int(np.asarray(panels).size)
    strides = [s // two.itemsize for s in two.strides]
    moving = made.add(kind="view", of=weight, shape=[count, *two.shape[1:]], stride=strides, offset=["*", "S", size])
    (dtype, shape), unused = case[0].results[0], made.add(kind="temp", dtype="float32", shape=["S"])
    y = made.add(kind="temp", dtype=np.dtype(dtype).name, shape=list(shape))
    calls = [
        {"kernel": "copy", "in": [shift], "out": [unused]},
        {"kernel": case[0].kernel, "in": [operands[0], moving, *operands[1:]], "out": [y], "params": case[0].params},
    ]
    opened = session(made.buffers, calls, {"y": y, "unused": unused}, {"S": 1}, {"w": two}, threads=1)
    for s in (0, 1, 0):
        got = opened.run({**made.feeds, "shift": np.zeros(s, np.float32)})["y"]
        agree([got], run(changed(case, 0, 1, np.asarray(panels) * panels.dtype.type(1 + s))), f"window {s}")
