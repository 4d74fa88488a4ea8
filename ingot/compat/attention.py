"""gpt_attention, bert_attention and layers.Attention: attention over caches that are inputs and outputs of the network.

A cache is [batch, 2, num_kv_heads, length, head_size], keys before values. A step gives it back with its tokens in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat import context
from ingot.compat.functional import FUNCTIONS, recorded
from ingot.compat.layers import FILES, ColumnLinear, RowLinear
from ingot.compat.module import Module
from ingot.compat.quantization import QuantMode
from ingot.compat.refusal import called, refused, single
from ingot.dims import Dimension


class AttentionMaskType(IntEnum):
    """Which tokens a token sees."""

    padding = 0
    causal = 1
    sliding_window_causal = 2
    bidirectional = 3
    bidirectionalglm = 4
    blocksparse = 5
    custom_mask = 6


class PositionEmbeddingType(IntEnum):
    """How positions are known."""

    learned_absolute = 0
    rope_gptj = 1
    rope_gpt_neox = 2
    long_rope = 3
    alibi = 4
    alibi_with_scale = 5
    relative = 6
    chatglm = 7
    yarn = 8
    mrope = 9
    deferred = 10

    def is_rope(self) -> bool:
        return self in (self.rope_gptj, self.rope_gpt_neox, self.long_rope, self.mrope)

    def is_mrope(self) -> bool:
        return self is self.mrope

    def is_alibi(self) -> bool:
        return self in (self.alibi, self.alibi_with_scale)

    def is_deferred(self) -> bool:
        return self is self.deferred

    @staticmethod
    def choices() -> list[str]:
        return [member.name for member in PositionEmbeddingType]

    @staticmethod
    def from_string(s: str) -> PositionEmbeddingType:
        return PositionEmbeddingType[s]


class RotaryScalingType(IntEnum):
    """How rotary positions are stretched."""

    none = 0
    linear = 1
    dynamic = 2
    longrope = 3
    llama3 = 4
    yarn = 5
    mrope = 6


ENUMS = {cls.__name__: cls for cls in (AttentionMaskType, PositionEmbeddingType, RotaryScalingType)}


class Heads:
    """Numbers of one attention: heads, sizes, scale, and how its positions are turned."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, size: int, q_scaling: float, rotary_dim: int, base: float,
        scale_type: Any, scale: float, position: PositionEmbeddingType,
    ) -> None:  # fmt: skip
        self.query, self.kv, self.size = num_heads, num_kv_heads, size
        self.scale = 1.0 / (q_scaling * size**0.5)
        stretched = RotaryScalingType(int(scale_type))
        if stretched not in (RotaryScalingType.none, RotaryScalingType.linear):
            raise refused(f"rotary scaling {stretched.name}", "ingot.build(folder), which knows every scaling type")
        known = (PositionEmbeddingType.rope_gptj, PositionEmbeddingType.rope_gpt_neox)
        if rotary_dim and position not in known:
            raise refused(f"rotary embeddings of type {position.name}", "rope_gpt_neox or rope_gptj")
        self.style = "interleaved" if position is PositionEmbeddingType.rope_gptj else "half"
        self.inv_freq: Any = None
        if rotary_dim:
            stretch = scale if stretched is RotaryScalingType.linear else 1.0
            self.inv_freq = (1.0 / (stretch * base ** (np.arange(0, rotary_dim, 2) / rotary_dim))).astype(np.float32)

    def parts(self, qkv: Any, rows: Dimension) -> tuple[Any, Any, Any]:
        """Queries, keys and values [rows, heads, size] of [..., (heads + 2 · kv heads) · size]."""
        flat = f.view(qkv, (rows, self.query + 2 * self.kv, self.size), False)
        return tuple(f.split(flat, [self.query, self.kv, self.kv], 1))

    def turned(self, x: Any, positions: Any) -> Any:
        """Rows [rows, heads, size] turned by their positions [rows]."""
        if self.inv_freq is None:
            return x
        cos, sin = f.rope_table(f.cast(positions, "int32"), self.inv_freq)
        return f.rope(x, cos, sin, self.style)

    def attend(self, query: Any, key: Any, value: Any, mask: Any, bias: Any = None) -> Any:
        """[..., H, T, D] over [..., KV, S, D] where the mask is true, a bias added to the scores."""
        if bias is not None:
            mask = f.where(mask, f.cast(bias, query.dtype), np.asarray(-np.inf, dtypes.get(query.dtype).numpy))
        return f.scaled_dot_product_attention(query, key, value, mask, scale=self.scale, enable_gqa=True)


def _column(x: Any) -> Any:
    """A vector [n] as [n, 1]."""
    return f.unsqueeze(x, 1)


def _filled(cache: Any, new_key: Any, new_value: Any, row: Any, is_new: Any) -> Any:
    """The cache [B, 2, KV, M, D] with rows [rows, KV, D] at its places: row[b, m] where is_new[b, m]."""
    batch, _, heads, length, size = cache.shape
    halves = []
    for i, new in enumerate((new_key, new_value)):
        taken = f.view(f.index_select(new, 0, f.flatten(row)), (batch, length, heads, size), False)
        placed = f.cast(f.permute(taken, (0, 2, 1, 3)), cache.dtype)
        where = f.view(is_new, (batch, 1, length, 1), False)
        halves.append(f.where(where, placed, f.select(cache, 1, i)))
    return f.stack(halves, 1)


def _step(heads: Heads, qkv: Any, cache: Any, before: Any, count: Any, slopes: Any) -> tuple[Any, Any]:
    """One step of padded rows [B, S, width], of which `count` [B] are tokens, behind `before` [B] cached ones."""
    batch, width = qkv.shape[0], qkv.shape[1]
    length = cache.shape[3]
    query, key, value = heads.parts(qkv, batch * width)
    at = f.add(_column(before), f.arange(0, width, "int32"))  # positions [B, S]
    query, key = (heads.turned(x, f.flatten(at)) for x in (query, key))
    place = f.arange(0, length, "int32")
    new = f.sub(place, _column(before))  # [B, M]: which new token lies there
    is_new = f.op_and(f.ge(new, 0), f.lt(new, _column(count)))
    first = f.mul(f.arange(0, batch, "int32"), f.cast(_size(qkv, 1), "int32"))
    row = f.add(_column(first), f.clip(f.where(is_new, new, 0), 0, None))
    cache = _filled(cache, key, value, row, is_new)
    mask = f.le(f.view(place, (1, 1, 1, length), False), f.view(at, (batch, 1, width, 1), False))
    bias = None
    if slopes is not None:
        apart = f.sub(f.view(place, (1, 1, 1, length), False), f.view(at, (batch, 1, width, 1), False))
        bias = f.mul(f.cast(apart, "float32"), f.view(f.cast(slopes, "float32"), (1, heads.query, 1, 1), False))
    rows = f.permute(f.view(query, (batch, width, heads.query, heads.size), False), (0, 2, 1, 3))
    keys, values = (f.cast(f.select(cache, 1, i), query.dtype) for i in (0, 1))
    out = f.permute(heads.attend(rows, keys, values, mask, bias), (0, 2, 1, 3))
    return f.view(out, (batch, width, heads.query * heads.size), False), cache


def _size(x: Any, axis: int) -> Any:
    """A size as a scalar tensor."""
    return f.shape(x, axis)


def _packed_step(heads: Heads, qkv: Any, cache: Any, before: Any, count: Any, slopes: Any) -> tuple[Any, Any]:
    """One step of packed rows [T, width]: `count` [B] of each request, behind `before` [B] cached ones."""
    rows, (batch, _, _, length, _) = qkv.shape[0], cache.shape
    query, key, value = heads.parts(qkv, rows)
    end = f.cumsum(count, 0)
    start = f.sub(end, count)
    token = f.arange(0, rows, "int32")
    owner = f.sum(f.cast(f.ge(_column(token), end), "int32"), 1)  # which request a row is of
    owner = f.minimum(owner, f.cast(f.sub(_size(cache, 0), 1), "int32"))
    at = f.add(f.sub(token, f.index_select(start, 0, owner)), f.index_select(before, 0, owner))
    query, key = (heads.turned(x, at) for x in (query, key))
    place = f.arange(0, length, "int32")
    new = f.sub(place, _column(before))
    is_new = f.op_and(f.ge(new, 0), f.lt(new, _column(count)))
    row = f.where(is_new, f.add(new, _column(start)), 0)
    cache = _filled(cache, key, value, row, is_new)
    # Rows against the tokens of all requests, of which a row sees those of its own.
    mine = f.eq(f.view(owner, (rows, 1, 1), False), f.view(f.arange(0, batch, "int32"), (1, batch, 1), False))
    apart = f.sub(f.view(place, (1, 1, length), False), f.view(at, (rows, 1, 1), False))
    whole = (1, 1, rows, batch * length)
    mask = f.view(f.op_and(mine, f.le(apart, 0)), whole, False)
    bias = None
    if slopes is not None:
        wide = f.view(f.expand(f.cast(apart, "float32"), (rows, batch, length)), whole, False)
        bias = f.mul(wide, f.view(f.cast(slopes, "float32"), (1, heads.query, 1, 1), False))
    keys, values = (
        f.view(f.permute(f.cast(f.select(cache, 1, i), query.dtype), (1, 0, 2, 3)),
               (1, heads.kv, batch * length, heads.size), False)
        for i in (0, 1)
    )  # fmt: skip
    out = heads.attend(f.unsqueeze(f.permute(query, (1, 0, 2)), 0), keys, values, mask, bias)
    return f.view(f.permute(f.squeeze(out, 0), (1, 0, 2)), (rows, heads.query * heads.size), False), cache


# Arguments of gpt_attention that change nothing here, each with the reason; any other one is refused when it is given.
WITHOUT_EFFECT = {
    "host_past_key_value_lengths": "a step's first position follows from sequence_length",
    "host_max_attention_window_sizes": "the cache holds every token", "host_sink_token_length": "the cache holds all",
    "cache_indirection": "beams are separate requests", "max_context_length": "sizes say it",
    "host_context_lengths": "context_lengths says it", "layer_idx": "there is nothing to look up by it",
    "host_runtime_perf_knobs": "there are none", "host_context_progress": "a step runs whole",
    "rotary_embedding_max_positions": "positions are computed", "multi_block_mode": "there is one kernel",
    "rotary_embedding_original_max_positions": "as above", "tp_rank": "an engine runs on one device",
    "rotary_inv_freq": "computed from the base", "rotary_cos_sin": "computed from the base", "use_cache": "always",
    "kv_cache_quant_mode": "0 only, checked", "num_kv_heads_origin": "an engine runs on one device",
    "dense_context_fmha": "attention is always fused", "enable_pos_shift": "no token is dropped",
    "rotary_embedding_short_m_scale": "1", "rotary_embedding_long_m_scale": "1", "cp_group": "one device",
    "cp_size": "one device", "cp_rank": "one device", "skip_attn": "never", "max_distance": "no relative positions",
    "attention_mask": "the mask is causal", "attention_packed_mask": "the mask is causal",
}  # fmt: skip
_FIRST = ("qkv", "past_key_value", "sequence_length", "host_past_key_value_lengths")
_AFTER = ("context_lengths", "cache_indirection", "host_request_types")
_LAST = (
    "num_heads", "num_kv_heads", "hidden_size_per_head", "q_scaling", "rotary_embedding_dim", "rotary_embedding_base",
    "rotary_embedding_scale_type", "rotary_embedding_scale",
)  # fmt: skip
# Where num_heads stands by position says which version's order the arguments are in: 0.5, or 0.7.
ORDERS = {
    7: (*_FIRST, *_AFTER, *_LAST),
    9: (*_FIRST, "host_max_attention_window_sizes", "host_sink_token_length", *_AFTER, *_LAST),
}


def _by_name(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of gpt_attention by the newest names."""
    at = next((i for i, arg in enumerate(args) if isinstance(arg, int)), None)
    names = ORDERS[7] if at is None else ORDERS.get(at)
    if names is None or len(args) > len(names):
        raise refused(f"gpt_attention with {len(args)} arguments by position", "give them by name")
    given = dict(zip(names, args, strict=False)) | kwargs
    if "tensor" in given:
        given["qkv"] = given.pop("tensor")
    return given


@called("gpt_attention")
def gpt_attention(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Causal attention of a step's tokens, with positions turned or biased, over a cache.

    Args (by name; positions as of 0.5 or 0.7 are known by where num_heads stands):
        qkv: [B, S, width], or packed [T, width] or [1, T, width] with plugin_config.remove_input_padding;
            width = (num_heads + 2 · num_kv_heads) · hidden_size_per_head.
        past_key_value: [B, 2, num_kv_heads, length, hidden_size_per_head].
        sequence_length: int32 [B], each request's tokens with this step's.
        context_lengths: int32 [B], of the prompts. host_request_types: int32 [B], 0 for a prompt, 1 for one more token.
        alibi_slopes: [num_heads].  qkv_bias: [width].

    Returns:
        The context, as qkv with num_heads · hidden_size_per_head, and the cache with the new tokens.

    Raises:
        UnsupportedError: paged caches by pointers, quantised ones, cross attention, other masks than causal.
    """
    given = _by_name(args, kwargs)
    need = [name for name in ("qkv", "past_key_value", "sequence_length", "context_lengths", "host_request_types",
                              "num_heads", "hidden_size_per_head") if given.get(name) is None]  # fmt: skip
    if need:
        pointers = [name for name in given if "block_pointers" in name or "block_offsets" in name]
        paged = any(given[name] is not None for name in pointers)
        raise refused(
            f"gpt_attention without {', '.join(need)}",
            "ingot.LLM pages its caches by itself; here give whole ones as past_key_value" if paged else "give them",
        )
    mask = given.pop("mask_type", AttentionMaskType.causal)
    if int(mask) != AttentionMaskType.causal:
        raise refused(f"gpt_attention with {AttentionMaskType(int(mask)).name}", "give causal, or compose it")
    single("gpt_attention", given.pop("tp_size", 1))
    if given.get("kv_cache_quant_mode") not in (None, QuantMode(0)):
        raise refused("gpt_attention with a quantised cache", "leave kv_cache_quant_mode out; caches are floats")
    kv_heads = given.pop("num_kv_heads", None) or given["num_heads"]
    heads = Heads(
        given.pop("num_heads"), kv_heads, given.pop("hidden_size_per_head"), given.pop("q_scaling", 1.0),
        given.pop("rotary_embedding_dim", 0), given.pop("rotary_embedding_base", 10000.0),
        given.pop("rotary_embedding_scale_type", 0), given.pop("rotary_embedding_scale", 1.0),
        PositionEmbeddingType(int(given.pop("position_embedding_type", PositionEmbeddingType.rope_gpt_neox))),
    )  # fmt: skip
    names = ("qkv", "past_key_value", "sequence_length", "context_lengths", "host_request_types")
    tensors = {name: given.pop(name) for name in names}
    tensors |= {name: given.pop(name, None) for name in ("qkv_bias", "alibi_slopes")}
    if isinstance(tensors["qkv"], list | tuple):
        tensors["qkv"] = FUNCTIONS["concat"](list(tensors["qkv"]), -1)
    for name, value in given.items():
        absent = value is None or (isinstance(value, int | float | list) and not value)
        if name not in WITHOUT_EFFECT and not absent:
            raise refused(f"gpt_attention with {name}", "leave it out; ingot.build(folder) builds whole models")
    packed = bool(context.default_net().plugin_config.remove_input_padding)
    return recorded("gpt_attention", _gpt_attention(heads, packed), tensors)  # type: ignore[no-any-return]


def _gpt_attention(heads: Heads, packed: bool) -> Any:
    def call(
        qkv: Any, past_key_value: Any, sequence_length: Any, context_lengths: Any, host_request_types: Any,
        qkv_bias: Any, alibi_slopes: Any,
    ) -> tuple[Any, Any]:  # fmt: skip
        qkv = qkv if qkv_bias is None else f.add(qkv, qkv_bias)
        is_prompt = f.eq(f.cast(host_request_types, "int32"), 0)
        count = f.where(is_prompt, f.cast(context_lengths, "int32"), np.int32(1))
        before = f.sub(f.cast(sequence_length, "int32"), count)
        if not packed:
            return _step(heads, qkv, past_key_value, before, count, alibi_slopes)
        in_one = len(qkv.shape) == 3
        rows = f.squeeze(qkv, 0) if in_one else qkv
        out, cache = _packed_step(heads, rows, past_key_value, before, count, alibi_slopes)
        return (f.unsqueeze(out, 0) if in_one else out), cache

    return call


@called("bert_attention")
def bert_attention(
    tensor: Any, input_lengths: Any, num_heads: int, head_size: int, q_scaling: float,
    relative_attention: bool = False, relative_attention_bias: Any = None, max_distance: int = 0,
    max_input_length: Any = None, **accepted: Any,
) -> Any:  # fmt: skip
    """Attention of every token to those of its text: [B, S, 3 · num_heads · head_size], lengths [B] → [B, S, …]."""
    if relative_attention:
        raise refused("bert_attention with relative_attention", "add the bias: scaled_dot_product_attention of ingot")
    if context.default_net().plugin_config.remove_input_padding:
        raise refused("bert_attention of packed texts", "leave remove_input_padding off, and give [B, S, width]")
    heads = Heads(num_heads, num_heads, head_size, q_scaling, 0, 1.0, 0, 1.0, PositionEmbeddingType.learned_absolute)

    def call(tensor: Any, input_lengths: Any) -> Any:
        batch, width, _ = tensor.shape
        parts = f.split(f.view(tensor, (batch, width, 3 * num_heads, head_size), False), [num_heads] * 3, 2)
        query, key, value = (f.permute(part, (0, 2, 1, 3)) for part in parts)
        seen = f.lt(f.arange(0, width, "int32"), _column(f.cast(input_lengths, "int32")))
        out = heads.attend(query, key, value, f.view(seen, (batch, 1, 1, width), False))
        return f.view(f.permute(out, (0, 2, 1, 3)), (batch, width, num_heads * head_size), False)

    return recorded("bert_attention", call, {"tensor": tensor, "input_lengths": input_lengths})


# ---------------------------------------------------------------------------------------------- layers


class AttentionParams:
    """What a step says of its requests."""

    def __init__(
        self, sequence_length: Any = None, context_lengths: Any = None, host_context_lengths: Any = None,
        max_context_length: Any = None, host_request_types: Any = None, encoder_input_lengths: Any = None,
        encoder_max_input_length: Any = None, **more: Any,
    ) -> None:  # fmt: skip
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
        self.qkv = ColumnLinear(hidden_size, width, bias, dtype)
        self.dense = RowLinear(num_attention_heads * self.attention_head_size, hidden_size, dense_bias, dtype)


class Attention(_Attention):
    """Causal attention over a cache, between two products: `qkv` and `dense`."""

    @called("Attention")
    def __init__(
        self, hidden_size: int, num_attention_heads: int, num_kv_heads: int | None = None,
        max_position_embeddings: int = 1024, num_layers: int = 1, apply_query_key_layer_scaling: bool = False,
        attention_head_size: int | None = None, attention_mask_type: Any = AttentionMaskType.causal, bias: bool = True,
        dtype: Any = None, position_embedding_type: Any = PositionEmbeddingType.learned_absolute,
        rotary_embedding_base: float = 10000.0, rotary_embedding_scaling: dict[str, Any] | None = None,
        rotary_embedding_percentage: float = 1.0, tp_group: Any = None, tp_size: int = 1, tp_rank: int = 0,
        quant_mode: Any = None, q_scaling: float = 1.0, dense_bias: bool | None = None, local_layer_idx: int = 0,
        instance_id: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        if quant_mode not in (None, QuantMode(0)):
            raise refused(f"Attention with {quant_mode!r}", 'leave it out; ingot.build has weights="int8"')
        if set_ := [name for name, value in more.items() if value]:
            raise refused(f"Attention with {', '.join(set_)}", "leave it out; ingot.build(folder) builds whole models")
        position = PositionEmbeddingType(int(position_embedding_type))
        self._products(
            hidden_size, num_attention_heads, num_kv_heads, attention_head_size, bias,
            bias if dense_bias is None else dense_bias, dtype, tp_size,
        )  # fmt: skip
        self.q_scaling = q_scaling * (num_layers if apply_query_key_layer_scaling else 1)
        self.position_embedding_type, self.rotary_embedding_base = position, rotary_embedding_base
        self.attention_mask_type = AttentionMaskType(int(attention_mask_type))
        rotary = int(self.attention_head_size * rotary_embedding_percentage) if position.is_rope() else 0
        self.rotary_embedding_dim = rotary
        scaling = rotary_embedding_scaling or {}
        self.rotary_embedding_scale_type = RotaryScalingType[scaling.get("type", scaling.get("rope_type", "none"))]
        self.rotary_embedding_scale = float(scaling.get("factor", 1.0))

    def forward(
        self, hidden_states: Any, attention_mask: Any = None, use_cache: bool = False, kv_cache_params: Any = None,
        attention_params: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        """[B, S, hidden_size], or packed → the same; with use_cache also the cache with the step's tokens."""
        if any(value is not None for value in more.values()):
            raise refused(f"Attention called with {', '.join(more)}", "leave them out")
        if kv_cache_params is None or attention_params is None or not kv_cache_params.is_valid():
            raise refused(
                "Attention without a cache",
                "give kv_cache_params=KeyValueCacheParams(past_key_value=[…]) and attention_params=AttentionParams(…)",
            )
        slopes = None
        if self.position_embedding_type.is_alibi():
            slopes = FUNCTIONS["constant"](f.generate_alibi_slopes(self.num_attention_heads))
        out, present = gpt_attention(
            qkv=self.qkv(hidden_states), past_key_value=kv_cache_params.get_first_past_key_value(),
            sequence_length=attention_params.sequence_length, context_lengths=attention_params.context_lengths,
            host_request_types=attention_params.host_request_types, num_heads=self.num_attention_heads,
            num_kv_heads=self.num_attention_kv_heads, hidden_size_per_head=self.attention_head_size,
            q_scaling=self.q_scaling, rotary_embedding_dim=self.rotary_embedding_dim,
            rotary_embedding_base=self.rotary_embedding_base, alibi_slopes=slopes,
            rotary_embedding_scale_type=self.rotary_embedding_scale_type,
            rotary_embedding_scale=self.rotary_embedding_scale, position_embedding_type=self.position_embedding_type,
        )  # fmt: skip
        out = self.dense(out)
        return (out, present) if use_cache else out


class BertAttention(_Attention):
    """Attention of every token to all of its text, between two products: `qkv` and `dense`."""

    @called("BertAttention")
    def __init__(
        self, hidden_size: int, num_attention_heads: int, max_position_embeddings: int = 1024, num_layers: int = 1,
        attention_head_size: int | None = None, num_kv_heads: int | None = None, q_scaling: float = 1.0,
        apply_query_key_layer_scaling: bool = False, bias: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1, tp_rank: int = 0, relative_attention: bool = False, max_distance: int = 0,
        num_buckets: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__()
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
            self.qkv(hidden_states), input_lengths, self.num_attention_heads, self.attention_head_size, self.q_scaling
        )
        return self.dense(out)


FUNCTIONS.update(gpt_attention=gpt_attention, bert_attention=bert_attention)
FILES["attention"] = (
    Attention, BertAttention, AttentionParams, KeyValueCacheParams, AttentionMaskType, PositionEmbeddingType,
)  # fmt: skip
