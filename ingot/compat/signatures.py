"""The functions of tensorrt_llm.functional by their newest signatures, and how their operands are typed."""

from __future__ import annotations

import ast
from functools import cache
from inspect import Parameter, Signature

# Functions that ingot.functional has under the same name, with the arguments of the newest version.
SIGNATURES: dict[str, str] = {
    "activation": "input, act_type",
    **dict.fromkeys(
        ("relu", "tanh", "sigmoid", "silu", "swiglu", "round", "sqrt", "exp", "sin", "cos", "abs", "log", "not_op",
         "identity", "nonzero"),
        "input",
    ),
    **dict.fromkeys(("squared_relu", "gelu", "geglu", "quick_gelu"), "x"),
    "gegelu": "x, limit=None",
    "clip": "input, alpha, beta",
    "int_clip": "input, lower, upper",
    "softplus": "input, beta=1.0, threshold=20.0",
    "cast": "input, dtype",
    "unary": "input, op",
    "elementwise_binary": "left, right, op",
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "gt", "lt", "eq", "minimum", "maximum", "pow", "floordiv", "op_and", "op_or",
         "op_xor", "broadcast_helper", "expand_dims_like"),
        "left, right",
    ),
    "modulo": "x, y",
    "where": "condition, left, right",
    "log_softmax": "input, dim",
    "softmax": "input, dim=None",
    **dict.fromkeys(("mean", "max", "sum", "prod", "min", "argmax"), "input, dim, keepdim=False"),
    "reduce": "input, op, dim, keepdim=False",
    "topk": "input, k, dim, largest=True, prefer_plugin=True",
    "cumsum": "input, dim, prefer_plugin=True",
    "masked_select": "input, mask",
    "masked_scatter": "input, mask, source",
    "gather": "input, dim, indices",
    "gather_nd": "input, indices, batch_dims=1",
    "scatter": "input, dim, indices, updates",
    "scatter_nd": "input, mask, source",
    "select": "input, dim, index",
    "index_select": "input, dim, index",
    "categorical_sample": "probs, rand_data=None",
    "rand": "shape, low=0, high=1, dtype='float32'",
    "constant": "ndarray, as_dtype=None, as_shape=None",
    "constant_to_tensor_": "input, dtype=None, to_array=True",
    "constants_to_tensors_": "*inputs",
    "arange": "start, end, dtype",
    "shape": "input, dim=None, cast_to_dtype=None, clip_before_cast=None",
    "view": "input, shape, zero_is_placeholder=True",
    "flatten": "input, start_dim=0, end_dim=-1",
    "permute": "input, dims",
    "transpose": "input, dim0, dim1",
    "expand": "input, expand_shape",
    "expand_dims": "input, dim, shape_cast_dtype=None",
    "unsqueeze": "input, axis",
    "squeeze": "input, dim=None, zero_is_placeholder=False",
    "stack": "inputs, dim=0",
    "concat": "inputs, dim=0",
    "split": "tensor, split_size_or_sections, dim=0",
    "chunk": "tensor, chunks, dim=0",
    "unbind": "input, dim=0",
    "pad": "input, pad, mode='constant', value=None",
    "flip": "input, dims",
    "interpolate": "input, size=None, scale_factor=None, mode='nearest', align_corners=False, "
                   "recompute_scale_factor=False, antialias=False",
    "repeat": "input, sizes",
    "repeat_interleave": "tensor, repeats, dim",
    "meshgrid2d": "x, y",
    "rearrange": "inputs, expression, **kwargs",
    "matmul": "input, mat2, transa=False, transb=False, use_fp32_acc=True",
    "einsum": "einsum_eq, inputs",
    "outer": "input, vec2",
    "conv1d": "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1",
    "conv2d": "input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, pre_padding=None, "
              "post_padding=None",
    "conv3d": "input, weight, bias=None, stride=(1, 1, 1), padding=(0, 0, 0), dilation=(1, 1, 1), groups=1",
    "conv_transpose2d": "input, weight, bias=None, stride=(1, 1), padding=(0, 0), output_padding=(0, 0), "
                        "dilation=(1, 1), groups=1",
    "avg_pool2d": "input, kernel_size, stride=None, padding=(0, 0), ceil_mode=False, count_include_pad=True",
    "layer_norm": "input, normalized_shape, weight=None, bias=None, eps=1e-05, use_diff_of_squares=True",
    "group_norm": "input, num_groups, weight=None, bias=None, eps=1e-05",
    "assertion": "condition, message=''",
    "generate_alibi_biases": "slopes, key_length",
    "generate_logn_scaling": "seq_length=8192, max_position_embeddings=32768",
    "expand_mask": "mask, tgt_len=None",
    "is_gated_activation": "activation",
    "non_gated_version": "activation",
}  # fmt: skip

# TensorRT gives indices as int32, ingot as int64; and which functions have operands of one element type.
INT32_INDICES = {"argmax": 0, "topk": 1}
ONE_TYPE = {
    "elementwise_binary", "add", "sub", "mul", "div", "gt", "lt", "eq", "minimum", "maximum", "pow", "floordiv",
    "modulo", "where", "matmul", "einsum", "outer", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "layer_norm",
    "rms_norm", "group_norm", "concat", "stack", "masked_scatter", "scatter", "scatter_nd",
}  # fmt: skip
# Arguments of these that say where, and take no part in it.
PLACES = {"scatter": ("indices", "axis"), "scatter_nd": ("mask",), "masked_scatter": ("mask",), "where": ("condition",)}

GIVES_ARRAYS = {"generate_logn_scaling"}  # NumPy's, for a constant

# Functions that move or describe numbers: a precision scope changes nothing about them.
UNSCOPED = {
    "cast", "identity", "nonzero", "argmax", "topk", "masked_select", "masked_scatter", "gather", "gather_nd",
    "scatter", "scatter_nd", "select", "index_select", "embedding", "categorical_sample", "rand", "constant",
    "constant_to_tensor_", "constants_to_tensors_", "arange", "shape", "view", "flatten", "permute", "transpose",
    "expand", "expand_dims", "expand_dims_like", "unsqueeze", "squeeze", "stack", "concat", "split", "chunk", "unbind",
    "slice", "flip", "repeat", "repeat_interleave", "meshgrid2d", "rearrange", "broadcast_helper", "assertion",
    "is_gated_activation", "non_gated_version", "gather_last_token_logits", "generate_alibi_slopes",
    "generate_logn_scaling",
}  # fmt: skip

@cache
def signature(text: str) -> Signature:
    """The Signature of `input, dim=None, *rest, **named`."""
    parsed = ast.parse(f"def f({text}): ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    given = parsed.args
    defaults = [Parameter.empty] * (len(given.args) - len(given.defaults)) + [
        ast.literal_eval(d) for d in given.defaults
    ]
    found = [
        Parameter(a.arg, Parameter.POSITIONAL_OR_KEYWORD, default=d) for a, d in zip(given.args, defaults, strict=True)
    ]
    if given.vararg:
        found.append(Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL))
    if given.kwarg:
        found.append(Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(found)
