"""Every plain function of the retired API: how it is called, on which sizes and types, and the same in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ingot import functional as F
from tests.functional.test_retired import masked, put, put_nd

Array = np.ndarray[Any, Any]

BOOL, INTS = ("bool",), ("int32", "int64")
FLOATS = ("float32", "float16", "bfloat16")
NUMBERS = (*FLOATS, *INTS)
ALL = (*NUMBERS, *BOOL)

SIZES = (((2, 3, 4),), ((0, 3),), ((),))  # usual, empty, 0-d
RANKED = SIZES[:2]
PAIRS = (((2, 3, 4), (3, 1)), ((0, 3), (0, 3)), ((), (2,)), ((), ()))


class Row(NamedTuple):
    """How to call a function, and what it has to give.

    want: the same in NumPy, on arrays whose floats are float64. sizes: the operands' shapes, one tuple for each case;
    an array stands for itself. gives: the result's type, None for that of the operands. fixed: dimensions that have to
    be known; weights: operands of which all have to be. between: the range that numbers come from. looser: times the
    tolerance.
    """

    call: Callable[..., Any]
    want: Callable[..., Any]
    sizes: Sequence[Sequence[Any]] = SIZES
    kinds: Sequence[str] = FLOATS
    gives: str | None = None
    fixed: Sequence[int] = ()
    weights: Sequence[int] = ()
    between: tuple[float, float] = (-3, 3)
    looser: float = 1


def index(*given: Any) -> Array:
    return np.array(given, np.int64)


def torched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch on arrays."""

    def call(*arrays: Array) -> Any:
        found = function(*(torch.from_numpy(np.ascontiguousarray(a).reshape(a.shape)) for a in arrays))
        return tuple(x.numpy() for x in found) if isinstance(found, tuple | list) else found.numpy()

    return call


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def halves(x: Array) -> list[Array]:
    return np.split(x, 2, -1)


def gegelu(x: Array) -> Array:
    even, odd = x[..., ::2], x[..., 1::2]
    return even * sigmoid(1.702 * even) * (odd + 1)


def softmax(x: Array, dim: int = -1) -> Array:
    e = np.exp(x - x.max(dim, keepdims=True, initial=-np.inf))
    return e / e.sum(dim, keepdims=True)


def quotient(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.floor_divide(a, b))


def norm(x: Array, axes: tuple[int, ...], eps: float = 1e-5) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def unary(name: str, want: Callable[..., Any], **more: Any) -> dict[str, Row]:
    return {name: Row(getattr(F, name), want, **more)}


def binary(name: str, want: Callable[..., Any], **more: Any) -> dict[str, Row]:
    return {name: Row(getattr(F, name), want, **({"sizes": PAIRS, "kinds": NUMBERS} | more))}


def reducing(name: str, want: Callable[..., Any], kinds: Sequence[str] = NUMBERS, **more: Any) -> dict[str, Row]:
    function = getattr(F, name)
    return {
        name: Row(lambda x: function(x, 1), lambda x: want(x, 1), (((2, 3, 4),), ((0, 3),)), kinds, **more),
        f"{name} with keepdim": Row(
            lambda x: function(x, -1, True), lambda x: want(x, -1, keepdims=True), RANKED, kinds, **more
        ),
        f"{name} of all": Row(
            lambda x: function(x, None if name != "argmax" else 0),
            lambda x: want(x, None),
            (((2, 3),), ((),)),
            kinds,
            **more,
        ),
    }


LAST_EVEN = {"sizes": (((2, 3, 8),), ((0, 8),)), "fixed": (-1,)}
MASK = np.array([[True, False, True], [False, True, True]])
ROWS: dict[str, Row] = {
    # ------------------------------------------------------------------------------------------- one operand
    "activation": Row(lambda x: F.activation(x, "silu"), silu),
    **unary("relu", lambda x: np.maximum(x, 0), kinds=NUMBERS),
    **unary("tanh", np.tanh),
    **unary("sigmoid", sigmoid),
    "clip": Row(lambda x: F.clip(x, -1, 2), lambda x: np.clip(x, -1, 2), kinds=NUMBERS),
    "int_clip": Row(lambda x: F.int_clip(x, -1, 2), lambda x: np.clip(x, -1, 2), kinds=INTS),
    **unary("silu", silu),
    "swiglu": Row(F.swiglu, lambda x: halves(x)[0] * silu(halves(x)[1]), **LAST_EVEN),
    **unary("squared_relu", lambda x: np.maximum(x, 0) ** 2, kinds=NUMBERS, looser=2),
    **unary("gelu", gelu),
    "geglu": Row(F.geglu, lambda x: halves(x)[0] * gelu(halves(x)[1]), **LAST_EVEN),
    **unary("quick_gelu", lambda x: x * sigmoid(1.702 * x)),
    "gegelu": Row(F.gegelu, gegelu, **LAST_EVEN),
    "softplus": Row(lambda x: F.softplus(x, 1.0, 20.0), lambda x: np.log1p(np.exp(x))),
    "unary": Row(lambda x: F.unary(x, "exp"), np.exp),
    **unary("round", np.round),
    **unary("sqrt", np.sqrt, between=(0, 9)),
    **unary("exp", np.exp),
    **unary("sin", np.sin),
    **unary("cos", np.cos),
    **unary("abs", np.abs, kinds=NUMBERS),
    **unary("log", np.log, between=(0.1, 9)),
    **unary("not_op", np.logical_not, kinds=BOOL),
    **unary("identity", lambda x: x, kinds=ALL),
    "log_softmax": Row(lambda x: F.log_softmax(x, 1), lambda x: np.log(softmax(x, 1)), RANKED),
    "softmax": Row(F.softmax, softmax, RANKED),
    # ------------------------------------------------------------------------------------------- two operands
    "elementwise_binary": Row(lambda a, b: F.elementwise_binary(a, b, "sub"), np.subtract, PAIRS, NUMBERS),
    **binary("add", np.add),
    **binary("sub", np.subtract),
    **binary("mul", np.multiply),
    **binary("div", np.divide, kinds=FLOATS, between=(1, 4)),
    **binary("gt", np.greater, gives="bool"),
    **binary("lt", np.less, gives="bool"),
    **binary("eq", np.equal, gives="bool", kinds=ALL),
    **binary("minimum", np.minimum),
    **binary("maximum", np.maximum),
    **binary("pow", np.power, kinds=FLOATS, between=(0.5, 2)),
    **binary("floordiv", quotient, between=(1, 5)),
    **binary("modulo", np.mod, between=(1, 5)),
    **binary("op_and", np.logical_and, kinds=BOOL),
    **binary("op_or", np.logical_or, kinds=BOOL),
    **binary("op_xor", np.logical_xor, kinds=BOOL),
    "where": Row(
        lambda c, a, b: F.where(c, a, b),
        np.where,
        ((MASK, (2, 3), (3,)), (MASK[:0], (0, 3), ()), (np.array(True), (), ())),
        ALL,
    ),
    # ------------------------------------------------------------------------------------------- reductions
    **reducing("mean", np.mean, FLOATS),
    **reducing("max", lambda x, a, **k: np.max(x, a, **k)),
    **reducing("min", lambda x, a, **k: np.min(x, a, **k)),
    **reducing("sum", lambda x, a, **k: np.sum(x, a, dtype=x.dtype, **k)),
    **reducing("prod", lambda x, a, **k: np.prod(x, a, dtype=x.dtype, **k), between=(0.5, 1.5), looser=2),
    "reduce": Row(lambda x: F.reduce(x, "sum", (0, 1)), lambda x: x.sum((0, 1), dtype=x.dtype), RANKED, NUMBERS),
    "argmax": Row(lambda x: F.argmax(x, 1), lambda x: np.argmax(x, 1), RANKED, NUMBERS, gives="int64"),
    "argmax with keepdim": Row(
        lambda x: F.argmax(x, -1, True), lambda x: np.argmax(x, -1, keepdims=True), RANKED, NUMBERS, gives="int64"
    ),
    "topk": Row(lambda x: F.topk(x, 2, 1)[0], lambda x: -np.sort(-x, 1)[:, :2], RANKED, NUMBERS),
    "cumsum": Row(lambda x: F.cumsum(x, 1), lambda x: np.cumsum(x, 1, dtype=x.dtype), RANKED, NUMBERS, looser=2),
    # ------------------------------------------------------------------------------------------- places
    "nonzero": Row(F.nonzero, lambda x: np.stack(np.nonzero(x)), RANKED, ALL, gives="int64"),
    "masked_select": Row(
        F.masked_select,
        lambda x, m: x[np.broadcast_to(m, x.shape)],
        (((2, 3), MASK), ((2, 3), MASK[0]), ((0, 3), MASK[:0]), ((2, 3), ~MASK & MASK)),
        ALL,
    ),
    "masked_select of a scalar": Row(
        F.masked_select, lambda x, m: x[np.broadcast_to(m, x.shape)], (((), np.array(True)), ((), np.array(False))), ALL
    ),
    "masked_scatter": Row(F.masked_scatter, masked, (((2, 3), MASK, (6,)), ((0, 3), MASK[:0], (0,))), ALL),
    "gather": Row(
        lambda x, i: F.gather(x, 1, i),
        lambda x, i: np.take_along_axis(x, i, 1),
        (((2, 3), index([2, -1], [0, 1])), ((0, 3), np.zeros((0, 3), np.int64)), ((2, 0), np.zeros((2, 0), int))),
        ALL,
    ),
    "gather_nd": Row(
        lambda x, i: F.gather_nd(x, i, 0),
        lambda x, i: x[tuple(np.moveaxis(i, -1, 0))],
        (((2, 3), index([1, 2], [0, -1])), ((0, 3), np.zeros((0, 2), np.int64))),
        ALL,
        fixed=(-1,),
    ),
    "scatter": Row(
        lambda x, i, u: F.scatter(x, 1, i, u),
        lambda x, i, u: put(x, 1, i, u),
        (((2, 3), index([2, -3], [0, 1]), (2, 2)), ((0, 3), np.zeros((0, 2), np.int64), (0, 2))),
        ALL,
    ),
    "scatter_nd": Row(
        F.scatter_nd,
        put_nd,
        (((4, 3), index([1], [0]), (2, 3)), ((4, 3), np.zeros((0, 1), int), (0, 3))),
        ALL,
        fixed=(-1,),
    ),
    "select": Row(lambda x: F.select(x, 1, -1), lambda x: x[:, -1], RANKED, ALL),
    "select by data": Row(
        lambda x, i: F.select(x, 1, i),
        lambda x, i: x[:, i.item()],
        (((2, 3, 4), np.array(-1)), ((0, 3), np.array(1))),
        ALL,
    ),
    "index_select": Row(
        lambda x, i: F.index_select(x, 1, i),
        lambda x, i: x[:, i],
        (((2, 3, 4), index(2, -1, 0, 0)), ((0, 3), index(1)), ((2, 3), np.zeros(0, np.int64))),
        ALL,
    ),
    "embedding": Row(
        lambda w, i: F.embedding(i, w),
        lambda w, i: w[i],
        (((4, 3), index([2, 1], [0, 3])), ((4, 3), np.zeros(0, np.int64)), ((4, 3), np.array(2))),
        ALL,
    ),
    "embedding with scales": Row(
        lambda w, i, s: F.embedding(i, w, per_token_scale=s),
        lambda w, i, s: w[i] * s[i][..., None],
        (((4, 3), index([2, 1]), (4,)), ((4, 3), np.zeros(0, np.int64), (4,))),
        FLOATS,
    ),
    "categorical_sample": Row(
        lambda p: F.cast(F.categorical_sample(p, np.zeros(2, np.float32) + np.float32(1)), "int32"),
        lambda p: np.full(2, 3),
        (((2, 4),),),
        FLOATS,
        gives="int32",
        between=(0.5, 1),
        fixed=(0,),
    ),
    # ------------------------------------------------------------------------------------------- shapes
    "cast": Row(lambda x: F.cast(x, "int32"), lambda x: np.trunc(x).astype(np.int32), kinds=ALL, gives="int32"),
    "shape": Row(F.shape, lambda x: np.array(x.shape, np.int64), kinds=ALL, gives="int64"),
    "shape of a dim": Row(
        lambda x: F.shape(x, -1, "int32", (0, 3)), lambda x: np.array(min(x.shape[-1], 3)), RANKED, ALL, gives="int32"
    ),
    "arange": Row(
        lambda x: F.arange(0, F.shape(x, 0), "float32"), lambda x: np.arange(len(x)), RANKED, ALL, gives="float32"
    ),
    "arange by data": Row(
        lambda n: F.arange(1, F.add(n, n), "int64"),
        lambda n: np.arange(1, 2 * n),
        ((np.array(3),), (np.array(0),)),
        INTS,
        gives="int64",
    ),
    "view": Row(
        lambda x: F.view(x, (-1, x.shape[0], 3)),
        lambda x: x.reshape(-1, *x.shape[:1], 3),
        (((2, 3, 4),), ((3, 6),)),
        ALL,
        fixed=(1, 2),
    ),
    "view by shapes": Row(
        lambda x: F.view(x, F.concat([F.shape(x, 1), F.shape(x, 0)])),
        lambda x: x.reshape(x.shape[::-1]),
        (((2, 3),), ((0, 3),)),
        ALL,
    ),
    "view of a scalar": Row(lambda x: F.view(x, (1, 1)), lambda x: x.reshape(1, 1), (((),), ((1,),)), ALL),
    "flatten": Row(F.flatten, lambda x: x.reshape(-1), kinds=ALL),
    "permute": Row(
        lambda x: F.permute(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), (((2, 3, 4),), ((2, 0, 4),)), ALL
    ),
    "transpose": Row(lambda x: F.transpose(x, 0, -1), lambda x: x.swapaxes(0, -1), RANKED, ALL),
    "expand": Row(
        lambda x: F.expand(x, (5, *x.shape[:-1], 4)),
        lambda x: np.broadcast_to(x, (5, *x.shape[:-1], 4)),
        (((2, 1),), ((0, 1),)),
        ALL,
    ),
    "expand of a scalar": Row(lambda x: F.expand(x, (2, 3)), lambda x: np.broadcast_to(x, (2, 3)), (((),),), ALL),
    "expand by shapes": Row(
        lambda x, y: F.expand(x, F.shape(y)),
        lambda x, y: np.broadcast_to(x, y.shape),
        (((1, 3), (2, 3)), ((), (2, 3)), ((1, 3), (0, 3))),
        ALL,
    ),
    "expand_dims": Row(lambda x: F.expand_dims(x, (0, -1)), lambda x: x[None, ..., None], kinds=ALL),
    "expand_dims_like": Row(
        F.expand_dims_like,
        lambda x, y: x.reshape((1,) * (y.ndim - x.ndim) + x.shape),
        (((3,), (2, 3, 4)), ((), (2, 3)), ((0,), (2, 3))),
        ALL,
    ),
    "unsqueeze": Row(lambda x: F.unsqueeze(x, -1), lambda x: x[..., None], kinds=ALL),
    "squeeze": Row(lambda x: F.squeeze(x, 1), lambda x: x[:, 0], (((2, 1, 3),), ((0, 1),)), ALL),
    "stack": Row(
        lambda x, y: F.stack([x, y, x], -1),
        lambda x, y: np.stack([x, y, x], -1),
        (((2, 3), (2, 3)), ((0, 3), (0, 3)), ((), ())),
        ALL,
    ),
    "concat": Row(
        lambda x, y: F.concat([x, y], 1),
        lambda x, y: np.concatenate([x, y], 1),
        (((2, 3), (2, 4)), ((0, 3), (0, 4)), ((2, 0), (2, 4)), ((2, 0), (2, 0))),
        ALL,
    ),
    "concat of scalars": Row(lambda x, y: F.concat([x, y]), lambda x, y: np.array([x, y]), (((), ()),), ALL),
    "split": Row(
        lambda x: F.split(x, [1, 2], 1), lambda x: np.split(x, [1], 1), (((2, 3, 4),), ((0, 3),)), ALL, fixed=(1,)
    ),
    "chunk": Row(lambda x: F.chunk(x, 2, -1), lambda x: np.split(x, 2, -1), (((3, 4),), ((0, 4),)), ALL, fixed=(-1,)),
    "unbind": Row(lambda x: F.unbind(x, 1), lambda x: list(np.moveaxis(x, 1, 0)), RANKED, ALL, fixed=(1,)),
    "slice": Row(
        lambda x: F.slice(x, (0, 1), (x.shape[0], 2), (1, 1)),
        lambda x: x[:, 1:3],
        (((2, 5),), ((0, 5),)),
        ALL,
        fixed=(1,),
    ),
    "slice beyond": Row(
        lambda x: F.slice(x, (-1, -2), (x.shape[0], 6), mode="fill"),
        lambda x: np.pad(x, ((1, 0), (2, 6)))[: len(x), :6],
        (((2, 3),), ((0, 3),), ((3, 0),)),
        ALL,
    ),
    "slice by data": Row(
        lambda x, n: F.slice(x, (0, 0), F.concat([n, n])),
        lambda x, n: x[: n.item(), : n.item()],
        (((3, 4), np.array(2)), ((3, 4), np.array(0)), ((0, 4), np.array(0))),
        ALL,
        fixed=(0, 1),
    ),
    "pad": Row(
        lambda x: F.pad(x, (1, 2, 0, 1)), lambda x: np.pad(x, ((0, 1), (1, 2))), (((2, 3),), ((0, 3),), ((0, 0),)), ALL
    ),
    "pad by shapes": Row(
        lambda x: F.pad(x, (0, F.shape(x, 0))), lambda x: np.pad(x, ((0, 0), (0, len(x)))), (((2, 3),), ((0, 3),)), ALL
    ),
    "flip": Row(lambda x: F.flip(x, [1]), lambda x: x[:, ::-1], RANKED, ALL, fixed=(1,)),
    "interpolate": Row(
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: x.repeat(2, 2).repeat(2, 3),
        (((2, 3, 4, 5),), ((0, 3, 4, 5),)),
        FLOATS,
    ),
    "repeat": Row(lambda x: F.repeat(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), RANKED, ALL),
    "repeat of a scalar": Row(lambda x: F.repeat(x, (2,)), lambda x: np.tile(x, 2), (((),),), ALL),
    "repeat_interleave": Row(lambda x: F.repeat_interleave(x, 2, 1), lambda x: x.repeat(2, 1), RANKED, ALL),
    "meshgrid2d": Row(F.meshgrid2d, lambda x, y: list(np.meshgrid(x, y)), (((3,), (4,)), ((0,), (4,))), ALL),
    "rearrange": Row(
        lambda x: F.rearrange(x, "a (b c) -> b a c", c=2),
        lambda x: x.reshape(len(x), 3, 2).swapaxes(0, 1),
        (((4, 6),), ((0, 6),)),
        ALL,
        fixed=(1,),
    ),
    "broadcast_helper": Row(F.broadcast_helper, lambda x, y: [x[None], y], (((3,), (2, 3)), ((0,), (2, 0))), ALL),
    # ------------------------------------------------------------------------------------------- products and norms
    "matmul": Row(F.matmul, np.matmul, (((2, 3, 4), (2, 4, 5)), ((0, 3), (3, 4)), ((2, 0), (0, 3))), FLOATS, looser=4),
    "matmul turned": Row(
        lambda a, b: F.matmul(a, b, transb=True),
        lambda a, b: a @ b.swapaxes(-1, -2),
        (((2, 3, 4), (5, 4)), ((0, 3), (4, 3))),
        FLOATS,
        looser=4,
    ),
    "matmul of integers": Row(F.matmul, np.matmul, (((2, 3), (3, 4)), ((0, 3), (3, 2))), INTS),
    "einsum": Row(
        lambda a, b: F.einsum("bij,jk->bik", [a, b]),
        lambda a, b: a @ b,
        (((2, 3, 4), (4, 5)), ((0, 3, 4), (4, 5))),
        FLOATS,
        looser=4,
    ),
    "outer": Row(F.outer, np.outer, (((3,), (4,)), ((0,), (4,))), NUMBERS),
    "conv1d": Row(
        lambda x, w: F.conv1d(x, w, padding=1),
        torched(lambda x, w: torch.conv1d(x, w, padding=1)),
        (((2, 3, 6), (4, 3, 3)), ((0, 3, 6), (4, 3, 3))),
        FLOATS,
        fixed=(1,),
        weights=(1,),
        looser=8,
    ),
    "conv2d": Row(
        lambda x, w, b: F.conv2d(x, w, b, (2, 1)),
        torched(lambda x, w, b: torch.conv2d(x, w, b, (2, 1))),
        (((2, 3, 6, 5), (4, 3, 3, 2), (4,)), ((0, 3, 6, 5), (4, 3, 3, 2), (4,))),
        FLOATS,
        fixed=(1,),
        weights=(1, 2),
        looser=8,
    ),
    "conv3d": Row(
        F.conv3d,
        torched(torch.conv3d),
        (((1, 2, 4, 4, 4), (3, 2, 2, 2, 2)), ((0, 2, 4, 4, 4), (3, 2, 2, 2, 2))),
        FLOATS,
        fixed=(1,),
        weights=(1,),
        looser=8,
    ),
    "conv_transpose2d": Row(
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 2)),
        torched(lambda x, w: torch.conv_transpose2d(x, w, stride=2)),
        (((2, 3, 4, 5), (3, 4, 2, 3)), ((0, 3, 4, 5), (3, 4, 2, 3))),
        FLOATS,
        fixed=(1,),
        weights=(1,),
        looser=8,
    ),
    "avg_pool2d": Row(
        lambda x: F.avg_pool2d(x, (2, 2), padding=(1, 1)),
        torched(lambda x: torch.nn.functional.avg_pool2d(x, 2, padding=1)),
        (((2, 3, 6, 5),), ((0, 3, 6, 5),), ((3, 6, 5),)),
        FLOATS,
        fixed=(1,),
    ),
    "layer_norm": Row(
        lambda x, w, b: F.layer_norm(x, x.shape[-1], w, b),
        lambda x, w, b: norm(x, (-1,)) * w + b,
        (((2, 3, 8), (8,), (8,)), ((0, 8), (8,), (8,)), ((8,), (8,), (8,))),
        FLOATS,
        looser=4,
    ),
    "rms_norm": Row(
        lambda x, w: F.rms_norm(x, x.shape[-1], w),
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w,
        (((2, 3, 8), (8,)), ((0, 8), (8,)), ((8,), (8,))),
        FLOATS,
        looser=2,
    ),
    "rms_norm in groups": Row(
        lambda x: F.rms_norm(x, 8, num_groups=2),
        lambda x: (lambda y: (y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6)).reshape(x.shape))(
            x.reshape(*x.shape[:-1], 2, 4)
        ),
        (((2, 3, 8),), ((0, 8),)),
        FLOATS,
        fixed=(-1,),
    ),
    "group_norm": Row(
        lambda x, w, b: F.group_norm(x, 2, w, b),
        torched(lambda x, w, b: torch.group_norm(x, 2, w, b)),
        (((2, 4, 3), (4,), (4,)), ((0, 4, 3), (4,), (4,)), ((2, 4), (4,), (4,))),
        FLOATS,
        fixed=(1,),
        weights=(1, 2),
        looser=4,
    ),
    # ------------------------------------------------------------------------------------------- language models
    "generate_alibi_biases": Row(
        lambda s: F.generate_alibi_biases(s, 5),
        lambda s: s[None, :, None, None] * np.arange(5),
        (((4,),), ((0,),)),
        FLOATS,
    ),
    "expand_mask": Row(
        F.expand_mask,
        lambda m: np.broadcast_to(np.where(m, 0, -np.inf)[:, None, None], (len(m), 1, m.shape[1], m.shape[1])),
        (((2, 3),), ((0, 3),), ((2, 0),)),
        (*INTS, *BOOL),
        gives="float32",
    ),
    "gather_last_token_logits": Row(
        lambda x, n: F.gather_last_token_logits(x, n, False),
        lambda x, n: x[np.arange(len(x)), n - 1],
        (((2, 3, 4), index(3, 1)), ((0, 3, 4), np.zeros(0, np.int64))),
        FLOATS,
    ),
    "gather_last_token_logits of packed rows": Row(
        lambda x, n: F.gather_last_token_logits(x, n, True),
        lambda x, n: x[n - 1],
        (((5, 4), index(3, 5)), ((0, 4), np.zeros(0, np.int64))),
        FLOATS,
    ),
    "Conditional": Row(
        lambda a, b: (lambda c: c.add_output(c.add_input(a), b))(F.Conditional(np.array([True]))),
        lambda a, b: a,
        (((2, 3), (2, 3)), ((0, 3), (0, 3)), ((), ())),
        ALL,
    ),
}
