"""ATen's layers: products, convolutions, pooling, normalisation, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dtypes
from ingot import functional as fn
from ingot.errors import DimError, OpError
from ingot.frontends.torch_export.aten.activation import DROPS
from ingot.frontends.torch_export.aten.promotion import cast
from ingot.frontends.torch_export.aten.table import (
    Ints,
    MaybeFloat,
    MaybeInt,
    MaybeTensor,
    Result,
    Results,
    Scalar,
    Size,
    Sizes,
    Tensor,
    Tensors,
    Unsupported,
    aten,
)
from ingot.frontends.windows import places_of_largest
from ingot.ir import F
from ingot.ir.spec import axis_of

EPSILON = {"float32": 1.1920928955078125e-07, "bfloat16": 0.0078125, "float16": 0.0009765625,
           "float64": 2.220446049250313e-16}  # fmt: skip


# ------------------------------------------------------------------------------------------------------ products


@aten("aten.linear.default")
def linear(input: Tensor, weight: Tensor, bias: MaybeTensor = None) -> Result:
    if input.ndim() > 1:
        return fn.linear(input, weight, bias)
    return fn.squeeze(fn.linear(fn.unsqueeze(input, 0), weight, bias), 0)


@aten("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def matmul(
    self: Tensor, other: MaybeTensor = None, mat2: MaybeTensor = None, vec: MaybeTensor = None,
    tensor: MaybeTensor = None,
) -> Result:  # fmt: skip
    b = next((x for x in (other, mat2, vec, tensor) if x is not None), None)
    if b is None:
        raise Unsupported("the second matrix is missing")
    row, column = self.ndim() == 1, b.ndim() == 1
    left = F.reshape(self, (1, *self.shape)) if row else self
    right = F.reshape(b, (*b.shape, 1)) if column else b
    y = F.matmul(left, right)
    kept = [d for i, d in enumerate(y.shape) if not (row and i == y.ndim() - 2 or column and i == y.ndim() - 1)]
    return F.reshape(y, tuple(kept)) if row or column else y


@aten("aten.addmm.default")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Result:
    return _added(self, F.matmul(mat1, mat2), beta, alpha)


@aten("aten.baddbmm.default")
def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Result:
    return _added(self, F.matmul(batch1, batch2), beta, alpha)


@aten("aten.addbmm.default")
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, beta: Scalar = 1, alpha: Scalar = 1) -> Result:
    product = F.reduce_sum(F.matmul(batch1, batch2), axes=(0,), keepdims=False)
    return _added(self, product, beta, alpha)


@aten("aten.bilinear.default")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: MaybeTensor = None) -> Result:
    found = fn.einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else F.add(found, bias)


def _added(x: Tensor, product: Tensor, beta: Scalar, alpha: Scalar) -> Result:
    if not isinstance(beta, int | float) or not isinstance(alpha, int | float):
        raise Unsupported("beta and alpha must be known at export")
    product = product if alpha == 1 else F.mul(product, alpha)
    return product if beta == 0 else F.add(product, x if beta == 1 else F.mul(x, beta))


@aten("aten.einsum.default")
def einsum(equation: str, tensors: Tensors) -> Result:
    return fn.einsum(equation, *tensors)


@aten("aten.outer.default", "aten.ger.default")
def outer(self: Tensor, vec2: Tensor) -> Result:
    return fn.outer(self, vec2)


# -------------------------------------------------------------------------------------------------- convolutions


def _each(value: Ints, rank: int, name: str) -> Ints:
    """One number for every spatial dimension."""
    if len(value) not in (1, rank):
        raise Unsupported(f"{name} has {len(value)} entries for {rank} spatial dimensions")
    return value if len(value) == rank else value * rank


def _batched(rank: int, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Result:
    """Computes on [N, C, *S]; torch takes [C, *S] too."""
    if x.ndim() == rank + 2:
        return compute(x)
    if x.ndim() != rank + 1:
        raise Unsupported(f"it takes {rank + 1} or {rank + 2} dimensions, not {x.ndim()}")
    y = compute(F.reshape(x, (1, *x.shape)))
    return F.reshape(y, y.shape[1:])


def _conv(x: Tensor, weight: Tensor, bias: MaybeTensor, stride: Ints, before: Ints, after: Ints, dilation: Ints,
          groups: int) -> Result:  # fmt: skip
    operands = (weight,) if bias is None else (weight, bias)
    how = {"stride": stride, "pre_padding": before, "post_padding": after, "dilation": dilation, "groups": groups}
    return _batched(weight.ndim() - 2, x, lambda batch: F.conv(batch, *operands, **how))


@aten("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(input: Tensor, weight: Tensor, bias: MaybeTensor = None, stride: Ints = (1,), padding: Ints = (0,),
         dilation: Ints = (1,), groups: int = 1) -> Result:  # fmt: skip
    rank = weight.ndim() - 2
    padding = _each(padding, rank, "padding")
    return _conv(input, weight, bias, _each(stride, rank, "stride"), padding, padding,
                 _each(dilation, rank, "dilation"), groups)  # fmt: skip


@aten("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv_named_padding(input: Tensor, weight: Tensor, bias: MaybeTensor = None, stride: Ints = (1,),
                       padding: str = "valid", dilation: Ints = (1,), groups: int = 1) -> Result:  # fmt: skip
    rank = weight.ndim() - 2
    if padding not in ("same", "valid"):
        raise Unsupported(f"padding {padding!r:.40} is not one of same and valid")
    dilation = _each(dilation, rank, "dilation")
    before: Ints = (0,) * rank
    after = before
    if padding == "same":
        kernel = [fn.tensor.known_size(weight, i + 2, "conv") for i in range(rank)]
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before = tuple(n // 2 for n in whole)
        after = tuple(n - n // 2 for n in whole)
    return _conv(input, weight, bias, _each(stride, rank, "stride"), before, after, dilation, groups)


def _conv_transpose(x: Tensor, weight: Tensor, bias: MaybeTensor, stride: Ints, padding: Ints, output_padding: Ints,
                    groups: int, dilation: Ints) -> Result:  # fmt: skip
    rank = weight.ndim() - 2
    before, extra = _each(padding, rank, "padding"), _each(output_padding, rank, "output_padding")
    steps, dilations = _each(stride, rank, "stride"), _each(dilation, rank, "dilation")
    if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, steps, dilations, strict=True)):
        raise Unsupported(f"output_padding {extra} must be smaller than stride or dilation")
    after = tuple(p - e for p, e in zip(before, extra, strict=True))
    operands = (weight,) if bias is None else (weight, bias)
    how = {"stride": steps, "pre_padding": before, "post_padding": after, "dilation": dilations, "groups": groups}
    return _batched(rank, x, lambda batch: F.conv_transpose(batch, *operands, **how))


@aten("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(input: Tensor, weight: Tensor, bias: MaybeTensor = None, stride: Ints = (1,), padding: Ints = (0,),
                   output_padding: Ints = (0,), groups: int = 1, dilation: Ints = (1,)) -> Result:  # fmt: skip
    return _conv_transpose(input, weight, bias, stride, padding, output_padding, groups, dilation)


@aten("aten.convolution.default")
def convolution(input: Tensor, weight: Tensor, bias: MaybeTensor, stride: Ints, padding: Ints, dilation: Ints,
                transposed: bool, output_padding: Ints, groups: int) -> Result:  # fmt: skip
    if transposed:
        return _conv_transpose(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(input, weight, bias, stride, padding, dilation, groups)


# ------------------------------------------------------------------------------------------------------- pooling


def _avg_pool(rank: int, x: Tensor, kernel_size: Ints, stride: Ints, padding: Ints, ceil_mode: bool,
              count_include_pad: bool, divisor: MaybeInt) -> Result:  # fmt: skip
    kernel, edge = _each(kernel_size, rank, "kernel_size"), _each(padding, rank, "padding")
    step = _each(stride, rank, "stride") if stride else kernel
    return _batched(rank, x, lambda batch: F.avg_pool(
        batch, kernel=kernel, stride=step, pre_padding=edge, post_padding=edge, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, divisor=divisor))  # fmt: skip


@aten("aten.avg_pool1d.default")
def avg_pool1d(self: Tensor, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), ceil_mode: bool = False,
               count_include_pad: bool = True) -> Result:  # fmt: skip
    return _avg_pool(1, self, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def _pools(rank: int) -> None:
    @aten(f"aten.avg_pool{rank}d.default")
    def avg_pool(self: Tensor, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: MaybeInt = None) -> Result:  # fmt: skip
        return _avg_pool(rank, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


_pools(2)
_pools(3)


def _max_pools(rank: int) -> None:
    @aten(f"aten.max_pool{rank}d.default")
    def max_pool(self: Tensor, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,),
                 ceil_mode: bool = False) -> Result:  # fmt: skip
        kernel, edge = _each(kernel_size, rank, "kernel_size"), _each(padding, rank, "padding")
        step = _each(stride, rank, "stride") if stride else kernel
        apart = _each(dilation, rank, "dilation")
        return _batched(rank, self, lambda batch: F.max_pool(
            batch, kernel=kernel, stride=step, pre_padding=edge, post_padding=edge, dilation=apart,
            ceil_mode=ceil_mode))  # fmt: skip

    @aten(f"aten.max_pool{rank}d_with_indices.default")
    def with_indices(self: Tensor, kernel_size: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,),
                     ceil_mode: bool = False) -> Results:  # fmt: skip
        found = max_pool(self, kernel_size, stride, padding, dilation, ceil_mode)
        kernel = _each(kernel_size, rank, "kernel_size")
        step = _each(stride, rank, "stride") if stride else kernel
        over = kernel, step, _each(padding, rank, "padding"), _each(dilation, rank, "dilation")
        try:
            return found, _batched(rank, self, lambda batch: places_of_largest(batch, found.shape[-rank:], *over))
        except (Unsupported, OpError, DimError):
            return found, None  # programs that were taken apart have places that nothing reads


def _adaptive(rank: int) -> None:
    inner = [f"aten._adaptive_avg_pool{rank}d.default"] if rank > 1 else []

    @aten(f"aten.adaptive_avg_pool{rank}d.default", *inner)
    def average(self: Tensor, output_size: Sizes) -> Result:
        return getattr(fn, f"adaptive_avg_pool{rank}d")(self, tuple(output_size))

    @aten(f"aten.adaptive_max_pool{rank}d.default")
    def largest(self: Tensor, output_size: Sizes) -> Results:
        return getattr(fn, f"adaptive_max_pool{rank}d")(self, tuple(output_size)), None


for _rank in (1, 2, 3):
    _max_pools(_rank)
    _adaptive(_rank)


# ------------------------------------------------------------------------------------------------- normalisation


def _vectors(x: Tensor, weight: MaybeTensor, bias: MaybeTensor, shape: Sizes) -> list[Any]:
    """Weight and bias as operands, in x's type: layers of half precision may keep theirs in float32."""
    if weight is None and bias is not None:
        weight = F.expand(x.network.scalar(1, x.dtype), shape)
    return [cast(v, x.dtype) for v in (weight, bias) if v is not None]


@aten("aten.batch_norm.default")
def batch_norm(input: Tensor, weight: MaybeTensor, bias: MaybeTensor, running_mean: MaybeTensor,
               running_var: MaybeTensor, training: bool, momentum: float, eps: float) -> Result:  # fmt: skip
    if running_mean is None and running_var is None:
        return _by_batch(input, weight, bias, eps)
    if training or running_mean is None or running_var is None:
        raise Unsupported("it normalises by the batch's own statistics and keeps them, as in training: call "
                          "module.eval() before torch.export.export")  # fmt: skip
    statistics = [cast(v, input.dtype) for v in (running_mean, running_var)]
    return F.batch_norm(input, *statistics, *_vectors(input, weight, bias, running_mean.shape), eps=eps)


def _by_batch(x: Tensor, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> Result:
    """By the mean and variance of each channel, of which nothing is kept; convolutions standardise weights so."""
    axes = tuple(i for i in range(x.ndim()) if i != 1)
    shape = tuple(d if i == 1 else 1 for i, d in enumerate(x.shape))
    wide = cast(x, dtypes.float32) if x.dtype.bits < 32 else x
    centred = F.sub(wide, F.reduce_mean(wide, axes=axes, keepdims=True))
    variance = F.reduce_mean(F.mul(centred, centred), axes=axes, keepdims=True)
    found = F.div(centred, F.sqrt(F.add(variance, eps)))
    for v, combine in ((weight, F.mul), (bias, F.add)):
        found = found if v is None else combine(found, F.reshape(cast(v, wide.dtype), shape))
    return cast(found, x.dtype)


@aten("aten._native_batch_norm_legit.no_stats")
def batch_norm_by_batch(input: Tensor, weight: MaybeTensor, bias: MaybeTensor, training: bool, momentum: float,
                        eps: float) -> Results:  # fmt: skip
    return _by_batch(input, weight, bias, eps), None, None


@aten("aten._native_batch_norm_legit.default")
def native_batch_norm(input: Tensor, weight: MaybeTensor, bias: MaybeTensor, running_mean: Tensor,
                      running_var: Tensor, training: bool, momentum: float, eps: float) -> Results:  # fmt: skip
    return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps), None, None


@aten("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(input: Tensor, weight: MaybeTensor, bias: MaybeTensor, running_mean: Tensor,
                           running_var: Tensor, momentum: float, eps: float) -> Results:  # fmt: skip
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps), None, None


@aten("aten.layer_norm.default")
def layer_norm(input: Tensor, normalized_shape: Sizes, weight: MaybeTensor = None, bias: MaybeTensor = None,
               eps: float = 1e-5) -> Result:  # fmt: skip
    return fn.layer_norm(input, normalized_shape, weight, bias, eps)


@aten("aten.native_layer_norm.default")
def native_layer_norm(input: Tensor, normalized_shape: Sizes, weight: MaybeTensor, bias: MaybeTensor,
                      eps: float) -> Results:  # fmt: skip
    return layer_norm(input, normalized_shape, weight, bias, eps), None, None


@aten("aten.rms_norm.default")
def rms_norm(input: Tensor, normalized_shape: Sizes, weight: MaybeTensor = None, eps: MaybeFloat = None) -> Result:
    return fn.rms_norm(
        input, normalized_shape, weight, EPSILON.get(input.dtype.name, 0.0) if eps is None else eps
    )


@aten("aten.group_norm.default")
def group_norm(input: Tensor, num_groups: int, weight: MaybeTensor = None, bias: MaybeTensor = None,
               eps: float = 1e-5) -> Result:  # fmt: skip
    return F.group_norm(input, *_vectors(input, weight, bias, input.shape[1:2]), groups=num_groups, eps=eps)


@aten("aten.native_group_norm.default")
def native_group_norm(input: Tensor, weight: MaybeTensor, bias: MaybeTensor, N: Size, C: Size, HxW: Size,  # noqa: N803
                      group: int, eps: float) -> Results:  # fmt: skip
    return group_norm(input, group, weight, bias, eps), None, None


@aten("aten.instance_norm.default")
def instance_norm(input: Tensor, weight: MaybeTensor, bias: MaybeTensor, running_mean: MaybeTensor,
                  running_var: MaybeTensor, use_input_stats: bool, momentum: float, eps: float) -> Result:  # fmt: skip
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return group_norm(input, fn.tensor.known_size(input, 1, "instance_norm"), weight, bias, eps)


@aten("aten._weight_norm.default")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Result:
    """The weight of torch.nn.utils.parametrizations.weight_norm: v at the length g, along all dimensions but one."""
    kept = None if dim == -1 else axis_of(dim, v.ndim(), "dim")
    axes = tuple(i for i in range(v.ndim()) if i != kept)
    length = F.sqrt(F.reduce_sum(F.mul(v, v), axes=axes, keepdims=True))
    return F.mul(v, F.div(g, length))


# ----------------------------------------------------------------------------------------------------- attention


@aten("aten.scaled_dot_product_attention.default")
def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: MaybeTensor = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: MaybeFloat = None, enable_gqa: bool = False) -> Result:  # fmt: skip
    if dropout_p:
        raise Unsupported(f"it {DROPS}")
    operands = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    return F.scaled_dot_product_attention(*operands, scale=scale, causal=is_causal, empty_rows="zero")


@aten("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
                    attn_mask: MaybeTensor = None, scale: MaybeFloat = None) -> Results:  # fmt: skip
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale), None
