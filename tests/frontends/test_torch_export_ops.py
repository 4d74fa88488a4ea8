"""Every entry of the table of ATen ops against torch: each op by itself, exported, imported, run by its references and
as an engine.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.builder.build import build_network as build_engine
from ingot.errors import UnsupportedError
from ingot.frontends.torch_export import build_network, open_archive
from ingot.frontends.torch_export.aten import TABLE
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.ir import OPS, interpret
from ingot.nn.parameter import as_array
from ingot.ops.elementwise import Unary

rng = torch.Generator().manual_seed(0)


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=rng).to(dtype)


def i(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=rng).to(dtype)


def b(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=rng).bool()


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=rng) + 0.5


class Case(NamedTuple):
    """One call; its engine runs natively but for host calls of the op `host`."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    host: str


CASES: list[Case] = []


def case(names: str, *args: Any, host: str = "", **kwargs: Any) -> None:
    """One call for each of the ops named, by their names after `aten.`."""
    for name in names.split():
        CASES.append(Case(name if "." in name and name.startswith("prims") else f"aten.{name}", args, kwargs, host))


# ---------------------------------------------------------------------------------------------------- pointwise
for op in ("add", "sub"):
    case(f"{op}.Tensor", f(3, 4), f(4), alpha=2)
    case(f"{op}.Tensor", i(3), i(3), alpha=-3)
    case(f"{op}.Tensor", f(3), i(3))  # promotion: a tensor of integers gives way
    case(f"{op}.Tensor", i(3), f())  # a tensor without dimensions of a higher category decides
    case(f"{op}.Tensor", f(3, dtype=torch.float16), f())  # … but not one of the same
    case(f"{op}.Tensor", f(3, dtype=torch.bfloat16), f(3, dtype=torch.float16))
    case(f"{op}.Tensor", i(3, dtype=torch.int32), i(3, dtype=torch.int8))
    case(f"{op}.Tensor", i(3, low=0, dtype=torch.uint8), i(3, dtype=torch.int8))
    case(f"{op}.Scalar", f(3), 2, 3)
    case(f"{op}.Scalar", i(3), 2.5)
    case(f"{op}.Scalar", i(3, dtype=torch.int32), 7)
case("atan2.default arctan2.default", f(3, 4), f(4))
case("unfold.default", f(3, 11), -1, 4, 3)
case("diff.default", f(3, 5))
case("diff.default", i(3, 5), 2, 0)
case("diff.default", b(7))
case("diff.default", f(3, 1), 1, -1, f(3, 2), f(3, 1))
case("diff.default", f(2), 3)
case("broadcast_tensors.default", [f(3, 1), f(4), f()])
for reduction in (0, 1, 2):
    case("mse_loss.default", f(3, 4), f(3, 4), reduction)
case("mse_loss.default", f(3, 4, dtype=torch.bfloat16), f(3, 4, dtype=torch.bfloat16))
for dim in (0, 2, -1):
    case("_weight_norm.default", f(4, 3, 2), torch.linspace(0.5, 2, 4 if dim == 0 else 2 if dim == 2 else 1).reshape(
        [4 if dim == 0 else 1, 1, 2 if dim == 2 else 1]), dim)
case("fft_fftfreq.default fft_rfftfreq.default", 7, 0.5)
for op in ("asinh", "arcsinh", "sinh", "cosh", "atan", "arctan", "expm1", "special_expm1"):
    case(f"{op}.default", 3 * f(3, 40))
    case(f"{op}.default", f(9) * 1e-4)
    case(f"{op}.default", i(5))
    case(f"{op}.default", f(9, dtype=torch.bfloat16))
for op in ("asin", "arcsin", "acos", "arccos", "atanh", "arctanh"):
    case(f"{op}.default", torch.tensor([-1.0, -0.999, -0.5, -1e-4, 0.0, 0.3, 0.9, 0.99999, 1.0]))
case("acosh.default arccosh.default", torch.tensor([1.0, 1.0001, 1.5, 3.0, 1e4, 1e20]))
case("log1p.default", torch.tensor([-0.9, -1e-5, 0.0, 1e-6, 3.0]))
case("add.Tensor", b(3), b(3))
case("add.Tensor", b(3), 2)
case("add.Tensor", b(3), 2.0)
case("subtract.Tensor", f(3), f(3))
case("subtract.Scalar", f(3), 2)
case("rsub.Tensor", f(3), f(3), alpha=2)
case("rsub.Scalar", f(3), 2, 3)
case("mul.Tensor multiply.Tensor", f(3, 1), f(4))
case("mul.Tensor", b(5), b(5))
case("mul.Tensor", b(5), i(5))
case("mul.Scalar multiply.Scalar", f(3), 2)
case("mul.Scalar", i(3), 0.5)
case("div.Tensor true_divide.Tensor divide.Tensor", f(3), positive(3))
case("div.Tensor", i(3), i(3, low=1))
case("div.Scalar true_divide.Scalar divide.Scalar", i(3), 2)
for mode in (None, "floor", "trunc"):
    case("div.Tensor_mode divide.Tensor_mode", f(20) * 5, positive(20), rounding_mode=mode)
    case("div.Tensor_mode", i(20), i(20, low=-3, high=0), rounding_mode=mode)
    case("div.Scalar_mode divide.Scalar_mode", i(20), 3, rounding_mode=mode)
case("floor_divide.default", i(20), i(20, low=1))
case("floor_divide.default", f(20) * 5, positive(20))
case("floor_divide.Scalar", i(20), -3)
case("remainder.Tensor", i(20), i(20, low=1))
case("remainder.Scalar", i(20), -3)
case("remainder.Scalar", f(20) * 5, 1.5)
case("remainder.Scalar_Tensor", 7, i(5, low=1))
case("fmod.Tensor", f(20) * 5, positive(20))
case("fmod.Scalar", i(20), 3)
for exponent in (2, 3, -1, 0.5, -0.5, 2.5, 7.0, -2):
    case("pow.Tensor_Scalar", positive(6), exponent)
case("pow.Tensor_Scalar", f(6), 3)
case("pow.Tensor_Scalar", i(6), 3)
case("pow.Tensor_Tensor", positive(6), f(6))
case("pow.Scalar", 2, f(6))
case("addcmul.default addcdiv.default", f(3), f(3), positive(3), value=2)
case("lerp.Scalar", f(3), f(3), 0.3)
case("lerp.Tensor", f(3), f(3), f(3))
case("maximum.default minimum.default max.other min.other", f(5), f(5))
case("maximum.default minimum.default", i(5), f(5))
case("maximum.default minimum.default", b(5), b(5))
for low, high in ((-0.5, 0.5), (None, 0.2), (0.1, None), (1.0, -1.0)):
    case("clamp.default clip.default", f(9), low, high)
case("clamp.default", i(9), -2, 3)
case("clamp.default", i(9), -1.5, None)
case("clamp.Tensor clip.Tensor", f(9), f(9), f(9))
case("clamp_min.default clamp_max.default", f(9), 0.3)
case("clamp_min.Tensor clamp_max.Tensor", f(9), f(9))
for op in ("eq", "ne", "lt", "le", "gt", "ge"):
    case(f"{op}.Tensor", i(9), i(9))
    case(f"{op}.Tensor", i(9), f(9))
    case(f"{op}.Tensor", b(9), b(9))
    case(f"{op}.Scalar", i(9), 2)
    case(f"{op}.Scalar", f(9), 0)
    case(f"{op}.Scalar", b(9), True)
for op in ("and", "or", "xor"):
    case(f"logical_{op}.default", i(9), f(9))
    case(f"bitwise_{op}.Tensor __{op}__.Tensor", i(9), i(9))
    case(f"bitwise_{op}.Tensor", b(9), b(9))
    case(f"bitwise_{op}.Scalar __{op}__.Scalar", i(9), 6)
case("logical_not.default", i(9))
case("__lshift__.Scalar bitwise_left_shift.Tensor_Scalar", i(9), 3)
case("__rshift__.Scalar bitwise_right_shift.Tensor_Scalar", i(9), 2)
case("bitwise_not.default", i(9))
case("bitwise_not.default", b(9))
odd = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
case("isnan.default isinf.default", odd)
case("where.self", b(9), f(9), i(9))
case("where.self", b(9, 1), f(4), f())
case("where.ScalarOther", b(9), f(9), 2)
case("where.ScalarSelf", b(9), 1.5, f(9))
case("where.Scalar", b(9), 1.5, 0.0)
case("masked_fill.Scalar", f(3, 4), b(4), -float("inf"))
case("masked_fill.Tensor", f(3, 4), b(3, 4), f())
case("fill.Scalar", f(3, 4), 2)
case("fill.Tensor", f(3, 4), f())
case("zero.default", f(3, 4))
case("copy.default", f(3, 4), i(4))
for op in ("exp", "sin", "cos", "tanh", "sigmoid", "erf", "expm1", "exp2", "tan", "erfc", "deg2rad", "rad2deg"):
    case(f"{op}.default", f(9))
    case(f"{op}.default", i(9))
for op in ("log", "sqrt", "rsqrt", "reciprocal", "log1p", "log2", "log10"):
    case(f"{op}.default", positive(9))
case("floor.default ceil.default round.default trunc.default fix.default", f(9) * 3)
case("floor.default ceil.default", i(9))
case("neg.default negative.default abs.default absolute.default square.default sign.default sgn.default", f(9))
case("neg.default abs.default square.default sign.default", i(9))
for op in OPS.values():  # those that say what they are imported as
    for name in op.imported_as:
        overload = name.removeprefix("aten.")
        if issubclass(op, Unary):
            case(overload, torch.empty(40).uniform_(op.low, op.high, generator=rng))
        elif overload.endswith(".Scalar_Tensor"):
            case(overload, 1.5, positive(9))
        else:
            case(overload, positive(9), 1.5 if overload.endswith(".Scalar") else positive(9))
for target in (torch.float32, torch.float16, torch.int32, torch.bool, torch.int64):
    case("to.dtype", f(9), target)
    case("to.dtype", i(9), target)
    case("_to_copy.default", b(9), dtype=target)
case("to.other type_as.default", f(3), i(3))
case("to.dtype_layout", f(3), dtype=torch.float16)
case("to.device", f(3), "cpu", torch.int32)
case("prims.convert_element_type.default", f(3), torch.int32)

# --------------------------------------------------------------------------------------------------- activation
case("relu.default relu6.default silu.default mish.default log_sigmoid.default selu.default "
     "hardswish.default hardsigmoid.default hardtanh.default softplus.default leaky_relu.default elu.default "
     "celu.default gelu.default", f(40) * 4)  # fmt: skip
case("hardtanh.default", f(40), -0.5, 0.25)
case("gelu.default", f(40), approximate="tanh")
case("softplus.default", f(40) * 4, 2, 3)
case("leaky_relu.default", f(40), 0.2)
case("elu.default", f(40), 1.5, 0.5, 2)
case("celu.default", f(40), 0.5)
case("threshold.default", f(40), 0.1, -3)
case("prelu.default", f(2, 3, 4), f(3))
case("prelu.default", f(2, 3), f(1))
case("_prelu_kernel.default", f(2, 3), f(3))
case("glu.default", f(3, 8))
case("glu.default", f(4, 3), 0)
case("dropout.default feature_dropout.default alpha_dropout.default feature_alpha_dropout.default", f(2, 9), 0.5, False)
case("native_dropout.default", f(9), 0.5, False)
case("softmax.int log_softmax.int", f(3, 4, 5), 1)
case("softmax.int", i(3, 4), -1, torch.float32)
case("_softmax.default _log_softmax.default", f(3, 4), -1, False)

# ---------------------------------------------------------------------------------------------------- reduction
case("sum.default mean.default prod.default amax.default amin.default", f(3, 4))
case("sum.default prod.default", i(3, 4, low=1, high=3, dtype=torch.int32))
case("sum.default", b(3, 4))
case("sum.dim_IntList mean.dim amax.default amin.default", f(3, 4, 5), [0, -1])
case("sum.dim_IntList mean.dim amax.default amin.default", f(3, 4, 5), [1], True)
case("sum.dim_IntList", f(3, 4), [])
case("sum.dim_IntList", i(3, 4), [0], dtype=torch.float32)
case("mean.dim", i(3, 4), [0], dtype=torch.float32)
case("prod.dim_int", f(3, 4), 1, True)
case("max.default min.default", f(3, 4))
case("argmax.default argmin.default", f(3, 4))
case("argmax.default argmin.default", f(3, 4), 1, True)
case("max.dim min.dim", f(3, 4), 1)
case("max.dim min.dim", f(3, 4), 0, True)
case("any.default all.default", b(3, 4))
case("any.dim all.dim", i(3, 4, low=0, high=2), 1)
case("any.dims all.dims", b(3, 4), [0, 1], True)
case("logsumexp.default", f(3, 4), [1])
case("logsumexp.default", torch.full((2, 3), -float("inf")), [1], True)
case("var.correction std.correction", f(3, 4, 5), [1, 2], correction=0, keepdim=True)
case("var.correction var_mean.correction", f(3, 4), None, correction=1)
case("var.default std.default", f(3, 4), True)
case("var.dim std.dim", f(3, 4), [1], False)
case("var_mean.correction", f(3, 4), [0], correction=1)
for order in (1, 2, float("inf")):
    case("linalg_vector_norm.default", f(3, 4), order, [1])
case("norm.ScalarOpt_dim", f(3, 4), 2, [1], True)
case("norm.Scalar", f(3, 4))
case("cumsum.default", f(3, 4, 2), 1)
case("cumsum.default", i(3, 4), 1)
case("cumsum.default", b(3, 4), 0)
case("cumsum.default", positive(1100), 0)
case("cumsum.default", f(4), 0, dtype=torch.int32)

# ------------------------------------------------------------------------------------------------------- shapes
case("view.default reshape.default _unsafe_view.default", f(3, 4), [2, 6])
case("reshape.default", f(3, 4), [-1])
case("view_as.default reshape_as.default", f(3, 4), f(2, 6))
case("flatten.using_ints", f(2, 3, 4), 1)
case("unflatten.int", f(2, 12), 1, [3, -1])
case("squeeze.default", f(1, 3, 1))
case("squeeze.dim", f(1, 3, 1), 0)
case("squeeze.dim", f(1, 3, 1), 1)
case("squeeze.dims", f(1, 3, 1), [0, 2])
case("unsqueeze.default", f(3, 4), -1)
case("permute.default", f(2, 3, 4), [2, -3, 1])
case("transpose.int swapaxes.default swapdims.default", f(2, 3, 4), -1, 0)
case("t.default numpy_T.default", f(2, 3))
case("mT.default mH.default adjoint.default", f(2, 3, 4))
case("movedim.intlist", f(2, 3, 4), [0, 1], [2, 0])
case("movedim.int", f(2, 3, 4), 0, -1)
case("expand.default broadcast_to.default", f(3, 1), [2, 3, 4])
case("expand.default", f(3, 1), [-1, 4])
case("expand_as.default", f(3, 1), f(3, 4))
case("contiguous.default detach.default detach_.default alias.default clone.default lift_fresh.default", f(3, 4))
case("lift_fresh_copy.default detach_copy.default alias_copy.default resolve_conj.default resolve_neg.default", f(3, 4))
case("pixel_shuffle.default", f(2, 8, 3, 4), 2)
case("slice.Tensor", f(6, 4), 0, 1, 5, 2)
case("slice.Tensor", f(6, 4), 1, -3, None)
case("slice.Tensor", f(6, 4), -1, 0, 2**63 - 1)
case("slice.Tensor", f(6, 4), 0, 4, 2)
case("select.int", f(6, 4), 1, -1)
case("narrow.default", f(6, 4), 0, 1, 3)
case("split.Tensor unsafe_split.Tensor", f(7, 2), 3)
case("split_with_sizes.default unsafe_split_with_sizes.default split.sizes", f(7, 2), [3, 4])
case("chunk.default unsafe_chunk.default", f(7, 2), 3)
case("chunk.default", f(5, 2), 4)
case("unbind.int", f(3, 2), 1)
case("cat.default concat.default concatenate.default", [f(2, 3), i(1, 3)])
case("cat.default", [f(0), f(2, 3)], 1)
case("stack.default", [f(2, 3), f(2, 3)], -1)
case("constant_pad_nd.default", f(2, 3), [1, 2], 0.5)
case("pad.default", f(2, 3), [1, -1, 0, 2])
for mode in ("reflect", "replicate", "circular"):
    case("pad.default", f(2, 3, 4, 5), [2, 1, 3, 0], mode)
    case("pad.default", f(2, 3, 5), [0, 4], mode)
    case("pad.default", f(2, 3, 1, 1), [0, 0, 0, 0], mode)
    case("pad.default", f(2, 3, 1, 4), [2, 0, 0, 0], mode)
for word in ("reflection", "replication"):
    for rank in (1, 2, 3):
        case(f"{word}_pad{rank}d.default", f(2, 3, *(4, 5, 3)[:rank]), [1, 2] * rank)
case("repeat.default", f(2, 3), [2, 1, 3])
case("tile.default", f(2, 3), [2])
case("repeat_interleave.self_int", f(2, 3), 2, 1)
case("repeat_interleave.self_int", f(2, 3), 2)
case("flip.default", f(2, 3), [0, -1])
case("roll.default", f(5, 3), [2, -1], [0, 1])
case("roll.default", f(5, 3), [4])
case("embedding.default", f(9, 3), i(2, 4, low=0, high=9))
case("embedding.default", f(9, 3), i(4, low=0, high=9, dtype=torch.int32), 2)
case("index_select.default", f(5, 3), 1, i(4, low=0, high=3))
case("gather.default", f(5, 3), 1, i(4, 2, low=0, high=3))
case("index.Tensor", f(5, 3), [i(2, 2, low=-5, high=5)])
case("index.Tensor _unsafe_index.Tensor", f(5, 3), [None, i(4, low=0, high=3)])
case("index.Tensor", f(5, 3), [i(4, low=-5, high=5), i(2, 1, low=-3, high=3)])
case("index.Tensor", f(5, 3, 4), [None, i(4, low=-3, high=3), i(4, low=0, high=4)])
case("index.Tensor", f(5, 3, 4), [i(4, low=-5, high=5), None, i(4, low=0, high=4)])
case("index.Tensor", f(5, 3), [b(5, 3)])
case("index.Tensor", f(5, 3), [b(5)])
case("index.Tensor", f(5, 3, 2), [None, b(3, 2)])
case("index.Tensor", f(4, 5, 3), [i(1, low=0, high=4), b(5)])
case("nonzero.default", b(4, 3))
case("nonzero.default", i(7, low=0, high=2))
case("nonzero_numpy.default where.default", b(4, 3))
case("masked_select.default", f(4, 3), b(4, 3))
case("masked_select.default", f(4, 3), b(3))
case("index_put.default", f(4, 3), [b(4, 3)], f())
case("index_put.default", f(4, 3), [b(4)], f(3))
for descending in (False, True):
    case("sort.default argsort.default", f(4, 9), 0, descending)
    case("sort.stable argsort.stable", i(4, 9), stable=True, dim=1, descending=descending)
    case("sort.default", torch.tensor([2.0, float("nan"), -1.0, float("inf")]), -1, descending)
    case("topk.default", f(4, 9), 3, -1, descending)
case("sort.default", f())
case("topk.default", f(9, 4), 2, 0, True, False)
case("tril.default triu.default", f(4, 5))
case("tril.default triu.default", f(2, 4, 3), 1)
case("full.default", [2, 3], 1.5)
case("full.default", [2, 3], 2)
case("full.default", [2], True)
case("full_like.default", i(2, 3), 2)
case("new_full.default", f(2), [3], 2)
for word in ("zeros", "ones"):
    case(f"{word}.default", [2, 3])
    case(f"{word}.default", [2], dtype=torch.int64)
    case(f"{word}_like.default", i(2, 3))
    case(f"new_{word}.default", f(2), [3], dtype=torch.bool)
case("empty.memory_format", [0, 3])
case("empty_like.default", f(2, 0), dtype=torch.int64)
case("new_empty.default", f(2), [3, 0])
case("scalar_tensor.default", 3)
case("arange.default", 5)
case("arange.start", 2, 7, dtype=torch.float32)
case("arange.start_step", 9, 2, -3)
case("eye.default", 3)
case("eye.m", 3, 4)
case("upsample_nearest1d.vec", f(1, 2, 3), None, [2.0])
case("upsample_nearest2d.vec", f(1, 2, 3, 4), None, [2.0, 3.0])
case("upsample_nearest2d.vec", f(1, 2, 3, 4), [6, 4], None)
case("upsample_nearest3d.vec", f(1, 2, 2, 2, 2), None, [2.0, 1.0, 2.0])
case("upsample_nearest1d.default", f(1, 2, 3), [6])
case("upsample_nearest2d.default", f(1, 2, 3, 4), [6, 8])
case("upsample_nearest3d.default", f(1, 2, 2, 2, 2), [4, 2, 4])
case("upsample_nearest2d.default", f(1, 2, 5, 4), [7, 3], 1.4, None)
case("upsample_nearest2d.vec", i(1, 2, 3, 4, low=0, high=9, dtype=torch.uint8), [7, 3], None)
for op in ("upsample_nearest", "_upsample_nearest_exact"):
    case(f"{op}1d.vec", f(1, 2, 5), None, [1.7])
    case(f"{op}2d.vec", f(1, 2, 5, 3), [7, 2], None)
    case(f"{op}3d.vec", f(1, 2, 2, 3, 2), [3, 5, 2], None)
case("_upsample_nearest_exact1d.default", f(1, 2, 5), [7])
case("_upsample_nearest_exact2d.default", f(1, 2, 5, 4), [9, 3])
case("_upsample_nearest_exact3d.default", f(1, 2, 5, 4, 2), [9, 3, 2])
for corners in (False, True):
    case("upsample_linear1d.vec", f(2, 3, 5), [11], corners, None)
    case("upsample_linear1d.default", f(2, 3, 5), [11], corners)
    for op in ("upsample_bilinear2d", "upsample_bicubic2d"):
        case(f"{op}.vec", f(2, 3, 5, 7), [11, 3], corners, None)
        case(f"{op}.vec", f(2, 3, 5, 7), None, corners, [2.0, 1.5])
        case(f"{op}.vec", f(2, 3, 1, 4), [1, 9], corners, None)
        case(f"{op}.default", f(2, 3, 5, 7), [10, 9], corners)
        case(f"{op}.default", f(2, 3, 5, 7), [10, 9], corners, 2.0, 1.3)
    case("upsample_bilinear2d.vec", f(1, 3, 5, 7, dtype=torch.bfloat16), [9, 7], corners, None)
    case("upsample_trilinear3d.vec", f(1, 2, 3, 4, 5), [5, 4, 9], corners, None)
    case("upsample_trilinear3d.default", f(1, 2, 3, 4, 5), [5, 4, 9], corners)

# ------------------------------------------------------------------------------------------------------- layers
case("linear.default", f(2, 3, 4), f(5, 4), f(5))
case("linear.default", f(3, 4), f(5, 4))
case("matmul.default", f(2, 3, 4), f(4, 5))
case("matmul.default", f(4), f(4))
case("matmul.default", f(4), f(2, 4, 5))
case("matmul.default", f(2, 3, 4), f(4))
case("mm.default", f(3, 4), f(4, 5))
case("bmm.default", f(2, 3, 4), f(2, 4, 5))
case("mv.default", f(3, 4), f(4))
case("dot.default", f(4), f(4))
case("addmm.default", f(5), f(3, 4), f(4, 5))
case("addmm.default", f(3, 5), f(3, 4), f(4, 5), beta=0.5, alpha=2)
case("addmm.default", f(3, 5), f(3, 4), f(4, 5), beta=0)
case("baddbmm.default", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), beta=2)
case("einsum.default", "nkctv,kvw->nctw", [f(2, 3, 4, 2, 5), f(3, 5, 6)])
case("outer.default ger.default", f(3), f(4))
for rank in (1, 2, 3):
    size = (7, 6, 5)[:rank]
    case(f"conv{rank}d.default", f(2, 4, *size), f(6, 2, *[3] * rank), f(6), [2], [1], [1], 2)
    case(f"conv{rank}d.default", f(4, *size), f(6, 4, *[2] * rank))
    case(f"conv{rank}d.padding", f(2, 4, *size), f(6, 4, *[2] * rank), None, [1], "same", [2])
    case(f"conv{rank}d.padding", f(2, 4, *size), f(6, 4, *[2] * rank), None, [2], "valid")
    transposed = f"conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
    case(transposed, f(2, 4, *size), f(4, 3, *[3] * rank), f(6), [2], [1], [1], 2)
    case("convolution.default", f(2, 4, *size), f(6, 4, *[3] * rank), f(6), [2], [1], [1], False, [0], 1)
    case("convolution.default", f(2, 4, *size), f(4, 6, *[3] * rank), None, [3], [1], [2], True, [2], 1)
    case(f"max_pool{rank}d.default", f(2, 3, *size), [3], [2], [1], [1], True)
    case(f"max_pool{rank}d.default", f(3, *size), [2])
    case(f"max_pool{rank}d_with_indices.default", f(2, 3, *size), [2])
    case(f"avg_pool{rank}d.default", f(2, 3, *size), [3], [2], [1], True, False)
    case(f"adaptive_avg_pool{rank}d.default", f(2, 3, *size), [1] * rank)
    case(f"adaptive_avg_pool{rank}d.default", f(2, 3, *size), [3] * rank)
    case(f"adaptive_max_pool{rank}d.default", f(2, 3, *size), [2] * rank)
    if rank > 1:
        case(f"_adaptive_avg_pool{rank}d.default", f(2, 3, *size), [1] * rank)
        case(f"avg_pool{rank}d.default", f(2, 3, *size), [2], [1], [0], False, True, 3)
for mode, beyond, corners in ((0, 0, False), (1, 1, True), (2, 2, False)):
    for word in ("grid_sampler", "grid_sampler_2d"):
        case(f"{word}.default", f(2, 3, 5, 6), f(2, 4, 3, 2), mode, beyond, corners)
case("grid_sampler_3d.default", f(2, 3, 4, 5, 6), f(2, 2, 4, 3, 3), 0, 2, True)
case("batch_norm.default", f(2, 3, 4), f(3), f(3), f(3), positive(3), False, 0.1, 1e-3, False)
case("batch_norm.default", f(2, 3, 4), None, None, f(3), positive(3), False, 0.1, 1e-5, False)
case("_native_batch_norm_legit_no_training.default", f(2, 3, 4), f(3), f(3), f(3), positive(3), 0.1, 1e-5)
case("layer_norm.default", f(2, 3, 4), [3, 4], f(3, 4), f(3, 4))
case("layer_norm.default", f(2, 3, 4), [4], None, f(4))
case("native_layer_norm.default", f(2, 3, 4), [4], f(4), f(4), 1e-5)
case("rms_norm.default", f(2, 3, 4), [4], f(4))
case("rms_norm.default", f(2, 3, 4), [4], None, 1e-3)
case("group_norm.default", f(2, 6, 4), 3, f(6), f(6))
case("group_norm.default", f(2, 6, 4), 2)
case("native_group_norm.default", f(2, 6, 4), f(6), f(6), 2, 6, 4, 3, 1e-5)
case("instance_norm.default", f(2, 3, 4), f(3), f(3), None, None, True, 0.1, 1e-5, False)
case("instance_norm.default", f(2, 3, 4), None, None, f(3), positive(3), False, 0.1, 1e-5, False)
heads = (f(2, 3, 5, 8), f(2, 3, 6, 8), f(2, 3, 6, 8))
case("scaled_dot_product_attention.default", *heads)
case("scaled_dot_product_attention.default", *heads, b(2, 1, 5, 6) | torch.eye(5, 6).bool(), scale=0.5)
case("scaled_dot_product_attention.default", *heads, f(5, 6))
case("scaled_dot_product_attention.default", *heads, is_causal=True)
case("scaled_dot_product_attention.default", f(2, 4, 5, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), enable_gqa=True)
case("_scaled_dot_product_flash_attention_for_cpu.default", *heads)

# --------------------------------------------------------------------------- scans, scatters, counts, sorted places
case("cumprod.default", f(3, 4, 2), 1)
case("cumprod.default", i(3, 9), 1)
case("cumprod.default", f(40), 0, dtype=torch.float64)
case("logcumsumexp.default", f(3, 40), -1)
case("logcumsumexp.default", torch.tensor([-float("inf"), -float("inf"), 2, float("inf"), 1]), 0)
case("cummax.default cummin.default", i(3, 40), 1)
case("cummax.default cummin.default", torch.tensor([1.0, -0.0, 0.0, 3, float("nan"), 9, -9, float("nan"), 2]), 0)
case("cummax.default cummin.default", f(30, 3, dtype=torch.bfloat16), 0)
case("cummax.default cummin.default", b(9), 0)
case("cummax.default cummin.default logcumsumexp.default", f(), 0)
case("scatter.src", f(3, 5), 1, torch.tensor([[0, 4], [3, 1]]), f(3, 4))
case("scatter.value", f(3, 5), -1, torch.tensor([[0, 4], [3, 1]]), 2.5)
case("scatter.value", i(4), 0, torch.tensor([3, 0]), 7)
case("scatter.value", b(4), 0, torch.tensor([3, 0]), True)
case("scatter.value", f(), 0, torch.tensor(0), 7.0)
case("scatter_add.default", f(6, 3), 0, i(20, 2, low=0), f(20, 3))
case("scatter_add.default", i(6, dtype=torch.int32), 0, i(20, low=0), i(20, dtype=torch.int32))
case("scatter_add.default", f(6, dtype=torch.float64), 0, i(20, low=0), f(20, dtype=torch.float64))
for how in ("add", "multiply"):
    case("scatter.reduce", f(6, 3), 0, i(9, 3, low=0), f(9, 3), reduce=how)
    case("scatter.value_reduce", f(6, 3), 0, i(9, 3, low=0), 1.5, reduce=how)
for how, own in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):
    case("scatter_reduce.two", f(6, 3), 0, i(9, 3, low=0), f(9, 3), how, include_self=own)
    case("scatter_reduce.two", i(6, 3), 0, i(9, 3, low=0), i(9, 3), how, include_self=own)
    if how != "sum":
        case("index_reduce.default", f(6, 3), 0, i(9, low=0), f(9, 3), how, include_self=own)
case("scatter_reduce.two", torch.tensor([0.0, 1]), 0, torch.tensor([0, 1]), torch.tensor([float("nan"), 3]), "amax")
case("index_add.default", f(4, 6, 3), 1, i(9, low=0), f(4, 9, 3), alpha=2)
case("index_add.default", i(6), 0, i(9, low=0, dtype=torch.int32), i(9))
case("index_copy.default", f(4, 6, 3), -2, torch.tensor([5, 0, 2]), f(4, 3, 3))
case("index_fill.int_Scalar", f(4, 6), 1, torch.tensor([5, -6]), -1)
case("index_fill.int_Tensor", i(4, 6), 0, torch.tensor([3]), torch.tensor(7))
case("put.default", f(4, 6), torch.tensor([[0, 23], [-2, 5]]), f(2, 2))
case("put.default", f(4, 6), torch.tensor([0, 0, -24, 5]), f(4), True)
case("masked_scatter.default", f(4, 6), b(4, 6), f(30))
case("masked_scatter.default", f(6), b(4, 6), f(30))
case("index_put.default", f(4, 5, 6), [torch.tensor([0, -1]), None, torch.tensor([[5], [2]])], f(2, 2, 5))
case("index_put.default", f(4, 5, 6), [None, torch.tensor([0, -1, 3])], f(3, 6))
case("index_put.default", f(4, 5, 6), [None, torch.tensor([0, 2]), torch.tensor([1, 1])], f(4, 2))
case("index_put.default", f(4, 5), [torch.tensor([0, -4, 0]), torch.tensor([1])], f(3), True)
case("index_put.default", i(4, 5), [torch.tensor([0, -4, 0])], i(5), True)
case("index_put.default", b(4), [torch.tensor([0, 1, 0])], b(3), True)
case("_unique2.default", i(4, 9), return_inverse=True, return_counts=True)
case("_unique2.default", torch.tensor([1.0, float("nan"), -0.0, 0, float("nan"), -5]), True, True, True)
case("_unique2.default", b(9), True, True, True)
case("unique_consecutive.default", i(40, low=0, high=2), True, True)
case("unique_consecutive.default", i(40, low=0, high=2), True, True, 0)
case("unique_dim.default", i(40), 0, True, True, True)
case("unique_dim.default", i(9, 5, low=0, high=2), 0, True, True, True)
case("unique_consecutive.default", i(9, 2, low=0, high=2), True, True, 0)
case("one_hot.default", i(4, 3, low=0), 6)
case("bincount.default", i(40, low=0))
SIGNS = torch.tensor([1.0, -1, 0.0, -0.0, float("inf"), -float("inf"), float("nan"), -2.5])
case("signbit.default", SIGNS)
case("signbit.default", i(4) - 2)
case("copysign.Tensor", f(8), SIGNS)
case("copysign.Scalar", f(4), -0.0)
case("copysign.Tensor", i(3), f(3))
case("fmax.default fmin.default", SIGNS, SIGNS.flip(0))
case("fmax.default fmin.default", i(3), f(3))
LARGE = torch.tensor([3e30, 0, 1e-30, float("inf"), 2, -3])
case("hypot.default", LARGE, torch.tensor([4e30, 0, 1e-30, float("nan"), -1, 4]))
case("round.decimals", 100 * f(9), decimals=2)
case("round.decimals", 1000 * f(9), decimals=-2)
case("special_round.default", 100 * f(9), decimals=1)
case("addbmm.default", f(3, 5), f(2, 3, 4), f(2, 4, 5), beta=0.5, alpha=2)
case("bilinear.default", f(2, 3, 4), f(2, 3, 5), f(6, 4, 5), f(6))
case("kthvalue.default", f(4, 7), 3, 1)
case("kthvalue.default", f(4, 7), 2, 0, True)
NAN = torch.tensor([[1.0, 5, 2, 4], [3, float("nan"), 1, float("nan")], [float("nan")] * 4])
case("median.dim", NAN, 1)
case("median.dim", f(4, 5), 0, True)
case("median.dim", i(3, 7), -1)
case("nanmedian.dim", NAN[:2], 1)
case("median.default nanmedian.default", f(4, 5))
case("median.default nanmedian.default", NAN)
case("repeat_interleave.self_Tensor", f(3, 4), torch.tensor([2, 0, 3]), 0)
case("repeat_interleave.self_Tensor", f(3), torch.tensor([2]))
case("linalg_vector_norm.default", f(3, 4), 3, [1])
case("linalg_vector_norm.default", f(3, 4), 0)
case("linalg_vector_norm.default", f(3, 4), float("-inf"), [0], True)
case("histc.default", 2 * f(40), 7, -1, 2.5)
case("histc.default", f(5, 8))
case("histc.default", torch.full((3,), 2.5), 4)
half = {"dtype": torch.bfloat16}  # the only type that torch exports it in
case("_grouped_mm.default", f(9, 16, **half), f(4, 16, 8, **half), torch.tensor([2, 2, 5, 9], dtype=torch.int32))
case("_grouped_mm.default", f(4, 8, 16, **half), f(16, 16, **half), torch.tensor([2, 2, 5, 16], dtype=torch.int32))
case("_grouped_mm.default", f(3, 4, 16, **half), f(3, 16, 8, **half))
case("bincount.default", i(40, low=0), f(40), 2)
case("bincount.default", i(40, low=0), i(40), 20)
case("take.default", f(4, 6), torch.tensor([[0, 23], [-2, 5]]))
case("take_along_dim.default", f(4, 6), torch.tensor([[3, 0, 2]]), 1)
case("take_along_dim.default", f(4, 6), torch.tensor([[3, 20, 2]]))
case("bucketize.Tensor", f(3, 5), torch.tensor([-1.0, 0, 0, 1]))
case("bucketize.Tensor", i(30), torch.arange(-3, 4), out_int32=True, right=True)
case("bucketize.Scalar", 0, torch.arange(-3, 4), right=True)
case("searchsorted.Tensor", f(3, 9).sort(-1)[0], f(3, 5))
case("searchsorted.Tensor", f(9).sort(-1)[0], f(3, 5), side="right")
case("searchsorted.Scalar", f(9).sort(-1)[0], 0.25)
case("searchsorted.Tensor", torch.tensor([3.0, 1, 2]), f(5), sorter=torch.tensor([1, 2, 0]))

# ---- recurrent layers and cells: gates of 6 units on 4 features ----
FLAGS = (True, 1, 0.0, False, False, False)  # biases, layers, dropout, training, both directions, batch first
for layer, gates in (("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
    weights = [0.4 * f(6 * gates, n) for n in (4, 6)] + [f(6 * gates) for _ in range(2)]  # sums that grow lose digits
    case(f"{layer}.input", f(5, 2, 4), f(1, 2, 6), weights, *FLAGS)
    case(f"{layer}_cell.default", f(2, 4), f(2, 6), *weights)
weights = [f(24, 4), f(24, 6), f(24), f(24)]
case("lstm.input", f(5, 2, 4), [f(1, 2, 6), f(1, 2, 6)], weights, *FLAGS)
case("lstm_cell.default", f(2, 4), [f(2, 6), f(2, 6)], *weights)

case("_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec", f(2, 3, 9, 6), [4, 11], False, None)
case("_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec", f(2, 3, 9, 6), None, False, [0.5, 1.7])
case("_upsample_bilinear2d_aa.default _upsample_bicubic2d_aa.default", f(2, 3, 9, 6), [4, 3], True)

# ------------------------------------------------------------------------------- windows, parts, distances, bags
case("im2col.default", f(2, 3, 7, 8), [3, 2], [1, 2], [1, 1], [2, 1])
case("im2col.default", f(3, 6, 6), [2, 2], [1, 1], [0, 0], [2, 2])
case("col2im.default", f(2, 3 * 6, 32), [7, 8], [3, 2], [1, 2], [1, 1], [2, 1])
case("col2im.default", f(12, 9), [6, 6], [2, 2], [1, 1], [0, 0], [2, 2])
for offset in (0, 2, -1, 9):
    case("diagonal.default", f(3, 4, 5), offset, 2, 0)
case("linalg_diagonal.default", f(2, 3, 3), dim1=-2, dim2=-1)
case("select_scatter.default", f(3, 4), f(3), 1, -2)
case("slice_scatter.default", f(3, 7), f(3, 2), 1, 1, 6, 3)
case("slice_scatter.default", f(5, 2), f(2, 2), 0, -2)
for steps in (0, 1, 2, 7):
    case("linspace.default", -1.0, 2, steps)
case("linspace.default", 0, 9, 4, dtype=torch.float64)
case("meshgrid.indexing", [f(3), f(4)], indexing="xy")
case("meshgrid.default", [f(3), f(2), f(4)])
case("meshgrid.indexing", [f(3), f(2), f(4)], indexing="ij")
for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
    case("cdist.default", f(2, 5, 3), f(2, 4, 3), p)
    case("pdist.default _pdist_forward.default", f(5, 3), p)
case("_cdist_forward.default", f(5, 3), f(4, 3), 2.0, None)
BAGS = (f(9, 4), i(7, low=0, high=9), torch.tensor([0, 2, 2, 5]))
for mode in (0, 1, 2):
    case("embedding_bag.padding_idx", *BAGS, False, mode, False, None, False, None)
case("embedding_bag.default _embedding_bag.default _embedding_bag_forward_only.default", *BAGS, False, 0, False, f(7))
case("embedding_bag.padding_idx", *BAGS, False, 0, False, None, True, None)
for case_of in ("no_stats", "default"):
    stats = () if case_of == "no_stats" else (f(3), positive(3))
    case(f"_native_batch_norm_legit.{case_of}", f(4, 3, 5), f(3), f(3), *stats, case_of == "no_stats", 0.1, 1e-3)
case("batch_norm.default", f(4, 3, 5), f(3), None, None, None, True, 0.1, 1e-3, True)


def op_of(name: str) -> Any:
    space, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), op), overload)


class Call(nn.Module):
    """One op; tensors among its arguments are the inputs, but for the first `inputs` ones parameters."""

    def __init__(self, one: Case, inputs: int | None = None) -> None:
        super().__init__()
        self.one = one
        flat = [x for a in (*one.args, *one.kwargs.values()) for x in (a if isinstance(a, list) else [a])]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        self.inputs = tuple(tensors[:inputs])
        stored = tensors[len(self.inputs) :]
        self.stored = nn.ParameterList(nn.Parameter(x, requires_grad=False) for x in stored)

    def forward(self, *inputs: torch.Tensor) -> Any:
        rest = iter((*inputs, *self.stored))

        def put(value: Any) -> Any:
            if isinstance(value, list):
                return [put(item) for item in value]
            return next(rest) if isinstance(value, torch.Tensor) else value

        args = [put(a) for a in self.one.args]
        return op_of(self.one.op)(*args, **{key: put(v) for key, v in self.one.kwargs.items()})


# Results that ingot does not compute: the places and statistics that only training reads.
PARTIAL = ("with_indices", "adaptive_max_pool", "native_dropout", "native_layer_norm", "native_group_norm",
           "_native_batch_norm", "flash_attention", "embedding_bag")  # fmt: skip


FOLDED = {"aten.lift_fresh.default", "aten.detach_.default"}  # torch leaves these out where it can


# Layers whose kernels want packed weights: these cases store all tensors but the first.
LAYERS = ("aten.conv", "aten.linear.", "aten.batch_norm", "aten.layer_norm", "aten.group_norm", "aten.rms_norm")


@pytest.mark.sampled(6, by=lambda given: given["one"].op)
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.op)
def test_entry(one: Case, tmp_path: Path) -> None:
    """The network that is imported, by its references and as an engine, against torch; host calls as declared."""
    check_entry(one, Call(one, 1 if one.op.startswith(LAYERS) else None), tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("one", [c for c in CASES if c.op.startswith("aten.conv")], ids=lambda one: one.op)
def test_a_convolution_with_a_computed_weight(one: Case, tmp_path: Path) -> None:
    check_entry(one, Call(one), tmp_path)


def check_entry(one: Case, call: Call, tmp_path: Path) -> None:
    if any(word in one.op for word in PARTIAL):
        whole, call.forward = call.forward, lambda *x: whole(*x)[0]  # type: ignore[method-assign]
    with torch.no_grad():
        program = torch.export.export(call, call.inputs, strict=False)
    torch.export.save(program, tmp_path / "one.pt2")
    read, source = open_archive(tmp_path / "one.pt2")
    assert any(node.op == one.op for node in read.graph.nodes) or one.op in FOLDED, "torch exports another op"
    imported = build_network(read, source, one.op)
    feeds = dict(zip((v.name for v in imported.network.inputs), map(as_array, call.inputs), strict=True))
    theirs = call(*call.inputs)
    theirs = list(theirs) if isinstance(theirs, tuple | list) else [theirs]
    check(interpret(imported.network, feeds, imported.weights), theirs)
    engine = build_engine(imported.network, imported.weights)
    assert engine._native.host_calls("main") == [one.host] * bool(one.host)
    check(engine.run(feeds), theirs)


def check(ours: dict[str, Any], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for found, wanted in zip(ours.values(), theirs, strict=True):
        assert found.dtype == as_array(wanted).dtype and found.shape == tuple(wanted.shape)
        narrow = wanted.dtype in (torch.float16, torch.bfloat16)
        np.testing.assert_allclose(
            found.astype(np.float64), as_array(wanted).astype(np.float64), rtol=1e-2 if narrow else 2e-5, atol=2e-6
        )


def test_every_entry_has_a_case() -> None:
    others = {name for name in TABLE if name.startswith(("torchvision.", "transformers."))}  # tests of their own
    assert TABLE.keys() - others == {one.op for one in CASES}


def test_random_numbers_that_nobody_reads() -> None:
    """As in layers that training skips by chance, which draw in evaluation mode too."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor, reads: bool) -> torch.Tensor:
            drawn = torch.rand(x.shape), torch.randint(9, [2])
            return x + drawn[0] if reads else 2 * x

    x = f(2, 3)
    engine = ingot.build(Net(), (x, False))
    assert engine.report is not None and engine.report.source.startswith("against torch")
    np.testing.assert_array_equal(engine.run({"x": x})["output_0"], 2 * x)
    with pytest.raises(UnsupportedError, match="(?s)aten.rand.default.*an engine draws no random numbers"):
        ingot.build(Net(), (x, True))


def test_empty_tensors_that_are_written() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.empty(2, 3, dtype=x.dtype)
            y.copy_(x)
            return y

    x = f(2, 3)
    np.testing.assert_array_equal(ingot.build(Net(), (x,)).run({"x": x})["output_0"], x)


def test_ops_on_sizes_are_no_entries() -> None:
    assert not TABLE.keys() & size_ops.NAMES
