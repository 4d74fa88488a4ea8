"""TensorRT's layers: what `network.add_…` gives. A layer is recorded when its output is asked for first.

`LAYERS` is the table: arguments of the method, settings with their defaults, and what the layer computes of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot import functional as f
from ingot.compat.datatype import as_dtype
from ingot.compat.functional import recorded
from ingot.compat.refusal import refused
from ingot.compat.signatures import signature
from ingot.compat.tensor import ITensor
from ingot.compat.trt_enums import (
    FillOperation,
    GatherMode,
    InterpolationMode,
    MatrixOperation,
    PaddingMode,
    ResizeCoordinateTransformation,
    SampleMode,
    ScaleMode,
    TopKOperation,
)  # fmt: skip

Given = dict[str, Any]  # arguments and settings by name; tensors are ingot's values, members that name ops its words


class Kind(NamedTuple):
    """A kind of layer.

    arguments: of the method, those that are inputs first. inputs: how many. settings: attributes with their defaults.
    """

    arguments: str
    inputs: int
    make: Callable[[Given], Any]
    settings: dict[str, Any] = {}  # never changed


def axes_of(mask: int, rank: int) -> tuple[int, ...]:
    """The axes of TensorRT's bit mask."""
    return tuple(axis for axis in range(rank) if mask >> axis & 1)


def _numbers(weights: Any) -> Any:
    """The array of a Weights, or the value that stands in its place; None for none."""
    array = getattr(weights, "array", weights)
    return None if array is None or (isinstance(array, np.ndarray) and not array.size) else array


# ---------------------------------------------------------------------------------------------- one element at a time

_SELU = (1.6732632423543772, 1.0507009873554805)
_ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "leaky_relu": lambda x, a, b: f.add(f.relu(x), f.mul(f.minimum(x, 0.0), a)),
    "elu": lambda x, a, b: f.add(f.relu(x), f.mul(f.sub(f.exp(f.minimum(x, 0.0)), 1.0), a)),
    "selu": lambda x, a, b: f.mul(
        f.add(f.relu(x), f.mul(f.sub(f.exp(f.minimum(x, 0.0)), 1.0), a or _SELU[0])), b or _SELU[1]
    ),
    "softsign": lambda x, a, b: f.div(x, f.add(f.abs(x), 1.0)),
    "softplus": lambda x, a, b: f.mul(f.softplus(x, b or 1.0), (a or 1.0) * (b or 1.0)),
    "clip": lambda x, a, b: f.clip(x, a, b),
    "hard_sigmoid": lambda x, a, b: f.clip(f.add(f.mul(x, a), b), 0.0, 1.0),
    "scaled_tanh": lambda x, a, b: f.mul(f.tanh(f.mul(x, b)), a),
    "thresholded_relu": lambda x, a, b: f.where(f.gt(x, a), x, f.mul(x, 0.0)),
    "gelu_erf": lambda x, a, b: f.gelu(x, "none"),
}


def _activation(g: Given) -> Any:
    own = _ACTIVATIONS.get(g["type"])
    return f.activation(g["input"], g["type"]) if own is None else own(g["input"], g["alpha"], g["beta"])


def _scale(g: Given) -> Any:
    rank = len(g["input"].shape)
    around = (1, -1, *[1] * (rank - 2)) if g["mode"] is ScaleMode.CHANNEL else g["input"].shape[1:]
    out = g["input"]
    for name, op in (("scale", f.mul), ("shift", f.add), ("power", f.pow)):
        array = _numbers(g[name])
        if array is not None:
            out = op(out, array.reshape(()) if g["mode"] is ScaleMode.UNIFORM else array.reshape(around))
    return out


# ---------------------------------------------------------------------------------------------- shapes and indices


def _shuffle(g: Given) -> Any:
    x = g["input"]
    if g["first_transpose"] is not None:
        x = f.permute(x, tuple(g["first_transpose"]))
    sizes = g.get("input_1") if g.get("input_1") is not None else g["reshape_dims"]
    if sizes is not None:
        x = f.view(x, sizes if not isinstance(sizes, tuple) else tuple(sizes), g["zero_is_placeholder"])
    return x if g["second_transpose"] is None else f.permute(x, tuple(g["second_transpose"]))


def _slice(g: Given) -> Any:
    if g["mode"] is not SampleMode.STRICT_BOUNDS:
        raise refused(f"add_slice with mode {g['mode'].name}", "pad first (functional.pad), then slice within bounds")
    given = [g[n] if g.get(f"input_{i}") is None else g[f"input_{i}"] for i, n in _SLICED]
    return f.slice(g["input"], given[0], given[1], given[2])


_SLICED = ((1, "start"), (2, "shape"), (3, "stride"))


def _gather(g: Given) -> Any:
    x, indices, axis, mode = g["input"], g["indices"], g["axis"], g["mode"]
    if mode is GatherMode.ELEMENT:
        return f.gather(x, axis, indices)
    if mode is GatherMode.ND:
        return _later("gather_nd")(x, indices, g["num_elementwise_dims"])
    if g["num_elementwise_dims"]:
        raise refused("add_gather with num_elementwise_dims", "use functional.gather, which picks element by element")
    rows = f.index_select(x, axis, f.flatten(indices))
    at = axis % len(x.shape)
    return f.view(rows, (*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), False)


def _later(name: str) -> Callable[..., Any]:
    """A function of ingot's that this version may not have."""
    found: Callable[..., Any] | None = getattr(f, name, None)
    if found is None:
        raise refused(f"a layer that needs {name}", f"ingot.functional has no {name} yet; compose it of others")
    return found


def _constant(g: Given) -> Any:
    return np.asarray(getattr(g["weights"], "array", g["weights"])).reshape(tuple(g["shape"]))


def _fill(g: Given) -> Any:
    if g["op"] is not FillOperation.LINSPACE or len(g["shape"]) != 1:
        raise refused(f"add_fill {g['op'].name} of {list(g['shape'])}", "fill one dimension by LINSPACE, or a constant")
    kind = as_dtype("float32" if g["output_type"] is None else g["output_type"])
    start = 0.0 if g["alpha"] is None else g["alpha"]
    step = 1.0 if g["beta"] is None else g["beta"]
    return (np.arange(g["shape"][0]) * step + start).astype(kind.numpy)


def _cumulative(g: Given) -> Any:
    if g["exclusive"] or g["reverse"]:
        raise refused("add_cumulative, exclusive or reverse", "use functional.cumsum; subtract or flip beside it")
    return f.cumsum(g["input"], int(g["axis"]))


def _top_k(g: Given) -> Any:
    (axis,) = axes_of(g["axes"], len(g["input"].shape))
    k = g["k"] if g.get("input_1") is None else g["input_1"]
    return f.topk(g["input"], k, axis, largest=g["op"] is TopKOperation.MAX)


# ---------------------------------------------------------------------------------------------- sums and windows


def _reduce(g: Given) -> Any:
    return f.reduce(g["input"], g["op"], axes_of(g["axes"], len(g["input"].shape)), g["keep_dims"])


def _softmax(g: Given) -> Any:
    rank = len(g["input"].shape)
    axes = axes_of(g["axes"], rank) if g["axes"] is not None else (max(0, rank - 3),)
    if len(axes) != 1:
        raise refused(f"add_softmax over axes {list(axes)}", "take one axis; flatten the others together first")
    return f.softmax(g["input"], axes[0])


def _matmul(g: Given) -> Any:
    left, right = g["input0"], g["input1"]
    vectors = [g["op0"] is MatrixOperation.VECTOR, g["op1"] is MatrixOperation.VECTOR]
    left = f.unsqueeze(left, -2) if vectors[0] else left
    right = f.unsqueeze(right, -1) if vectors[1] else right
    out = f.matmul(left, right, g["op0"] is MatrixOperation.TRANSPOSE, g["op1"] is MatrixOperation.TRANSPOSE)
    out = f.squeeze(out, -1) if vectors[1] else out
    return f.squeeze(out, -1 if vectors[1] else -2) if vectors[0] else out


def _sides(g: Given) -> dict[str, Any]:
    """The paddings of a convolution; `padding_nd` is for both sides."""
    mode = g["padding_mode"]
    if mode.startswith("same"):
        return {"padding_mode": mode}
    both = tuple(g["padding_nd"] or (0,) * len(g["kernel_shape"]))
    before, after = (tuple(both if g[side] is None else g[side]) for side in ("pre_padding", "post_padding"))
    return {"pre_padding": before, "post_padding": after, "padding_mode": mode}


def _convolution(transposed: bool) -> Callable[[Given], Any]:
    def make(g: Given) -> Any:
        x, rank, groups = g["input"], len(g["kernel_shape"]), g["num_groups"]
        weight, bias = (g.get(f"input_{i}") for i in (1, 2))
        if weight is None:
            kernel, channels, outputs = tuple(g["kernel_shape"]), x.shape[1], g["num_output_maps"]
            outer = (channels, outputs // groups) if transposed else (outputs, channels // groups)
            weight = np.asarray(_numbers(g["kernel"])).reshape(*outer, *kernel)
        bias = _numbers(g["bias"]) if bias is None else bias
        call = getattr(f, f"conv_transpose{rank}d" if transposed else f"conv{rank}d")
        return call(
            x, weight, bias, stride=tuple(g["stride_nd"] or (1,) * rank), groups=groups,
            dilation=tuple(g["dilation_nd"] or (1,) * rank), **_sides(g),
        )  # fmt: skip

    return make


def _pooling(g: Given) -> Any:
    rank = len(g["window_size"])
    mode = g["padding_mode"]
    uneven = [side for side in ("pre_padding", "post_padding") if g[side] is not None]
    if uneven or mode.startswith("same"):
        raise refused("add_pooling_nd with uneven padding", "pad first (functional.pad), and pool without padding")
    stride, padding = tuple(g["stride_nd"] or (1,) * rank), tuple(g["padding_nd"] or (0,) * rank)
    more = {"ceil_mode": mode == "explicit_round_up"}
    if g["type"] == "avg_pool":
        more["count_include_pad"] = not g["average_count_excludes_padding"]
    return getattr(f, f"{g['type']}{rank}d")(g["input"], tuple(g["window_size"]), stride, padding, **more)


def _normalization(g: Given) -> Any:
    x, rank = g["input"], len(g["input"].shape)
    axes = axes_of(g["axesMask"], rank)
    if axes == tuple(range(rank - len(axes), rank)) and g["num_groups"] == 1 and _same_tail(g["scale"], x, len(axes)):
        sizes = x.shape[rank - len(axes) :]
        weight, bias = (f.view(g[n], sizes, False) for n in ("scale", "bias"))
        return f.layer_norm(x, sizes, weight, bias, g["epsilon"])
    if axes == tuple(range(2, rank)):
        channels = x.shape[1]
        weight, bias = (f.view(f.expand(g[n], _per_channel(g[n], channels)), (channels,), False) for n in _AFFINE)
        groups = channels if g["num_groups"] == 1 else g["num_groups"]
        return f.group_norm(x, groups, weight, bias, g["epsilon"])
    raise refused(f"add_normalization over axes {list(axes)}", "normalise the last axes, or all behind the channels")


_AFFINE = ("scale", "bias")


def _same_tail(scale: Any, x: Any, count: int) -> bool:
    return tuple(scale.shape[len(scale.shape) - count :]) == tuple(x.shape[len(x.shape) - count :])


def _per_channel(scale: Any, channels: Any) -> tuple[Any, ...]:
    return tuple(channels if axis == 1 else size for axis, size in enumerate(scale.shape))


_MODES = {
    "nearest": ("nearest",) * 3, "linear": ("linear", "bilinear", "trilinear"), "bicubic": (None, "bicubic", None),
}  # fmt: skip


def _resize(g: Given) -> Any:
    x, where = g["input"], g["coordinate_transformation"]
    mode = _MODES[g["resize_mode"]][len(x.shape) - 3]
    nearest, half = mode == "nearest", ResizeCoordinateTransformation.HALF_PIXEL
    corners = where is ResizeCoordinateTransformation.ALIGN_CORNERS
    if mode is None or (nearest and where is not ResizeCoordinateTransformation.ASYMMETRIC) or not (
        nearest or corners or where is half
    ):
        raise refused(f"add_resize {g['resize_mode']} with {where.name}", "use functional.interpolate")
    sizes = None if g["shape"] is None else list(g["shape"])[2:]
    scales = None if g["scales"] is None else list(g["scales"])[2:]
    return f.interpolate(x, sizes, scales, mode, corners)


_PADDED: dict[str, Any] = {
    "padding_nd": None, "pre_padding": None, "post_padding": None, "padding_mode": PaddingMode.EXPLICIT_ROUND_DOWN,
    "stride_nd": None,
}  # fmt: skip
_CONVOLVED: dict[str, Any] = {**_PADDED, "dilation_nd": None, "num_groups": 1}
_KERNEL = "input, num_output_maps, kernel_shape, kernel, bias=None"

LAYERS: dict[str, Kind] = {
    "activation": Kind("input, type", 1, _activation, {"alpha": 0.0, "beta": 0.0}),
    "cast": Kind("input, to_type", 1, lambda g: f.cast(g["input"], as_dtype(g["to_type"]))),
    "concatenation": Kind("inputs", 1, lambda g: f.concat(g["inputs"], g["axis"]), {"axis": 0}),
    "constant": Kind("shape, weights", 0, _constant),
    "convolution_nd": Kind(_KERNEL, 1, _convolution(False), _CONVOLVED),
    "cumulative": Kind("input, axis, operation, exclusive, reverse", 1, _cumulative),
    "deconvolution_nd": Kind(_KERNEL, 1, _convolution(True), _CONVOLVED),
    "einsum": Kind("inputs, equation", 1, lambda g: f.einsum(g["equation"], g["inputs"])),
    "elementwise": Kind(
        "input1, input2, op", 2, lambda g: f.elementwise_binary(g["input1"], g["input2"], g["op"])
    ),
    "fill": Kind("shape, op, output_type=None", 0, _fill, {"alpha": None, "beta": None}),
    "gather": Kind(
        "input, indices, axis", 2, _gather, {"mode": GatherMode.DEFAULT, "num_elementwise_dims": 0}
    ),
    "gather_v2": Kind("input, indices, mode", 2, _gather, {"axis": 0, "num_elementwise_dims": 0}),
    "identity": Kind("input", 1, lambda g: f.view(g["input"], g["input"].shape, False)),
    "matrix_multiply": Kind("input0, op0, input1, op1", 4, _matmul),
    "non_zero": Kind("input", 1, lambda g: f.nonzero(g["input"])),
    "normalization": Kind(
        "input, scale, bias, axesMask", 3, _normalization,
        {"epsilon": 1e-5, "num_groups": 1, "compute_precision": None},
    ),
    "pooling_nd": Kind(
        "input, type, window_size", 1, _pooling,
        {**_PADDED, "average_count_excludes_padding": True, "blend_factor": 0.0},
    ),
    "reduce": Kind("input, op, axes, keep_dims", 1, _reduce),
    "resize": Kind(
        "input", 1, _resize,
        {"shape": None, "scales": None, "resize_mode": InterpolationMode.NEAREST, "nearest_rounding": None,
         "coordinate_transformation": ResizeCoordinateTransformation.ASYMMETRIC, "selector_for_single_pixel": None},
    ),
    "scale": Kind("input, mode, shift=None, scale=None, power=None", 1, _scale),
    "select": Kind(
        "condition, then_input, else_input", 3, lambda g: f.where(g["condition"], g["then_input"], g["else_input"])
    ),
    "shape": Kind("input", 1, lambda g: f.shape(g["input"])),
    "shuffle": Kind(
        "input", 1, _shuffle,
        {"first_transpose": None, "reshape_dims": None, "second_transpose": None, "zero_is_placeholder": True},
    ),
    "slice": Kind("input, start, shape, stride", 1, _slice, {"mode": SampleMode.STRICT_BOUNDS}),
    "softmax": Kind("input", 1, _softmax, {"axes": None}),
    "topk": Kind("input, op, k, axes, indices_type=None", 1, _top_k),
    "unary": Kind("input, op", 1, lambda g: f.unary(g["input"], g["op"])),
}  # fmt: skip
# Layers whose operands are of one type, under the names by which functions are known to be so.
_LIKE = {
    "elementwise": "elementwise_binary", "select": "where", "matrix_multiply": "matmul", "concatenation": "concat",
    "convolution_nd": "conv2d", "deconvolution_nd": "conv2d", "normalization": "layer_norm", "topk": "topk",
    "einsum": "einsum", "shuffle": "view", "slice": "slice", "gather": "gather", "gather_v2": "gather",
    "shape": "shape", "constant": "constant", "cast": "cast", "identity": "identity", "non_zero": "nonzero",
    "fill": "constant",
}  # fmt: skip
# Methods of TensorRT's network that are not here, and what to write instead.
INSTEAD: dict[str, str] = {
    **dict.fromkeys(("add_plugin_v2", "add_plugin_v3", "add_plugin"), "functions of tensorrt_llm.functional"),
    "add_loop": "ingot.functional.while_loop, on the tensors' `value`",
    "add_scatter": "functional.scatter or functional.scatter_nd",
    "add_padding_nd": "functional.pad",
    "add_grid_sample": "compose it of functional.index_select; there is no op for it yet",
    "add_nms": "compose it outside of the network",
    "add_one_hot": "functional.eq of the indices and a constant of all classes",
    "add_rnn_v2": "functional.while_loop of ingot",
    "add_lrn": "compose it of functional.avg_pool2d",
    "add_quantize": "functional.cast(x, 'int8')",
    "add_dequantize": "functional.cast(x, 'float32')",
    "add_dynamic_quantize": "build with weights=\"int8\"",
    "add_ragged_softmax": "functional.softmax of masked scores",
    "add_reverse_sequence": "functional.flip",
    "add_parametric_relu": "functional.where(x > 0, x, x * slope)",
    "add_attention": "functional.gpt_attention, or ingot.functional.scaled_dot_product_attention",
    "add_assertion": "functional.assertion",
    "add_squeeze": "add_shuffle with reshape_dims",
    "add_unsqueeze": "add_shuffle with reshape_dims",
    "add_convolution": "add_convolution_nd",
    "add_deconvolution": "add_deconvolution_nd",
    "add_pooling": "add_pooling_nd",
    "add_fully_connected": "add_matrix_multiply",
    "add_scale_nd": "add_scale",
}


class Layer:
    """One layer. Settings are attributes, and hold when they are set before its output is asked for."""

    name = ""
    _open = ("name", "metadata", "precision")

    def __init__(self, network: Any, kind: str, args: tuple[Any, ...], kwargs: Given) -> None:
        found = LAYERS[kind]
        try:
            bound = signature(found.arguments).bind(*args, **kwargs)
        except TypeError as e:
            raise refused(f"add_{kind}({found.arguments})", f"it was called otherwise: {e}") from None
        bound.apply_defaults()
        put = self.__dict__
        put.update(_network=network, _kind=kind, _given={**found.settings, **bound.arguments}, _outputs=None)
        put.update(_output_types={}, precision=None)

    @property
    def type(self) -> str:
        """What kind of layer it is."""
        return str(self._kind).upper()

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        raise refused(f"add_{self._kind}", f"it has no {name}; it has {', '.join(given)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._open:
            self.__dict__[name] = value
            return
        if name not in self._given:
            getattr(self, name)  # the refusal
        self._change(name, value)

    def _change(self, name: str, value: Any) -> None:
        if self._outputs is not None:
            raise refused(f"setting {name} of a layer that has been read", "set it before get_output")
        self._given[name] = value

    def set_input(self, index: int, tensor: Any) -> None:
        """Another input; beyond the first ones those that take the place of settings."""
        names = list(signature(LAYERS[self._kind].arguments).parameters)
        inputs = [n for n in names[: LAYERS[self._kind].inputs] if not n.startswith("op")]
        self._change(inputs[index] if index < len(inputs) else f"input_{index}", tensor)

    def set_output_type(self, index: int, dtype: Any) -> None:
        """What an output is cast to; the cast is recorded."""
        self._change("_", None)
        self._output_types[index] = as_dtype(dtype)
        del self._given["_"]

    def get_output_type(self, index: int) -> Any:
        return self.get_output(index).dtype

    @property
    def num_outputs(self) -> int:
        return len(self._results())

    def get_output(self, index: int) -> ITensor:
        """A result of the layer, which is recorded now."""
        return ITensor(self._network, self._results()[index])

    def _results(self) -> list[Any]:
        if self._outputs is None:
            name = _LIKE.get(self._kind, self._kind)
            made = recorded(name, lambda **g: LAYERS[self._kind].make(g), self._given)
            values = [t.value for t in (made if isinstance(made, tuple) else (made,))]
            types = self._output_types
            why = f"as set_output_type of add_{self._kind} asks"
            self.__dict__["_outputs"] = [
                self._network.cast(value, types[i], why) if i in types else value for i, value in enumerate(values)
            ]
        return list(self._outputs)


class Conditional:
    """tensorrt.IIfConditional: both sides are computed, and the condition picks one."""

    def __init__(self, network: Any) -> None:
        self._network, self._condition = network, None
        self.name = ""

    def set_condition(self, condition: Any) -> None:
        """A bool scalar."""
        self._condition = condition

    def add_input(self, input: Any) -> Layer:
        """The tensor, as the sides see it."""
        return Layer(self._network, "identity", (input,), {})

    def add_output(self, true_subgraph_output: Any, false_subgraph_output: Any) -> Layer:
        """What one of two tensors is."""
        if self._condition is None:
            raise refused("add_output of an if_conditional", "call set_condition first")
        return Layer(self._network, "select", (self._condition, true_subgraph_output, false_subgraph_output), {})

