"""The lowered op: an op of the library as a kernel runs it, its operands in layouts and an epilogue on its results.

There is one for all of them: its rule, its reference and its torch form unpack what is stored and ask the op inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from operator import is_not
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.expr import evaluate
from ingot.ir.op import infer
from ingot.ir.spec import elements
from ingot.ops.common import Array, bf16, f16, f32, i8, i32, rounded, show, u8
from ingot.ops.conversion import Dequantize
from ingot.ops.fused import (
    FIVE,
    IDENTITY,
    JOINED,
    PLUS,
    RELU_PLUS,
    REQUANTISED,
    SCALED,
    SILU_MUL,
    TIMES,
    TWICE,
    check_types,
    checked,
    expr_json,
)
from ingot.ops.indexing import Embedding
from ingot.ops.layouts import LAYOUTS, PLAIN, Entry, entry
from ingot.ops.mixture import Moe
from ingot.ops.norm import GroupNorm
from ingot.ops.product import Matmul
from ingot.ops.recurrent import Gru, Lstm, Recurrent, Rnn
from ingot.ops.spatial import Conv, ConvTranspose, at

WITH_EPILOGUE = (Conv, ConvTranspose, GroupNorm, Matmul)
WITHOUT = (Embedding, Moe, Recurrent)
SUMS = (Conv, ConvTranspose, Matmul)
BYTES = (dtypes.int8, dtypes.uint8)  # what an epilogue may quantise to
FINISHED = (*dtypes.PRECISIONS, *BYTES)  # what one may end in
MOST_INT8 = 2**31 // 128**2 - 1  # products of int8 whose sum always fits into int32
INT4_GROUPS = (32, 64, 128)  # values of int4 that share a scale, where a product reads them as they are
MOST_TAPS = 1024  # products of int8 whose sum float32 holds: those of a channel by itself
PRODUCT = Matmul(transpose_b=True)  # of rows with a weight [outputs, inputs]


def at_places(*places: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The layouts of operands that lie as they are."""
    return tuple((PLAIN, (i,)) for i in places)


def plain(count: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Those of the first so many operands."""
    return at_places(*range(count))


# Of the cases below:
X, GROUPS = (PLAIN, (0,)), "panels of groups"


def _with(inner: Op, *layouts: Any, epilogue: Any = IDENTITY, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    return {"inner": inner, "layouts": layouts, "epilogue": epilogue, "dtype": dtype, **more}


def _conv(rank: int = 2, **attrs: Any) -> Op:
    return Conv(**at(rank, **{"pre": 1, **attrs}), channels_last=True)


def _up(rank: int = 2, **attrs: Any) -> Op:
    return ConvTranspose(**at(rank, **attrs), channels_last=True)


def _norm(groups: int, eps: float = 1e-5) -> Op:
    return GroupNorm(groups=groups, eps=eps, channels_last=True)


@op("lowered")
class Lowered(Op):
    """The op `inner`, its operands stored as `layouts` say, and `epilogue` of its result and of further operands.

    A layout is (its name, the operands that it holds, its sizes…); ("plain", (i,)) is operand i itself. With an
    epilogue `inner` computes in float32 and nothing is rounded before the epilogue's result, of type `dtype`; of int8
    with int8 it sums exactly, and the epilogue reads the sums as float32, rounded once (of int8 with int4 those of each
    group, which are scaled and added in float32). The result of sums may be int8
    or uint8, which the epilogue makes. Its further operands are per channel, like the result, one number (of sums), or
    one for each row or place (of a product or a convolution). `parts`: `inner` runs so often, on the first operand and,
    each time, on the next of the others; the epilogue reads all results. `group`: a weight is int4 followed by its
    scales, float32 or float16, one for so many neighbours of a row.
    `outside`: the number that lies around int8 x of a convolution, in the place of 0 (its zero point).
    """

    inner: Op
    layouts: tuple  # type: ignore[type-arg]
    epilogue: tuple | None = None  # type: ignore[type-arg]
    dtype: DType | None = None
    parts: int = 1
    group: int = 0
    outside: int = 0
    version = 2  # 1 had no `outside`
    reads_back = True
    cases = (
        # ------------------------------------------------------------------------------------------------- products
        Case("one product", (f32("T", 6), f32(2, 6, 32)), _with(PRODUCT, X, ("panels", (1,), 40, 6))),
        Case("bfloat16, odd K", (bf16(3, 5), bf16(1, 3, 32, 2)), _with(PRODUCT, X, ("panels", (1,), 8, 5))),
        Case("gate and up", (bf16(3, 6), bf16(2, 3, 32, 2)),
             _with(PRODUCT, X, ("panels", (1, 2), 5, 6), epilogue=SILU_MUL, dtype="bfloat16", parts=2)),
        Case("a residual, of three dims", (bf16(2, 3, 6), bf16(1, 3, 32, 2), bf16(2, 3, 5)),
             _with(PRODUCT, X, ("panels", (1,), 5, 6), epilogue=PLUS, dtype="bfloat16")),
        Case("an epilogue that reads nothing", (f32(3, 6), f32(1, 6, 32)),
             _with(PRODUCT, X, ("panels", (1,), 5, 6), epilogue=FIVE)),
        Case("int8 and its scales", (bf16("T", 6), i8(2, 2, 32, 4), f32(40)),
             _with(PRODUCT, X, ("panels", (1,), 40, 6), epilogue=TIMES, dtype="bfloat16")),
        Case("int8 beside float32", (f32("T", 6), i8(4, 2, 32, 4)),
             _with(PRODUCT, X, ("panels", (1, 2), 40, 6), epilogue=SILU_MUL, parts=2)),
        Case("int4 in groups", (f16("T", 64), u8(2, 8, 32, 4), f32(2, 2, 32)),
             _with(PRODUCT, X, ("panels", (1,), 40, 64), ("panels", (2,), 40, 2), dtype="float16", group=32)),
        Case("int4 in groups, scales of 16 bits", (bf16("T", 64), u8(2, 8, 32, 4), f16(2, 2, 32)),
             _with(PRODUCT, X, ("panels", (1,), 40, 64), ("panels", (2,), 40, 2), dtype="bfloat16", group=32)),
        Case("rows of int8, a scale for each and for each output", (i8("T", 6), i8(2, 2, 32, 4), f32(40), f32("T", 1)),
             _with(PRODUCT, X, ("panels", (1,), 40, 6), epilogue=SCALED, dtype="bfloat16")),
        Case("rows of int8 with two weights", (i8(3, 6), i8(4, 2, 32, 4)),
             _with(PRODUCT, X, ("panels", (1, 2), 40, 6), epilogue=SILU_MUL, parts=2)),
        Case("rows of int8 with int4 in groups", (i8("T", 64), u8(2, 8, 32, 4), f32(2, 2, 32), f32("T", 1)),
             _with(PRODUCT, X, ("panels", (1,), 40, 64), ("panels", (2,), 40, 2), epilogue=TIMES, dtype="bfloat16",
                   group=32)),
        Case("rows of int8 with groups of 8", (i8("T", 16), u8(2, 2, 32, 4), f32(2, 2, 32)),
             _with(PRODUCT, X, ("panels", (1,), 40, 16), ("panels", (2,), 40, 2), group=8),
             host="its groups are 32, 64 or 128"),
        Case("two of int4", (bf16("T", 64), u8(4, 8, 32, 4), f32(4, 2, 32), bf16("T", 40)),
             _with(PRODUCT, X, ("panels", (1, 3), 40, 64), ("panels", (2, 4), 40, 2), dtype="bfloat16", parts=2,
                   group=32, epilogue=((*SILU_MUL[0], ("input", "float32", 2), ("add", "float32", 3, 4)), (5,)))),
        Case("int4 in groups of 8", (f16("T", 16), u8(2, 2, 32, 4), f32(2, 2, 32)),
             _with(PRODUCT, X, ("panels", (1,), 40, 16), ("panels", (2,), 40, 2), dtype="float16", group=8),
             host="its groups are 32, 64 or 128"),
        Case("a weight that is not packed", (f32("T", 6), f32(5, 6)), _with(PRODUCT, *plain(2)),
             host="the kernel reads panels"),
        # ------------------------------------------------------------------------------------------ tables, experts
        Case("a tied table", (i32("T"), bf16(2, 3, 32, 2)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 40, 6))}),
        Case("a table of integers", (i32("T"), i8(2, 2, 32, 4)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 40, 6))}),
        Case("two of three experts", (f32("T", 6), f32("T", 3), f32(6, 6, 32), f32(3, 5, 32)),
             {"inner": Moe(top_k=2), "layouts": (
                 *plain(2), ("panels of experts", (2, 3, 4, 5, 6, 7), 5, 6, 3),
                 ("panels of experts", (8, 9, 10), 6, 5, 3))}),
        Case("experts in bfloat16", (bf16(4, 5), f32(4, 2), bf16(8, 3, 32, 2), bf16(2, 20, 32, 2)),
             {"inner": Moe(top_k=1, normalize=False, activation="gelu"), "layouts": (
                 *plain(2), ("panels of experts", (2, 3, 4, 5), 40, 5, 2),
                 ("panels of experts", (6, 7), 5, 40, 2))}),
        Case("experts of int8", (bf16("T", 6), f32("T", 2), i8(4, 2, 32, 4), f32(20), i8(2, 2, 32, 4), f32(12)),
             {"inner": Moe(top_k=1), "layouts": (
                 *plain(2), ("scaled panels of experts", (2, 3, 4, 5), 5, 6, 2, 6),
                 ("scaled panels of experts", (6, 7), 6, 5, 2, 5))}),
        Case("gates and ups of int4, downs of int8",
             (f32(3, 64), f32(3, 2), u8(8, 8, 32, 4), f32(8, 2, 32), i8(4, 10, 32, 4), f32(128)),
             {"inner": Moe(top_k=2), "layouts": (
                 *plain(2), ("scaled panels of experts", (2, 3, 4, 5), 40, 64, 2, 32),
                 ("scaled panels of experts", (6, 7), 64, 40, 2, 40))}),
        Case("gates and ups of floats, downs of int4 with scales of 16 bits",
             (f16(3, 6), f32(3, 2), f16(8, 6, 32), u8(2, 8, 32, 4), f16(2, 2, 32)),
             {"inner": Moe(top_k=2), "layouts": (
                 *plain(2), ("panels of experts", (2, 3, 4, 5), 64, 6, 2),
                 ("scaled panels of experts", (6, 7), 6, 64, 2, 32))}),
        Case("gates and ups of int4 with zero points, downs of int8",
             (bf16("T", 64), f32("T", 2), u8(8, 8, 32, 4), f16(8, 2, 32), f32(8, 2, 32), i8(4, 10, 32, 4), f32(128)),
             {"inner": Moe(top_k=2), "layouts": (
                 *plain(2), ("shifted panels of experts", (2, 3, 4, 5), 40, 64, 2, 32),
                 ("scaled panels of experts", (6, 7), 64, 40, 2, 40))}),
        Case("gates and ups of int8, downs of int4, all with zero points",
             (f32(3, 6), f32(3, 2), i8(8, 2, 32, 4), f32(256), f32(8, 1, 32), u8(2, 8, 32, 4), f32(2, 2, 32),
              f32(2, 2, 32)),
             {"inner": Moe(top_k=1), "layouts": (
                 *plain(2), ("shifted panels of experts", (2, 3, 4, 5), 64, 6, 2, 6),
                 ("shifted panels of experts", (6, 7), 6, 64, 2, 32))}),
        Case("experts of float8 with zero points",
             (f32(3, 6), f32(3, 1), Spec((2, 2, 32, 4), "float8_e4m3fn"), f32(10), f32(2, 1, 32), f32(1, 5, 32)),
             {"inner": Moe(top_k=1), "layouts": (
                 *plain(2), ("shifted panels of experts", (2, 3), 5, 6, 1, 6),
                 ("panels of experts", (4,), 6, 5, 1))}, error="must be int8"),
        Case("experts of int8 in groups",
             (f32(3, 64), f32(3, 1), i8(4, 16, 32, 4), f32(4, 2, 32), f32(2, 40, 32)),
             {"inner": Moe(top_k=1), "layouts": (
                 *plain(2), ("scaled panels of experts", (2, 3), 40, 64, 1, 32),
                 ("panels of experts", (4,), 64, 40, 1))}, error="int8 has one scale for each output"),
        # -------------------------------------------------------------------------------------------- recurrent layers
        Case("an LSTM with a projection and lengths", (
            f32("T", 3, 140), f32(8, 3, 32), f32(3, 3), f32(3, 35), f32(140), i32(3), f32(1, 35, 32)),
             {"inner": Lstm(), "layouts": (X, ("panels of gates", (1,), 140, 3), *at_places(2, 3, 4, 5),
                                           ("panels", (6,), 3, 35))}),
        Case("a GRU backwards in bfloat16", (bf16(5, 2, 9), bf16(3, 2, 32, 2), bf16(2, 3), bf16(9)),
             {"inner": Gru(reverse=True),  # type: ignore[call-arg]
              "layouts": (X, ("panels of gates", (1,), 9, 3), *at_places(2, 3))}),
        Case("an RNN in float16", (f16(5, 2, 40), f16(2, 40, 32), f16(2, 40), f16(40)),
             {"inner": Rnn(activation="relu"), "layouts": (X, ("panels of gates", (1,), 40, 40), *at_places(2, 3))}),
        Case("an LSTM of int8 with a projection and lengths", (
            f32("T", 3, 140), i8(8, 1, 32, 4), f32(140), f32(3, 3), f32(3, 35), f32(140), i32(3), f32(1, 35, 32)),
             {"inner": Lstm(), "layouts": (X, ("scaled panels of gates", (1,), 140, 3), *at_places(2, 3, 4, 5),
                                           ("panels", (6,), 3, 35))}),
        Case("a GRU of int8 in bfloat16, the state reset before the product", (
            bf16(5, 2, 15), i8(3, 2, 32, 4), f32(15), bf16(2, 5), bf16(15)),
             {"inner": Gru(reset_after=False),
              "layouts": (X, ("scaled panels of gates", (1,), 15, 5), *at_places(2, 3))}),
        # --------------------------------------------------------------------------------------------- convolutions
        Case("3×3, two panels", (f32("T", 5, 6, 4), f32(2, 36, 32)), _with(_conv(), X, (GROUPS, (1,), 40, 4, 3, 3))),
        Case("bfloat16, odd K, bias and relu", (bf16(2, 5, 5, 3), bf16(1, 14, 32, 2), bf16(8)),
             _with(_conv(stride=2), X, (GROUPS, (1,), 8, 3, 3, 3), epilogue=RELU_PLUS, dtype="bfloat16")),
        Case("a panel per group", (f32(2, 9, 6), f32(2, 9, 32)),
             _with(_conv(1, dilation=2, groups=2), X, (GROUPS, (1,), 4, 3, 3))),
        Case("three dims, residual", (f16(1, 3, 4, 3, 2), f16(1, 54, 32), f16(1, 3, 4, 3, 5)),
             _with(_conv(3), X, (GROUPS, (1,), 5, 2, 3, 3, 3), epilogue=PLUS, dtype="float16")),
        Case("uneven padding", (f16(1, 4, 3, 5, 2), f16(1, 24, 32), f16(1, 4, 2, 4, 3)),
             _with(_conv(3, pre=(1, 0, 0)), X, (GROUPS, (1,), 3, 2, 3, 2, 2), epilogue=PLUS, dtype="float16")),
        Case("nothing in the batch", (f32(0, 4, 4, 2), f32(1, 18, 32)), _with(_conv(), X, (GROUPS, (1,), 3, 2, 3, 3))),
        Case("unknown sizes", (f32(1, "S", "T", 2), f32(1, 18, 32)),
             _with(_conv(stride=2), X, (GROUPS, (1,), 3, 2, 3, 3))),
        Case("int8, strided", (i8(2, 9, 7, 3), i8(1, 7, 32, 4), f32(8)),
             _with(_conv(stride=2), X, (GROUPS, (1,), 8, 3, 3, 3), epilogue=TIMES)),
        Case("int8 around which its zero point lies, to int8", (i8(2, 5, 6, 3), i8(2, 7, 32, 4), f32(40), f32(40)),
             _with(_conv(), X, (GROUPS, (1,), 40, 3, 3, 3), epilogue=REQUANTISED, dtype="int8", outside=-7)),
        Case("int8 in groups with a residual of uint8, to uint8", (
            i8(1, 5, 4, 6), i8(2, 7, 32, 4), f32(8), f32(8), u8(1, 5, 4, 8)),
             _with(_conv(groups=2), X, (GROUPS, (1,), 8, 3, 3, 3), epilogue=JOINED, dtype="uint8", outside=3)),
        Case("int8, every channel by itself, to int8", (i8(2, 7, 6, 37), i8(9, 37), f32(37), f32(37)),
             _with(_conv(stride=2, groups=37), X, ("taps", (1,), 37, 1, 3, 3), epilogue=REQUANTISED, dtype="int8",
                   outside=100)),
        Case("rows of int8, to int8", (i8("T", 6), i8(2, 2, 32, 4), f32(40), f32(40)),
             _with(PRODUCT, X, ("panels", (1,), 40, 6), epilogue=REQUANTISED, dtype="int8")),
        Case("every channel by itself", (f32("T", 5, 6, 4), f32(9, 4)),
             _with(_conv(groups=4), X, ("taps", (1,), 4, 1, 3, 3))),
        Case("the same, bias and relu, strided", (bf16(2, 7, 6, 5), bf16(9, 5), bf16(5)),
             _with(_conv(stride=2, groups=5), X, ("taps", (1,), 5, 1, 3, 3), epilogue=RELU_PLUS, dtype="bfloat16")),
        Case("the same, one dim, dilated, residual", (f32(2, 9, 3), f32(3, 3), f32(2, 7, 3)),
             _with(_conv(1, dilation=2, groups=3), X, ("taps", (1,), 3, 1, 3), epilogue=PLUS)),
        Case("the same, three dims", (f16(1, 3, 4, 3, 2), f16(27, 2)),
             _with(_conv(3, groups=2), X, ("taps", (1,), 2, 1, 3, 3, 3))),
        Case("every channel by itself, twice", (f32(2, 5, 6, 4), f32(9, 8)),
             _with(_conv(groups=4), X, ("taps", (1,), 8, 1, 3, 3)), host="the kernel has one output a channel"),
        # --------------------------------------------------------------------------------- transposed convolutions
        Case("3×3 by 2, one more output", (f32("T", 3, 4, 4), *(f32(1, 4 * n, 32) for n in (1, 2, 2, 4))),
             _with(_up(stride=2, pre=1, post=0), X, ("phases", (1,), 4, 5, 3, 3))),
        Case("2×2 by 2, bias and relu", (bf16(2, 3, 3, 3), *[bf16(1, 2, 32, 2)] * 4, bf16(8)),
             _with(_up(stride=2), X, ("phases", (1,), 3, 8, 2, 2), epilogue=RELU_PLUS, dtype="bfloat16")),
        Case("int8 by 2, to int8", (i8(2, 3, 4, 4), *(i8(1, n, 32, 4) for n in (1, 2, 2, 4)), f32(5), f32(5)),
             _with(_up(stride=2, pre=1, post=0), X, ("phases", (1,), 4, 5, 3, 3), epilogue=REQUANTISED, dtype="int8")),
        Case("phases without taps", (f32(1, 4, 2), f32(1, 2, 32)),
             _with(_up(1, stride=3, post=-1), X, ("phases", (1,), 2, 3, 1), epilogue=TWICE)),
        Case("more outputs than anything reaches, on both sides", (f32(1, 4, 2), *[f32(1, 2, 32)] * 2),
             _with(_up(1, stride=2, pre=-3, post=-5), X, ("phases", (1,), 2, 3, 2))),
        Case("groups, dilated", (f32(2, 5, 6), f32(2, 9, 32)),
             _with(_up(1, pre=1, dilation=2, groups=2), X, ("phases", (1,), 6, 2, 3))),
        # --------------------------------------------------------------------------------------------- group norms
        Case("weight and bias", (f32("T", 3, 4, 6), f32(6), f32(6)), _with(_norm(3), *plain(3))),
        Case("bfloat16 with an operand", (bf16(2, 3, 4, 6), bf16(6), bf16(6), bf16(2, 3, 4, 6)),
             _with(_norm(2), *plain(3), epilogue=RELU_PLUS, dtype="bfloat16")),
        Case("neither, one spatial dim", (f32(2, 5, 4),), _with(_norm(1, 1e-3), X)),
        Case("weight alone, no spatial dims", (f32(2, 8), f32(8)), _with(_norm(4), *plain(2))),
        Case("to int8", (bf16(2, 3, 8), bf16(8), f32(8), f32(8)),
             _with(_norm(4), *plain(2), epilogue=REQUANTISED, dtype="int8")),
        # ------------------------------------------------------------------------------------------- what is refused
        Case("not packed", (f32(3, 6), f32(5, 6)), _with(PRODUCT, X, ("panels", (1,), 5, 6)),
             error=r"must be float32\[1, 6, 32\]"),
        Case("dtypes differ", (f32(3, 6), bf16(1, 3, 32, 2)), _with(PRODUCT, X, ("panels", (1,), 5, 6)),
             error="a is float32 and b is bfloat16"),
        Case("int4 without scales", (f32(3, 8), u8(1, 1, 32, 4)), _with(PRODUCT, X, ("panels", (1,), 5, 8)),
             error="a is float32 and b is int4"),
        Case("scales of too few groups", (f32(3, 16), u8(1, 2, 32, 4), f32(1, 1, 32)),
             _with(PRODUCT, X, ("panels", (1,), 5, 16), ("panels", (2,), 5, 1), group=8),
             error=r"scale must be \(5, 2\)"),
        Case("scales in bfloat16", (f32(3, 64), u8(2, 8, 32, 4), bf16(2, 1, 32, 2)),
             _with(PRODUCT, X, ("panels", (1,), 40, 64), ("panels", (2,), 40, 2), group=32),
             error="of float32 or float16"),
        Case("scales of nothing", (f32(3, 16), u8(1, 2, 32, 4)), _with(PRODUCT, X, ("panels", (1,), 5, 16), group=8),
             error="a weight and its scales"),
        Case("parts of different sizes", (f32(3, 6), f32(1, 6, 32), f32(1, 6, 32)),
             _with(PRODUCT, X, ("panels", (1,), 5, 6), ("panels", (2,), 4, 6), epilogue=SILU_MUL, parts=2),
             error="parts must agree"),
        Case("a column for the epilogue", (f32(3, 6), f32(1, 6, 32), f32(3, 1)),
             _with(PRODUCT, X, ("panels", (1,), 5, 6), epilogue=PLUS)),
        Case("a number for each place, for the epilogue of a convolution",
             (f32(1, 4, 4, 2), f32(1, 18, 32), f32(1, 4, 4, 1)),
             _with(_conv(), X, (GROUPS, (1,), 3, 2, 3, 3), epilogue=PLUS)),
        Case("the same where every channel is convolved by itself", (f32(2, 5, 6, 4), f32(9, 4), f32(2, 5, 6, 1)),
             _with(_conv(groups=4), X, ("taps", (1,), 4, 1, 3, 3), epilogue=PLUS)),
        Case("one number for the epilogue of a product", (i8(3, 6), i8(1, 2, 32, 4), f32()),
             _with(PRODUCT, X, ("panels", (1,), 5, 6), epilogue=TIMES)),
        Case("of a convolution", (f32(1, 4, 4, 2), f32(1, 18, 32), f32()),
             _with(_conv(), X, (GROUPS, (1,), 3, 2, 3, 3), epilogue=PLUS)),
        Case("of every channel by itself", (f32(2, 5, 6, 4), f32(9, 4), f32()),
             _with(_conv(groups=4), X, ("taps", (1,), 4, 1, 3, 3), epilogue=PLUS)),
        Case("of a transposed convolution", (bf16(2, 3, 3, 3), *[bf16(1, 2, 32, 2)] * 4, f32()),
             _with(_up(stride=2), X, ("phases", (1,), 3, 8, 2, 2), epilogue=PLUS, dtype="bfloat16")),
        Case("a column for the epilogue of a transposed convolution",
             (bf16(2, 3, 3, 3), *[bf16(1, 2, 32, 2)] * 4, f32(2, 6, 6, 1)),
             _with(_up(stride=2), X, ("phases", (1,), 3, 8, 2, 2), epilogue=PLUS, dtype="bfloat16"),
             error="operand of the epilogue must be"),
        Case("rows of int8 by floats", (i8(3, 6), f32(1, 6, 32)), _with(PRODUCT, X, ("panels", (1,), 5, 6)),
             error="int8 is multiplied with int8 or groups of int4, not float32"),
        Case("more of int8 than int32 holds", (i8(3, 131072), i8(1, 32768, 32, 4)),
             _with(PRODUCT, X, ("panels", (1,), 5, 131072)), error="at most 131071 products of int8"),
        Case("an epilogue on rows of a table", (i32(3), f32(1, 6, 32)),
             _with(Embedding(), X, ("panels", (1,), 5, 6)), error="embedding has no epilogue"),
        Case("a product without an epilogue", (f32(3, 6), f32(1, 6, 32)),
             {"inner": PRODUCT, "layouts": (X, ("panels", (1,), 5, 6))}, error="needs an epilogue"),
        Case("scales of other outputs", (f32(5, 2, 40), i8(2, 10, 32, 4), f32(64), f32(2, 40), f32(40)),
             {"inner": Rnn(), "layouts": (X, ("scaled panels of gates", (1,), 40, 40), *at_places(2, 3))},
             error=r"must be float32\[40\]"),
        Case("scales of floats", (f32(5, 2, 40), f32(2, 40, 32), f32(40), f32(2, 40), f32(40)),
             {"inner": Rnn(), "layouts": (X, ("scaled panels of gates", (1,), 40, 40), *at_places(2, 3))},
             error=r"must be int8\[2, 10, 32, 4\]"),
        Case("rows of 4 bits", (i32(4), u8(2, 1, 32, 4)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 40, 6))}, error="rows of int4 are no tensor"),
        Case("an operand twice", (f32(3, 6), f32(1, 6, 32)), _with(PRODUCT, X, ("panels", (0,), 5, 6)),
             error="each operand once"),
        Case("no such layout", (f32(3, 6), f32(1, 6, 32)), _with(PRODUCT, X, ("rows", (1,), 5, 6)),
             error="there is no layout"),
        Case("a layout of another op", (f32(3, 6), f32(1, 6, 32)), _with(PRODUCT, X, (GROUPS, (1,), 5, 6, 1)),
             error="matmul has no operands in panels of groups"),
        Case("too few sizes", (i32(3), f32(1, 6, 32)),
             {"inner": Embedding(), "layouts": (X, ("panels", (1,), 5))}, error="takes 2 sizes"),
        Case("weight of another kernel", (f32(1, 4, 4, 2), f32(1, 8, 32)),
             _with(_conv(), X, (GROUPS, (1,), 3, 2, 3, 3)), error=r"must be float32\[1, 18, 32\]"),
        Case("another number of channels", (f32(1, 4, 4, 2), f32(9, 3)),
             _with(_conv(groups=2), X, ("taps", (1,), 2, 1, 3, 3)), error=r"must be float32\[9, 2\]"),
        Case("a phase is missing", (f32(1, 4, 2), f32(1, 2, 32)),
             _with(_up(1, stride=2, pre=1), X, ("phases", (1,), 2, 3, 3)), error="needs 3 operands, got 2"),
        Case("something around floats", (f32(1, 4, 4, 2), f32(1, 18, 32)),
             _with(_conv(), X, (GROUPS, (1,), 3, 2, 3, 3), outside=1), error="only around int8 x of a convolution"),
        Case("phases without end", (f32(1, 4, 2), f32(1, 2, 32)),
             _with(_up(1, stride=2**31 - 1), X, ("phases", (1,), 2, 3, 1)), error="too large for phases"),
        Case("padding that takes all", (f32(1, 1, 2), f32(1, 6, 32)),
             _with(_up(1, pre=2), X, ("phases", (1,), 2, 3, 3)), error="it must be at least 1"),
    )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------ operands
    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """`layouts`, checked."""
        require(isinstance(self.inner, WITH_EPILOGUE + WITHOUT), f"{self.inner.name} has no lowered form")
        return tuple(entry(self.inner, given) for given in self.layouts)

    @cached_property
    def _checked(self) -> tuple[Any, ...]:
        return checked(self.epilogue or ())

    @cached_property
    def held(self) -> int:
        """How many operands the layouts speak of: those before what the epilogue alone reads."""
        return sum(found.arrays for found in self.entries)

    @property
    def packed(self) -> bool:
        """Whether an operand lies otherwise than plain."""
        return any(found.layout != PLAIN for found in self.entries)

    def entry_of(self, number: int) -> Entry | None:
        """What operand `number` is a part of; None for one of the epilogue."""
        each = [found for found in self.entries for _ in range(found.arrays)]
        return each[number] if number < len(each) else None

    def unpacked(self, operands: Sequence[Any], read: Any) -> list[Any]:
        """The plain operands in order, as `read(entry, what is stored of it)` gives them."""
        found: dict[int, Any] = {}
        number = 0
        for one in self.entries:
            found |= zip(one.places, read(one, operands[number : number + one.arrays]), strict=True)
            number += one.arrays
        listed = sum(len(one.places) for one in self.entries)
        require(sorted(found) == list(range(listed)), "layouts hold each operand once, the first ones")
        return [found[i] for i in range(listed)]

    def runs(self, operands: Sequence[Any]) -> list[Sequence[Any]]:
        """The plain operands of each run of `inner`."""
        first, *others = operands
        require(self.parts in (1, 2) and len(others) % self.parts == 0,
                f"{len(others)} operands do not split into {self.parts} parts: 1 or 2 of them, of equal numbers")
        each = len(others) // self.parts
        require(not self.group or each == 2, "with groups each part is a weight and its scales")
        return [(first, *others[i * each : (i + 1) * each]) for i in range(self.parts)]

    # ---------------------------------------------------------------------------------------------------------- rule
    def infer(self, *operands: Spec) -> Spec | tuple[Spec, ...]:
        """The rule. A network is verified more than once; the very same specs are answered at once."""
        known, found = self.__dict__.get("_answer", ((), None))
        if found is None or len(known) != len(operands) or any(map(is_not, known, operands)):
            found = self._ruled(operands)
            self.__dict__["_answer"] = operands, found
        return found  # type: ignore[no-any-return]

    def _ruled(self, operands: tuple[Spec, ...]) -> Spec | tuple[Spec, ...]:
        results = self._results(self._specs(operands))
        result, extras = results[0], operands[self.held :]
        if self.epilogue is None or self.dtype is None:
            require(self.epilogue is None and self.dtype is None, "an epilogue and its dtype belong together")
            require(isinstance(self.inner, WITHOUT), f"{self.inner.name} needs an epilogue")
            require(self.parts == 1 and not self.group and not extras, "parts, groups and more operands need one")
            require(result.dtype is not dtypes.int4, "rows of int4 are no tensor that an engine has")
            return results
        require(isinstance(self.inner, WITH_EPILOGUE), f"{self.inner.name} has no epilogue")
        require(result.dtype in dtypes.PRECISIONS, f"x must be float32, bfloat16 or float16, not {result.dtype.name}")
        named = " or ".join(d.name for d in FINISHED)
        require(self.dtype in FINISHED, f"the result may be {named}, not {self.dtype.name}")
        self._check_outside(operands[0].dtype)
        read = [dtypes.float32] * self.parts + [extra.dtype for extra in extras]
        check_types(self._checked, read, [self.dtype])
        shapes = self.epilogue_shapes(result.shape)
        for extra in extras:
            require(extra.shape in shapes,
                    f"an operand of the epilogue must be {' or '.join(map(show, shapes))}, not {show(extra.shape)}")
        return Spec(result.shape, self.dtype)

    def _check_outside(self, x: DType) -> None:
        around = isinstance(self.inner, Conv) and x is dtypes.int8 and -128 <= self.outside <= 127
        require(not self.outside or around, "only around int8 x of a convolution lies another int8 than 0")

    def epilogue_shapes(self, result: tuple[Dimension, ...]) -> tuple[tuple[Dimension, ...], ...]:
        """The shapes of what the epilogue alone reads: a number for each channel, for each row or place of sums, for
        both, or one."""
        places = ((*result[:-1], 1),) if isinstance(self.inner, Conv | Matmul) else ()
        return (result[-1:], *places, *(((),) if isinstance(self.inner, SUMS) else ()), result)

    def _specs(self, operands: Sequence[Spec]) -> list[tuple[Spec, ...]]:
        """The operands of each run of `inner`; OpError where a stored one is not what its layout says."""
        require(len(operands) >= self.held > 0, f"needs {self.held} operands, got {len(operands)}")
        runs = self.runs(self.unpacked(operands, Entry.specs))
        if self.epilogue is not None:
            return [self._in_x(*run) for run in runs]
        scaled = {place for one in self.entries if one.scaled for place in one.places}
        x = runs[0][0]
        return [tuple(s.like(dtype=x.dtype) if i in scaled else s for i, s in enumerate(runs[0]))]

    def _in_x(self, x: Spec, *others: Spec) -> tuple[Spec, ...]:
        """A run's operands in x's type, in which weights of 8 bits are exact, groups rounded once; int8 as float32."""
        if x.dtype is dtypes.int8:
            weight = others[0]
            require(isinstance(self.inner, SUMS), f"{self.inner.name} takes no int8")
            stored = (dtypes.int8, dtypes.int4) if self.group else (dtypes.int8,)
            require(weight.dtype in stored, f"int8 is multiplied with int8 or groups of int4, not {weight.dtype.name}")
            # Which dimension has outputs, and those of how many groups lie outside it; the rest is summed over.
            outputs, groups = (1, self.inner.groups) if isinstance(self.inner, ConvTranspose) else (0, 1)
            count = int(elements(weight.shape[:outputs] + weight.shape[outputs + 1 :])) // groups
            require(count <= MOST_INT8, f"a sum has at most {MOST_INT8} products of int8, not {count}")
            if self.group:
                others = infer(Dequantize(group=self.group), others, "its layouts")
            return tuple(s.like(dtype=dtypes.float32) for s in (x, *others))
        if self.group:
            others = infer(Dequantize(dtype=x.dtype, group=self.group), others, "its layouts")
        exact = (dtypes.int8, dtypes.float8_e4m3fn)
        return (x, *(s.like(dtype=x.dtype) if s.dtype in exact else s for s in others))

    def _results(self, runs: Sequence[tuple[Spec, ...]]) -> tuple[Spec, ...]:
        results = [infer(self.inner, run, "its layouts") for run in runs]
        require(all(r == results[0] for r in results),
                f"parts must agree, not give {', '.join(str(r[0]) for r in results)}")
        return results[0]

    def working(self, *operands: Spec) -> int:
        """What is unpacked, what `inner` needs, and what the epilogue computes on."""
        runs = self._wide(operands)
        unpacked = sum(int(s.elements) * 8 for run in runs for s in run if s is not None)
        if self.epilogue is None:
            return unpacked + self.inner.working(*runs[0])
        epilogue = (self.parts + len(self.epilogue[0])) * 8
        return unpacked + self.inner.working(*runs[0]) + epilogue * int(self._results(runs)[0].elements)

    def steps(self, *operands: Spec) -> int:
        return sum(self.inner.steps(*run) for run in self._wide(operands))

    def _wide(self, operands: Sequence[Spec]) -> Sequence[tuple[Any, ...]]:
        """The operands of each run as it computes on them."""
        runs = self._specs(operands)
        return runs if self.epilogue is None else [tuple(s.like(dtype=dtypes.float32) for s in run) for run in runs]

    # ------------------------------------------------------------------------------------------------------- meaning
    def reference(self, *operands: Array) -> Any:
        runs = self._arrays(operands)
        if self.epilogue is None:
            return self.inner.reference(*runs[0])
        return self._finished([self._summed(self.inner.reference, run) for run in runs], operands[self.held :])

    def _summed(self, compute: Any, run: Sequence[Any]) -> Any:
        """`inner` by one of its forms, where `outside` lies around x: Σ x·w = Σ (x − outside)·w + outside · Σ w."""
        if not self.outside:
            return compute(*run)
        x, weight = run
        return compute(x - self.outside, weight) + self.outside * weight.reshape(weight.shape[0], -1).sum(1)

    def _arrays(self, operands: Sequence[Array]) -> list[Sequence[Array]]:
        """The operands of each run, in float32 if an epilogue follows."""
        runs = self.runs(self.unpacked(operands, Entry.unpack))
        if self.epilogue is None:
            return runs
        whole_numbers = operands[0].dtype == np.int8  # their sums are exact, and those of groups are scaled unrounded
        wide = np.float64 if whole_numbers else np.float32
        if self.group:
            whole = Dequantize(dtype=dtypes.get(wide if whole_numbers else operands[0].dtype), group=self.group)
            runs = [(x, whole.reference(*weight)) for x, *weight in runs]
        return [[a.astype(wide, copy=False) for a in run] for run in runs]

    def _finished(self, results: Sequence[Array], extras: Sequence[Array]) -> Array:
        assert self.epilogue is not None and self.dtype is not None
        sums = [y.astype(np.float32, copy=False) for y in results]
        return evaluate(expr_json(self.epilogue), [*sums, *extras], [self.dtype])[0]

    def torch(self, torch: Any, *operands: Any) -> Any:
        """On the CPU, as an oracle: `inner` by its torch form."""
        if self.inner.torch is None:
            return None
        arrays = [_array(torch, x) for x in operands]
        runs = [[_tensor(torch, a) for a in run] for run in self._arrays(arrays)]
        results = [self._summed(partial(self.inner.torch, torch), run) for run in runs]
        if self.epilogue is None:
            return results[0]
        return _tensor(torch, self._finished([_array(torch, y) for y in results], arrays[self.held :]))

    # --------------------------------------------------------------------------------------------------------- tests
    def sample(self, rng: np.random.Generator, *operands: Spec) -> tuple[Array, ...]:
        specs = self.unpacked(operands, Entry.specs)
        chosen = self.inner.sample(rng, *specs) if self.epilogue is None and self.inner.sample else [
            _random(rng, s) for s in specs]  # fmt: skip
        stored = [a for one in self.entries for a in one.pack([chosen[i] for i in one.places])]
        stored = [a.astype(s.dtype.numpy, copy=False) for a, s in zip(stored, operands[: self.held], strict=True)]
        return (*stored, *(_random(rng, s) for s in operands[self.held :]))

    @classmethod
    def draw(cls, draw: Any) -> Case:
        kind = draw.choice([Conv, ConvTranspose, GroupNorm])
        case = kind.draw(draw)
        inner = kind(**{**case.attrs, "channels_last": True})
        x, *others = case.specs
        if not case.attrs["channels_last"]:
            x = x.like(shape=(x.shape[0], *x.shape[2:], x.shape[1]))
        epilogue = {"dtype": x.dtype.name, "epilogue": IDENTITY}
        if kind is GroupNorm:
            return Case("random", (x, *others), {"inner": inner, "layouts": plain(1 + len(others)), **epilogue})
        weight, *bias = others
        name = "phases" if kind is ConvTranspose else GROUPS
        if kind is Conv and weight.shape[1] == 1 and weight.shape[0] == inner.groups:
            name = draw.choice(["taps", GROUPS])
        stored = [weight.like(shape=s) for s in LAYOUTS[name].shapes(inner, weight.dtype, 1, weight.shape)]
        layouts = (X, (name, (1,), *weight.shape))
        return Case("random", (x, *stored, *bias), {
            "inner": inner, "layouts": layouts, **epilogue, **({"epilogue": PLUS} if bias else {})})  # fmt: skip


def _random(rng: np.random.Generator, spec: Spec) -> Array:
    if spec.dtype.is_integer:
        most = 2 ** (spec.dtype.bits - 1)
        return rng.integers(-most, most, spec.shape).astype(spec.dtype.numpy)
    return rounded(rng.standard_normal(spec.shape), spec.dtype)


def _array(torch: Any, tensor: Any) -> Array:
    """A tensor's bits as an array of our dtype."""
    dense = tensor.contiguous()
    if dense.dtype == torch.bfloat16:
        return dense.view(torch.int16).numpy().view(dtypes.bfloat16.numpy)  # type: ignore[no-any-return]
    return dense.numpy()  # type: ignore[no-any-return]


def _tensor(torch: Any, array: Array) -> Any:
    if dtypes.get(array.dtype) is dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
