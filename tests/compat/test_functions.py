"""Every plain function of tensorrt_llm.functional, tested as it was there: static and with profiles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.compat.retired import create_session, run_session

torch = pytest.importorskip("torch")
nn = torch.nn.functional
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}  # measured: 4e-6 and 2e-3 (values up to about 4)
SIZES = {"N": (1, 3, 5), "M": (2, 4, 2), "W": (3, 6, 9)}  # what a profile may have; the second is the static size


class Case(NamedTuple):
    """ours(functional, *tensors) and theirs(*tensors) on `inputs`: shapes and types; names are sizes that may change.

    A type "" is the one that the test runs in; "int" stands for int32 in 0..3, "bool" for bools, "+" for 0.5 and more.
    """

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[tuple[tuple[Any, ...], str], ...]


def f(*shape: Any) -> tuple[tuple[Any, ...], str]:
    return shape, ""


def i(*shape: Any) -> tuple[tuple[Any, ...], str]:
    return shape, "int"


def b(*shape: Any) -> tuple[tuple[Any, ...], str]:
    return shape, "bool"


def pos(*shape: Any) -> tuple[tuple[Any, ...], str]:
    return shape, "+"


def halves(x: Any) -> tuple[Any, Any]:
    first, second = x.chunk(2, -1)
    return first, second


def rms(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    wide = x.float()
    return (wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def unary(name: str, theirs: Callable[..., Any], *inputs: Any) -> Case:
    return Case(lambda g, x: getattr(g, name)(x), theirs, inputs or (f("N", 4),))


def binary(name: str, theirs: Callable[..., Any], *inputs: Any) -> Case:
    return Case(lambda g, x, y: getattr(g, name)(x, y), theirs, inputs or (f("N", 4), f("N", 4)))


def wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function computed in float32 and rounded once, as sums are here."""

    def call(*tensors: Any) -> Any:
        out = function(*[t.float() if t.is_floating_point() else t for t in tensors])
        return out.to(tensors[0].dtype) if out.is_floating_point() else out

    return call


CASES: dict[str, Case] = {
    "activation": Case(lambda g, x: g.activation(x, trt().ActivationType.TANH), torch.tanh, (f("N", 4),)),
    "relu": unary("relu", torch.relu),
    "tanh": unary("tanh", torch.tanh),
    "sigmoid": unary("sigmoid", torch.sigmoid),
    "silu": unary("silu", nn.silu),
    "gelu": unary("gelu", lambda x: nn.gelu(x, approximate="tanh")),
    "quick_gelu": unary("quick_gelu", wide(lambda x: x * torch.sigmoid(1.702 * x))),
    "squared_relu": unary("squared_relu", lambda x: torch.relu(x) ** 2),
    "swiglu": unary("swiglu", wide(lambda x: halves(x)[0] * nn.silu(halves(x)[1])), f("N", 8)),
    "geglu": unary("geglu", wide(lambda x: halves(x)[0] * nn.gelu(halves(x)[1], approximate="tanh")), f("N", 8)),
    "gegelu": Case(
        lambda g, x: g.gegelu(x, limit=1.0),
        wide(
            lambda x: (
                x[..., ::2].clamp(max=1)
                * torch.sigmoid(1.702 * x[..., ::2].clamp(max=1))
                * (x[..., 1::2].clamp(-1, 1) + 1)
            )
        ),
        (f("N", 8),),
    ),
    "softplus": Case(lambda g, x: g.softplus(x, beta=2.0, threshold=1.0), lambda x: nn.softplus(x, 2, 1), (f("N", 4),)),
    "clip": Case(lambda g, x: g.clip(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5), (f("N", 4),)),
    "int_clip": Case(lambda g, x: g.int_clip(x, 1, 2), lambda x: x.clamp(1, 2), (i("N", 4),)),
    "identity": unary("identity", lambda x: x),
    "cast": Case(lambda g, x: g.cast(x, "int32"), lambda x: x.int(), (pos("N", 4),)),
    "unary": Case(lambda g, x: g.unary(x, trt().UnaryOperation.EXP), torch.exp, (f("N", 4),)),
    "round": unary("round", torch.round),
    "sqrt": unary("sqrt", torch.sqrt, pos("N", 4)),
    "exp": unary("exp", torch.exp),
    "sin": unary("sin", torch.sin),
    "cos": unary("cos", torch.cos),
    "abs": unary("abs", torch.abs),
    "log": unary("log", torch.log, pos("N", 4)),
    "not_op": unary("not_op", torch.logical_not, b("N", 4)),
    "elementwise_binary": Case(
        lambda g, x, y: g.elementwise_binary(x, y, trt().ElementWiseOperation.PROD), torch.mul, (f("N", 4), f(4))
    ),
    "add": binary("add", torch.add, f("N", 4), f(1, 4)),
    "sub": binary("sub", torch.sub),
    "mul": binary("mul", torch.mul),
    "div": binary("div", torch.div, f("N", 4), pos("N", 4)),
    "gt": binary("gt", torch.gt),
    "lt": binary("lt", torch.lt),
    "eq": binary("eq", torch.eq, i("N", 4), i("N", 4)),
    "minimum": binary("minimum", torch.minimum),
    "maximum": binary("maximum", torch.maximum),
    "pow": binary("pow", wide(torch.pow), pos("N", 4), f("N", 4)),
    "floordiv": Case(lambda g, x: g.floordiv(x, 2), lambda x: x // 2, (i("N", 4),)),
    "modulo": Case(lambda g, x: g.modulo(x, 2), lambda x: x % 2, (i("N", 4),)),
    "op_and": binary("op_and", torch.logical_and, b("N", 4), b("N", 4)),
    "op_or": binary("op_or", torch.logical_or, b("N", 4), b("N", 4)),
    "op_xor": binary("op_xor", torch.logical_xor, b("N", 4), b("N", 4)),
    "where": Case(lambda g, c, x, y: g.where(c, x, y), torch.where, (b("N", 4), f("N", 4), f("N", 4))),
    "where of a Python bool": Case(lambda g, x, y: g.where(False, x, y), lambda x, y: y, (f("N", 4), f("N", 4))),
    "softmax": Case(lambda g, x: g.softmax(x, dim=1), lambda x: x.softmax(1), (f("N", 4, 3),)),
    "log_softmax": Case(lambda g, x: g.log_softmax(x, 1), lambda x: x.log_softmax(1), (f("N", 4),)),
    "mean": Case(lambda g, x: g.mean(x, dim=1, keepdim=True), lambda x: x.mean(1, True), (f("N", 4),)),
    "max": Case(lambda g, x: g.max(x, dim=-1), lambda x: x.amax(-1), (f("N", 4),)),
    "min": Case(lambda g, x: g.min(x, dim=0), lambda x: x.amin(0), (f("N", 4),)),
    "sum": Case(lambda g, x: g.sum(x, dim=0, keepdim=True), wide(lambda x: x.sum(0, True)), (f("N", 4),)),
    "prod": Case(lambda g, x: g.prod(x, dim=1), wide(lambda x: x.prod(1)), (f("N", 4),)),
    "reduce": Case(
        lambda g, x: g.reduce(x, trt().ReduceOperation.AVG, dim=(0, 1)), wide(lambda x: x.mean((0, 1))), (f("N", 4, 2),)
    ),
    "argmax": Case(lambda g, x: g.argmax(x, dim=1), lambda x: x.argmax(1).int(), (f("N", 9),)),
    "argmax keepdim": Case(lambda g, x: g.argmax(x, 1, keepdim=True), lambda x: x.argmax(1, True).int(), (f("N", 9),)),
    "topk": Case(lambda g, x: g.topk(x, 2, 1)[0], lambda x: x.topk(2, 1)[0], (f("N", 9),)),
    "topk, indices of the smallest": Case(
        lambda g, x: g.topk(x, k=3, dim=0, largest=False, prefer_plugin=False)[1],
        lambda x: x.topk(3, 0, False)[1].int(),
        (f(9, "N"),),
    ),
    "cumsum": Case(lambda g, x: g.cumsum(x, 1), wide(lambda x: x.cumsum(1)), (f("N", 6),)),
    "nonzero": Case(lambda g, x: g.nonzero(x), lambda x: x.nonzero().T, (i("N", 4),)),
    "masked_select": Case(lambda g, x, m: g.masked_select(x, m), torch.masked_select, (f("N", 4), b("N", 4))),
    "gather": Case(lambda g, x, j: g.gather(x, 1, j), lambda x, j: x.gather(1, j.long()), (f("N", 4), i("N", 2))),
    "select": Case(lambda g, x: g.select(x, 1, -1), lambda x: x[:, -1], (f("N", 4),)),
    "index_select": Case(
        lambda g, x, j: g.index_select(x, 1, j), lambda x, j: x.index_select(1, j), (f("N", 4), i("M"))
    ),
    "embedding": Case(lambda g, j, w: g.embedding(j, w), lambda j, w: nn.embedding(j.long(), w), (i("N", 2), f(4, 3))),
    "constant": Case(lambda g, x: x + g.constant(numbers(x)), lambda x: x + torch.arange(4), (f("N", 4),)),
    "arange": Case(
        lambda g, x: x + g.cast(g.arange(0, 4, "int32"), x.dtype), lambda x: x + torch.arange(4), (f(2, 4),)
    ),
    "shape": Case(lambda g, x: g.shape(x), lambda x: torch.tensor(x.shape), (f("N", 4),)),
    "shape of one": Case(
        lambda g, x: g.shape(x, 0, cast_to_dtype="int32"), lambda x: torch.tensor(len(x)).int(), (f("N", 4),)
    ),
    "view": Case(lambda g, x: g.view(x, (0, 2, -1)), lambda x: x.view(-1, 2, 3), (f("N", 6),)),
    "flatten": Case(lambda g, x: g.flatten(x, 1), lambda x: x.flatten(1), (f("N", 2, 3),)),
    "permute": Case(lambda g, x: g.permute(x, (2, 0, 1)), lambda x: x.permute(2, 0, 1), (f("N", 2, 3),)),
    "transpose": Case(lambda g, x: g.transpose(x, 0, -1), lambda x: x.transpose(0, -1), (f("N", 2, 3),)),
    "expand": Case(lambda g, x: g.expand(x, (3, 4)), lambda x: x.expand(3, 4), (f(3, 1),)),
    "expand_dims": Case(lambda g, x: g.expand_dims(x, [0, 2]), lambda x: x[None, :, None], (f("N", 4),)),
    "expand_dims_like": Case(lambda g, x, y: g.expand_dims_like(x, y), lambda x, y: x[None], (f(4), f("N", 4))),
    "unsqueeze": Case(lambda g, x: g.unsqueeze(x, -1), lambda x: x[..., None], (f("N", 4),)),
    "squeeze": Case(lambda g, x: g.squeeze(x, 1), lambda x: x.squeeze(1), (f("N", 1, 4),)),
    "stack": Case(lambda g, x, y: g.stack([x, y], 1), lambda x, y: torch.stack([x, y], 1), (f("N", 4), f("N", 4))),
    "concat": Case(lambda g, x, y: g.concat([x, y], -1), lambda x, y: torch.cat([x, y], -1), (f("N", 4), f("N", 2))),
    "split": Case(lambda g, x: g.split(x, [1, 3], dim=1)[1], lambda x: x[:, 1:], (f("N", 4),)),
    "chunk": Case(lambda g, x: g.chunk(x, 2, dim=-1)[0], lambda x: x[:, :2], (f("N", 4),)),
    "unbind": Case(lambda g, x: g.unbind(x, 1)[2], lambda x: x[:, 2], (f("N", 4),)),
    "slice": Case(lambda g, x: g.slice(x, [1, 0], [2, 2], [1, 2]), lambda x: x[1:3, 0:4:2], (f(3, 4),)),
    "pad": Case(lambda g, x: g.pad(x, (1, 2), value=3.0), lambda x: nn.pad(x, (1, 2), value=3.0), (f("N", 4),)),
    "flip": Case(lambda g, x: g.flip(x, [-1]), lambda x: x.flip(-1), (f("N", 4),)),
    "repeat": Case(lambda g, x: g.repeat(x, [2, 3]), lambda x: x.repeat(2, 3), (f("N", 4),)),
    "repeat_interleave": Case(
        lambda g, x: g.repeat_interleave(x, 3, 1), lambda x: x.repeat_interleave(3, 1), (f("N", 4),)
    ),
    "meshgrid2d": Case(
        lambda g, x, y: g.meshgrid2d(x, y)[1], lambda x, y: torch.meshgrid(x, y, indexing="xy")[1], (f(3), f(4))
    ),
    "broadcast_helper": Case(lambda g, x, y: g.broadcast_helper(x, y)[0], lambda x, y: x[None], (f(4), f("N", 4))),
    "interpolate, nearest": Case(
        lambda g, x: g.interpolate(x, scale_factor=2), lambda x: nn.interpolate(x, scale_factor=2), (f("N", 2, 3, 4),)
    ),
    "interpolate, bilinear": Case(
        lambda g, x: g.interpolate(x, size=[6, 5], mode="bilinear", align_corners=False),
        wide(lambda x: nn.interpolate(x, (6, 5), mode="bilinear")),
        (f("N", 2, 3, 4),),
    ),
    "matmul": binary("matmul", wide(torch.matmul), f("N", 4), f(4, 5)),
    "einsum": Case(lambda g, x, y: g.einsum("bij,bjk->bik", [x, y]), wide(torch.matmul), (f("N", 3, 4), f("N", 4, 2))),
    "outer": binary("outer", torch.outer, f("N"), f("M")),
    "conv1d": Case(
        lambda g, x, w: g.conv1d(x, w, padding=1),
        wide(lambda x, w: nn.conv1d(x, w[..., 0], padding=1)),
        (f("N", 4, 6), f(5, 4, 3, 1)),
    ),
    "conv2d": Case(
        lambda g, x, w, c: g.conv2d(x, w, c, stride=(2, 1), padding=(1, 0)),
        wide(lambda x, w, c: nn.conv2d(x, w, c, (2, 1), (1, 0))),
        (f("N", 4, 6, 5), f(6, 4, 3, 3), f(6)),
    ),
    "conv3d": Case(
        lambda g, x, w: g.conv3d(x, w, groups=2),
        wide(lambda x, w: nn.conv3d(x, w, groups=2)),
        (f("N", 4, 3, 4, 5), f(6, 2, 2, 2, 2)),
    ),
    "conv_transpose2d": Case(
        lambda g, x, w: g.conv_transpose2d(x, w, None, (2, 2), (1, 1), (1, 1), (1, 1), 2),
        wide(lambda x, w: nn.conv_transpose2d(x, w, None, 2, 1, 1, 2, 1)),
        (f("N", 4, 3, 4), f(4, 3, 3, 3)),
    ),
    "avg_pool2d": Case(
        lambda g, x: g.avg_pool2d(x, (2, 2), padding=(1, 1), count_include_pad=False),
        wide(lambda x: nn.avg_pool2d(x, 2, padding=1, count_include_pad=False)),
        (f("N", 2, 4, 6),),
    ),
    "layer_norm": Case(
        lambda g, x, w, c: g.layer_norm(x, x.shape[-1], w, c),
        wide(lambda x, w, c: nn.layer_norm(x, (8,), w, c)),
        (f("N", 8), f(8), f(8)),
    ),
    "rms_norm": Case(lambda g, x, w: g.rms_norm(x, 8, 1, w, 1e-5), lambda x, w: rms(x, w, 1e-5), (f("N", 8), f(8))),
    "rms_norm before 1.0": Case(
        lambda g, x, w: g.rms_norm(x, 8, w, 1e-5), lambda x, w: rms(x, w, 1e-5), (f("N", 8), f(8))
    ),
    "rms_norm by name": Case(
        lambda g, x, w: g.rms_norm(x, 8, weight=w, eps=1e-5), lambda x, w: rms(x, w, 1e-5), (f("N", 8), f(8))
    ),
    "rms_norm in groups": Case(
        lambda g, x, w: g.rms_norm(x, 8, 2, w),
        wide(lambda x, w: rms(x.view(-1, 2, 4), torch.ones(4)).view(-1, 8) * w),
        (f("N", 8), f(8)),
    ),
    "group_norm": Case(
        lambda g, x, w, c: g.group_norm(x, 2, w, c),
        wide(lambda x, w, c: nn.group_norm(x, 2, w, c)),
        (f("N", 4, 3), f(4), f(4)),
    ),
    "interpolate, linear": Case(
        lambda g, x: g.interpolate(x, size=7, mode="linear", align_corners=True),
        wide(lambda x: nn.interpolate(x, 7, mode="linear", align_corners=True)),
        (f("N", 2, 4),),
    ),
    "interpolate, trilinear": Case(
        lambda g, x: g.interpolate(x, scale_factor=2, mode="trilinear"),
        wide(lambda x: nn.interpolate(x, scale_factor=2, mode="trilinear")),
        (f("N", 2, 2, 3, 2),),
    ),
    "interpolate, bicubic": Case(
        lambda g, x: g.interpolate(x, size=(5, 7), mode="bicubic"),
        wide(lambda x: nn.interpolate(x, (5, 7), mode="bicubic")),
        (f("N", 2, 3, 4),),
    ),
    "interpolate, nearest-exact": Case(
        lambda g, x: g.interpolate(x, size=(5, 7), mode="nearest-exact"),
        lambda x: nn.interpolate(x, (5, 7), mode="nearest-exact"),
        (f("N", 2, 3, 4),),
    ),
    "conv2d, uneven padding": Case(
        lambda g, x, w: g.conv2d(x, w, pre_padding=(1, 0), post_padding=(0, 2), dilation=(2, 1)),
        wide(lambda x, w: nn.conv2d(nn.pad(x, (0, 2, 1, 0)), w, dilation=(2, 1))),
        (f("N", 2, 5, 4), f(3, 2, 2, 3)),
    ),
    "conv1d, strides and groups": Case(
        lambda g, x, w, c: g.conv1d(x, w, c, stride=2, groups=2),
        wide(lambda x, w, c: nn.conv1d(x, w[..., 0], c, 2, groups=2)),
        (f("N", 4, 7), f(6, 2, 3, 1), f(6)),
    ),
    "avg_pool2d, ceil_mode": Case(
        lambda g, x: g.avg_pool2d(x, (3, 2), (2, 2), (1, 0), ceil_mode=True),
        wide(lambda x: nn.avg_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True)),
        (f("N", 2, 4, 5),),
    ),
    "matmul, transposed": Case(
        lambda g, x, y: g.matmul(x, y, transa=True, transb=True),
        wide(lambda x, y: x.mT @ y.mT),
        (f("N", 4, 3), f("N", 5, 4)),
    ),
    "einsum with an ellipsis": Case(
        lambda g, x, y: g.einsum("...i,ji->...j", [x, y]), wide(lambda x, y: x @ y.T), (f("N", 3, 4), f(2, 4))
    ),
    "topk of a computed count": Case(
        lambda g, x: g.topk(x, g.constant(np.array([2], np.int32)), 1)[0], lambda x: x.topk(2, 1)[0], (f("N", 9),)
    ),
    "topk of a count that is data": Case(
        lambda g, x, k: g.topk(x, k + 1, 1, largest=False)[1],
        lambda x, k: x.topk(int(k) + 1, 1, False)[1].int(),
        (f("N", 9), i(1)),
    ),
    "concat of sizes and ints": Case(
        lambda g, x: g.concat([g.shape(x, 0), 3, g.shape(x, 1)]), lambda x: torch.tensor([len(x), 3, 4]), (f("N", 4),)
    ),
    "mean of two dimensions": Case(
        lambda g, x: g.mean(x, dim=(0, 2)), wide(lambda x: x.mean((0, 2))), (f("N", 2, 3),)
    ),
    "squeeze of all": Case(lambda g, x: g.squeeze(x), lambda x: x.squeeze(), (f(1, 4, 1),)),
    "flip of two dimensions": Case(lambda g, x: g.flip(x, [0, 2]), lambda x: x.flip(0, 2), (f(3, 2, 4),)),
    "softmax of the last": Case(lambda g, x: g.softmax(x), lambda x: x.softmax(-1), (f("N", 2, 5),)),
    "layer_norm of two dimensions": Case(
        lambda g, x: g.layer_norm(x, (2, 4)), wide(lambda x: nn.layer_norm(x, (2, 4))), (f("N", 2, 4),)
    ),
    "masked_scatter": Case(
        lambda g, x, m, y: g.masked_scatter(x, m, y),
        lambda x, m, y: x.masked_scatter(m, y),
        (f("N", 4), b("N", 4), f(64)),
    ),
    "gather_nd": Case(
        lambda g, x, j: g.gather_nd(x, j, 0), lambda x, j: x[j[:, 0].long(), j[:, 1].long()], (f(4, 4), i("N", 2))
    ),
    "scatter": Case(
        lambda g, x, y: g.scatter(x, 1, g.constant(np.array([[1, 0]], np.int32)), y),
        lambda x, y: x.scatter(1, torch.tensor([[1, 0]]), y),
        (f(1, 4), f(1, 2)),
    ),
    "scatter_nd": Case(
        lambda g, x, m, y: g.scatter_nd(x, m, y),
        lambda x, m, y: x.index_put((m[:, 0].long(),), y),
        (f(4, 3), i(1, 1), f(1, 3)),
    ),
    "categorical_sample": Case(
        lambda g, x: g.categorical_sample(g.softmax(x * 100.0, -1), g.sum(x * 0.0, -1) + 0.5),
        lambda x: x.argmax(-1),
        (f("N", 4),),
    ),
    "rand": Case(lambda g, x: g.rand((2, 3), 0, 1) >= 0.0, lambda x: torch.ones(2, 3).bool(), (f(1),)),
    "constants_to_tensors_": Case(
        lambda g, x: x * g.cast(g.constants_to_tensors_(2, 3)[1], x.dtype), lambda x: x * 3, (f("N", 4),)
    ),
    "constant_to_tensor_": Case(
        lambda g, x: x * g.cast(g.constant_to_tensor_(3), x.dtype), lambda x: x * 3, (f("N", 4),)
    ),
    "rearrange": Case(
        lambda g, x: g.rearrange(x, "n (h d) -> h n d", h=2), lambda x: x.view(-1, 2, 3).transpose(0, 1), (f("N", 6),)
    ),
    "assertion": Case(lambda g, x: asserted(g, x), lambda x: x, (pos("N", 4),)),
    "Conditional": Case(
        lambda g, x, y: chosen(g, x, y), lambda x, y: torch.where(x.sum() > 0, x, y), (f("N", 4), f("N", 4))
    ),
    "generate_alibi_slopes": Case(
        lambda g, x: x * g.constant(g.generate_alibi_slopes(4, alibi_scale=2.0)).cast(x.dtype),
        lambda x: x * (2 * torch.tensor([0.25, 0.0625, 0.015625, 0.00390625])).to(x.dtype),
        (f("N", 4),),
    ),
    "generate_alibi_slopes before 1.0": Case(
        lambda g, x: x * g.generate_alibi_slopes(4, trt().float32).view([4]).cast(x.dtype),
        lambda x: x * torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]).to(x.dtype),
        (f("N", 4),),
    ),
    "generate_alibi_biases": Case(
        lambda g, x: g.generate_alibi_biases(x, 3),
        wide(lambda x: x * torch.tensor([0.0, 1, 2])),
        (f(1, 4, 1, 1),),
    ),
    "generate_logn_scaling": Case(
        lambda g, x: x * g.constant(g.generate_logn_scaling(2, 4)).cast(x.dtype),
        lambda x: x * torch.tensor([1, 1, np.log(3) / np.log(2), 2.0]).to(x.dtype),
        (f("N", 4),),
    ),
    "expand_mask": Case(
        lambda g, m: g.expand_mask(g.cast(m, "int32"), 3) < -1.0,
        lambda m: (~m)[:, None, None].expand(len(m), 1, 3, 4),
        (b("N", 4),),
    ),
    "view to sizes that are computed": Case(
        lambda g, x: g.view(x, g.concat([g.shape(x, 0), 2, 3])), lambda x: x.view(-1, 2, 3), (f("N", 6),)
    ),
    "arange to a size that is computed": Case(
        lambda g, x: g.arange(0, g.shape(x, 0), "int32"), lambda x: torch.arange(len(x)).int(), (f("N", 6),)
    ),
    "slice and expand to computed sizes": Case(
        lambda g, x: g.expand(g.slice(x, [0, 1], g.concat([g.shape(x, 0), 1])), g.concat([g.shape(x, 0), 3])),
        lambda x: x[:, 1:2].expand(-1, 3),
        (f("N", 6),),
    ),
    "gather_last_token_logits": Case(
        lambda g, x, n: g.gather_last_token_logits(x, n + 1, False),
        lambda x, n: x[torch.arange(len(x)), n.long()],
        (f("N", 4, 3), i("N")),
    ),
    "gather_last_token_logits, packed": Case(
        lambda g, x, n: g.gather_last_token_logits(x, n + 1, True),
        lambda x, n: x[n.long()],
        (f(4, 3), i("N")),
    ),
    "gather_last_token_logits, packed in one row": Case(
        lambda g, x, n: g.gather_last_token_logits(x, n + 1, True),
        lambda x, n: x[0, n.long()],
        (f(1, 4, 3), i("N")),
    ),
    "allreduce": Case(lambda g, x: g.allreduce(x, [0]), lambda x: x, (f("N", 4),)),
    "allgather": Case(lambda g, x: g.allgather(x, group=[0], gather_dim=1), lambda x: x, (f("N", 4),)),
    "operators": Case(
        lambda g, x, y: (1.0 - x) * y + x / 2 - y * 3.0,
        wide(lambda x, y: (1 - x) * y + x / 2 - y * 3),
        (f("N", 4), f("N", 4)),
    ),
    "comparisons": Case(
        lambda g, x, y: ((x >= y) & (x <= 1.0)) | (x == y),
        lambda x, y: ((x >= y) & (x <= 1)) | (x == y),
        (f("N", 4), f("N", 4)),
    ),
    "methods": Case(
        lambda g, x: x.transpose(0, 1).view([4, -1]).abs().sqrt().mean(0, keepdim=True).cast("float32"),
        lambda x: x.T.reshape(4, -1).abs().sqrt().mean(0, True).float(),
        (f("N", 4),),
    ),
}


def asserted(g: Any, x: Any) -> Any:
    """x, with an assertion that holds beside it."""
    g.assertion(x > 0.0, "positive")
    return x * 1.0


def chosen(g: Any, x: Any, y: Any) -> Any:
    """x where its sum is positive, else y."""
    choice = g.Conditional(g.sum(x, [0, 1]) > 0.0)
    return choice.add_output(choice.add_input(x), y)


def trt() -> Any:
    import tensorrt

    return tensorrt


def numbers(x: Any) -> Any:
    """0, 1, 2, 3 in the type of x."""
    from tensorrt_llm._utils import trt_dtype_to_np

    return np.arange(4).astype(trt_dtype_to_np(x.dtype))


def drawn(shape: tuple[Any, ...], kind: str, dtype: str, at: int, seed: int) -> Any:
    """An input whose named sizes are the ones of place `at` in their profiles."""
    sizes = [SIZES[n][at] if isinstance(n, str) else n for n in shape]
    rng = torch.Generator().manual_seed(seed)
    if kind == "int":
        return torch.randint(0, 4, sizes, generator=rng, dtype=torch.int32)
    if kind == "bool":
        return torch.randint(0, 2, sizes, generator=rng).bool()
    numbers = torch.randn(sizes, generator=rng)
    return (numbers.abs() + 0.5 if kind == "+" else numbers).to(getattr(torch, dtype))


RUNS = [  # bfloat16 with profiles waits for the slow tests
    pytest.param(name, dtype, dynamic, marks=pytest.mark.slow if dynamic and dtype == "bfloat16" else ())
    for name, case in CASES.items()
    for dtype in ("float32", "float16", "bfloat16")
    for dynamic in (False, True)
    if not dynamic or any(isinstance(n, str) for shape, _ in case.inputs for n in shape)
]


def input_of(index: int, shape: tuple[Any, ...], kind: str, dtype: str, dynamic: bool) -> Any:
    """An input of the network being built; sizes that may change are -1 with a profile."""
    from tensorrt_llm import Tensor, str_dtype_to_trt

    trt_dtype = str_dtype_to_trt({"int": "int32", "bool": "bool"}.get(kind, dtype))
    if not dynamic:
        return Tensor(f"x{index}", trt_dtype, [SIZES[n][1] if isinstance(n, str) else n for n in shape])
    ranges = OrderedDict(
        (n, [sorted(SIZES[n])]) if isinstance(n, str) else (f"fixed{index}.{axis}", [n]) for axis, n in enumerate(shape)
    )
    return Tensor(f"x{index}", trt_dtype, [-1 if isinstance(n, str) else n for n in shape], ranges)


@pytest.mark.sampled(4, by=lambda given: given["name"])
@pytest.mark.parametrize(("name", "dtype", "dynamic"), RUNS)
def test_function(name: str, dtype: str, dynamic: bool) -> None:
    import tensorrt_llm

    case = CASES[name]
    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        tensors = [input_of(index, *one, dtype, dynamic) for index, one in enumerate(case.inputs)]
        case.ours(tensorrt_llm.functional, *tensors).mark_output("output")
    session = create_session(builder, network, precision=dtype)
    for at in range(3) if dynamic else (1,):
        given = [drawn(*one, dtype, at, seed) for seed, one in enumerate(case.inputs)]
        ours = run_session(session, {f"x{index}": tensor for index, tensor in enumerate(given)})["output"]
        loose = TOLERANCE[dtype] if ours.is_floating_point() else 0
        torch.testing.assert_close(ours, case.theirs(*given), rtol=loose, atol=loose)


ELSEWHERE = {  # functions that files of their own test
    "gpt_attention", "bert_attention", "mamba_conv1d", "selective_scan", "rg_lru",
    "lora_plugin", "dora_plugin", "gemm_allreduce", "reduce_scatter",
    "is_gated_activation", "non_gated_version",
}  # fmt: skip


def test_every_function_has_a_case() -> None:
    from ingot.compat.functional import FUNCTIONS

    tested = {name.replace(",", " ").split(" ")[0] for name in CASES}
    missing = FUNCTIONS.keys() - tested - ELSEWHERE
    assert not missing, missing


def test_what_gives_no_tensor() -> None:
    import tensorrt_llm.functional as g

    assert g.is_gated_activation("swiglu") and not g.is_gated_activation("gelu")
    assert g.non_gated_version("swiglu") == "silu" and g.non_gated_version("gelu") == "gelu"
    with tensor_of(g) as x:
        assert g.reduce_scatter(x, [0]) is x


@contextmanager
def tensor_of(g: Any) -> Iterator[Any]:
    import tensorrt_llm

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        yield g.Tensor("x", "float32", [2, 3])


WEAK: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "add": (lambda g, x, y: g.add(x, y), ("float16", "float32"), "float32"),
    "mul of integers": (lambda g, x, y: g.mul(x, y), ("int32", "float16"), "float16"),
    "halves of two kinds": (lambda g, x, y: g.maximum(x, y), ("float16", "bfloat16"), "float32"),
    "matmul": (lambda g, x, y: g.matmul(x, y, transb=True), ("float16", "float32"), "float32"),
    "where": (lambda g, x, y: g.where(x > y, x, y), ("float16", "float32"), "float32"),
    "concat": (lambda g, x, y: g.concat([x, y], 0), ("float32", "float16"), "float32"),
    "scatter": (
        lambda g, x, y: g.scatter(x, 1, g.constant(np.array([[1, 0, 2]], np.int32)), g.slice(y, [0, 0], [1, 3])),
        ("float32", "float16"),
        "float32",
    ),
}


@pytest.mark.parametrize("name", WEAK)
def test_types_that_meet_without_strong_typing(name: str) -> None:
    """The same casts as written out, each on record with the user's line; a strongly typed network refuses."""
    import tensorrt_llm

    from ingot.errors import IngotError

    call, kinds, common = WEAK[name]
    given = [torch.randint(-3, 4, (2, 3), generator=torch.Generator().manual_seed(i)) for i in (1, 2)]
    given = [t.to(getattr(torch, kind)) for t, kind in zip(given, kinds, strict=True)]
    results = []
    for explicit in (False, True):
        builder = tensorrt_llm.Builder()
        builder.strongly_typed = explicit
        network = builder.create_network()
        with tensorrt_llm.net_guard(network):
            tensors = [tensorrt_llm.Tensor(f"x{i}", kind, [2, 3]) for i, kind in enumerate(kinds)]
            if explicit:
                with pytest.raises(IngotError):
                    call(tensorrt_llm.functional, *tensors)
                tensors = [t.cast(common) for t in tensors]
            call(tensorrt_llm.functional, *tensors).mark_output("y")
        session = create_session(builder, network)
        results.append(run_session(session, {f"x{i}": t for i, t in enumerate(given)})["y"])
        assert explicit or all("test_functions.py:" in cast and f"to {common}" in cast for cast in network.casts)
        assert bool(network.casts) is not explicit
    assert torch.equal(*results) and results[0].dtype == getattr(torch, common)
