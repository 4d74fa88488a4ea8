"""bert_attention and make_causal_mask: attention over whole texts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ingot import dims
from ingot import functional as f
from ingot.compat.attention import Heads
from ingot.compat.datatype import as_dtype
from ingot.compat.functional import FUNCTIONS, recorded
from ingot.compat.refusal import called, refused, single
from ingot.compat.step import column, is_packed
from ingot.ir.sizes import as_size


@called("bert_attention")
def bert_attention(
    tensor: Any, input_lengths: Any, num_heads: int, head_size: int, q_scaling: float,
    relative_attention: bool = False, relative_attention_bias: Any = None, max_distance: int = 0,
    max_input_length: Any = None, sage_attn: bool = False, sage_attn_q_block_size: int = 0,
    sage_attn_k_block_size: int = 0, sage_attn_v_block_size: int = 0, cp_group: Any = None, cp_size: int = 1,
    cp_rank: int = 0,
) -> Any:  # fmt: skip
    """Attention of every token to those of its text: [B, S, 3 · num_heads · head_size], lengths [B] → [B, S, …].

    Args:
        relative_attention_bias: with relative_attention, what is added to scores: [num_heads, S, S].
    """
    single("bert_attention", cp_size)
    if sage_attn or cp_rank:
        raise refused("bert_attention with sage_attn or cp_rank", "leave it out: there is one rank")
    if relative_attention != (relative_attention_bias is not None):
        raise refused("bert_attention", "relative_attention and relative_attention_bias go together")
    if max_distance:
        raise refused("bert_attention with max_distance", "give the whole bias [num_heads, S, S], and max_distance=0")
    if is_packed():
        raise refused("bert_attention of packed texts", "leave remove_input_padding off, and give [B, S, width]")
    heads = Heads(num_heads, num_heads, head_size, q_scaling)

    def call(tensor: Any, input_lengths: Any, relative_attention_bias: Any) -> Any:
        batch, width, _ = tensor.shape
        parts = f.split(f.view(tensor, (batch, width, 3 * num_heads, head_size), False), [num_heads] * 3, 2)
        query, key, value = (f.permute(part, (0, 2, 1, 3)) for part in parts)
        seen = f.lt(f.arange(0, width, "int32"), column(f.cast(input_lengths, "int32")))
        mask, bias = f.view(seen, (batch, 1, 1, width), False), None
        if relative_attention_bias is not None:
            bias = f.view(relative_attention_bias, (1, num_heads, width, width), False)
        out = heads.attend(query, key, value, mask, bias)
        return f.view(f.permute(out, (0, 2, 1, 3)), (batch, width, num_heads * head_size), False)

    given = {"tensor": tensor, "input_lengths": input_lengths, "relative_attention_bias": relative_attention_bias}
    return recorded("bert_attention", call, given)


def make_causal_mask(bsz: Any, tgt_len: Any, past_key_values_length: Any, dtype: Any) -> Any:
    """What is added to scores so that a token sees the past and no later one: [bsz, 1, tgt_len, past + tgt_len]."""

    def call(bsz: Any, tgt_len: Any, past: Any) -> Any:
        least = np.asarray(ml_dtypes.finfo(kind.numpy).min, kind.numpy)  # type: ignore[no-untyped-call]
        rows, batch, old = as_size(tgt_len), as_size(bsz), as_size(past)
        row = column(f.add(f.arange(0, rows, "int32"), f.cast(f.arange(old, dims.add(old, 1), "int32"), "int32")))
        later = f.gt(f.arange(0, dims.add(old, rows), "int32"), row)
        mask = f.where(later, least, np.zeros((), kind.numpy))
        return f.expand(f.view(mask, (1, 1, rows, dims.add(old, rows)), False), (batch, 1, rows, dims.add(old, rows)))

    kind = as_dtype(dtype)
    return recorded("make_causal_mask", call, {"bsz": bsz, "tgt_len": tgt_len, "past": past_key_values_length})


FUNCTIONS.update(bert_attention=bert_attention)
