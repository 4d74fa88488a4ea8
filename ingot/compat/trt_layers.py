"""TensorRT's layers: what `network.add_…` gives. A layer is recorded when its output is asked for first.

`LAYERS` is the table: arguments of the method, settings with their defaults, and what the layer computes of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot import functional as f
from ingot.compat import context
from ingot.compat import trt_composed as composed
from ingot.compat import trt_elementwise as elementwise
from ingot.compat import trt_windows as windows
from ingot.compat.datatype import as_dtype
from ingot.compat.functional import recorded
from ingot.compat.refusal import refused
from ingot.compat.signatures import signature
from ingot.compat.tensor import ITensor
from ingot.compat.trt_enums import (
    BoundingBoxFormat,
    GatherMode,
    InterpolationMode,
    LayerType,
    MatrixOperation,
    PaddingMode,
    ResizeCoordinateTransformation,
    ResizeRoundMode,
    ResizeSelector,
    SampleMode,
    ScaleMode,
    TopKOperation,
)  # fmt: skip
from ingot.compat.trt_windows import Given, numbers


class Kind(NamedTuple):
    """A kind of layer.

    arguments: of the method, those that are inputs first. inputs: how many. settings: attributes with their defaults.
    further: what `set_input` may give in the place of settings, by index.
    """

    arguments: str
    inputs: int
    make: Callable[[Given], Any]
    settings: dict[str, Any] = {}  # never changed
    further: tuple[int, ...] = ()

    def input_names(self) -> list[str]:
        """The arguments that are inputs."""
        names = list(signature(self.arguments).parameters)[: self.inputs]
        return [name for name in names if not name.startswith("op")]


def axes_of(mask: int, rank: int) -> tuple[int, ...]:
    """The axes of TensorRT's bit mask."""
    return tuple(axis for axis in range(rank) if mask >> axis & 1)


def _scale(g: Given) -> Any:
    rank, axis = len(g["input"].shape), g["channel_axis"]
    around = (-1, *[1] * (rank - 1 - axis % rank)) if g["mode"] is ScaleMode.CHANNEL else g["input"].shape[1:]
    out = g["input"]
    for name, op in (("scale", f.mul), ("shift", f.add), ("power", f.pow)):
        array = numbers(g[name])
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
    given = [g[n] if g.get(f"input_{i}") is None else g[f"input_{i}"] for i, n in _SLICED]
    return f.slice(g["input"], given[0], given[1], given[2], g["mode"], g.get("input_4"))


_SLICED = ((1, "start"), (2, "shape"), (3, "stride"))


def _constant(g: Given) -> Any:
    return np.asarray(getattr(g["weights"], "array", g["weights"])).reshape(tuple(g["shape"]))


def _top_k(g: Given) -> Any:
    (axis,) = axes_of(g["axes"], len(g["input"].shape))
    return composed.top_k(g, g["op"] is TopKOperation.MAX, axis)


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


def _squeezed(g: Given) -> Any:
    return f.squeeze(g["input"], composed.integers(g["axes"], "the axes of add_squeeze"))


def _unsqueezed(g: Given) -> Any:
    return f.expand_dims(g["input"], composed.integers(g["axes"], "the axes of add_unsqueeze"))


_PADDED: dict[str, Any] = {
    "padding_nd": None, "pre_padding": None, "post_padding": None, "padding_mode": PaddingMode.EXPLICIT_ROUND_DOWN,
    "stride_nd": None,
}  # fmt: skip
_CONVOLVED: dict[str, Any] = {**_PADDED, "dilation_nd": None, "num_groups": 1}
_KERNEL = "input, num_output_maps, kernel_shape, kernel, bias=None"

LAYERS: dict[str, Kind] = {
    "activation": Kind("input, type", 1, elementwise.activation, {"alpha": 0.0, "beta": 0.0}),
    "cast": Kind("input, to_type", 1, lambda g: f.cast(g["input"], as_dtype(g["to_type"]))),
    "concatenation": Kind("inputs", 1, lambda g: f.concat(g["inputs"], g["axis"]), {"axis": 0}),
    "attention": Kind(
        "query, key, value, norm_op, causal", 3, composed.attention,
        {"mask": None, "decomposable": False, "normalization_quantize_scale": None,
         "normalization_quantize_to_type": None},
    ),
    "constant": Kind("shape, weights", 0, _constant),
    "convolution_nd": Kind(_KERNEL, 1, windows.convolution(False), _CONVOLVED, (1, 2)),
    "cumulative": Kind("input, axis, operation, exclusive, reverse", 1, composed.cumulative),
    "deconvolution_nd": Kind(_KERNEL, 1, windows.convolution(True), _CONVOLVED, (1, 2)),
    "dequantize": Kind("input, scale, output_type=None", 2, composed.dequantize, {"axis": None}, (2,)),
    "einsum": Kind("inputs, equation", 1, lambda g: f.einsum(g["equation"], g["inputs"])),
    "elementwise": Kind(
        "input1, input2, op", 2, lambda g: f.elementwise_binary(g["input1"], g["input2"], g["op"])
    ),
    "fill": Kind("shape, op, output_type=None", 0, composed.fill, {"alpha": None, "beta": None}, (0, 1, 2)),
    "gather": Kind(
        "input, indices, axis", 2, composed.gather, {"mode": GatherMode.DEFAULT, "num_elementwise_dims": 0}
    ),
    "gather_v2": Kind("input, indices, mode", 2, composed.gather, {"axis": 0, "num_elementwise_dims": 0}),
    "grid_sample": Kind(
        "input, grid", 2, windows.grid_sample,
        {"interpolation_mode": InterpolationMode.LINEAR, "align_corners": False, "sample_mode": SampleMode.FILL},
    ),
    "identity": Kind("input", 1, lambda g: f.view(g["input"], g["input"].shape, False)),
    "lrn": Kind("input, window, alpha, beta, k", 1, composed.lrn),
    "matrix_multiply": Kind("input0, op0, input1, op1", 4, _matmul),
    "nms": Kind(
        "boxes, scores, max_output_boxes_per_class, indices_type=None", 3, composed.nms,
        {"bounding_box_format": BoundingBoxFormat.CORNER_PAIRS, "topk_box_limit": 2000}, (3, 4),
    ),
    "non_zero": Kind(
        "input, indices_type=None", 1,
        lambda g: f.nonzero(g["input"]) if g["indices_type"] is None
        else f.cast(f.nonzero(g["input"]), composed.indices_kind(g)),
    ),
    "normalization": Kind(
        "input, scale, bias, axesMask", 3, _normalization,
        {"epsilon": 1e-5, "num_groups": 1, "compute_precision": None},
    ),
    "one_hot": Kind("indices, values, depth, axis", 3, composed.one_hot),
    "padding_nd": Kind("input, pre_padding, post_padding", 1, windows.padded),
    "parametric_relu": Kind(
        "input, slopes", 2, lambda g: f.where(f.lt(g["input"], 0.0), f.mul(g["input"], g["slopes"]), g["input"])
    ),
    "pooling_nd": Kind(
        "input, type, window_size", 1, windows.pooling,
        {**_PADDED, "average_count_excludes_padding": True, "blend_factor": 0.0},
    ),
    "reduce": Kind("input, op, axes, keep_dims", 1, _reduce),
    "quantize": Kind("input, scale, output_type=None", 2, composed.quantize, {"axis": None}, (2,)),
    "ragged_softmax": Kind("input, bounds", 2, composed.ragged_softmax),
    "resize": Kind(
        "input", 1, windows.resize,
        {"shape": None, "scales": None, "resize_mode": InterpolationMode.NEAREST,
         "nearest_rounding": ResizeRoundMode.FLOOR, "cubic_coeff": -0.75, "exclude_outside": False,
         "coordinate_transformation": ResizeCoordinateTransformation.ASYMMETRIC,
         "selector_for_single_pixel": ResizeSelector.FORMULA}, (1,),
    ),
    "reverse_sequence": Kind(
        "input, sequence_lens", 2, composed.reverse_sequence, {"batch_axis": 1, "sequence_axis": 0}
    ),
    "scale": Kind("input, mode, shift=None, scale=None, power=None", 1, _scale, {"channel_axis": 1}),
    "scale_nd": Kind("input, mode, shift=None, scale=None, power=None, channel_axis=1", 1, _scale),
    "scatter": Kind("data, indices, updates, mode", 3, composed.scatter, {"axis": 0}),
    "select": Kind(
        "condition, then_input, else_input", 3, lambda g: f.where(g["condition"], g["then_input"], g["else_input"])
    ),
    "shape": Kind("input", 1, lambda g: f.shape(g["input"])),
    "shuffle": Kind(
        "input", 1, _shuffle,
        {"first_transpose": None, "reshape_dims": None, "second_transpose": None, "zero_is_placeholder": True}, (1,),
    ),
    "slice": Kind("input, start, shape, stride", 1, _slice, {"mode": SampleMode.STRICT_BOUNDS}, (1, 2, 3, 4)),
    "softmax": Kind("input", 1, _softmax, {"axes": None}),
    "squeeze": Kind("input, axes", 1, _squeezed),
    "topk": Kind("input, op, k, axes, indices_type=None", 1, _top_k, {}, (1,)),
    "unary": Kind("input, op", 1, lambda g: elementwise.unary(g["input"], g["op"])),
    "unsqueeze": Kind("input, axes", 1, _unsqueezed),
}  # fmt: skip
# Layers whose operands are of one type, under the names by which functions are known to be so.
_LIKE = {
    "elementwise": "elementwise_binary", "select": "where", "matrix_multiply": "matmul", "concatenation": "concat",
    "convolution_nd": "conv2d", "deconvolution_nd": "conv2d", "normalization": "layer_norm", "topk": "gather",
    "einsum": "einsum", "shuffle": "view", "slice": "slice", "gather": "gather", "gather_v2": "gather",
    "shape": "shape", "constant": "constant", "cast": "cast", "identity": "identity", "non_zero": "nonzero",
    "fill": "constant", "scatter": "scatter", "squeeze": "view", "unsqueeze": "view", "one_hot": "gather",
    "nms": "gather", "quantize": "cast", "dequantize": "cast", "padding_nd": "slice", "reverse_sequence": "gather",
    "attention": "matmul", "parametric_relu": "mul",
}  # fmt: skip
# TensorRT's types of layers whose methods are called otherwise.
_TYPES = {
    "convolution_nd": "CONVOLUTION", "deconvolution_nd": "DECONVOLUTION", "pooling_nd": "POOLING", "scale_nd": "SCALE",
    "padding_nd": "PADDING", "gather_v2": "GATHER", "attention": "ATTENTION_OUTPUT",
}  # fmt: skip
class Layer:
    """One layer. Settings are attributes, and hold when they are set before its output is asked for.

    `name` and `metadata` are kept. `precision` holds in networks that are not strongly typed: float operands are
    cast to it and results back, and the casts are recorded.
    """

    name = ""
    metadata = ""
    _open = ("name", "metadata")

    def __init__(self, network: Any, kind: str, args: tuple[Any, ...], kwargs: Given) -> None:
        found = LAYERS[kind]
        try:
            bound = signature(found.arguments).bind(*args, **kwargs)
        except TypeError as e:
            raise refused(f"add_{kind}({found.arguments})", f"it was called otherwise: {e}") from None
        bound.apply_defaults()
        put = self.__dict__
        put.update(_network=network, _kind=kind, _given={**found.settings, **bound.arguments}, _outputs=None)
        put.update(_output_types={}, _precision=None)

    @property
    def type(self) -> LayerType:
        """What kind of layer it is."""
        return LayerType[_TYPES.get(self._kind, self._kind.upper())]

    @property
    def precision(self) -> Any:
        """In which type it computes; None: in the types of its operands."""
        return self._precision

    @precision.setter
    def precision(self, dtype: Any) -> None:
        kind = as_dtype(dtype)
        if self._network.strongly_typed:
            raise refused(f"precision of add_{self._kind}", "the network is strongly typed: add_cast the operands")
        if not kind.is_float:
            raise refused(f"precision {kind.name} of add_{self._kind}", "add_quantize and add_dequantize")
        self._before_reading("precision")
        self.__dict__["_precision"] = dtype

    @property
    def precision_is_set(self) -> bool:
        return self._precision is not None

    def reset_precision(self) -> None:
        """Computes in the types of its operands."""
        self._before_reading("precision")
        self.__dict__["_precision"] = None

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        raise refused(f"add_{self._kind}", f"it has no {name}; it has {', '.join(given)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._open:
            self.__dict__[name] = value
        elif name == "precision":
            type(self).precision.__set__(self, value)  # type: ignore[attr-defined]
        elif name not in self._given:
            getattr(self, name)  # the refusal
        else:
            self._change(name, value)

    def _change(self, name: str, value: Any) -> None:
        self._before_reading(name)
        self._given[name] = value

    def _before_reading(self, name: str) -> None:
        if self._outputs is not None:
            raise refused(f"setting {name} of a layer that has been read", "set it before get_output")

    # -------------------------------------------------------------------------------------------- inputs and outputs
    def _inputs(self) -> list[Any]:
        found = [self._given[name] for name in LAYERS[self._kind].input_names()]
        found = list(found[0]) if found and isinstance(found[0], list | tuple) else found
        more = [self._given.get(f"input_{i}") for i in LAYERS[self._kind].further]
        return found + [tensor for tensor in more if tensor is not None]

    @property
    def num_inputs(self) -> int:
        return len(self._inputs())

    def get_input(self, index: int) -> ITensor:
        """A tensor that it reads."""
        return self._inputs()[index]  # type: ignore[no-any-return]

    def set_input(self, index: int, tensor: Any) -> None:
        """Another input; beyond the first ones those that take the place of settings."""
        kind = LAYERS[self._kind]
        names = kind.input_names()
        if names and isinstance(self._given[names[0]], list | tuple):
            several = list(self._given[names[0]])
            several[index : index + 1] = [tensor]
            self._change(names[0], several)
        elif index < len(names) and index not in kind.further:
            self._change(names[index], tensor)
        elif index in kind.further:
            self._change(f"input_{index}", tensor)
        else:
            count = len(names)
            raise refused(f"set_input({index}, …) of add_{self._kind}", f"it has {count} inputs, and {kind.further}")

    def set_output_type(self, index: int, dtype: Any) -> None:
        """What an output is cast to; the cast is recorded."""
        self._before_reading("an output's type")
        self._output_types[index] = as_dtype(dtype)

    def output_type_is_set(self, index: int) -> bool:
        return index in self._output_types

    def reset_output_type(self, index: int) -> None:
        """The type that the layer gives."""
        self._before_reading("an output's type")
        self._output_types.pop(index, None)

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
            scope = None if self._precision is None else as_dtype(self._precision)
            with context.net_guard(self._network):  # without operands, as a constant, there is no other sign of it
                made = recorded(name, lambda **g: LAYERS[self._kind].make(g), self._given, scope=scope)
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
