"""The functional names: on arrays, against torch; recorded with named dims, against themselves on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from ingot import functional as F
from ingot.dims import Dim
from ingot.errors import DTypeError, OpError
from ingot.ir import Network, Spec
from ingot.ir.interpret import interpret

Array = np.ndarray
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def ints(high: int, *shape: int) -> Array:
    return rng.integers(0, high, shape).astype(np.int32)


class Case(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any] | None  # (torch, *tensors); None: only recording is compared with computing
    arrays: tuple[Array, ...]


def nn(torch: Any) -> Any:
    return torch.nn.functional


CASES: dict[str, Case] = {
    "gelu": Case(F.gelu, lambda t, x: nn(t).gelu(x, approximate="tanh"), (normal(3, 5),)),
    "gelu exact": Case(lambda x: F.gelu(x, "none"), lambda t, x: nn(t).gelu(x), (normal(3, 5),)),
    "quick_gelu": Case(F.quick_gelu, lambda t, x: x * t.sigmoid(1.702 * x), (normal(3, 5),)),
    "softplus": Case(lambda x: F.softplus(x, 2.0, 1.0), lambda t, x: nn(t).softplus(x, 2.0, 1.0), (normal(3, 5),)),
    "mish": Case(F.mish, lambda t, x: nn(t).mish(x), (normal(3, 5) * 10,)),
    "squared_relu": Case(F.squared_relu, lambda t, x: t.relu(x) ** 2, (normal(3, 5),)),
    "swiglu": Case(F.swiglu, lambda t, x: x[..., :3] * nn(t).silu(x[..., 3:]), (normal(2, 4, 6),)),
    "geglu": Case(F.geglu, lambda t, x: x[..., :3] * nn(t).gelu(x[..., 3:], approximate="tanh"), (normal(4, 6),)),
    "gegelu": Case(
        F.gegelu, lambda t, x: x[..., ::2] * t.sigmoid(1.702 * x[..., ::2]) * (x[..., 1::2] + 1), (normal(4, 6),)
    ),
    "gegelu limited": Case(
        lambda x: F.gegelu(x, 0.5),
        lambda t, x: (
            x[..., ::2].clamp(max=0.5)
            * t.sigmoid(1.702 * x[..., ::2].clamp(max=0.5))
            * (x[..., 1::2].clamp(-0.5, 0.5) + 1)
        ),
        (normal(4, 6),),
    ),
    "clip": Case(lambda x: F.clip(x, -0.5, None), lambda t, x: x.clamp(min=-0.5), (normal(9),)),
    "int_clip": Case(lambda x: F.int_clip(x, 2, 5), lambda t, x: x.clamp(2, 5), (ints(9, 20),)),
    "unary": Case(lambda x: F.unary(F.abs(x), "sqrt"), lambda t, x: x.abs().sqrt(), (normal(9),)),
    "elementwise_binary": Case(
        lambda x, y: F.elementwise_binary(x, y, "maximum"), lambda t, x, y: t.maximum(x, y), (normal(3, 1), normal(4))
    ),
    "arithmetic": Case(
        lambda x, y: F.div(F.sub(F.mul(F.add(x, 1), y), 0.5), 2.0),
        lambda t, x, y: ((x + 1) * y - 0.5) / 2,
        (normal(3, 4), normal(4)),
    ),
    "floordiv, modulo": Case(
        lambda x: F.add(F.floordiv(x, 3), F.modulo(x, 3)), lambda t, x: x // 3 + x % 3, (ints(20, 9) - 10,)
    ),
    "comparisons": Case(
        lambda x, y: F.op_or(F.op_and(F.gt(x, y), F.le(x, 1.0)), F.op_xor(F.eq(x, y), F.not_op(F.ne(x, y)))),
        lambda t, x, y: ((x > y) & (x <= 1.0)) | ((x == y) ^ ~(x != y)),
        (normal(9), normal(9)),
    ),
    "where": Case(lambda x, y: F.where(F.lt(x, 0), x, y), lambda t, x, y: t.where(x < 0, x, y), (normal(9), normal(9))),
    "where with a Python bool": Case(lambda x, y: F.where(True, x, y), lambda t, x, y: x, (normal(3), normal(3))),
    "softmax": Case(F.softmax, lambda t, x: t.softmax(x, -1), (normal(3, 4),)),
    "softmax dim": Case(lambda x: F.softmax(x, 0), lambda t, x: t.softmax(x, 0), (normal(3, 4),)),
    "log_softmax": Case(lambda x: F.log_softmax(x, 1), lambda t, x: t.log_softmax(x, 1), (normal(3, 4),)),
    "activation": Case(lambda x: F.activation(x, "silu"), lambda t, x: nn(t).silu(x), (normal(5),)),
    "sum": Case(lambda x: F.sum(x, 1), lambda t, x: x.sum(1), (normal(3, 4, 2),)),
    "mean": Case(lambda x: F.mean(x, (0, -1), True), lambda t, x: x.mean((0, 2), True), (normal(3, 4, 2),)),
    "max": Case(lambda x: F.max(x, 0), lambda t, x: x.amax(0), (normal(3, 4),)),
    "min": Case(lambda x: F.min(x, -1, keepdim=True), lambda t, x: x.amin(-1, True), (normal(3, 4),)),
    "prod": Case(lambda x: F.prod(x, 1), lambda t, x: x.prod(1), (normal(3, 4),)),
    "reduce all": Case(lambda x: F.reduce(x, "sum", None), lambda t, x: x.sum(), (normal(3, 4),)),
    "argmax": Case(lambda x: F.argmax(x, 1), lambda t, x: x.argmax(1), (normal(3, 4),)),
    "argmax keepdim": Case(lambda x: F.argmax(x, 0, True), lambda t, x: x.argmax(0, True), (normal(3, 4),)),
    "topk": Case(lambda x: F.topk(x, 2)[0], lambda t, x: x.topk(2)[0], (normal(3, 9),)),
    "topk smallest": Case(lambda x: F.topk(x, 2, 0, False)[1], lambda t, x: x.topk(2, 0, False)[1], (normal(9, 3),)),
    "sort": Case(lambda x: F.sort(x, 0)[0], lambda t, x: x.sort(0)[0], (normal(9, 3),)),
    "argsort": Case(lambda x: F.argsort(x, -1, True), lambda t, x: x.argsort(-1, True), (normal(3, 9),)),
    "cumsum": Case(lambda x: F.cumsum(x, 1), lambda t, x: x.cumsum(1), (normal(3, 4),)),
    "view": Case(lambda x: F.view(x, (0, -1, 2)), lambda t, x: x.view(3, 2, 2), (normal(3, 4),)),
    "flatten": Case(lambda x: F.flatten(x, 1), lambda t, x: x.flatten(1), (normal(3, 4, 2),)),
    "flatten a scalar": Case(F.flatten, lambda t, x: x.flatten(), (np.array(2.0, np.float32),)),
    "permute": Case(lambda x: F.permute(x, (2, 0, -2)), lambda t, x: x.permute(2, 0, 1), (normal(3, 4, 2),)),
    "transpose": Case(lambda x: F.transpose(x, 0, -1), lambda t, x: x.transpose(0, -1), (normal(3, 4, 2),)),
    "expand": Case(lambda x: F.expand(x, (5, -1, 4)), lambda t, x: x.expand(5, -1, 4), (normal(3, 1),)),
    "expand_dims": Case(lambda x: F.expand_dims(x, (0, -1)), lambda t, x: x[None, ..., None], (normal(3, 4),)),
    "unsqueeze": Case(lambda x: F.unsqueeze(x, -1), lambda t, x: x.unsqueeze(-1), (normal(3, 4),)),
    "squeeze": Case(lambda x: F.squeeze(x, (1, -1)), lambda t, x: x.squeeze((1, -1)), (normal(3, 1, 4, 1),)),
    "squeeze all": Case(F.squeeze, lambda t, x: x.squeeze(), (normal(3, 1, 4, 1),)),
    "expand_dims_like": Case(F.expand_dims_like, lambda t, x, y: x[None, None], (normal(4), normal(2, 3, 4))),
    "broadcast_helper": Case(
        lambda x, y: F.broadcast_helper(x, y)[1], lambda t, x, y: y[None], (normal(2, 3), normal(3))
    ),
    "concat": Case(lambda x, y: F.concat([x, y], -1), lambda t, x, y: t.cat([x, y], -1), (normal(3, 4), normal(3, 2))),
    "concat with ints": Case(
        lambda x: F.concat([7, x, 3]), lambda t, x: t.cat([t.tensor([7]), x, t.tensor([3])]).int(), (ints(9, 4),)
    ),
    "stack": Case(lambda x, y: F.stack([x, y], 1), lambda t, x, y: t.stack([x, y], 1), (normal(3, 4), normal(3, 4))),
    "slice": Case(lambda x: F.slice(x, (1, 0), (2, 2), (1, 2)), lambda t, x: x[1:3, 0:4:2], (normal(3, 4),)),
    "split": Case(lambda x: F.split(x, 3, 1), lambda t, x: x.split(3, 1), (normal(2, 7),)),
    "split by sizes": Case(lambda x: F.split(x, [1, 4, 2], -1), lambda t, x: x.split([1, 4, 2], -1), (normal(2, 7),)),
    "chunk": Case(lambda x: F.chunk(x, 2, 1), lambda t, x: x.chunk(2, 1), (normal(2, 6),)),
    "unbind": Case(lambda x: F.unbind(x, 1), lambda t, x: x.unbind(1), (normal(2, 3, 4),)),
    "pad": Case(
        lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), lambda t, x: nn(t).pad(x, (1, 2, 0, 1), value=3.0), (normal(2, 3),)
    ),
    "flip": Case(lambda x: F.flip(x, [1, -1]), lambda t, x: x.flip(1, 2), (normal(2, 3, 4),)),
    "repeat": Case(lambda x: F.repeat(x, (2, 1, 3)), lambda t, x: x.repeat(2, 1, 3), (normal(3, 4),)),
    "repeat_interleave": Case(
        lambda x: F.repeat_interleave(x, 3, 1), lambda t, x: x.repeat_interleave(3, 1), (normal(2, 3),)
    ),
    "meshgrid2d": Case(F.meshgrid2d, lambda t, x, y: t.meshgrid(x, y, indexing="xy"), (normal(3), normal(4))),
    "select": Case(lambda x: F.select(x, 1, -2), lambda t, x: x.select(1, -2), (normal(3, 4),)),
    "select by tensor": Case(
        lambda x, i: F.select(x, 0, i), lambda t, x, i: x[i.item()], (normal(3, 4), np.array(2, np.int32))
    ),
    "index_select": Case(
        lambda x, i: F.index_select(x, 1, i), lambda t, x, i: x.index_select(1, i), (normal(3, 4), ints(4, 6))
    ),
    "gather": Case(
        lambda x, i: F.gather(x, 1, i), lambda t, x, i: x.gather(1, i.long()), (normal(3, 4), ints(4, 3, 2))
    ),
    "gather an int": Case(lambda x: F.gather(x, 0, 1), lambda t, x: x[1:2], (normal(3, 4),)),
    "nonzero": Case(F.nonzero, lambda t, x: x.nonzero().T, (ints(2, 3, 5),)),
    "masked_select": Case(
        lambda x, m: F.masked_select(x, F.gt(m, 0)), lambda t, x, m: x.masked_select(m > 0), (normal(3, 4), normal(4))
    ),
    "matmul": Case(F.matmul, lambda t, x, y: x @ y, (normal(2, 3, 4), normal(4, 5))),
    "matmul transposed": Case(
        lambda x, y: F.matmul(x, y, True, True), lambda t, x, y: x.mT @ y.mT, (normal(4, 3), normal(5, 4))
    ),
    "linear": Case(F.linear, lambda t, x, w, b: nn(t).linear(x, w, b), (normal(2, 3, 4), normal(5, 4), normal(5))),
    "outer": Case(F.outer, lambda t, x, y: t.outer(x, y), (normal(3), normal(4))),
    "embedding": Case(F.embedding, lambda t, i, w: nn(t).embedding(i, w), (ints(6, 2, 3), normal(6, 4))),
    "layer_norm": Case(
        lambda x, w, b: F.layer_norm(x, 4, w, b),
        lambda t, x, w, b: t.layer_norm(x, (4,), w, b),
        (normal(3, 4), normal(4), normal(4)),
    ),
    "layer_norm, bias only": Case(
        lambda x, b: F.layer_norm(x, (4,), None, b),
        lambda t, x, b: t.layer_norm(x, (4,)) + b,
        (normal(3, 4), normal(4)),
    ),
    "layer_norm of two dims": Case(
        lambda x, w: F.layer_norm(x, (3, 4), w),
        lambda t, x, w: t.layer_norm(x, (3, 4), w),
        (normal(2, 3, 4), normal(3, 4)),
    ),
    "rms_norm": Case(
        lambda x, w: F.rms_norm(x, 4, w, 1e-3),
        lambda t, x, w: nn(t).rms_norm(x, (4,), w, 1e-3),
        (normal(3, 4), normal(4)),
    ),
    "group_norm": Case(
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda t, x, w, b: nn(t).group_norm(x, 2, w, b),
        (normal(2, 4, 3, 5), normal(4), normal(4)),
    ),
    "group_norm, bias only": Case(
        lambda x, b: F.group_norm(x, 2, None, b),
        lambda t, x, b: nn(t).group_norm(x, 2) + b[:, None],
        (normal(2, 4, 3), normal(4)),
    ),
    "batch_norm": Case(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, eps=1e-3),
        lambda t, x, m, v, w, b: nn(t).batch_norm(x, m, v, w, b, eps=1e-3),
        (normal(2, 4, 3, 5), normal(4), normal(4) ** 2, normal(4), normal(4)),
    ),
    "batch_norm, bias only": Case(
        lambda x, m, v, b: F.batch_norm(x, m, v, None, b),
        lambda t, x, m, v, b: nn(t).batch_norm(x, m, v, None, b),
        (normal(2, 4), normal(4), normal(4) ** 2, normal(4)),
    ),
    "group_norm of [B, C]": Case(lambda x: F.group_norm(x, 2), lambda t, x: nn(t).group_norm(x, 2), (normal(3, 6),)),
    "gather_last_token_logits": Case(
        lambda x, n: F.gather_last_token_logits(x, n, True),
        lambda t, x, n: x[n.long() - 1],
        (normal(9, 4), np.array([3, 4, 9], np.int32)),
    ),
    "gather_last_token_logits, padded": Case(
        lambda x, n: F.gather_last_token_logits(x, n, False),
        lambda t, x, n: x[t.arange(2), n.long() - 1],
        (normal(2, 5, 4), np.array([3, 5], np.int32)),
    ),
    "shape": Case(lambda x: F.shape(x), lambda t, x: t.tensor(x.shape), (normal(3, 4),)),
    "one size": Case(lambda x: F.shape(x, -1, "int32"), lambda t, x: t.tensor(4).int(), (normal(3, 4),)),
}


def several(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def agree(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    ours, theirs, arrays = CASES[name]
    assert theirs is not None
    want = theirs(torch, *[torch.tensor(a) for a in arrays])
    agree([np.asarray(a) for a in several(ours(*arrays))], [w.numpy() for w in several(want)])


@pytest.mark.parametrize("name", CASES)
def test_recorded_equals_computed(name: str) -> None:
    ours, _, arrays = CASES[name]
    network = Network()
    values = [network.input(f"x{i}", Spec.of(array)) for i, array in enumerate(arrays)]
    for i, value in enumerate(several(ours(*values))):
        network.outputs[str(i)] = value
    got = interpret(network, {f"x{i}": array for i, array in enumerate(arrays)})
    agree(list(got.values()), [np.asarray(a) for a in several(ours(*arrays))])


DYNAMIC: dict[str, Callable[[Any], Any]] = {
    "swiglu": F.swiglu,
    "view": lambda x: F.view(x, (0, 2, -1)),
    "view of dims": lambda x: F.view(x, (x.shape[0] * 2, 3)),
    "flatten": F.flatten,
    "expand_dims": lambda x: F.expand_dims(x, [1]),
    "concat": lambda x: F.concat([x, x], 0),
    "stack": lambda x: F.stack([x, x]),
    "split": lambda x: F.split(x, 2, 1)[2],
    "repeat": lambda x: F.repeat(x, (3, 2)),
    "repeat_interleave": lambda x: F.repeat_interleave(x, 2, 0),
    "select the last row": lambda x: F.select(x, 0, -1),
    "group_norm": lambda x: F.group_norm(F.view(x, (0, 2, 3)), 2),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "outer": lambda x: F.outer(F.sum(x, 1), F.sum(x, 1)),
    "arange": lambda x: F.add(F.arange(0, x.shape[0], "float32"), F.sum(x, 1)),
    "arange backwards": lambda x: F.mul(F.arange(x.shape[0], 0, "float32", -1), F.sum(x, 1)),
    "meshgrid2d": lambda x: F.meshgrid2d(F.sum(x, 1), F.sum(x, 0))[1],
    "masked_select": lambda x: F.masked_select(x, F.gt(x, 0)),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes(name: str) -> None:
    """Recorded once with a named dim, run at several sizes."""
    network = Network()
    network.outputs["y"] = DYNAMIC[name](network.input("x", Spec((Dim("N", 1, 3, 8), 6), "float32")))
    for size in (1, 2, 5):
        x = normal(size, 6)
        agree([interpret(network, {"x": x})["y"]], [np.asarray(DYNAMIC[name](x))])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gelu": (lambda: F.gelu(normal(3), "erf"), 'approximate must be "tanh" or "none"'),
    "swiglu odd": (lambda: F.swiglu(normal(3)), "must be known and even"),
    "gegelu odd": (lambda: F.gegelu(normal(3)), "must be known and even"),
    "unary": (lambda: F.unary(normal(3), "add"), "there is no op 'add' here"),
    "binary": (lambda: F.elementwise_binary(normal(3), normal(3), "import"), "there is no op 'import' here"),
    "activation": (lambda: F.activation(normal(3), "swoosh"), "unknown activation 'swoosh'"),
    "reduce": (lambda: F.reduce(normal(3), "median", 0), "no reduction 'median'"),
    "axis": (lambda: F.sum(normal(3), 1), "axis 1 is out of range|1 is out of range"),
    "axis twice": (lambda: F.sum(normal(3, 4), (0, -2)), "name an axis twice"),
    "view": (lambda: F.view(normal(3, 4), (-1, -1)), "at most one size may be -1"),
    "view 0": (lambda: F.view(normal(3), (3, 0)), "the 0 at position 1 keeps a dimension"),
    "view 0 as a size": (lambda: F.view(normal(3), (0,), zero_is_placeholder=False), "3 elements"),
    "squeeze": (lambda: F.squeeze(normal(3, 1), 0), "has size 3, not 1"),
    "flatten": (lambda: F.flatten(normal(2, 3), 1, 0), "start_dim 1 lies behind end_dim 0"),
    "concat": (lambda: F.concat([]), "at least one tensor"),
    "stack": (lambda: F.stack([]), "at least one tensor"),
    "split": (lambda: F.split(normal(4), [1, 2]), "do not add up to 4"),
    "split 0": (lambda: F.split(normal(4), 0), "positive size"),
    "chunk": (lambda: F.chunk(normal(4), 3), "not a multiple of 3"),
    "pad": (lambda: F.pad(normal(4), (1, 1), "edge"), "mode must be one of constant, reflect"),
    "pad odd": (lambda: F.pad(normal(4), (1,)), "two counts per dimension"),
    "repeat": (lambda: F.repeat(normal(3, 4), (2,)), "1 counts for 2 dimensions"),
    "select": (lambda: F.select(normal(3), 0, 3), "index 3 is out of range"),
    "select several": (lambda: F.select(normal(3), 0, ints(3, 2)), "must be a scalar"),
    "index_select": (lambda: F.index_select(normal(3), 0, ints(3, 2, 2)), "must have one dimension"),
    "outer": (lambda: F.outer(normal(3, 2), normal(3)), "takes two vectors"),
    "layer_norm": (lambda: F.layer_norm(normal(3, 4), (3,)), "is not the end of the input's shape"),
    "rms_norm": (lambda: F.rms_norm(normal(3, 4), ()), "is not the end of the input's shape"),
    "group_norm": (lambda: F.group_norm(normal(3, 4), 3), "4 channels are not a multiple of 3 groups"),
    "batch_norm": (lambda: F.batch_norm(normal(3, 4), *[normal(4)] * 2, training=True), "only given ones"),
    "group_norm rank": (lambda: F.group_norm(normal(3), 3), r"x must be \[N, C, …\]"),
    "arange": (lambda: F.arange(0, 3, step=0), "int other than 0"),
    "a dim that is a word": (lambda: F.transpose(normal(3, 4), "a", 0), "dim0 must be an int, not 'a'"),
    "a dim that is a fraction": (lambda: F.sum(normal(3, 4), 1.5), "must be an int, not 1.5"),
    "growth without end": (lambda: F.interpolate(normal(1, 2, 3), None, float("inf")), "must be above 0 and finite"),
    "two dtypes": (lambda: F.add(normal(3), normal(3).astype(ml_dtypes.bfloat16)), "a is float32 and b is bfloat16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(OpError, match=message):
        call()


def test_unknown_sizes_are_refused_where_a_number_is_needed() -> None:
    x = Network().input("x", Spec(("N", 4), "float32"))
    for call in (lambda: F.split(x, 2, 0), lambda: F.chunk(x, 2, 0), lambda: F.unbind(x, 0)):
        with pytest.raises(OpError, match="must be known"):
            call()


def test_cast() -> None:
    x = np.array([-300.0, -1.5, -0.5, 0.5, 2.5, 300.0, np.nan], np.float32)
    np.testing.assert_array_equal(F.cast(x, "int8"), [-127, -2, 0, 0, 2, 127, 0])
    np.testing.assert_array_equal(F.cast(x[:5], "int8", scale=0.5), [-127, -3, -1, 1, 5])
    np.testing.assert_array_equal(F.cast(np.array([-3, 5], np.int8), "float32", 0.25), [-0.75, 1.25])
    assert F.cast(x, "bfloat16").dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(F.cast(x, "float32"), x)
    with pytest.raises(TypeError):
        F.cast(x, "float31")
    with pytest.raises(DTypeError):
        F.cast(x, "float31")


def test_constants() -> None:
    assert F.constant([[1, 2]], "float32", (2,)).dtype == np.float32
    np.testing.assert_array_equal(F.constant_to_tensor_(3), np.array([3], np.int64))
    assert F.constant_to_tensor_(2.5, to_array=False).shape == () and F.constant_to_tensor_(True).dtype == bool
    np.testing.assert_array_equal(F.arange(2, 9, "int32", 3), np.array([2, 5, 8], np.int32))
    network = Network()
    y = F.constant(normal(4)) + network.input("x", Spec(("N", 4), "float32"))
    assert str(y.spec) == "f32[N, 4]" and len(network.constants) == 1


def test_alibi_slopes() -> None:
    np.testing.assert_allclose(F.generate_alibi_slopes(8), 2.0 ** -np.arange(1, 9), rtol=1e-6)
    assert F.generate_alibi_slopes(12).shape == (12,)


def test_choices_and_loops() -> None:
    def choose(x: Any) -> Any:
        return F.cond(F.gt(F.sum(x), 0.0), lambda a: F.mul(a, 2.0), lambda a: F.neg(a), [x])

    def double(x: Any) -> Any:
        start = F.constant(0, "int32")
        return F.while_loop(lambda i, a: F.lt(i, 3), lambda i, a: (F.add(i, 1), F.add(a, a)), [start, x])[1]

    network = Network()
    x = network.input("x", Spec((Dim("N"),), "float32"))
    network.output("chosen", choose(x))
    network.output("doubled", double(x))
    for array in (np.ones(3, np.float32), -np.ones(2, np.float32)):
        got = interpret(network, {"x": array})
        np.testing.assert_array_equal(got["chosen"], choose(array))
        np.testing.assert_array_equal(got["chosen"], array * 2 if array[0] > 0 else -array)
        np.testing.assert_array_equal(got["doubled"], array * 8)


def test_gated_names() -> None:
    assert F.is_gated_activation("swiglu") and not F.is_gated_activation("silu")
    assert F.non_gated_version("geglu") == "gelu" and F.non_gated_version("relu") == "relu"
