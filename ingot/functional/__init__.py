"""The functions users know, under torch's and the retired API's names and arguments, composed of ops.

Each takes symbolic tensors while a network is being recorded, or NumPy arrays to compute at once.
"""
from __future__ import annotations

from ingot.functional.attention import (
    gather_last_token_logits, generate_alibi_slopes, kv_write, paged_attention, rope, rope_table,
)  # fmt: skip
from ingot.functional.elementwise import (
    ACT2FN, GATED_ACT_2_ACT, abs, activation, activation_function, add, cast, ceil, clip, cos, div, elementwise_binary, eq,
    erf, exp, floor, floordiv, ge, gegelu, geglu, gelu, gt, identity, int_clip, is_gated_activation, le, log, log_softmax,
    lt, maximum, minimum, mish, modulo, mul, ne, neg, non_gated_version, not_op, op_and, op_or, op_xor, pow, quick_gelu,
    reciprocal, relu, round, rsqrt, sigmoid, silu, sin, softmax, softplus, sqrt, squared_relu, sub, swiglu, tanh, unary,
    where,
)  # fmt: skip
from ingot.functional.linear import embedding, group_norm, layer_norm, linear, matmul, outer, rms_norm
from ingot.functional.reduction import argmax, max, mean, min, prod, reduce, sum
from ingot.functional.shape import (
    arange, broadcast_helper, chunk, concat, constant, constant_to_tensor_, expand, expand_dims, expand_dims_like, flatten,
    flip, gather, index_select, masked_select, meshgrid2d, nonzero, pad, permute, repeat, repeat_interleave, select, shape,
    slice, split, squeeze, stack, transpose, unbind, unsqueeze, view,
)  # fmt: skip

__all__ = [
    "ACT2FN", "GATED_ACT_2_ACT", "abs", "activation", "activation_function", "add", "arange", "argmax", "broadcast_helper",
    "cast", "ceil", "chunk", "clip", "concat", "constant", "constant_to_tensor_", "cos", "div", "elementwise_binary",
    "embedding", "eq", "erf", "exp", "expand", "expand_dims", "expand_dims_like", "flatten", "flip", "floor", "floordiv",
    "gather", "gather_last_token_logits", "ge", "gegelu", "geglu", "gelu", "generate_alibi_slopes", "group_norm", "gt",
    "identity", "index_select", "int_clip", "is_gated_activation", "kv_write", "layer_norm", "le", "linear", "log",
    "log_softmax", "lt", "masked_select", "matmul", "max", "maximum", "mean", "meshgrid2d", "min", "minimum", "mish",
    "modulo", "mul", "ne", "neg", "non_gated_version", "nonzero", "not_op", "op_and", "op_or", "op_xor", "outer", "pad",
    "paged_attention", "permute", "pow", "prod", "quick_gelu", "reciprocal", "reduce", "relu", "repeat",
    "repeat_interleave", "rms_norm", "rope", "rope_table", "round", "rsqrt", "select", "shape", "sigmoid", "silu", "sin",
    "slice", "softmax", "softplus", "split", "sqrt", "squared_relu", "squeeze", "stack", "sub", "sum", "swiglu", "tanh",
    "transpose", "unary", "unbind", "unsqueeze", "view", "where",
]  # fmt: skip
