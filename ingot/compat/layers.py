"""tensorrt_llm.layers: ingot's layers under the retired API's arguments. Each computes by ingot's own forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ingot import nn
from ingot.compat.datatype import DataType, as_dtype
from ingot.compat.functional import ACT2FN, FUNCTIONS, recorded_by
from ingot.compat.lora import Dora, Lora, has_factors, part_of
from ingot.compat.module import COUNTERPARTS, Module
from ingot.compat.parameter import Parameter
from ingot.compat.quantization import QuantMode
from ingot.compat.refusal import called, refused, single
from ingot.dtypes import DType


def _kind(dtype: Any) -> DType | None:
    return None if dtype is None else as_dtype(dtype)


def _whole(layer: str, tp_size: int, quant_mode: Any = None) -> None:
    """Refuses a share of a layer, and one that stores its weights in another way."""
    single(layer, tp_size)
    if quant_mode is not None and quant_mode != QuantMode(0):
        raise refused(f"{layer} with {quant_mode!r}", 'leave it out and build with ingot.build(…, weights="int8")')


class Layer(Module):
    """A layer that computes what a layer of ingot's does; `plain` is that class."""

    plain: ClassVar[type[nn.Module]]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer of ingot's of that name."""
        return recorded_by(self, type(self).plain.forward, args, kwargs)

    def _inside(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if type(self).forward not in (Layer.forward, *(c.forward for c in COUNTERPARTS.values())):
            return super()._inside(network, args, kwargs)  # a forward that the user wrote
        with network.parameters.inside(self):
            return type(self).plain.forward(self, *args)


def _layer(cls: Any) -> Any:
    """Registers a layer of this file: whatever its constructor refuses names the user's line."""
    cls.plain = next(base for base in cls.__mro__ if base.__module__.startswith("ingot.nn."))
    cls.__init__ = called(cls.__name__)(cls.__init__)
    if cls.plain is not nn.Module:
        COUNTERPARTS[cls.plain] = cls
    return cls


# ---------------------------------------------------------------------------------------------- without weights


@_layer
class Mish(Layer, nn.Mish):
    """x · tanh(softplus(x))"""

    def __init__(self) -> None:
        nn.Mish.__init__(self)


@_layer
class Cast(Layer, nn.Cast):
    """A change of dtype."""

    scoped = False

    def __init__(self, output_dtype: Any = "float32") -> None:
        nn.Cast.__init__(self, as_dtype(output_dtype))


@_layer
class AvgPool2d(Layer, nn.AvgPool2d):
    """The means of windows."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = (0, 0), ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        nn.AvgPool2d.__init__(self, kernel_size, stride, padding, ceil_mode, count_include_pad)


# ---------------------------------------------------------------------------------------------- linear


@_layer
class Linear(Layer, nn.Linear):
    """y = x · weightᵀ + bias, whole: tp_size must be 1."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, gather_output: bool = True, share_weight: Parameter | None = None,
        strict_dtype: bool = False, pad_lda: int = 0, pad_ldc: int = 0, prefer_managed_weight: bool = True,
        is_qkv: bool = False, max_lora_rank: int | None = None, instance_id: int = 0,
    ) -> None:  # fmt: skip
        _whole("Linear", tp_size)
        nn.Linear.__init__(self, in_features, out_features, bias, _kind(dtype))
        self.tp_size, self.tp_group, self.gather_output = tp_size, tp_group, gather_output
        if share_weight is not None:
            self.weight = share_weight

    def forward(
        self, x: Any, lora_runtime_params: Any = None, lora_hidden_state: Any = None, **fused: Any
    ) -> Any:
        """[…, in_features] → […, out_features]"""
        _without_fusion(type(self).__name__, fused)
        if lora_runtime_params is None:
            return recorded_by(self, nn.Linear.forward, (x,), {})
        beside = x if lora_hidden_state is None else lora_hidden_state
        out, width = self.weight.spec.evaluate({})
        whole = FUNCTIONS["matmul"](x, self.weight.value, transb=True)
        whole = whole + Lora(width, [out])(beside, lora_runtime_params)
        whole = Dora([out])(whole, lora_runtime_params) if has_factors(lora_runtime_params) else whole
        return whole if self.bias is None else whole + self.bias.value


@_layer
class ColumnLinear(Linear, nn.ColumnLinear):
    """Linear."""


@_layer
class RowLinear(Linear, nn.RowLinear):
    """Linear; what ranks would sum is whole."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, strict_dtype: bool = False, pad_lda: int = 0, prefer_managed_weight: bool = True,
        is_expert: bool = False, max_lora_rank: int | None = None, instance_id: int = 0,
    ) -> None:  # fmt: skip
        Linear.__init__(self, in_features, out_features, bias, dtype, tp_group, tp_size)


def _without_fusion(layer: str, fused: dict[str, Any]) -> None:
    """Refuses what other versions computed in one step with a layer; parameters of a plain sum say nothing."""
    for name, value in fused.items():
        plain = value is None or value is False or getattr(value, "fusion_op", None) == 0
        if not plain:
            raise refused(f"{layer} called with {name}", "leave it out, and compute it beside the layer")


@_layer
class Embedding(Layer, nn.Embedding):
    """A table of vectors, looked up by id."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, dtype: Any = None, tp_size: int = 1, tp_group: Any = None,
        sharding_dim: int = 0, tp_rank: Any = None, instance_id: int = 0,
    ) -> None:  # fmt: skip
        _whole("Embedding", tp_size)
        nn.Embedding.__init__(self, num_embeddings, embedding_dim, _kind(dtype))


@_layer
class PromptTuningEmbedding(Embedding):
    """A table of vectors, and tables of virtual tokens: ids from `vocab_size` on are rows of the latter.

    Args:
        vocab_size: the first id of a virtual token; default num_embeddings.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, vocab_size: int | None = None, dtype: Any = None,
        tp_size: int = 1, tp_group: Any = None, sharding_dim: int = 0, tp_rank: Any = 0, instance_id: int = 0,
    ) -> None:  # fmt: skip
        Embedding.__init__(self, num_embeddings, embedding_dim, dtype, tp_size)
        self.vocab_size = num_embeddings if vocab_size is None else vocab_size

    def forward(  # type: ignore[override]
        self, tokens: Any, prompt_embedding_table: Any, tasks: Any, task_vocab_size: Any
    ) -> Any:
        """ids […], rows of all tasks [tasks · task_vocab_size, embedding_dim], task of each id […], [1] → […, dim]"""
        where, embedding, cast = FUNCTIONS["where"], FUNCTIONS["embedding"], FUNCTIONS["cast"]
        virtual = tokens >= self.vocab_size
        usual = embedding(where(virtual, 0, tokens), self.weight.value)
        row = cast(tasks, tokens.dtype) * cast(task_vocab_size, tokens.dtype) + (tokens - self.vocab_size)
        prompts = embedding(where(virtual, row, 0), prompt_embedding_table)
        return where(FUNCTIONS["unsqueeze"](virtual, -1), prompts, usual)


# ---------------------------------------------------------------------------------------------- blocks


class _Block(Layer):
    """What the three MLPs share: their arguments."""

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, hidden_act: str, bias: bool = True, dtype: Any = None,
        tp_group: Any = None, tp_size: int = 1, quant_mode: Any = None, inner_layernorm: bool = False,
        eps: float = 1e-5, is_expert: bool = False, max_lora_rank: int | None = None, instance_id: int = 0,
    ) -> None:  # fmt: skip
        _whole(type(self).__name__, tp_size, quant_mode)
        if inner_layernorm:
            raise refused("inner_layernorm=True", "put a LayerNorm between two Linears")
        type(self).plain.__init__(self, hidden_size, ffn_hidden_size, hidden_act, bias, _kind(dtype))  # type: ignore[call-arg]
        self.hidden_size, self.ffn_hidden_size, self.bias, self.dtype = hidden_size, ffn_hidden_size, bias, dtype

    def forward(self, hidden_states: Any, lora_layer_params: Any = None, **fused: Any) -> Any:
        """[…, hidden_size] → the same"""
        _without_fusion(type(self).__name__, fused)
        if lora_layer_params is None:
            return recorded_by(self, type(self).plain.forward, (hidden_states,), {})
        inner = self.fc(hidden_states, part_of(lora_layer_params, "mlp_h_to_4h"))
        gate = getattr(self, "gate", None)
        inner = ACT2FN[self.hidden_act if gate is None else FUNCTIONS["non_gated_version"](self.hidden_act)](inner)
        inner = inner if gate is None else inner * gate(hidden_states, part_of(lora_layer_params, "mlp_gate"))
        return self.proj(inner, part_of(lora_layer_params, "mlp_4h_to_h"))


@_layer
class MLP(_Block, nn.MLP):
    """proj(act(fc(x)))"""


@_layer
class GatedMLP(_Block, nn.GatedMLP):
    """proj(act(fc(x)) · gate(x))"""


@_layer
class FusedGatedMLP(_Block, nn.FusedGatedMLP):
    """GatedMLP: the build fuses the two products of every gated block."""


# ---------------------------------------------------------------------------------------------- norms


def _own_shape(layer: Any, given: Any) -> None:
    """Refuses another shape than the one that a norm's parameters have."""
    sizes = (given,) if isinstance(given, int) else given
    own = layer.normalized_shape
    if sizes is not None and tuple(sizes) != ((own,) if isinstance(own, int) else tuple(own)):
        raise refused(f"{type(layer).__name__} called with normalized_shape={given}", "give it to the constructor")


@_layer
class LayerNorm(Layer, nn.LayerNorm):
    """(x − mean) / sqrt(variance + eps) · weight + bias. A type in the place of `bias` is the dtype, as before 0.10."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: Any = True,
        dtype: Any = None, tp_size: int = 1, tp_dim: int = -1,
    ) -> None:  # fmt: skip
        _whole("LayerNorm", tp_size)
        if isinstance(bias, str | DataType | DType):
            bias, dtype = True, bias
        nn.LayerNorm.__init__(self, normalized_shape, eps, elementwise_affine, bias, _kind(dtype))

    def forward(self, x: Any, normalized_shape: Any = None) -> Any:
        """[…, *normalized_shape] → the same"""
        _own_shape(self, normalized_shape)
        return recorded_by(self, nn.LayerNorm.forward, (x,), {})


@_layer
class RmsNorm(Layer, nn.RmsNorm):
    """x / sqrt(mean(x²) + eps) · weight. A float in the place of `num_groups` is eps, as before 1.0."""

    def __init__(
        self, normalized_shape: Any, num_groups: Any = 1, eps: Any = 1e-6, elementwise_affine: Any = True,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if isinstance(num_groups, float):  # (normalized_shape, eps, elementwise_affine, dtype)
            affine = eps if isinstance(eps, bool) else True
            dtype = elementwise_affine if not isinstance(elementwise_affine, bool) else dtype
            num_groups, eps, elementwise_affine = 1, num_groups, affine
        nn.RmsNorm.__init__(self, normalized_shape, eps, elementwise_affine, _kind(dtype))
        self.num_groups = num_groups

    def forward(self, x: Any, normalized_shape: Any = None) -> Any:
        """[…, *normalized_shape] → the same"""
        _own_shape(self, normalized_shape)
        if self.num_groups == 1:
            return recorded_by(self, nn.RmsNorm.forward, (x,), {})
        weight = None if self.weight is None else self.weight.value
        return FUNCTIONS["rms_norm"](x, self.normalized_shape, self.num_groups, weight, self.eps)


@_layer
class GroupNorm(Layer, nn.GroupNorm):
    """Groups of channels, each normalised over its channels and all further dimensions."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, dtype: Any = None
    ) -> None:
        nn.GroupNorm.__init__(self, num_groups, num_channels, eps, affine, _kind(dtype))


# ---------------------------------------------------------------------------------------------- convolutions


def _zeros(layer: str, padding_mode: str) -> None:
    if padding_mode != "zeros":
        raise refused(f"{layer} with padding_mode={padding_mode!r}", "pad before it with functional.pad")


@_layer
class Conv1d(Layer, nn.Conv1d):
    """Convolution over one dimension: weight [out_channels, in_channels / groups, kernel_size, 1]."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", dtype: Any = None,
    ) -> None:  # fmt: skip
        _zeros("Conv1d", padding_mode)
        nn.Conv1d.__init__(
            self, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, dtype=_kind(dtype)
        )
        self.weight = Parameter(shape=(*self._parameters["weight"].spec.shape, 1), dtype=dtype)  # type: ignore[union-attr]


class _Conv(Layer):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", dtype: Any = None,
    ) -> None:  # fmt: skip
        _zeros(type(self).__name__, padding_mode)
        type(self).plain.__init__(  # type: ignore[call-arg]
            self, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, dtype=_kind(dtype)
        )


@_layer
class Conv2d(_Conv, nn.Conv2d):
    """Convolution over two dimensions."""


@_layer
class Conv3d(_Conv, nn.Conv3d):
    """Convolution over three dimensions."""


@_layer
class ConvTranspose2d(Layer, nn.ConvTranspose2d):
    """Transposed convolution over two dimensions."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = (1, 1), padding: Any = (0, 0),
        output_padding: Any = (0, 0), dilation: Any = (1, 1), groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", dtype: Any = None,
    ) -> None:  # fmt: skip
        _zeros("ConvTranspose2d", padding_mode)
        nn.ConvTranspose2d.__init__(
            self, in_channels, out_channels, kernel_size, stride, padding, output_padding, groups=groups, bias=bias,
            dilation=dilation, dtype=_kind(dtype),
        )  # fmt: skip


FILES: dict[str, tuple[Callable[..., Any], ...]] = {
    "activation": (Mish,),
    "cast": (Cast,),
    "conv": (Conv1d, Conv2d, Conv3d, ConvTranspose2d),
    "embedding": (Embedding, PromptTuningEmbedding),
    "linear": (Linear, ColumnLinear, RowLinear),
    "mlp": (MLP, GatedMLP, FusedGatedMLP),
    "normalization": (GroupNorm, LayerNorm, RmsNorm),
    "pooling": (AvgPool2d,),
}
