"""Rotary embeddings and attention over a paged KV cache, for a ragged axis of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ingot import functional
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.ir import StateSpec
from ingot.nn.layers.linear import ColumnLinear, RowLinear, positive
from ingot.nn.layers.normalization import RmsNorm
from ingot.nn.module import Module
from ingot.nn.parameter import State


class PagedStep(NamedTuple):
    """What one step tells every attention layer: T tokens of B requests in a row, N blocks at most per request.

    cos, sin: float32 [T, rotated / 2]; None without rotary embeddings. query_start: int32 [B + 1], where each request's
    tokens begin. context_len: int32 [B], each request's tokens in the cache, this step's included. block_table: int32
    [B, N]. slot: int32 [T], where each token's key and value go; −1 writes nothing.
    """

    cos: Any
    sin: Any
    query_start: Any
    context_len: Any
    block_table: Any
    slot: Any


class RotaryEmbedding(Module):
    """cos and sin of position · inv_freq, times `scale`, once per step for all layers.

    Args:
        inv_freq: [rotated / 2] float32, or None for theta ** (-2i / dim).
        dim: rotated elements of a head; needed only without inv_freq.
        theta: the base.
        scale: multiplies cos and sin (yarn's attention factor).
    """

    def __init__(
        self, inv_freq: np.ndarray | None = None, dim: int = 0, theta: float = 10_000.0, scale: float = 1.0
    ) -> None:
        super().__init__()
        if inv_freq is None:
            if dim <= 0 or dim % 2 or not theta > 0:
                raise ModuleError(f"RotaryEmbedding: dim must be even and both must be positive, got {dim=}, {theta=}")
            inv_freq = (1.0 / theta ** (np.arange(0, dim, 2) / dim)).astype(np.float32)
        self.inv_freq, self.scale = np.asarray(inv_freq, np.float32), float(scale)

    def forward(self, positions: Any) -> tuple[Any, Any]:
        """int32 positions [T] → cos, sin float32 [T, rotated / 2]"""
        return functional.rope_table(positions, self.inv_freq, scale=self.scale)


def head_size(layer: str, hidden_size: int, heads: int, given: int | None) -> int:
    """The size of a head: the one given, or an equal part of the hidden size. Raises ModuleError for none."""
    positive(layer, hidden_size=hidden_size, num_attention_heads=heads)
    if given is None and hidden_size % heads:
        raise ModuleError(f"{layer}: hidden_size {hidden_size} is not a multiple of {heads} heads")
    head = hidden_size // heads if given is None else given
    positive(layer, attention_head_size=head)
    return head


class Attention(Module):
    """Causal attention with a paged cache: multi-head, grouped (num_kv_heads < heads) or multi-query (num_kv_heads =
    1).

    Args:
        hidden_size: of x and of the result.
        num_attention_heads: query heads.
        num_kv_heads: key and value heads, a divisor; default as many as query heads.
        attention_head_size: default hidden_size / num_attention_heads.
        bias: whether q_proj, k_proj and v_proj have one.
        dense_bias: whether o_proj has one; default `bias`.
        dtype: of weights and cache; default float32.
        q_scaling: scores are divided by q_scaling · sqrt(head size).
        window: how many tokens back (itself included) a token sees; None: all.
        softcap: scores become softcap · tanh(score / softcap); None: as they are.
        qk_norm_eps: with a number, queries and keys get an RmsNorm of one head's size before they are rotated.
        interleaved: whether rotary pairs are neighbours (GPT-J) and not halves of the head (NeoX, Llama).
        state_name: how sessions call the cache; default this module's path.

    Raises:
        ModuleError: head counts that do not divide, sizes that are not positive.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_kv_heads: int | None = None,
        attention_head_size: int | None = None,
        bias: bool = True,
        dense_bias: bool | None = None,
        dtype: DType | str | None = None,
        *,
        q_scaling: float = 1.0,
        window: int | None = None,
        softcap: float | None = None,
        qk_norm_eps: float | None = None,
        interleaved: bool = False,
        state_name: str | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_attention_heads if num_kv_heads is None else num_kv_heads
        positive("Attention", hidden_size=hidden_size, num_attention_heads=num_attention_heads, num_kv_heads=kv_heads)
        if num_attention_heads % kv_heads:
            raise ModuleError(f"Attention: {num_attention_heads} heads are not a multiple of num_kv_heads {kv_heads}")
        head = head_size("Attention", hidden_size, num_attention_heads, attention_head_size)
        self.num_heads, self.num_kv_heads, self.head_size = num_attention_heads, kv_heads, head
        self.scale = 1.0 / (q_scaling * head**0.5)
        self.window, self.softcap = window, softcap
        self.style = "interleaved" if interleaved else "half"
        self.q_proj = ColumnLinear(hidden_size, num_attention_heads * head, bias, dtype)
        self.k_proj = ColumnLinear(hidden_size, kv_heads * head, bias, dtype)
        self.v_proj = ColumnLinear(hidden_size, kv_heads * head, bias, dtype)
        dense_bias = bias if dense_bias is None else dense_bias
        self.o_proj = RowLinear(num_attention_heads * head, hidden_size, dense_bias, dtype)
        self.q_norm = self.k_norm = None
        if qk_norm_eps is not None:
            self.q_norm, self.k_norm = RmsNorm(head, qk_norm_eps, dtype=dtype), RmsNorm(head, qk_norm_eps, dtype=dtype)
        self.cache = State(StateSpec(dtype or "float32", heads=kv_heads, head_dim=head), state_name)

    def forward(self, hidden_states: Any, step: PagedStep) -> Any:
        """[T, hidden_size] → the same; the cache gains this step's keys and values."""
        tokens = hidden_states.shape[0]

        def heads_of(x: Any, heads: int) -> Any:
            return functional.view(x, (tokens, heads, self.head_size))

        query = heads_of(self.q_proj(hidden_states), self.num_heads)
        key = heads_of(self.k_proj(hidden_states), self.num_kv_heads)
        value = heads_of(self.v_proj(hidden_states), self.num_kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if step.cos is not None:
            query = functional.rope(query, step.cos, step.sin, style=self.style)
            key = functional.rope(key, step.cos, step.sin, style=self.style)
        cache = functional.kv_write(self.cache, key, value, step.slot)
        context = functional.paged_attention(
            query, cache, step.query_start, step.context_len, step.block_table,
            scale=self.scale, window=self.window, softcap=self.softcap,
        )  # fmt: skip
        return self.o_proj(functional.view(context, (tokens, self.num_heads * self.head_size)))


class BertAttention(Module):
    """Attention of every token to all tokens of its text, between two products: `qkv`, of all three, and `dense`.

    Args:
        hidden_size: of x and of the result.
        num_attention_heads: heads.
        attention_head_size: default hidden_size / num_attention_heads.
        bias: whether both products have one.
        dtype: of the weights; default float32.
        q_scaling: scores are divided by q_scaling · sqrt(head size).

    Raises:
        ModuleError: sizes that are not positive, heads that do not divide the hidden size.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        attention_head_size: int | None = None,
        bias: bool = True,
        dtype: DType | str | None = None,
        *,
        q_scaling: float = 1.0,
    ) -> None:
        super().__init__()
        head = head_size("BertAttention", hidden_size, num_attention_heads, attention_head_size)
        self.num_heads, self.head_size, self.scale = num_attention_heads, head, 1.0 / (q_scaling * head**0.5)
        self.qkv = ColumnLinear(hidden_size, 3 * num_attention_heads * head, bias, dtype)
        self.dense = RowLinear(num_attention_heads * head, hidden_size, bias, dtype)

    def forward(self, x: Any, attention_mask: Any = None) -> Any:
        """[B, S, hidden_size], and a mask bool [B, S], True where there is a token → [B, S, hidden_size]"""
        batch, length, _ = x.shape
        width = self.num_heads * self.head_size
        q, k, v = (
            functional.permute(functional.view(part, (batch, length, self.num_heads, self.head_size)), (0, 2, 1, 3))
            for part in functional.split(self.qkv(x), width, -1)
        )
        seen = None if attention_mask is None else functional.view(attention_mask, (batch, 1, 1, length))
        y = functional.scaled_dot_product_attention(q, k, v, seen, scale=self.scale)
        return self.dense(functional.view(functional.permute(y, (0, 2, 1, 3)), (batch, length, width)))
