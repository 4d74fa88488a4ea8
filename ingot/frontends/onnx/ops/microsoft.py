"""Ops that ONNX Runtime fuses others into (com.microsoft): activations, norms, products, convolutions."""

from __future__ import annotations

from typing import Any

from ingot import dtypes
from ingot.frontends.onnx.ops.attention import counting
from ingot.frontends.onnx.ops.common import cast, few, number
from ingot.frontends.onnx.ops.indexing import gather_nd
from ingot.frontends.onnx.ops.linear import gemm, matmul, matmul_integer
from ingot.frontends.onnx.ops.recurrent import ACTIVATIONS, DEFAULTS
from ingot.frontends.onnx.ops.shape import trilu
from ingot.frontends.onnx.ops.spatial import conv_, max_pool
from ingot.frontends.onnx.table import MICROSOFT, Call, onnx
from ingot.frontends.table import Ints, MaybeFloat, MaybeFloats, MaybeInts, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F

# ------------------------------------------------------------------------------------------------- activations


def activated(x: Any, name: str, parameters: tuple[float, ...]) -> Any:
    """x through an activation by its name, with its parameters in order; those that are missing have their defaults."""
    word = name.lower()
    if word == "clip":
        low, high = (*parameters, *(None, None)[len(parameters) :])[:2]
        return F.clip(x, minimum=low, maximum=high)
    if word not in ACTIVATIONS:
        raise Unsupported(f"the activation {name:.40} is not known")
    a, b = (*parameters, *DEFAULTS.get(word, (0.0, 0.0))[len(parameters) :])[:2]
    return ACTIVATIONS[word](a, b)(x)


@onnx("BiasGelu", domain=MICROSOFT)
def bias_gelu(x: Tensor, bias: Tensor) -> Result:
    return F.gelu(F.add(x, bias), approximate=False)


@onnx("Gelu", domain=MICROSOFT)
def gelu(x: Tensor) -> Result:
    return F.gelu(x, approximate=False)


@onnx("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Tensor, bias: MaybeTensor = None) -> Result:
    return F.gelu(x if bias is None else F.add(x, bias), approximate=True)


@onnx("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Result:
    return F.mul(x, F.sigmoid(F.mul(x, alpha)))


# ------------------------------------------------------------------------------------------------------ norms


def _skipped(call: Call, x: Any, skip: Any, bias: Any, norm: Any) -> Result:
    """The norm of a sum, which is the fourth result; the second and third are there for training only."""
    if any(call.wanted[1:3]):
        raise Unsupported("the mean and the variance as results are not supported")
    total = F.add(x, skip) if bias is None else F.add(F.add(x, bias), skip)
    found = norm(total)
    return (found, None, None, total)[: call.outputs] if call.outputs > 1 else found


@onnx("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    call: Call, x: Tensor, skip: Tensor, gamma: Tensor, beta: MaybeTensor = None, bias: MaybeTensor = None, *,
    epsilon: float = 1e-12,
) -> Result:  # fmt: skip
    weights = [gamma] + ([] if beta is None else [beta])
    return _skipped(call, x, skip, bias, lambda total: F.layer_norm(total, *weights, eps=epsilon))


@onnx("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_normalization(
    call: Call, x: Tensor, skip: Tensor, gamma: Tensor, bias: MaybeTensor = None, *, epsilon: float = 1e-12
) -> Result:
    return _skipped(call, x, skip, bias, lambda total: F.rms_norm(total, gamma, eps=epsilon))


@onnx("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    call: Call, ids: Tensor, segments: MaybeTensor, words: Tensor, places: Tensor, kinds: MaybeTensor,
    gamma: Tensor, beta: Tensor, mask: MaybeTensor = None, positions: MaybeTensor = None, *, epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> Result:  # fmt: skip
    """The norm of the sum of three embeddings; how many tokens the mask shows, where it comes first; and the sum."""
    n, t = ids.shape
    table = F.embedding(ids, words)
    at = counting(ids, t) if positions is None else positions
    total = F.add(table, F.embedding(at, places))
    if segments is not None and kinds is not None:
        total = F.add(total, F.embedding(segments, kinds))
    found = F.layer_norm(total, gamma, beta, eps=epsilon)
    if call.outputs == 1:
        return found
    if mask is None:
        count = F.expand(cast(number(ids, 0), dtypes.int32), (n,))
    else:
        count = F.reduce_sum(cast(mask, dtypes.int32), axes=(1,), keepdims=False)
    return (found, count, total)[: call.outputs]


# --------------------------------------------------------------------------------------------------- products


@onnx("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(
    a: Tensor, b: Tensor, *, alpha: float = 1.0, transA: bool = False, transB: bool = False,  # noqa: N803
    transBatchA: bool = False, transBatchB: bool = False,  # noqa: N803
) -> Result:  # fmt: skip
    a, b = (_batch_first(x) if swap else x for x, swap in ((a, transBatchA), (b, transBatchB)))
    if min(len(a.shape), len(b.shape)) < 2:
        found = matmul(a, b)  # a vector has nothing to exchange
    else:
        found = F.matmul(a, b, transpose_a=transA, transpose_b=transB)
    return found if alpha == 1 else F.mul(found, alpha)


def _batch_first(x: Any) -> Any:
    """[M, *batch, K] as [*batch, M, K]."""
    last = len(x.shape) - 1
    return x if last < 2 else F.permute(x, (*range(1, last), 0, last))


@onnx("FusedGemm", domain=MICROSOFT)
def fused_gemm(
    a: Tensor, b: Tensor, c: MaybeTensor = None, *, alpha: float = 1.0, beta: float = 1.0, transA: bool = False,  # noqa: N803
    transB: bool = False, activation: str = "", activation_alpha: MaybeFloat = None,  # noqa: N803
    activation_beta: MaybeFloat = None, activation_gamma: MaybeFloat = None,
) -> Result:  # fmt: skip
    found = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = (activation_alpha, activation_beta)
    if activation_gamma is not None or (given[0] is None and given[1] is not None):
        raise Unsupported("an activation with a gamma, or with a second parameter alone, is not supported")
    return activated(found, activation, tuple(p for p in given if p is not None)) if activation else found


@onnx("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(a: Tensor, b: Tensor) -> Result:
    return matmul_integer(a, b)


# ----------------------------------------------------------------------------------------------- convolutions


@onnx("FusedConv", domain=MICROSOFT)
def fused_conv(
    x: Tensor, weight: Tensor, bias: MaybeTensor = None, added: MaybeTensor = None, *, activation: str = "",
    activation_params: MaybeFloats = None, auto_pad: str = "NOTSET", dilations: MaybeInts = None, group: int = 1,
    kernel_shape: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    found = conv_(x, weight, bias, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
                  pads=pads, strides=strides)  # fmt: skip
    if added is not None:
        found = F.add(found, added)
    return activated(found, activation, activation_params or ()) if activation else found


def channels_first(x: Any) -> Any:
    """[N, *S, C] as [N, C, *S]."""
    last = len(x.shape) - 1
    return F.permute(x, (0, last, *range(1, last)))


def channels_last(x: Any) -> Any:
    """[N, C, *S] as [N, *S, C]."""
    return F.permute(x, (0, *range(2, len(x.shape)), 1))


@onnx("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(
    x: Tensor, weight: Tensor, bias: MaybeTensor = None, added: MaybeTensor = None, *, activation: str = "",
    activation_params: MaybeFloats = None, auto_pad: str = "NOTSET", dilations: MaybeInts = None, group: int = 1,
    kernel_shape: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    """Over x [N, *S, C], with a weight [O, C / group, *K] as ever."""
    return channels_last(fused_conv(
        channels_first(x), weight, bias, None if added is None else channels_first(added), activation=activation,
        activation_params=activation_params, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    ))  # fmt: skip


@onnx("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(
    call: Call, x: Tensor, *, kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: bool = False,
    dilations: MaybeInts = None, pads: MaybeInts = None, strides: MaybeInts = None,
) -> Result:  # fmt: skip
    return channels_last(max_pool(
        call, channels_first(x), kernel_shape=kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode,
        dilations=dilations, pads=pads, strides=strides,
    ))  # fmt: skip


# -------------------------------------------------------------------------------------- what became ai.onnx's own


@onnx("ExpandDims", domain=MICROSOFT)
def expand_dims(x: Tensor, axis: int) -> Result:
    at = axis + len(x.shape) + 1 if axis < 0 else axis
    if not 0 <= at <= len(x.shape):
        raise Unsupported(f"there is no place {few(abs(axis))} for a dimension of {x.spec}")
    return F.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


onnx("GatherND", domain=MICROSOFT)(gather_nd)
onnx("Trilu", domain=MICROSOFT)(trilu)


@onnx("CDist", domain=MICROSOFT)
def cdist(a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Result:
    """Distances between the rows of two matrices: from the differences, so that near ones are exact."""
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unsupported(f"the metric {metric:.40} is not supported")
    rows, columns = a.shape[0], b.shape[0]
    gap = F.sub(F.reshape(a, (rows, 1, a.shape[1])), F.reshape(b, (1, columns, b.shape[1])))
    square = F.reduce_sum(F.mul(gap, gap), axes=(2,), keepdims=False)
    return square if metric == "sqeuclidean" else F.sqrt(square)
