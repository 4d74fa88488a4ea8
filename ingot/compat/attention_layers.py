"""layers.Attention and BertAttention, and what tells them of a step's requests and caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import functional as f
from ingot.compat.attention import (
    AttentionMaskType,
    PositionEmbeddingType,
    RotaryScalingType,
    gpt_attention,
)  # fmt: skip
from ingot.compat.encoder_attention import bert_attention, make_causal_mask
from ingot.compat.functional import FUNCTIONS
from ingot.compat.layers import ColumnLinear, RowLinear
from ingot.compat.lora import beside, part_of
from ingot.compat.module import Module
from ingot.compat.no_effect import ignored
from ingot.compat.quantization import QuantMode
from ingot.compat.refusal import called, refused, single
from ingot.compat.rope_utils import RopeEmbeddingUtils


class AttentionParams:
    """What a step says of its requests."""

    def __init__(
        self, sequence_length: Any = None, context_lengths: Any = None, host_context_lengths: Any = None,
        max_context_length: Any = None, host_request_types: Any = None, encoder_input_lengths: Any = None,
        encoder_max_input_length: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        _only_known("AttentionParams", more, {})
        self.sequence_length, self.context_lengths = sequence_length, context_lengths
        self.host_context_lengths, self.max_context_length = host_context_lengths, max_context_length
        self.host_request_types = host_request_types
        self.encoder_input_lengths, self.encoder_max_input_length = encoder_input_lengths, encoder_max_input_length
        self.__dict__.update(more)

    def is_valid(self, gpt_attention_plugin: Any = True, remove_input_padding: bool = False, *more: Any) -> bool:
        """Whether what attention needs is there."""
        needed = (self.sequence_length, self.context_lengths, self.host_request_types)
        return not gpt_attention_plugin or all(item is not None for item in needed)


class KeyValueCacheParams:
    """The caches of all layers."""

    def __init__(
        self, past_key_value: Any = None, host_past_key_value_lengths: Any = None,
        host_max_attention_window_sizes: Any = None, host_sink_token_length: Any = None,
        kv_cache_block_pointers: Any = None, host_kv_cache_block_pointers: Any = None, cache_indirection: Any = None,
        past_key_value_length: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        _only_known("KeyValueCacheParams", more, {})
        self.past_key_value = past_key_value
        self.host_past_key_value_lengths = host_past_key_value_lengths
        self.host_max_attention_window_sizes = host_max_attention_window_sizes
        self.host_sink_token_length = host_sink_token_length
        self.kv_cache_block_pointers = kv_cache_block_pointers
        self.host_kv_cache_block_pointers = host_kv_cache_block_pointers
        self.cache_indirection, self.past_key_value_length = cache_indirection, past_key_value_length
        self.__dict__.update(more)

    def get_first_past_key_value(self) -> Any:
        """The cache of one layer."""
        return None if self.past_key_value is None else self.past_key_value[0]

    def get_first_kv_cache_block_pointers(self) -> Any:
        return None if self.kv_cache_block_pointers is None else self.kv_cache_block_pointers[0]

    def get_first_host_kv_cache_block_pointers(self) -> Any:
        return None if self.host_kv_cache_block_pointers is None else self.host_kv_cache_block_pointers[0]

    def fill_none_tensor_list(self, list_size: int) -> None:
        """No caches, for so many layers."""
        if self.past_key_value is None:
            self.past_key_value = (None,) * list_size

    def is_valid(self, gpt_attention_plugin: Any = True) -> bool:
        """Whether there is a cache."""
        return self.get_first_past_key_value() is not None


class _Attention(Module):
    """What the two layers share: one product for queries, keys and values, and one behind."""

    def _products(
        self, hidden_size: int, num_attention_heads: int, num_kv_heads: int | None, head_size: int | None, bias: bool,
        dense_bias: bool, dtype: Any, tp_size: int,
    ) -> None:  # fmt: skip
        single(type(self).__name__, tp_size)
        self.num_attention_heads, self.hidden_size = num_attention_heads, hidden_size
        self.num_attention_kv_heads = num_attention_heads if num_kv_heads is None else num_kv_heads
        self.attention_head_size = hidden_size // num_attention_heads if head_size is None else head_size
        if num_attention_heads % self.num_attention_kv_heads:
            raise refused(f"{num_attention_heads} heads over {self.num_attention_kv_heads} kv heads", "give a divisor")
        width = (num_attention_heads + 2 * self.num_attention_kv_heads) * self.attention_head_size
        self.clip_qkv: float | None = None
        self.qkv = ColumnLinear(hidden_size, width, bias, dtype)
        self.dense = RowLinear(num_attention_heads * self.attention_head_size, hidden_size, dense_bias, dtype)

    def _qkv(self, x: Any, lora: Any) -> Any:
        """Queries, keys and values, with what adapters of one product or of each add."""
        whole = self.qkv(x, part_of(lora, "attn_qkv"))
        apart = [part_of(lora, f"attn_{name}") for name in "qkv"]
        if any(apart):
            kv = self.num_attention_kv_heads * self.attention_head_size
            sizes = (self.num_attention_heads * self.attention_head_size, kv, kv)
            whole = whole + beside(x, apart, sizes)
        if self.clip_qkv is not None:
            whole = FUNCTIONS["clip"](whole, -self.clip_qkv, self.clip_qkv)
        return whole


# Arguments of Attention that say something else than 0, None or False only where it is refused.
_REFUSED = {
    **dict.fromkeys(("qk_layernorm", "inner_layernorm"), "normalise queries and keys yourself, and call gpt_attention"),
    **dict.fromkeys(("rope_scaling_short_factors", "rope_scaling_long_factors", "rope_scaling_short_mscale",
                     "rope_scaling_long_mscale"), "ingot.build(folder), which knows long rotary embeddings"),
    **dict.fromkeys(("relative_attention", "max_distance", "num_buckets", "use_implicit_relative_attention"),
                    "bert_attention with relative_attention_bias, or leave it out"),
    "block_sparse_params": "leave it out", "reorder": "leave it out", "is_local": "rotary_embedding_base of the layer",
    "cp_rank": "leave it out; an engine runs on one device",
}  # fmt: skip


class Attention(_Attention):
    """Attention over a cache, between two products: `qkv` and `dense`.

    Without a mask type tokens see all of their text.
    """

    @called("Attention")
    def __init__(
        self, hidden_size: int, num_attention_heads: int, num_kv_heads: int | None = None,
        max_position_embeddings: int = 1024, num_layers: int = 1, apply_query_key_layer_scaling: bool = False,
        attention_head_size: int | None = None, attention_mask_type: Any = AttentionMaskType.padding, bias: bool = True,
        dtype: Any = None, position_embedding_type: Any = PositionEmbeddingType.learned_absolute,
        rotary_embedding_base: float = 10000.0, rotary_embedding_scaling: dict[str, Any] | None = None,
        rotary_embedding_percentage: float = 1.0, tp_group: Any = None, tp_size: int = 1, tp_rank: int = 0,
        quant_mode: Any = None, q_scaling: float = 1.0, dense_bias: bool | None = None, local_layer_idx: int = 0,
        instance_id: int = 0, clip_qkv: float | None = None, alibi_bias_max: int = 8, max_attn_value: float = 0.0,
        use_logn_scaling: bool = False, max_seqlen_for_logn_scaling: int = 8192, cp_size: int = 1,
        enable_qkv: bool = True, cross_attention: bool = False, skip_cross_kv: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        _only_known("Attention", more, _REFUSED)
        self.cross_attention, self.skip_cross_kv = cross_attention, skip_cross_kv
        if not enable_qkv:
            raise refused("Attention with enable_qkv=False", "call gpt_attention on your own product")
        if quant_mode not in (None, QuantMode(0)):
            raise refused(f"Attention with {quant_mode!r}", 'leave it out; ingot.build has weights="int8"')
        single("Attention", cp_size)
        position = PositionEmbeddingType(int(position_embedding_type))
        self._products(
            hidden_size, num_attention_heads, num_kv_heads, attention_head_size, bias,
            bias if dense_bias is None else dense_bias, dtype, tp_size,
        )  # fmt: skip
        self.q_scaling = q_scaling * (num_layers if apply_query_key_layer_scaling else 1)
        self.position_embedding_type, self.rotary_embedding_base = position, rotary_embedding_base
        self.attention_mask_type = AttentionMaskType(int(attention_mask_type))
        self.local_layer_idx, self.clip_qkv, self.max_attn_value = local_layer_idx, clip_qkv, max_attn_value
        self.rotary_embedding_dim = int(self.attention_head_size * rotary_embedding_percentage)
        self._rotary(rotary_embedding_scaling or {}, max_position_embeddings)
        self._constants: dict[str, Any] = {}
        if position.is_alibi():
            slopes = f.generate_alibi_slopes(num_attention_heads, alibi_bias_max=alibi_bias_max)
            self._constants["alibi_slopes"] = slopes
        if use_logn_scaling:
            logn = f.generate_logn_scaling(max_seqlen_for_logn_scaling, max_position_embeddings)
            self._constants["logn_scaling"] = logn
        if self._tables is not None:
            self._constants.update(self._tables)

    def _rotary(self, scaling: dict[str, Any], length: int) -> None:
        """How rotary embeddings are stretched: by a factor, or by frequencies (or tables) of their own."""
        words = {"default": "none", "su": "longrope"}
        word = str(scaling.get("rope_type", scaling.get("type", "none")))
        kind = RotaryScalingType[words.get(word, word)]
        self.rotary_embedding_scale_type, self.rotary_embedding_scale = kind, float(scaling.get("factor", 1.0))
        if not self.position_embedding_type.is_rope() and kind is not RotaryScalingType.yarn:
            self.rotary_embedding_dim = 0
        self._tables: dict[str, Any] | None = None
        size, base = self.rotary_embedding_dim, self.rotary_embedding_base
        if kind is RotaryScalingType.llama3 and size:
            plain = 1.0 / base ** (np.arange(0, size, 2) / size)
            stretched = RopeEmbeddingUtils.apply_llama3_scaling(plain, scaling)
            self._tables = {"rotary_inv_freq": stretched.astype(np.float32)}
        elif kind is RotaryScalingType.yarn and size:
            table = RopeEmbeddingUtils.create_sinusoidal_positions_yarn(
                length, size, base, self.rotary_embedding_scale,
                scaling.get("original_max_position_embeddings", length), scaling.get("beta_fast", 32),
                scaling.get("beta_slow", 1), scaling.get("mscale", 1.0), scaling.get("mscale_all_dim", 0.0),
            )[1]  # fmt: skip
            self._tables = {"rotary_cos_sin": table.reshape(1, -1)}

    @called("Attention.forward")
    def forward(
        self, hidden_states: Any, attention_mask: Any = None, use_cache: bool = False, kv_cache_params: Any = None,
        attention_params: Any = None, encoder_output: Any = None, lora_layer_params: Any = None,
        cross_kv_cache_gen: Any = None, cross_kv_reuse: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        """[B, S, hidden_size], or packed → the same; with use_cache also the cache with the step's tokens.

        Args:
            encoder_output: with cross_attention, what tokens see: [B, E, hidden_size], or packed. The cache is then the
                second of kv_cache_params.past_key_value, where there are two.
            cross_kv_cache_gen, cross_kv_reuse: with skip_cross_kv, whether keys and values are computed of it (a bool),
                and what stands for them otherwise.
        """
        if set_ := [name for name, value in more.items() if value is not None and value is not False]:
            raise refused(f"Attention called with {', '.join(set_)}", "leave them out")
        if kv_cache_params is None or attention_params is None or not kv_cache_params.is_valid():
            raise refused(
                "Attention without a cache",
                "give kv_cache_params=KeyValueCacheParams(past_key_value=[…]) and attention_params=AttentionParams(…)",
            )
        if self.cross_attention != (encoder_output is not None):
            raise refused("Attention called with encoder_output" if encoder_output is not None else "cross attention",
                          "cross_attention=True and encoder_output go together")  # fmt: skip
        qkv = self._qkv(hidden_states, lora_layer_params)
        more = {}
        if self.cross_attention and lora_layer_params is not None:
            raise refused("cross attention with lora_layer_params", "merge the adapter: ingot.build(folder, lora=…)")
        if self.cross_attention:
            more = self._cross(encoder_output, attention_params, cross_kv_cache_gen, cross_kv_reuse)
        constants = {name: FUNCTIONS["constant"](array) for name, array in self._constants.items()}
        cache, held = vars(kv_cache_params), kv_cache_params.past_key_value
        out, present = gpt_attention(
            qkv=qkv, past_key_value=held[1 if self.cross_attention and len(held) > 1 else 0],
            sequence_length=attention_params.sequence_length, context_lengths=attention_params.context_lengths,
            host_request_types=attention_params.host_request_types, num_heads=self.num_attention_heads,
            num_kv_heads=self.num_attention_kv_heads, hidden_size_per_head=self.attention_head_size,
            q_scaling=self.q_scaling, rotary_embedding_dim=self.rotary_embedding_dim,
            rotary_embedding_base=self.rotary_embedding_base, mask_type=self.attention_mask_type,
            rotary_embedding_scale_type=self.rotary_embedding_scale_type,
            rotary_embedding_scale=self.rotary_embedding_scale, position_embedding_type=self.position_embedding_type,
            layer_idx=self.local_layer_idx, attn_logit_softcapping_scale=self.max_attn_value,
            attention_mask=attention_mask, **constants, **more,
            **{name: _first(cache.get(name)) for name in _OF_CACHES},
        )  # fmt: skip
        out = self.dense(out, part_of(lora_layer_params, "attn_dense"))
        return (out, present) if use_cache else out

    def _cross(self, encoder_output: Any, params: Any, computed: Any, reuse: Any) -> dict[str, Any]:
        """What gpt_attention reads for cross attention."""
        whole = self.qkv(encoder_output)
        asked = self.num_attention_heads * self.attention_head_size
        kv = 2 * self.num_attention_kv_heads * self.attention_head_size
        kv = FUNCTIONS["split"](whole, [asked, kv], dim=-1)[1]
        if self.skip_cross_kv and (computed is None or reuse is None):
            raise refused("Attention with skip_cross_kv", "give cross_kv_cache_gen and cross_kv_reuse")
        if self.skip_cross_kv:
            kv = FUNCTIONS["where"](computed, kv, reuse)
        return {"do_cross_attention": True, "cross_kv": kv, "encoder_input_lengths": params.encoder_input_lengths}


# What Attention takes of KeyValueCacheParams beside the caches themselves.
_OF_CACHES = (
    "host_max_attention_window_sizes", "host_sink_token_length", "cache_indirection", "kv_cache_block_pointers",
    "host_kv_cache_block_pointers", "kv_cache_block_offsets", "host_kv_cache_block_offsets",
    "host_kv_cache_pool_pointers", "host_kv_cache_pool_mapping",
)  # fmt: skip


def _first(item: Any) -> Any:
    """One layer's tensor, of a list of those of all layers."""
    return item[0] if isinstance(item, list | tuple) and item else item


def _only_known(layer: str, more: dict[str, Any], refusals: dict[str, str]) -> None:
    """Refuses arguments that are not known, and those of a table that say something."""
    for name, value in more.items():
        if name in refusals and value:
            raise refused(f"{layer} with {name}={value!r}", refusals[name])
        if name not in refusals and name not in ignored(layer):
            raise refused(f"{layer} with {name}", "no version had it; leave it out")


class BertAttention(_Attention):
    """Attention of every token to all of its text, between two products: `qkv` and `dense`."""

    @called("BertAttention")
    def __init__(
        self, hidden_size: int, num_attention_heads: int, max_position_embeddings: int = 1024, num_layers: int = 1,
        attention_head_size: int | None = None, num_kv_heads: int | None = None, q_scaling: float = 1.0,
        apply_query_key_layer_scaling: bool = False, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, tp_rank: int = 0, relative_attention: bool = False, max_distance: int = 0,
        num_buckets: int = 0, cp_group: Any = None, cp_size: int = 1, cp_rank: int = 0, quant_mode: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if quant_mode not in (None, QuantMode(0)):
            raise refused(f"BertAttention with {quant_mode!r}", 'leave it out; ingot.build has weights="int8"')
        single("BertAttention", cp_size)
        if relative_attention or num_kv_heads not in (None, num_attention_heads):
            raise refused("BertAttention with relative_attention or fewer kv heads", "compose it of functions")
        self._products(
            hidden_size, num_attention_heads, num_kv_heads, attention_head_size, bias, bias, dtype, tp_size
        )  # fmt: skip
        self.q_scaling = q_scaling * (num_layers if apply_query_key_layer_scaling else 1)

    def forward(
        self, hidden_states: Any, attention_mask: Any = None, input_lengths: Any = None, max_input_length: Any = None,
        lora_layer_params: Any = None,
    ) -> Any:  # fmt: skip
        """[B, S, hidden_size] and lengths [B] (or a mask [B, S] of ones and then zeros) → [B, S, hidden_size]"""
        if input_lengths is None:
            if attention_mask is None:
                raise refused("BertAttention without lengths", "give input_lengths [B]")
            input_lengths = FUNCTIONS["sum"](FUNCTIONS["cast"](attention_mask, "int32"), 1)
        out = bert_attention(
            self._qkv(hidden_states, lora_layer_params), input_lengths, self.num_attention_heads,
            self.attention_head_size, self.q_scaling,
        )  # fmt: skip
        return self.dense(out, part_of(lora_layer_params, "attn_dense"))


FILES = {
    "attention": (
        Attention, BertAttention, AttentionParams, KeyValueCacheParams, AttentionMaskType, PositionEmbeddingType,
        make_causal_mask,
    ),
}  # fmt: skip
