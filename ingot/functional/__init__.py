"""The functions users know, under torch's and the retired API's names and arguments, composed of ops.

Each takes symbolic tensors while a network is being recorded, or NumPy arrays to compute at once. Those that do no more
than call an op follow from its declaration (derived.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.functional import derived
from ingot.functional.attention import (
    expand_mask,
    gather_last_token_logits,
    generate_alibi_biases,
    generate_alibi_slopes,
    generate_logn_scaling,
    kv_write,
    paged_attention,
    rope,
    rope_table,
)  # fmt: skip
from ingot.functional.complex import (
    angle,
    complex,
    complex_abs,
    complex_div,
    complex_exp,
    complex_mul,
    conj,
    imag,
    polar,
    real,
    view_as_complex,
    view_as_real,
)  # fmt: skip
from ingot.functional.control import Conditional, assertion, cond, scan, while_loop
from ingot.functional.dense_attention import scaled_dot_product_attention
from ingot.functional.elementwise import (
    ACT2FN,
    GATED_ACT_2_ACT,
    activation,
    activation_function,
    cast,
    clip,
    elementwise_binary,
    gegelu,
    geglu,
    gelu,
    identity,
    int_clip,
    is_gated_activation,
    log_softmax,
    non_gated_version,
    quick_gelu,
    softmax,
    squared_relu,
    swiglu,
    unary,
    where,
)  # fmt: skip
from ingot.functional.fourier import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hamming_window,
    hann_window,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)  # fmt: skip
from ingot.functional.indexing import (
    bincount,
    bucketize,
    gather_nd,
    one_hot,
    scatter,
    scatter_add,
    scatter_reduce,
    searchsorted,
    unique,
)  # fmt: skip
from ingot.functional.linear import (
    batch_norm,
    einsum,
    embedding,
    group_norm,
    layer_norm,
    linear,
    matmul,
    moe,
    outer,
    rms_norm,
)  # fmt: skip
from ingot.functional.mel import melscale_fbanks
from ingot.functional.random import categorical_sample, rand
from ingot.functional.rearranging import rearrange
from ingot.functional.recurrent import gru, lstm, rnn_relu, rnn_tanh
from ingot.functional.reduction import (
    argmax,
    argsort,
    cummax,
    cummin,
    cumprod,
    cumsum,
    logcumsumexp,
    reduce,
    sort,
    topk,
)  # fmt: skip
from ingot.functional.resample import grid_sample, interpolate
from ingot.functional.shape import (
    arange,
    broadcast_helper,
    chunk,
    concat,
    constant,
    constant_to_tensor_,
    constants_to_tensors_,
    expand,
    expand_dims,
    expand_dims_like,
    flatten,
    flip,
    gather,
    index_select,
    masked_select,
    meshgrid2d,
    nonzero,
    pad,
    permute,
    repeat,
    repeat_interleave,
    select,
    shape,
    slice,
    split,
    squeeze,
    stack,
    transpose,
    unbind,
    unsqueeze,
    view,
)  # fmt: skip
from ingot.functional.spatial import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)  # fmt: skip
from ingot.functional.spectrogram import istft, stft
from ingot.functional.state_space import causal_conv1d, selective_scan

__all__ = [
    "ACT2FN", "GATED_ACT_2_ACT", "Conditional", "activation", "activation_function", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "angle", "arange", "argmax", "argsort", "assertion", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm",
    "bincount", "broadcast_helper", "bucketize", "cast", "categorical_sample", "causal_conv1d", "chunk", "clip",
    "complex", "complex_abs", "complex_div", "complex_exp", "complex_mul", "concat", "cond", "conj", "constant",
    "constant_to_tensor_", "constants_to_tensors_", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "cummax", "cummin", "cumprod", "cumsum", "einsum", "elementwise_binary",
    "embedding", "expand", "expand_dims", "expand_dims_like", "expand_mask", "fft", "fft2", "fftfreq", "fftn",
    "fftshift", "flatten", "flip", "gather", "gather_last_token_logits", "gather_nd", "gegelu", "geglu", "gelu",
    "generate_alibi_biases", "generate_alibi_slopes", "generate_logn_scaling", "grid_sample", "group_norm", "gru",
    "hamming_window", "hann_window", "identity", "ifft", "ifft2", "ifftn", "ifftshift", "imag", "index_select",
    "int_clip", "interpolate", "irfft", "irfft2", "irfftn", "is_gated_activation", "istft", "kv_write", "layer_norm",
    "linear", "log_softmax", "logcumsumexp", "lp_pool1d", "lp_pool2d", "lp_pool3d", "lstm", "masked_select", "matmul",
    "max_pool1d", "max_pool2d", "max_pool3d", "melscale_fbanks", "meshgrid2d", "moe", "non_gated_version", "nonzero",
    "one_hot", "outer", "pad", "paged_attention", "permute", "polar", "quick_gelu", "rand", "real", "rearrange",
    "reduce", "repeat", "repeat_interleave", "rfft", "rfft2", "rfftfreq", "rfftn", "rms_norm", "rnn_relu", "rnn_tanh",
    "rope", "rope_table", "scaled_dot_product_attention", "scan", "scatter", "scatter_add", "scatter_reduce",
    "searchsorted", "select", "selective_scan", "shape", "slice", "softmax", "sort", "split", "squared_relu",
    "squeeze", "stack", "stft", "swiglu", "topk", "transpose", "unary", "unbind", "unique", "unsqueeze", "view",
    "view_as_complex", "view_as_real", "where", "while_loop",
]  # fmt: skip
__all__ += [*derived.names()]  # noqa: PLE0604  strings all


def __getattr__(name: str) -> Callable[..., Any]:
    return derived.find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *derived.names()})
