"""Cases of the table of ATen ops: pointwise ops, activations and reductions."""

from __future__ import annotations

import torch

from ingot.ir import OPS
from ingot.ops.elementwise import Unary
from tests.frontends.aten_cases import Cases, b, f, i, positive, rng

case = Cases()

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
