"""Lowered spatial ops: convolutions and group normalisation on channels-last tensors, with an expression on their
float32 results. x is [N, *S, C] with one to three spatial dims S; further operands are per channel, or like the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.ir import Case, Spec, op, require
from ingot.ir.expr import evaluate
from ingot.ops.common import Array, bf16, certainly_negative, f16, f32, rounded, same_dtype, show, widen
from ingot.ops.fused import FIVE, IDENTITY, PLUS, Bodied, expr_json
from ingot.ops.panels import PANEL, pack_panels, packed_shape, unpack_panels

RELU_PLUS = ((*PLUS[0], ("const", "float32", 0.0), ("max", "float32", 2, 3)), (4,))
TWICE = ((("input", "float32", 0), ("const", "float32", 2.0), ("mul", "float32", 0, 1)), (2,))


# ------------------------------------------------------------------------------------------------------------- geometry


def windows(size: Dimension, kernel: int, stride: int, padding: int, dilation: int) -> Dimension:
    """How many windows fit along a dimension with `padding` elements around it."""
    return dims.add(dims.floordiv(dims.add(size, padding - dilation * (kernel - 1) - 1), stride), 1)


class Sliding(Bodied):
    """What all convolutions share: one entry per spatial dim in each tuple."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def check_geometry(self, x: Spec, least_padding: int = 0) -> None:
        """The rules for x and the tuples."""
        rank = self.rank
        require(1 <= rank <= 3, f"kernel must have one to three entries, not {rank}")
        require(len(x.shape) == rank + 2, f"x must be [N, {rank} spatial dimensions, C], not of rank {len(x.shape)}")
        for name in ("stride", "pre_padding", "post_padding", "dilation"):
            require(len(getattr(self, name)) == rank, f"{name} must have {rank} entries, as kernel")
        require(min(*self.kernel, *self.stride, *self.dilation) > 0, "kernel, stride and dilation must be positive")
        require(min(*self.pre_padding, *self.post_padding) >= least_padding, "padding must not be negative")

    def sizes(self, x: Sequence[Dimension]) -> tuple[Dimension, ...]:
        """The spatial sizes of the result, from those of x."""
        padding = map(sum, zip(self.pre_padding, self.post_padding, strict=True))
        found = tuple(map(windows, x, self.kernel, self.stride, padding, self.dilation))
        require(not any(map(certainly_negative, found)) and 0 not in found,
                f"the kernel does not fit into {show(tuple(x))} with its padding")  # fmt: skip
        return found

    def working(self, *specs: Any) -> int:
        """The padded x, and what the expression needs."""
        batch, *sizes, channels = specs[0].shape
        around = [n + a + b for n, a, b in zip(sizes, self.pre_padding, self.post_padding, strict=True)]
        return super().working(*specs) + 4 * int(math.prod((batch, *around, channels)))

    def finish(self, accumulators: Array, extras: Sequence[Array]) -> Array:
        """The result, from the float32 sums."""
        return evaluate(expr_json(self.body), [accumulators, *extras], [self.dtype])[0]


def boxes_of(op: Sliding, x: Array) -> list[Array]:
    """For each tap, in row-major order, what every window has there: [N, *S', C], zeros outside of x."""
    around = [(0, 0), *zip(op.pre_padding, op.post_padding, strict=True), (0, 0)]
    padded = np.pad(widen(x), around)
    counts: Any = op.sizes(x.shape[1:-1])
    found = []
    for tap in product(*map(range, op.kernel)):
        starts = [t * d for t, d in zip(tap, op.dilation, strict=True)]
        cut = [slice(a, a + n * s, s) for a, n, s in zip(starts, counts, op.stride, strict=True)]
        found.append(padded[(slice(None), *cut)])
    return found


def grouped(box: Array, weight: Array) -> Array:
    """[…, g·c] times weights [g, o, c] → […, g·o], each group by itself."""
    groups, outputs, channels = weight.shape
    parts = [box[..., g * channels : (g + 1) * channels] @ weight[g].T for g in range(groups)]
    return np.concatenate(parts, -1).reshape(*box.shape[:-1], groups * outputs)


# ---------------------------------------------------------------------------------------------------------- convolution


class Convolution(Sliding):
    """The rules and the meaning of convolutions, whatever order their weight is stored in."""

    groups: int

    def result(self, x: Spec, outputs: int, extras: Sequence[Spec]) -> Spec:
        channels = x.shape[-1]
        require(self.groups > 0 and isinstance(channels, int) and channels % self.groups == 0 < channels,
                f"the channels of x must be a known multiple of {self.groups} groups, not {channels}")  # fmt: skip
        require(outputs > 0 and outputs % self.groups == 0, f"{outputs} outputs do not split into {self.groups} groups")
        return self.check_body(Spec(x.dtype, (x.shape[0], *self.sizes(x.shape[1:-1]), outputs)), extras)

    def compute(self, x: Array, weight: Array, extras: Sequence[Array]) -> Array:
        shape = (self.groups, len(weight) // self.groups, self.taps, x.shape[-1] // self.groups)
        taps = widen(weight).reshape(shape)
        sums: Any = sum(grouped(box, taps[:, :, t]) for t, box in enumerate(boxes_of(self, x)))
        return self.finish(sums, extras)

    def in_torch(self, torch: Any, x: Any, weight: Array, extras: Sequence[Any]) -> Any:
        rank = self.rank
        dense = widen(weight).reshape(len(weight), *self.kernel, x.shape[-1] // self.groups)
        wide = torch.nn.functional.pad(x.float().movedim(-1, 1), torch_padding(self))
        conv = getattr(torch.nn.functional, f"conv{rank}d")
        y = conv(wide, torch.from_numpy(np.moveaxis(dense, -1, 1).copy()), None, self.stride, 0, self.dilation,
                 self.groups)  # fmt: skip
        return torch_body(torch, self, y.movedim(1, -1), extras)


def torch_padding(op: Sliding) -> list[int]:
    return [n for pair in zip(reversed(op.pre_padding), reversed(op.post_padding), strict=True) for n in pair]


def torch_body(torch: Any, op: Any, accumulators: Any, extras: Sequence[Any]) -> Any:
    found = op.finish(accumulators.contiguous().numpy(), [e.float().numpy() for e in extras])
    bits = found.view(np.int16) if op.dtype is dtypes.bfloat16 else found
    tensor = torch.from_numpy(np.ascontiguousarray(bits))
    return tensor.view(torch.bfloat16) if op.dtype is dtypes.bfloat16 else tensor


def geometry(rank: int = 2, **changed: Any) -> dict[str, Any]:
    """Attributes of a case: a kernel of 3, padded to keep the size."""
    given = {"kernel": 3, "stride": 1, "pre_padding": 1, "post_padding": 1, "dilation": 1} | changed
    tuples = {k: v if isinstance(v, tuple) else (v,) * rank for k, v in given.items() if k in Sliding.__annotations__}
    rest = {k: v for k, v in changed.items() if k not in tuples}
    return {"body": IDENTITY, "dtype": "float32", **tuples, **rest}


def drawn_geometry(draw: Any, **more: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Random spatial sizes and the attributes of a convolution that fits them."""
    rank = draw.choice([1, 2, 2, 3])
    kernel, stride, dilation, pre, post = (
        tuple(draw.choice(options) for _ in range(rank))
        for options in ((1, 2, 3), (1, 1, 2, 3), (1, 1, 2), (0, 1, 2), (0, 1))
    )
    sizes = tuple(draw.choice([0, 1, 4]) + d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    given = {"kernel": kernel, "stride": stride, "pre_padding": pre, "post_padding": post, "dilation": dilation}
    return sizes, {**given, "body": IDENTITY, "dtype": "float32", **more}


@op("fused_conv")
class FusedConv(Convolution):
    """`body` of a convolution x [N, *S, C] with weight [O, K], K = (kernel positions…, channel of the group)."""

    stored = ("weight",)
    cases = (
        Case("3×3", (f32("T", 5, 6, 4), f32(8, 36)), geometry(groups=1)),
        Case("the same, its weight computed", (f32("T", 5, 6, 4), f32(8, 36)), geometry(groups=1), stored=(),
             host="the kernel takes packed weights"),
        Case("bias, residual and relu, strided", (bf16(2, 7, 6, 4), bf16(5, 36), bf16(5)),
             geometry(stride=2, groups=1, body=RELU_PLUS, dtype="bfloat16")),
        Case("groups, dilated, one dim", (f32(2, 9, 6), f32(4, 9)), geometry(1, dilation=2, groups=2)),
        Case("three dims, uneven padding", (f16(1, 4, 3, 5, 2), f16(3, 24), f16(1, 4, 2, 4, 3)),
             geometry(3, kernel=(3, 2, 2), pre_padding=(1, 0, 0), post_padding=(1, 0, 0), groups=1, body=PLUS,
                       dtype="float16")),
        Case("nothing in the batch", (f32(0, 4, 4, 2), f32(3, 18)), geometry(groups=1)),
        Case("unknown sizes", (f32(1, "S", "T", 2), f32(3, 18)), geometry(groups=1, stride=2)),
        Case("a body that reads nothing", (f32(1, 4, 4, 2), f32(3, 18)), geometry(groups=1, body=FIVE)),
        Case("weight of another kernel", (f32(1, 4, 4, 2), f32(3, 8)), geometry(groups=1), error=r"\[O, 18\]"),
        Case("groups do not divide", (f32(1, 4, 4, 3), f32(4, 9)), geometry(groups=2), error="multiple of 2 groups"),
        Case("the kernel is too large", (f32(1, 2, 2, 1), f32(1, 25)),
             geometry(kernel=5, pre_padding=1, groups=1), error="does not fit"),
        Case("an entry too few", (f32(1, 4, 4, 1), f32(1, 9)), geometry(stride=(1,), groups=1), error="2 entries"),
        Case("stride 0", (f32(1, 4, 4, 1), f32(1, 9)), geometry(stride=0, groups=1), error="must be positive"),
        Case("dtypes differ", (f32(1, 4, 4, 1), bf16(1, 9)), geometry(groups=1), error="x is float32 and weight is"),
        Case("a column as operand", (f32(1, 4, 4, 1), f32(3, 9), f32(4, 1)), geometry(groups=1, body=PLUS),
             error="operand of the expression must be"),
    )  # fmt: skip

    @property
    def fixed(self) -> int:
        return 2

    def infer(self, x: Spec, weight: Spec, *extras: Spec) -> Spec:
        self.check_geometry(x)
        same_dtype(x=x, weight=weight)
        k = dims.floordiv(x.shape[-1], max(self.groups, 1)) * self.taps
        require(len(weight.shape) == 2 and weight.shape[1] == k, f"weight must be [O, {k}], not {weight}")
        return self.result(x, weight.shape[0], extras)  # type: ignore[arg-type]

    def reference(self, x: Array, weight: Array, *extras: Array) -> Array:
        return self.compute(x, weight, extras)

    def torch(self, torch: Any, x: Any, weight: Any, *extras: Any) -> Any:
        return self.in_torch(torch, x, weight.float().numpy(), extras)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        groups, c, o = draw.choice([1, 1, 2, 3]), draw.choice([1, 2, 5]), draw.choice([1, 3, 8])
        sizes, attrs = drawn_geometry(draw, groups=groups)
        x, k = f32(draw.choice([0, 1, 2]), *sizes, groups * c), c * math.prod(attrs["kernel"])
        return Case("random", (x, f32(groups * o, k)), attrs)


def panel_shape(dtype: DType, groups: int, outputs: int, k: int) -> tuple[int, ...]:
    """Shape of the panels of a grouped weight: every group begins a panel."""
    return packed_shape(dtype, groups * _padded(outputs // groups), k, 1)


def _padded(outputs: int) -> int:
    return -(-outputs // PANEL) * PANEL


def pack_groups(weight: Array, groups: int) -> Array:
    """Panels of a weight [O, K] whose outputs are those of `groups` groups, one after the other."""
    outputs, k = weight.shape
    each = outputs // groups
    padded = np.zeros((groups, _padded(each), k), weight.dtype)
    padded[:, :each] = weight.reshape(groups, each, k)
    return pack_panels([padded.reshape(-1, k)])


def unpack_groups(panels: Array, groups: int, outputs: int, k: int) -> Array:
    """The weight [O, K] of `pack_groups`."""
    each = _padded(outputs // groups)
    (weight,) = unpack_panels(panels, groups * each, k, 1)
    return weight.reshape(groups, each, k)[:, : outputs // groups].reshape(outputs, k)


def require_panels(x: Spec, panels: Spec, groups: int, outputs: int, k: int) -> None:
    shape = panel_shape(x.dtype, groups, outputs, k)
    require(panels == Spec(x.dtype, shape), f"the packed weight must be {x.dtype.name}{list(shape)}, not {panels}")


def normal(rng: np.random.Generator, spec: Spec) -> Array:
    return rounded(rng.standard_normal(spec.shape), spec.dtype)


def from_torch(torch: Any, tensor: Any) -> Array:
    """A tensor's bits as an array of our dtype."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtypes.bfloat16.numpy)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------ depthwise


@op("depthwise_conv")
class DepthwiseConv(Sliding):
    """`body` of a convolution of every channel by itself: weight [taps, C]."""

    cases = (
        Case("3×3", (f32("T", 5, 6, 4), f32(9, 4)), geometry()),
        Case("bias and relu, strided", (bf16(2, 7, 6, 5), bf16(9, 5), bf16(5)),
             geometry(stride=2, body=RELU_PLUS, dtype="bfloat16")),
        Case("one dim, dilated, residual", (f32(2, 9, 3), f32(3, 3), f32(2, 7, 3)), geometry(1, dilation=2, body=PLUS)),
        Case("three dims", (f16(1, 3, 4, 3, 2), f16(27, 2)), geometry(3)),
        Case("another number of channels", (f32(1, 4, 4, 2), f32(9, 3)), geometry(), error=r"must be \[9, 2\]"),
    )  # fmt: skip

    @property
    def fixed(self) -> int:
        return 2

    def infer(self, x: Spec, weight: Spec, *extras: Spec) -> Spec:
        self.check_geometry(x)
        same_dtype(x=x, weight=weight)
        require(weight.shape == (self.taps, x.shape[-1]), f"weight must be [{self.taps}, {x.shape[-1]}], not {weight}")
        shape = (x.shape[0], *self.sizes(x.shape[1:-1]), x.shape[-1])
        return self.check_body(Spec(x.dtype, shape), extras)

    def reference(self, x: Array, weight: Array, *extras: Array) -> Array:
        wide = widen(weight)
        return self.finish(sum(box * wide[t] for t, box in enumerate(boxes_of(self, x))), extras)

    def torch(self, torch: Any, x: Any, weight: Any, *extras: Any) -> Any:
        channels = x.shape[-1]
        conv = getattr(torch.nn.functional, f"conv{self.rank}d")
        y = conv(torch.nn.functional.pad(x.float().movedim(-1, 1), torch_padding(self)),
                 weight.float().T.reshape(channels, 1, *self.kernel), None, self.stride, 0, self.dilation,
                 channels)  # fmt: skip
        return torch_body(torch, self, y.movedim(1, -1), extras)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        sizes, attrs = drawn_geometry(draw)
        channels = draw.size(1)
        x = f32(draw.choice([0, 1, 2]), *sizes, channels)
        return Case("random", (x, f32(math.prod(attrs["kernel"]), channels)), attrs)


# ----------------------------------------------------------------------------------------------------------- group norm


@op("fused_group_norm")
class FusedGroupNorm(Bodied):
    """`body` of the group normalisation of x [N, …, C]: every group of channels of a sample has mean 0 and variance 1,
    times a weight [C] if `vectors` > 0, plus a bias [C] if it is 2. Accumulates in float32, two passes."""

    groups: int
    eps: float
    vectors: int = 2
    cases = (
        Case("weight and bias", (f32("T", 3, 4, 6), f32(6), f32(6)),
             {"groups": 3, "eps": 1e-5, "body": IDENTITY, "dtype": "float32"}),
        Case("bfloat16 with an operand", (bf16(2, 3, 4, 6), bf16(6), bf16(6), bf16(2, 3, 4, 6)),
             {"groups": 2, "eps": 1e-5, "body": RELU_PLUS, "dtype": "bfloat16"}),
        Case("neither, one spatial dim", (f32(2, 5, 4),),
             {"groups": 1, "eps": 1e-3, "vectors": 0, "body": IDENTITY, "dtype": "float32"}),
        Case("weight alone, no spatial dims", (f32(2, 8), f32(8)),
             {"groups": 4, "eps": 1e-5, "vectors": 1, "body": IDENTITY, "dtype": "float32"}),
        Case("no such groups", (f32(2, 3, 8), f32(8), f32(8)),
             {"groups": 3, "eps": 1e-5, "body": IDENTITY, "dtype": "float32"}, error="multiple of 3 groups"),
        Case("a weight too short", (f32(2, 3, 8), f32(4), f32(8)),
             {"groups": 2, "eps": 1e-5, "body": IDENTITY, "dtype": "float32"}, error=r"must be \[8\]"),
    )  # fmt: skip

    @property
    def fixed(self) -> int:
        return 1 + self.vectors

    def infer(self, x: Spec, *vectors_and_extras: Spec) -> Spec:
        require(self.vectors in (0, 1, 2), f"vectors must be 0, 1 or 2, not {self.vectors}")
        require(len(x.shape) >= 2, "x must be [N, …, C]")
        require(len(vectors_and_extras) >= self.vectors, f"needs {self.vectors} vector(s) after x")
        channels = x.shape[-1]
        require(self.groups > 0 and isinstance(channels, int) and channels % self.groups == 0 < channels,
                f"the channels of x must be a known multiple of {self.groups} groups, not {channels}")  # fmt: skip
        for vector in vectors_and_extras[: self.vectors]:
            same_dtype(x=x, weight=vector)
            require(vector.shape == (channels,), f"weight and bias must be [{channels}], not {vector}")
        return self.check_body(x, vectors_and_extras[self.vectors :])

    def reference(self, x: Array, *vectors_and_extras: Array) -> Array:
        wide = widen(x)
        split = wide.reshape(len(x), math.prod(x.shape[1:-1]), self.groups, x.shape[-1] // self.groups)
        count = max(split.shape[1] * split.shape[3], 1)
        centred = split - split.sum((1, 3), keepdims=True) / np.float32(count)
        variance = (centred * centred).sum((1, 3), keepdims=True) / np.float32(count)
        y = (centred / np.sqrt(variance + np.float32(self.eps))).reshape(x.shape)
        for vector, join in zip(vectors_and_extras[: self.vectors], (np.multiply, np.add), strict=False):
            y = join(y, widen(vector))
        return self.finish(y, vectors_and_extras[self.vectors :])

    def finish(self, normalised: Array, extras: Sequence[Array]) -> Array:
        return evaluate(expr_json(self.body), [normalised, *extras], [self.dtype])[0]

    def torch(self, torch: Any, x: Any, *vectors_and_extras: Any) -> Any:
        weight, bias = ([v.float() for v in vectors_and_extras[: self.vectors]] + [None, None])[:2]
        y = torch.nn.functional.group_norm(x.float().movedim(-1, 1), self.groups, weight, bias, self.eps)
        return torch_body(torch, self, y.movedim(1, -1), vectors_and_extras[self.vectors :])

    @classmethod
    def draw(cls, draw: Any) -> Case:
        groups, each, vectors = draw.choice([1, 2, 5]), draw.choice([1, 2, 8]), draw.choice([0, 1, 2])
        shape = (draw.choice([0, 1, 3]), *(draw.size(2) for _ in range(draw.choice([1, 2]))), groups * each)
        attrs = {"groups": groups, "eps": 1e-3, "vectors": vectors, "body": IDENTITY, "dtype": "float32"}
        return Case("random", (f32(*shape), *[f32(groups * each)] * vectors), attrs)
