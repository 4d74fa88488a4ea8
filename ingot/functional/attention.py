"""Rotary embeddings and paged attention over a ragged axis of tokens: T tokens of B requests, one after the other.
Masks, biases and scales of attention over whole tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.functional.shape import Size, arange
from ingot.functional.tensor import Tensor
from ingot.ir import F
from ingot.ir.sizes import as_size


def rope_table(positions: Tensor, inv_freq: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin of position · inv_freq, times scale: int32 [T], float32 [D/2] → two float32 [T, D/2]."""
    return F.rope_table(positions, inv_freq, scale=scale)  # type: ignore[no-any-return]


def rope(x: Tensor, cos: Tensor, sin: Tensor, style: str = "half") -> Tensor:
    """x [T, H, D] rotated by cos and sin [T, R/2]; when R < D only the first R elements of a head turn.

    Args:
        style: which elements are a pair: "half" (i and i + R/2; NeoX, Llama) or "interleaved" (2i and 2i + 1; GPT-J).
    """
    return F.rope(x, cos, sin, style=style)


def kv_write(state: Tensor, key: Tensor, value: Tensor, slot: Tensor) -> Tensor:
    """The cache after key and value [T, KV, D] have been written to the slots [T] (int32; −1 writes nothing).

    The old state is used up: whatever reads the cache afterwards takes the result.
    """
    return F.kv_write(state, key, value, slot)


def paged_attention(
    query: Tensor,
    state: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    block_table: Tensor,
    slopes: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of query [T, H, D] to the cached tokens of its own request → [T, H, D].

    Args:
        query_start: int32 [B + 1], where each request's tokens begin. Rows behind the last are padding and give zeros.
        context_len: int32 [B], each request's tokens in the cache, this step's included.
        block_table: int32 [B, N], the cache blocks of each request.
        slopes: float32 [H], or None; slope · (key position − query position) is added to the scaled scores (ALiBi).
        scale: multiplies the scores.
        window: how many tokens back, itself included, a token sees; None: all.
        softcap: scores become softcap · tanh(score / softcap); None: as they are.
    """
    operands = [query, state, query_start, context_len, block_table] + ([] if slopes is None else [slopes])
    return F.paged_attention(*operands, scale=scale, window=window, softcap=softcap)


def gather_last_token_logits(hidden_states: Tensor, last_token_ids: Tensor, remove_input_padding: bool) -> Tensor:
    """Each request's last row: packed [T, H] with running counts [B], or padded [B, S, H] with lengths [B] → [B, H].

    Args:
        remove_input_padding: whether the tokens are packed.
    """
    if remove_input_padding:
        return F.take(hidden_states, F.sub(last_token_ids, 1), axis=0)
    batch, width = hidden_states.shape[0], hidden_states.shape[2]
    index = F.expand(F.reshape(F.sub(last_token_ids, 1), (batch, 1, 1)), (batch, 1, width))
    return F.reshape(F.gather(hidden_states, index, axis=1), (batch, width))


def generate_alibi_slopes(
    num_heads: int, tp_size: int = 1, tp_rank: int = 0, alibi_scale: float = 1.0, alibi_bias_max: int = 8
) -> np.ndarray[Any, Any]:
    """The slopes of ALiBi (arXiv 2108.12409), float32 [num_heads / tp_size]: those of the heads of rank `tp_rank`."""
    power = 2 ** int(np.floor(np.log2(num_heads)))
    first = 2.0 ** (-alibi_bias_max / power * np.arange(1, power + 1))
    rest = 2.0 ** (-alibi_bias_max / (2 * power) * np.arange(1, 2 * (num_heads - power) + 1, 2))
    slopes = (alibi_scale * np.concatenate([first, rest])).astype(np.float32)
    own = num_heads // tp_size
    return np.asarray(slopes[tp_rank * own : (tp_rank + 1) * own])


def generate_alibi_biases(slopes: Tensor, key_length: Size) -> Tensor:
    """What ALiBi adds to scores: slope · position of the key, [1, heads, 1, keys]; queries and batch broadcast.

    Args:
        slopes: floats [heads], or already [1, heads, 1, 1].
        key_length: the number of keys: an int, a dim or a tensor of one integer.
    """
    positions = F.cast(arange(0, key_length, "float32"), slopes.dtype)
    column = F.reshape(slopes, (1, slopes.shape[0], 1, 1)) if len(slopes.shape) == 1 else slopes
    return F.mul(column, F.reshape(positions, (1, 1, 1, positions.shape[0])))


def generate_logn_scaling(seq_length: int = 8192, max_position_embeddings: int = 32768) -> np.ndarray[Any, Any]:
    """What queries are multiplied by beyond the training length: log(n) / log(seq_length) at the n-th position, and 1
    before that; float32 [max_position_embeddings]."""
    positions = np.arange(1, max_position_embeddings + 1)
    return np.asarray(np.maximum(np.log(positions) / np.log(seq_length), 1), np.float32)


def expand_mask(mask: Tensor, tgt_len: Size | None = None) -> Tensor:
    """A padding mask [batch, keys] (0 hides a key) as what is added to scores, float32 [batch, 1, tgt_len, keys]: 0, or
    −inf for what is hidden. As many queries as keys where `tgt_len` is None."""
    batch, keys = mask.shape
    queries = keys if tgt_len is None else as_size(tgt_len)
    shown = mask if mask.dtype in (np.bool_, dtypes.bool_) else F.not_equal(mask, 0)
    added = F.where(shown, np.float32(0), np.float32(-np.inf))
    return F.expand(F.reshape(added, (batch, 1, 1, keys)), (batch, 1, queries, keys))
