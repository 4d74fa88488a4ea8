"""What every kernel of the CPU costs, by hand: operations on numbers, and the bytes of what it moves."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.backends.cost import Attended, Call, nbytes, size, steps, taps
from ingot.backends.cpu import CPU

STEPS = [["input", "float32", 0], ["silu", "float32", 0], ["input", "float32", 1], ["mul", "float32", 1, 2],
         ["const", "int64", 3], ["wrap", "int64", 4, "int8"]]  # fmt: skip
SILU_MUL = {"steps": STEPS, "outputs": [3]}
THREE_BY_TWO: dict[str, Any] = {"kernel": [3, 2]}


def call(name: str, shapes: str, attended: Attended | None = None, **params: Any) -> Call:
    """Tensors as `bfloat16:2x3`; without a dtype float32."""
    def tensor(text: str) -> tuple[str, tuple[int, ...]]:
        dtype, _, shape = text.rpartition(":")
        return dtype or "float32", tuple(int(n) for n in shape.split("x"))

    given, _, made = shapes.partition("->")
    inputs, outputs = (tuple(map(tensor, part.split())) for part in (given, made))
    return Call(name, params, inputs, outputs, sum(map(nbytes, inputs + outputs)), attended)


# Of each kernel: a call, its operations (None: it only moves), and its bytes where they are not those of all tensors.
COSTS: list[tuple[Call, int | None, int | None]] = [
    (call("elementwise", "5x7 7 -> 5x7", expression=SILU_MUL), 35 * 2, None),
    (call("matmul_packed", "3x40 33x40 -> 3x33", n=33, k=40, parts=1), 2 * 3 * 40 * 33, None),
    (call("matmul_packed", "3x40 66x40 -> 3x33", n=33, k=40, parts=2), 2 * 3 * 40 * 33 * 2, None),
    (call("matmul_packed", "int8:3x64 uint8:2x8x32x4 2x2x32 3x1 -> 3x40", n=40, k=64, parts=1, group=32),
     2 * 3 * 64 * 40, None),
    (call("matmul", "2x3x4 2x4x5 -> 2x3x5"), 2 * 2 * 3 * 5 * 4, None),
    (call("matmul_float64", "float64:3x4 float64:4x5 -> float64:3x5"), 2 * 3 * 5 * 4, None),
    (call("matmul_integer", "int8:3x4 int8:4x5 -> int32:3x5"), 2 * 3 * 5 * 4, None),
    (call("moe", "7x6 7x3 18x6 18x5 -> 7x6", inner=5, top_k=2), 6 * 7 * 6 * 5 * 2, None),
    (call("conv_packed", "1x9x8x6 1x12x10 -> 1x7x7x10", groups=3, **THREE_BY_TWO), 2 * 7 * 7 * 10 * 6 * 2, None),
    (call("conv_transpose_packed", "1x4x5x6 1x6x10 -> 1x9x9x10", groups=2, outputs=10, **THREE_BY_TWO),
     2 * 4 * 5 * 6 * 6 * 5, None),
    (call("conv_depthwise", "1x9x8x6 6x6 -> 1x7x7x6", **THREE_BY_TWO), 2 * 7 * 7 * 6 * 6, None),
    (call("conv_packed", "int8:1x9x8x6 int8:1x9x32x4 -> int8:1x7x7x10", groups=1, **THREE_BY_TWO),
     2 * 7 * 7 * 10 * 6 * 6, None),
    (call("conv_depthwise", "int8:1x9x8x6 int8:6x6 -> int8:1x7x7x6", **THREE_BY_TWO), 2 * 7 * 7 * 6 * 6, None),
    (call("avg_pool", "1x9x8x6 -> 1x7x7x6", **THREE_BY_TWO), 7 * 7 * 6 * 6, None),
    (call("max_pool", "1x9x8x6 -> 1x7x7x6", **THREE_BY_TWO), 7 * 7 * 6 * 6, None),
    (call("adaptive_pool", "1x9x8x6 -> 1x7x7x6", kind="average"), 9 * 8 * 6, None),
    (call("resize", "1x9x8x6 -> 1x7x7x6", mode="cubic"), 7 * 7 * 6 * 2 * 16, None),
    (call("grid_sample", "1x9x8x6 1x7x7x2 -> 1x7x7x6", mode="linear"), 7 * 7 * 6 * 2 * 4, None),
    (call("rms_norm", "5x8 8 -> 5x8"), 4 * 40, None),
    (call("quantize_rows", "5x8 -> int8:5x8 5x1"), 3 * 40, None),
    (call("layer_norm", "5x8 8 -> 5x8"), 7 * 40, None),
    (call("group_norm", "5x8 8 -> 5x8"), 7 * 40, None),
    (call("softmax", "5x8 -> 5x8"), 4 * 40, None),
    (call("reduce", "5x8 -> 5"), 40, None),
    (call("argmax", "5x8 -> int64:5"), 40, None),
    (call("sort", "5x8 -> 5x8 int64:5x8"), 40, None),
    (call("top_k", "5x8 -> 5x2 int64:5x2"), 40, None),
    (call("cumsum", "5x8 -> 5x8"), 40, None),
    (call("cumprod", "5x8 -> 5x8"), 40, None),
    (call("logcumsumexp", "5x8 -> 5x8"), 40, None),
    (call("cummax", "5x8 -> 5x8 int64:5x8"), 40, None),
    (call("cummin", "5x8 -> 5x8 int64:5x8"), 40, None),
    (call("scatter", "100x8 int64:5x8 5x8 -> 100x8"), 40, 2 * 800 * 4 + 40 * 8 + 3 * 40 * 4),
    (call("scatter_nd", "100x8 int64:5x1 5x8 -> 100x8"), 40, 2 * 800 * 4 + 5 * 8 + 3 * 40 * 4),
    (call("gather_nd", "100x8 int64:5x1 -> 5x8"), None, 2 * 40 * 4 + 5 * 8),
    (call("masked_scatter", "5x8 bool:5x8 40 -> 5x8"), None, None),
    (call("bucketize", "5x8 9 -> int64:5x8"), 40, None),
    (call("assertion", "bool:5x8 -> bool:1"), None, None),
    (call("count_nonzero", "5x8 -> int64:1"), 40, None),
    (call("nonzero", "5x8 -> int64:2x9"), 40, None),
    (call("lstm", "5x2x32 32x8 2x8 2x8 32 -> 5x2x8 2x8 2x8"), 2 * 5 * 2 * 32 * 8, None),
    (call("gru", "5x2x24 24x8 2x8 24 -> 5x2x8 2x8"), 2 * 5 * 2 * 24 * 8, None),
    (call("rnn", "5x2x8 8x8 2x8 8 -> 5x2x8 2x8"), 2 * 5 * 2 * 8 * 8, None),
    (call("rnn", "5x2x8 int8:1x2x32x4 8 2x8 8 -> 5x2x8 2x8", scales=True), 2 * 5 * 2 * 8 * 8, None),
    (call("read_sizes", "int64:2 -> int64:2"), None, None),
    (call("sizes_of", "int64:2 -> bool:5x0 bool:3x0"), None, None),
    (call("selective_scan", "2x5x8 2x5x8 8x3 2x5x1x3 2x5x1x3 8 2x8x3 -> 2x5x8 2x8x3"), 7 * 80 * 3, None),
    (call("fft", "5x8x2 -> 5x8x2", axis=1), 5 * 5 * 8 * 3, None),
    (call("rfft", "5x8 -> 5x5x2", axis=1), 5 * 5 * 8 * 3 // 2, None),
    (call("irfft", "5x5x2 -> 5x8", axis=1), 5 * 5 * 8 * 3 // 2, None),
    (call("copy", "5x8 -> 5x8"), None, None),
    (call("bitcast", "5x8 -> int32:5x8"), None, None),
    (call("concat", "5x8 5x2 -> 5x10"), None, None),
    (call("iota", "-> int32:9"), None, None),
    (call("rope_table", "int32:5 4 -> 5x4 5x4"), None, None),
    (call("embedding", "int32:5 bfloat16:1000x8 -> bfloat16:5x8"), None, 2 * 5 * 8 * 2 + 5 * 4),
    (call("take", "100x8 int64:5 -> 5x8"), None, 2 * 5 * 8 * 4 + 5 * 8),
    (call("gather", "100x8 int64:5x8 -> 5x8"), None, 2 * 5 * 8 * 4 + 40 * 8),
    (call("rope", "5x2x8 5x4 5x4 -> 5x2x8"), 3 * 80, None),
    (call("kv_write", "bfloat16:9x2x2x128 bfloat16:5x2x8 bfloat16:5x2x8 int32:5 ->"), None, 2 * 2 * 5 * 2 * 8 * 2),
    (call("kv_write", "int8:9x2x2x320 bfloat16:5x2x8 bfloat16:5x2x8 int32:5 ->"), None, 2 * 5 * 2 * (8 * 2 + 16 + 4)),
    (call("rope_kv_write", "5x4x8 5x2x8 5x2x8 5x4 5x4 int32:5 9x2x2x64 -> 5x4x8"), 3 * (160 + 80),
     2 * 4 * (160 + 80 + 80)),
    (call("attention", "2x4x5x8 2x4x7x8 2x4x7x6 -> 2x4x5x6", causal=False), 2 * 8 * 35 * 14, None),
    (call("attention", "2x1x3x8 2x1x3x8 2x1x3x6 -> 2x1x3x6", causal=True), 2 * 2 * 6 * 14, None),
    (call("attention", "4x3x8 4x3x8 4x3x6 -> 4x3x6", causal=True), 2 * 4 * 6 * 14, None),
    (call("attention", "1x1x2x8 1x1x5x8 1x1x5x8 -> 1x1x2x8", causal=True), 2 * 3 * 16, None),
    (call("attention", "1x1x5x8 1x1x2x8 1x1x2x8 -> 1x1x5x8", causal=True), 2 * (1 + 2 + 2 + 2 + 2) * 16, None),
    (call("attention", "4x5x8 4x7x8 4x7x6 -> 4x5x6", causal=False), 2 * 4 * 35 * 14, None),
    (call("paged_attention", "bfloat16:3x4x8 bfloat16:9x2x2x128 int32:4 int32:3 int32:3x9 -> bfloat16:3x4x8",
          Attended(100, 60)), 4 * 4 * 8 * 100, 2 * 3 * 4 * 8 * 2 + 60 * 2 * 2 * 8 * 2),
    (call("paged_attention", "bfloat16:3x4x8 int8:9x2x2x320 int32:4 int32:3 int32:3x9 -> bfloat16:3x4x8",
          Attended(100, 60)), 4 * 4 * 8 * 100, 2 * 3 * 4 * 8 * 2 + 60 * 2 * 2 * (16 + 4)),
    (call("paged_attention", "3x4x8 9x2x2x128 int32:4 int32:3 int32:3x9 -> 3x4x8"), 0, 2 * 3 * 4 * 8 * 4),
]  # fmt: skip


@pytest.mark.parametrize(("one", "flops", "moved"), COSTS, ids=[one.kernel for one, *_ in COSTS])
def test_costs(one: Call, flops: int | None, moved: int | None) -> None:
    kernel = CPU.by_name[one.kernel]
    assert (None if kernel.flops is None else kernel.flops(one)) == flops
    assert (None if kernel.moved is None else kernel.moved(one)) == moved


def test_the_first_result_of_several() -> None:
    assert call("sort", "3x4 -> 3x4 int64:3x2").y == (3, 4)


def test_every_kernel_has_a_cost() -> None:
    assert {one.kernel for one, *_ in COSTS} == set(CPU.by_name)
    bound = {name for name, kernel in CPU.by_name.items() if kernel.products}
    assert bound == {"matmul_packed", "matmul", "moe", "conv_packed", "conv_transpose_packed", "attention",
                     "paged_attention"}  # fmt: skip


def test_counts() -> None:
    assert (size(()), size((2, 3)), size((2, 0))) == (1, 6, 0)
    assert [nbytes((name, (3, 5))) for name in ("bool", "bfloat16", "int64")] == [15, 30, 120]
    assert nbytes(("int4", (3, 4))) == 6
    assert steps(call("elementwise", "5 -> 5", expression=SILU_MUL)) == 2
    assert taps(call("max_pool", "5 -> 5", kernel=[3, 2, 2])) == 12
    assert (COSTS[0][0].x, COSTS[0][0].y) == ((5, 7), (5, 7))
