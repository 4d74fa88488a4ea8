"""gpt_attention: attention over caches that are inputs and outputs of the network.

A cache is [batch, 2, num_kv_heads, length, head_size], keys before values. A step gives it back with its tokens in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot import functional as f
from ingot.compat.functional import FUNCTIONS, recorded
from ingot.compat.no_effect import ignored
from ingot.compat.quantization import QuantMode
from ingot.compat.refusal import called, refused, single
from ingot.compat.step import Step, column, is_packed
from ingot.dims import Dimension
from ingot.ir import F


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


class Numbers(NamedTuple):
    """The tensors that a step's attention reads beside queries, keys and values; None for those not given."""

    slopes: Any = None
    mask: Any = None
    window: Any = None
    sink: Any = None
    inv_freq: Any = None
    cos_sin: Any = None
    logn: Any = None
    to_cache: Any = None
    from_cache: Any = None


class Heads:
    """Numbers of one attention: heads, sizes, scale, how its positions are turned, and which tokens a token sees."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, size: int, q_scaling: float = 1.0, rotary_dim: int = 0,
        base: float = 10000.0, stretch: float = 1.0,
        position: PositionEmbeddingType = PositionEmbeddingType.learned_absolute,
        mask: AttentionMaskType = AttentionMaskType.causal, softcap: float = 0.0,
    ) -> None:  # fmt: skip
        self.query, self.kv, self.size = num_heads, num_kv_heads, size
        self.scale = 1.0 / (q_scaling * size**0.5)
        self.style = "interleaved" if position is PositionEmbeddingType.rope_gptj else "half"
        self.scaled_bias = position is PositionEmbeddingType.alibi_with_scale
        self.mask, self.softcap = mask, softcap
        self.turns = rotary_dim > 0 and position in _ROTARY
        frequencies = 1.0 / (stretch * base ** (np.arange(0, rotary_dim, 2) / max(rotary_dim, 1)))
        self.inv_freq = frequencies.astype(np.float32)

    def parts(self, qkv: Any, rows: Dimension) -> tuple[Any, Any, Any]:
        """Queries, keys and values [rows, heads, size] of [..., (heads + 2 · kv heads) · size]."""
        flat = f.view(qkv, (rows, self.query + 2 * self.kv, self.size), False)
        return tuple(f.split(flat, [self.query, self.kv, self.kv], 1))

    def turned(self, x: Any, positions: Any, given: Numbers) -> Any:
        """Rows [rows, heads, size] turned by their positions [rows]."""
        if not self.turns:
            return x
        positions = f.cast(positions, "int32")
        if given.cos_sin is not None:
            table = f.view(f.cast(given.cos_sin, "float32"), (-1, len(self.inv_freq), 2))
            cos, sin = (f.index_select(f.select(table, 2, i), 0, positions) for i in (0, 1))
        else:
            inv_freq = self.inv_freq if given.inv_freq is None else f.view(given.inv_freq, (len(self.inv_freq),))
            cos, sin = f.rope_table(positions, inv_freq)
        return f.rope(x, cos, sin, self.style)

    def sees(self, place: Any, at: Any, total: Any, given: Numbers) -> Any:
        """Whether tokens at positions `at` see those at `place`, of which there are `total`."""
        if self.mask in (AttentionMaskType.padding, AttentionMaskType.bidirectional):
            seen = f.lt(place, total)
        else:
            seen = f.le(place, at)
        if given.window is None:
            return seen
        sink = np.int32(0) if given.sink is None else given.sink
        near = f.lt(f.sub(at, place), f.sub(given.window, sink))
        return f.op_and(seen, f.op_or(near, f.lt(place, sink)))

    def biased(self, apart: Any, given: Numbers) -> Any:
        """What ALiBi adds to scores, of how far keys lie behind queries; None without slopes."""
        if given.slopes is None:
            return None
        slopes = f.view(f.cast(given.slopes, "float32"), (1, self.query, 1, 1), False)
        return f.mul(f.cast(apart, "float32"), f.mul(slopes, self.scale) if self.scaled_bias else slopes)

    def attend(self, query: Any, key: Any, value: Any, mask: Any, bias: Any = None) -> Any:
        """[..., H, T, D] over [..., KV, S, D] where the mask is true, a bias added to the scores."""
        if self.softcap:
            return self._capped(query, key, value, mask, bias)
        if bias is not None:
            mask = f.where(mask, f.cast(bias, query.dtype), np.asarray(-np.inf, dtypes.get(query.dtype).numpy))
        return f.scaled_dot_product_attention(query, key, value, mask, scale=self.scale, enable_gqa=True)

    def _capped(self, query: Any, key: Any, value: Any, mask: Any, bias: Any) -> Any:
        """attend, with scores bent to less than softcap; [B, H, T, D] over [B, KV, S, D]."""
        batch, _, rows, size = query.shape
        shared = f.view(query, (batch, self.kv, self.query // self.kv, rows, size), False)
        scores = f.mul(f.cast(f.matmul(shared, f.unsqueeze(key, 2), transb=True), "float32"), self.scale)
        scores = f.mul(f.tanh(f.div(scores, self.softcap)), self.softcap)
        scores = f.view(scores, (batch, self.query, rows, key.shape[2]), False)
        scores = scores if bias is None else f.add(scores, bias)
        weights = f.softmax(f.where(mask, scores, np.float32(-np.inf)), -1)
        grouped = (batch, self.kv, self.query // self.kv, rows, key.shape[2])
        weights = f.view(f.cast(weights, query.dtype), grouped, False)
        return f.view(f.matmul(weights, f.unsqueeze(value, 2)), (batch, self.query, rows, size), False)


_ROTARY = (PositionEmbeddingType.rope_gptj, PositionEmbeddingType.rope_gpt_neox, PositionEmbeddingType.yarn)


def _filled(cache: Any, new_key: Any, new_value: Any, row: Any, is_new: Any, given: Numbers) -> Any:
    """The cache [B, 2, KV, M, D] with rows [rows, KV, D] at its places: row[b, m] where is_new[b, m]."""
    batch, _, heads, length, size = cache.shape
    halves = []
    for i, new in enumerate((new_key, new_value)):
        taken = f.view(f.index_select(new, 0, f.flatten(row)), (batch, length, heads, size), False)
        placed = f.permute(taken, (0, 2, 1, 3))
        if given.to_cache is None:
            placed = f.cast(placed, cache.dtype)
        else:
            scale = f.view(f.cast(given.to_cache, placed.dtype), (), False)
            placed = F.quantize(f.mul(placed, scale), np.float32(1), minimum=-128)
        where = f.view(is_new, (batch, 1, length, 1), False)
        halves.append(f.where(where, placed, f.select(cache, 1, i)))
    return f.stack(halves, 1)


def _read(cache: Any, half: int, dtype: Any, given: Numbers) -> Any:
    """The keys (0) or values (1) of a cache, [B, KV, M, D], as floats."""
    held = f.select(cache, 1, half)
    if given.from_cache is None:
        return f.cast(held, dtype)
    return F.dequantize(held, f.view(f.cast(given.from_cache, "float32"), (), False), dtype=dtype)


def _queries(heads: Heads, query: Any, at: Any, given: Numbers) -> Any:
    """Queries turned by their positions, and scaled by them where logn_scaling is given."""
    query = heads.turned(query, at, given)
    if given.logn is None:
        return query
    factor = f.index_select(f.cast(given.logn, query.dtype), 0, f.cast(at, "int32"))
    return f.mul(query, f.view(factor, (query.shape[0], 1, 1), False))


def _step(heads: Heads, qkv: Any, cache: Any, before: Any, count: Any, given: Numbers) -> tuple[Any, Any]:
    """One step of padded rows [B, S, width], of which `count` [B] are tokens, behind `before` [B] cached ones."""
    batch, width = qkv.shape[0], qkv.shape[1]
    length = cache.shape[3]
    query, key, value = heads.parts(qkv, batch * width)
    at = f.add(column(before), f.arange(0, width, "int32"))  # positions [B, S]
    # Rows behind a text's tokens are computed too, as of its last token: their positions lie in no table.
    at = f.minimum(at, f.maximum(column(f.sub(f.add(before, count), 1)), 0))
    query, key = _queries(heads, query, f.flatten(at), given), heads.turned(key, f.flatten(at), given)
    place = f.arange(0, length, "int32")
    new = f.sub(place, column(before))  # [B, M]: which new token lies there
    is_new = f.op_and(f.ge(new, 0), f.lt(new, column(count)))
    first = f.mul(f.arange(0, batch, "int32"), f.cast(f.shape(qkv, 1), "int32"))
    row = f.add(column(first), f.clip(f.where(is_new, new, 0), 0, None))
    cache = _filled(cache, key, value, row, is_new, given)
    places, positions = f.view(place, (1, 1, 1, length), False), f.view(at, (batch, 1, width, 1), False)
    total = f.view(f.add(before, count), (batch, 1, 1, 1), False)
    if heads.mask is AttentionMaskType.custom_mask:
        own = f.view(given.mask, (batch, 1, width, length), False)
        mask = f.op_and(own, f.lt(places, total))
    else:
        mask = heads.sees(places, positions, total, given)
    bias = heads.biased(f.sub(places, positions), given)
    rows = f.permute(f.view(query, (batch, width, heads.query, heads.size), False), (0, 2, 1, 3))
    keys, values = (_read(cache, i, query.dtype, given) for i in (0, 1))
    out = f.permute(heads.attend(rows, keys, values, mask, bias), (0, 2, 1, 3))
    return f.view(out, (batch, width, heads.query * heads.size), False), cache


def _packed_step(heads: Heads, qkv: Any, cache: Any, before: Any, count: Any, given: Numbers) -> tuple[Any, Any]:
    """One step of packed rows [T, width]: `count` [B] of each request, behind `before` [B] cached ones."""
    rows, (batch, _, _, length, _) = qkv.shape[0], cache.shape
    query, key, value = heads.parts(qkv, rows)
    end = f.cumsum(count, 0)
    start = f.sub(end, count)
    token = f.arange(0, rows, "int32")
    owner = f.sum(f.cast(f.ge(column(token), end), "int32"), 1)  # which request a row is of
    owner = f.minimum(owner, f.cast(f.sub(f.shape(cache, 0), 1), "int32"))
    at = f.add(f.sub(token, f.index_select(start, 0, owner)), f.index_select(before, 0, owner))
    query, key = _queries(heads, query, at, given), heads.turned(key, at, given)
    place = f.arange(0, length, "int32")
    new = f.sub(place, column(before))
    is_new = f.op_and(f.ge(new, 0), f.lt(new, column(count)))
    row = f.where(is_new, f.add(new, column(start)), 0)
    cache = _filled(cache, key, value, row, is_new, given)
    # Rows against the tokens of all requests, of which a row sees those of its own.
    mine = f.eq(f.view(owner, (rows, 1, 1), False), f.view(f.arange(0, batch, "int32"), (1, batch, 1), False))
    places, positions = f.view(place, (1, 1, length), False), f.view(at, (rows, 1, 1), False)
    total = f.view(f.index_select(f.add(before, count), 0, owner), (rows, 1, 1), False)
    if heads.mask is AttentionMaskType.custom_mask:
        seen = f.op_and(f.view(given.mask, (rows, 1, length), False), f.lt(places, total))
    else:
        seen = heads.sees(places, positions, total, given)
    whole = (1, 1, rows, batch * length)
    mask = f.view(f.op_and(mine, seen), whole, False)
    bias = None
    if given.slopes is not None:
        apart = f.expand(f.cast(f.sub(places, positions), "float32"), (rows, batch, length))
        bias = heads.biased(f.view(apart, whole, False), given)
    keys, values = (
        f.view(f.permute(_read(cache, i, query.dtype, given), (1, 0, 2, 3)),
               (1, heads.kv, batch * length, heads.size), False)
        for i in (0, 1)
    )  # fmt: skip
    out = heads.attend(f.unsqueeze(f.permute(query, (1, 0, 2)), 0), keys, values, mask, bias)
    return f.view(f.permute(f.squeeze(out, 0), (1, 0, 2)), (rows, heads.query * heads.size), False), cache


# ---------------------------------------------------------------------------------------------- gpt_attention

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
# Tensors of gpt_attention: those that it cannot do without, and those that are read where they are given.
_NEEDED = ("qkv", "sequence_length", "context_lengths", "host_request_types")
_READ = (
    "past_key_value", "qkv_bias", "alibi_slopes", "attention_mask", "rotary_inv_freq", "rotary_cos_sin", "logn_scaling",
    "kv_orig_quant_scale", "kv_quant_orig_scale", "host_max_attention_window_sizes", "host_sink_token_length",
    "cache_indirection", "cross_kv", "cross_qkv", "encoder_input_lengths",
)  # fmt: skip
_PLAIN = (
    "num_heads", "num_kv_heads", "hidden_size_per_head", "q_scaling", "rotary_embedding_dim", "rotary_embedding_base",
    "rotary_embedding_scale_type", "rotary_embedding_scale", "position_embedding_type", "mask_type", "tp_size",
    "tp_rank", "cp_size", "cp_rank", "use_cache", "layer_idx", "kv_cache_quant_mode", "num_kv_heads_origin",
    "attn_logit_softcapping_scale", "rotary_embedding_short_m_scale", "rotary_embedding_long_m_scale",
    "do_cross_attention",
)  # fmt: skip
# Every further argument that a version had: refused as soon as it says something.
_PAGED = "ingot.LLM pages its caches by itself; here give whole ones as past_key_value"
_WHOLE = "leave it out; ingot.build(folder) builds whole models"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("kv_cache_block_offsets", "host_kv_cache_block_offsets", "kv_cache_block_pointers",
         "host_kv_cache_block_pointers", "host_kv_cache_pool_pointers", "host_kv_cache_pool_mapping"), _PAGED,
    ),
    **dict.fromkeys(
        ("attention_packed_mask", "relative_attention_bias", "max_distance", "enable_pos_shift", "skip_attn",
         "attention_output_orig_quant_scale", "attention_output_sf_scale", "block_sparse_block_size",
         "block_sparse_homo_head_pattern", "block_sparse_num_local_blocks", "block_sparse_vertical_stride",
         "vision_start", "vision_length", "spec_decoding_is_generation_length_variable",
         "spec_decoding_max_generation_length",
         "spec_decoding_generation_lengths", "spec_decoding_position_offsets", "spec_decoding_packed_mask",
         "spec_decoding_use", "long_rope_rotary_inv_freq", "long_rope_rotary_cos_sin", "mrope_rotary_cos_sin",
         "mrope_position_deltas", "is_mla_enabled_flag", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
         "qk_rope_head_dim", "v_head_dim", "q_b_proj", "kv_b_proj", "k_b_proj_trans"), _WHOLE,
    ),
}  # fmt: skip
ARGUMENTS = (*_NEEDED, *_READ, *_PLAIN, *REFUSED, *ignored("gpt_attention"))


def _by_name(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of gpt_attention by the newest names, those that say nothing left out."""
    at = next((i for i, arg in enumerate(args) if isinstance(arg, int)), None)
    names = ORDERS[7] if at is None else ORDERS.get(at)
    if names is None or len(args) > len(names):
        raise refused(f"gpt_attention with {len(args)} arguments by position", "give them by name")
    given = dict(zip(names, args, strict=False)) | kwargs
    if "tensor" in given:
        given["qkv"] = given.pop("tensor")
    if unknown := [name for name in given if name not in ARGUMENTS]:
        raise refused(f"gpt_attention with {', '.join(unknown)}", "no version had it; leave it out")
    given = {name: value for name, value in given.items() if value is not None}
    for name, instead in REFUSED.items():
        value = given.get(name)
        if not (value is None or (isinstance(value, int | float | list | tuple) and not value)):
            raise refused(f"gpt_attention with {name}", instead)
    return given


def _alone(given: dict[str, Any]) -> None:
    """Refuses shares of a layer, and scales of long texts."""
    for name in ("tp_size", "cp_size"):
        single("gpt_attention", given.get(name, 1))
    for name, usual in (("tp_rank", 0), ("cp_rank", 0), ("rotary_embedding_short_m_scale", 1.0),
                        ("rotary_embedding_long_m_scale", 1.0)):  # fmt: skip
        if given.get(name, usual) != usual:
            raise refused(f"gpt_attention with {name}={given[name]}", f"only {usual} is computed")
    if given.get("num_kv_heads_origin", -1) not in (-1, given.get("num_kv_heads", given["num_heads"])):
        raise refused("gpt_attention with num_kv_heads_origin", "engines run on one device: give num_kv_heads")


def _heads(given: dict[str, Any]) -> Heads:
    """The numbers of the attention that arguments describe."""
    position = PositionEmbeddingType(int(given.get("position_embedding_type", PositionEmbeddingType.learned_absolute)))
    mask = AttentionMaskType(int(given.get("mask_type", AttentionMaskType.causal)))
    stretched = RotaryScalingType(int(given.get("rotary_embedding_scale_type", 0)))
    tables = "rotary_inv_freq" in given or "rotary_cos_sin" in given
    known = {RotaryScalingType.none, RotaryScalingType.linear}
    known |= {RotaryScalingType.llama3, RotaryScalingType.yarn} if tables else set()
    if stretched not in known:
        raise refused(
            f"gpt_attention with rotary scaling {stretched.name}",
            "give rotary_inv_freq or rotary_cos_sin for llama3 and yarn, or use ingot.build(folder)",
        )
    if position not in (*_ROTARY, PositionEmbeddingType.learned_absolute) and not position.is_alibi():
        raise refused(f"gpt_attention with positions of type {position.name}", "rope_gpt_neox, rope_gptj, or alibi")
    if position is PositionEmbeddingType.yarn and "rotary_cos_sin" not in given:
        raise refused("gpt_attention with yarn", "give rotary_cos_sin, which RopeEmbeddingUtils computes")
    if position.is_alibi() != ("alibi_slopes" in given):
        raise refused("gpt_attention", "alibi_slopes and a position_embedding_type of alibi go together")
    if mask in (AttentionMaskType.bidirectionalglm, AttentionMaskType.blocksparse):
        raise refused(f"gpt_attention with {mask.name}", "give custom_mask and attention_mask, or compose it")
    if (mask is AttentionMaskType.custom_mask) != ("attention_mask" in given):
        raise refused("gpt_attention", "attention_mask is read with mask_type custom_mask, and needed there")
    stretch = given.get("rotary_embedding_scale", 1.0) if stretched is RotaryScalingType.linear else 1.0
    return Heads(
        given["num_heads"], given.get("num_kv_heads", given["num_heads"]), given["hidden_size_per_head"],
        given.get("q_scaling", 1.0), given.get("rotary_embedding_dim", 0), given.get("rotary_embedding_base", 10000.0),
        stretch, position, mask, float(given.get("attn_logit_softcapping_scale", 0.0)),
    )  # fmt: skip


def _quantised(given: dict[str, Any]) -> bool:
    """Whether the cache is int8 with scales."""
    mode = QuantMode(int(given.get("kv_cache_quant_mode", 0)))
    if mode.has_fp8_kv_cache() or mode.has_fp4_kv_cache():
        raise refused(f"gpt_attention with a cache of {mode!r}", "an int8 cache, or one of floats")
    scales = [name in given for name in ("kv_orig_quant_scale", "kv_quant_orig_scale")]
    if mode.has_int8_kv_cache() and not all(scales):
        raise refused("gpt_attention with an int8 cache", "give kv_orig_quant_scale and kv_quant_orig_scale")
    return mode.has_int8_kv_cache()


@called("gpt_attention")
def gpt_attention(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Attention of a step's tokens, with positions turned or biased, over a cache.

    Args (by name; positions as of 0.5 or 0.7 are known by where num_heads stands):
        qkv: [B, S, width], or packed [T, width] or [1, T, width] with plugin_config.remove_input_padding;
            width = (num_heads + 2 · num_kv_heads) · hidden_size_per_head. Or the three parts of it.
        past_key_value: [B, 2, num_kv_heads, length, hidden_size_per_head], floats, or int8 with kv_cache_quant_mode,
            kv_orig_quant_scale and kv_quant_orig_scale. None with use_cache=False.
        sequence_length: int32 [B], each request's tokens with this step's, at most the cache's length.
        context_lengths: int32 [B], of the prompts. host_request_types: int32 [B], 0 for a prompt, 1 for one more token.
        mask_type: causal, sliding_window_causal, padding or bidirectional (all of a request's tokens), or custom_mask
            with attention_mask: bool [tokens, length], or [B, S, length] of padded rows.
        host_max_attention_window_sizes: int32 [layers]: how many tokens back, itself included, a token of layer_idx
            sees; and host_sink_token_length: of these, how many first ones.
        rotary_inv_freq: float32 [dim / 2]; rotary_cos_sin: float32, cos and sin of every position; in the place of what
            base, scale and scale type say.
        alibi_slopes: [num_heads].  qkv_bias: [width].  logn_scaling: [positions], multiplies queries.
        cache_indirection: zeros, as of one beam; anything else is an error at run time.
        do_cross_attention: queries of qkv see what an encoder made: all its encoder_input_lengths [B] tokens. Prompts
            write their keys and values, cross_kv [B, E, 2 · num_kv_heads · hidden_size_per_head] (or cross_qkv, with
            queries in front that nobody reads), packed [tokens, …] of the prompts alone, into the cache of
            [B, 2, num_kv_heads, length, hidden_size_per_head]; later steps read them there.

    Returns:
        The context, as qkv with num_heads · hidden_size_per_head, and the cache with the new tokens (None without one).

    Raises:
        UnsupportedError: paged caches by pointers, float8 ones, and what else REFUSED lists.
    """
    given = _by_name(args, kwargs)
    use_cache = bool(given.get("use_cache", True))
    needed = (*_NEEDED, "num_heads", "hidden_size_per_head", *(("past_key_value",) if use_cache else ()))
    if missing := [name for name in needed if name not in given]:
        raise refused(f"gpt_attention without {', '.join(missing)}", "give them")
    if not use_cache and "past_key_value" in given:
        raise refused("gpt_attention with use_cache=False and a cache", "leave past_key_value out")
    _alone(given)
    heads, is_int8 = _heads(given), _quantised(given)
    tensors = {name: given.get(name) for name in (*_NEEDED, *_READ)}
    if not is_int8:
        tensors["kv_orig_quant_scale"] = tensors["kv_quant_orig_scale"] = None
    if isinstance(tensors["qkv"], list | tuple):
        tensors["qkv"] = FUNCTIONS["concat"](list(tensors["qkv"]), -1)
    packed = is_packed()
    cross = bool(given.get("do_cross_attention", False))
    _crossing(given, heads, cross, use_cache, is_int8)
    call = _cross_attention(heads, packed) if cross else _gpt_attention(heads, packed, int(given.get("layer_idx", 0)))
    found, cache = recorded("gpt_attention", call, tensors)
    return found, cache if use_cache else None


def _crossing(given: dict[str, Any], heads: Heads, cross: bool, use_cache: bool, is_int8: bool) -> None:
    """Refuses what cross attention lacks, and what only cross attention reads."""
    keys = [name for name in ("cross_kv", "cross_qkv") if name in given]
    if not cross and (keys or "encoder_input_lengths" in given):
        raise refused(f"gpt_attention with {[*keys, 'encoder_input_lengths'][0]}", "give do_cross_attention=True too")
    if not cross:
        return
    if len(keys) != 1 or "encoder_input_lengths" not in given:
        raise refused("gpt_attention with do_cross_attention", "give encoder_input_lengths, and cross_kv or cross_qkv")
    if heads.turns or "alibi_slopes" in given or "host_max_attention_window_sizes" in given or is_int8:
        raise refused(
            "gpt_attention with do_cross_attention and positions, windows or an int8 cache",
            "position_embedding_type=learned_absolute and a cache of floats",
        )
    if not use_cache and is_packed():
        raise refused("gpt_attention with do_cross_attention, packed and without a cache", "give past_key_value")


def _cross_attention(heads: Heads, packed: bool) -> Any:
    def call(
        qkv: Any, past_key_value: Any, sequence_length: Any, cross_kv: Any, cross_qkv: Any, encoder_input_lengths: Any,
        **more: Any,
    ) -> tuple[Any, Any]:
        in_one = packed and len(qkv.shape) == 3
        rows = f.squeeze(qkv, 0) if in_one else qkv
        rows = rows if more["qkv_bias"] is None else f.add(rows, more["qkv_bias"])
        kv, width = cross_kv if cross_qkv is None else cross_qkv, 2 * heads.kv * heads.size
        kv = f.squeeze(kv, 0) if packed and len(kv.shape) == 3 else kv
        kv = f.slice(kv, [0] * (len(kv.shape) - 1) + [kv.shape[-1] - width], (*kv.shape[:-1], width))
        lengths, batch = f.cast(encoder_input_lengths, "int32"), sequence_length.shape[0]
        is_prompt = f.eq(f.cast(more["host_request_types"], "int32"), 0)
        cache = past_key_value
        if cache is None:
            cache = _zeros(kv, (batch, 2, heads.kv, kv.shape[1], heads.size))
        lengths = _within(lengths, cache, more["cache_indirection"])
        cache = _encoded(heads, cache, kv, lengths, is_prompt, packed)
        count = f.where(is_prompt, f.cast(more["context_lengths"], "int32"), np.int32(1))
        step = Step(rows, packed, more["host_request_types"], f.cumsum(count, 0) if packed else count)
        asked = heads.query * heads.size
        query = step.apart(f.slice(rows, [0] * len(rows.shape), (*rows.shape[:-1], asked)))
        query = f.view(query, (batch, query.shape[1], heads.query, heads.size), False)
        seen = f.lt(f.arange(0, cache.shape[3], "int32"), column(lengths))
        mask = f.view(seen, (batch, 1, 1, cache.shape[3]), False)
        if heads.mask is AttentionMaskType.custom_mask:
            own = f.gt(step.apart(f.cast(more["attention_mask"], "int32")), 0)
            mask = f.op_and(mask, f.unsqueeze(own, 1))
        keys, values = (f.cast(f.select(cache, 1, i), query.dtype) for i in (0, 1))
        out = f.permute(heads.attend(f.permute(query, (0, 2, 1, 3)), keys, values, mask), (0, 2, 1, 3))
        out = step.together(f.view(out, (batch, out.shape[1], asked), False), qkv.dtype)
        return (f.unsqueeze(out, 0) if in_one else out), cache

    return call


def _encoded(heads: Heads, cache: Any, kv: Any, lengths: Any, is_prompt: Any, packed: bool) -> Any:
    """The cache [B, 2, KV, M, D] with an encoder's keys and values where a prompt has some."""
    batch, _, _, length, _ = cache.shape
    width = 2 * heads.kv * heads.size
    place = f.arange(0, length, "int32")
    if packed:
        lengths = f.where(is_prompt, lengths, np.int32(0))
        row = f.add(column(f.sub(f.cumsum(lengths, 0), lengths)), place)
    else:
        each = f.cast(f.shape(kv, 1), "int32")
        lengths = _fits(lengths, kv.shape[1], is_prompt)
        row = f.add(column(f.mul(f.arange(0, batch, "int32"), each)), place)
        kv = f.view(kv, (dims.mul(kv.shape[0], kv.shape[1]), width), False)
    kv = f.concat([kv, _zeros(kv, (1, width))], 0)  # a row for all that is not new
    new = f.lt(place, column(lengths))  # [B, M]
    row = f.where(new, row, f.cast(f.sub(f.shape(kv, 0), 1), "int32"))
    taken = f.view(f.embedding(row, kv), (batch, length, 2, heads.kv, heads.size), False)
    placed = f.cast(f.permute(taken, (0, 2, 3, 1, 4)), cache.dtype)
    return f.where(f.view(new, (batch, 1, 1, length, 1), False), placed, cache)


def _fits(lengths: Any, room: Dimension, is_prompt: Any) -> Any:
    """The lengths of prompts; one that is longer than what the encoder gave is an index error."""
    return f.index_select(f.arange(0, dims.add(room, 1), "int32"), 0, f.where(is_prompt, lengths, np.int32(0)))


def _zeros(like: Any, shape: tuple[Any, ...]) -> Any:
    """Zeros of like's type, one number repeated."""
    zero = np.zeros((1,) * len(shape), dtypes.get(like.dtype).numpy)
    return f.expand(like.network.constant(zero), shape)


def _gpt_attention(heads: Heads, packed: bool, layer: int) -> Any:
    def call(qkv: Any, past_key_value: Any, sequence_length: Any, **more: Any) -> tuple[Any, Any]:
        in_one = packed and len(qkv.shape) == 3
        rows = f.squeeze(qkv, 0) if in_one else qkv
        rows = rows if more["qkv_bias"] is None else f.add(rows, more["qkv_bias"])
        cache = _no_cache(heads, rows, sequence_length, packed) if past_key_value is None else past_key_value
        is_prompt = f.eq(f.cast(more["host_request_types"], "int32"), 0)
        count = f.where(is_prompt, f.cast(more["context_lengths"], "int32"), np.int32(1))
        before = f.sub(_within(sequence_length, cache, more["cache_indirection"]), count)
        step = _packed_step if packed else _step
        out, cache = step(heads, rows, cache, before, count, _numbers(more, layer))
        return (f.unsqueeze(out, 0) if in_one else out), cache

    return call


def _numbers(given: dict[str, Any], layer: int) -> Numbers:
    windows, sink = given["host_max_attention_window_sizes"], given["host_sink_token_length"]
    window = None
    if windows is not None:
        flat = f.flatten(f.cast(windows, "int32"))
        window = f.select(flat, 0, 0 if flat.shape[0] == 1 else layer)
    return Numbers(
        given["alibi_slopes"], given["attention_mask"], window,
        None if sink is None else f.select(f.flatten(f.cast(sink, "int32")), 0, 0),
        given["rotary_inv_freq"], given["rotary_cos_sin"],
        None if given["logn_scaling"] is None else f.flatten(given["logn_scaling"]),
        given["kv_orig_quant_scale"], given["kv_quant_orig_scale"],
    )  # fmt: skip


def _within(sequence_length: Any, cache: Any, indirection: Any) -> Any:
    """sequence_length; one that is longer than the cache, or a beam that reads another's cache, is an index error."""
    places = f.arange(0, dims.add(cache.shape[3], 1), "int32")
    found = f.index_select(places, 0, f.cast(sequence_length, "int32"))
    if indirection is None:
        return found
    beam = f.max(f.flatten(f.cast(indirection, "int32")), 0, keepdim=True)
    return f.add(found, f.index_select(np.zeros(1, np.int32), 0, beam))


def _no_cache(heads: Heads, rows: Any, lengths: Any, packed: bool) -> Any:
    """A cache of zeros with room for a step's own tokens."""
    return _zeros(rows, (lengths.shape[0], 2, heads.kv, rows.shape[0 if packed else 1], heads.size))


FUNCTIONS.update(gpt_attention=gpt_attention)
