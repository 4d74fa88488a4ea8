"""Attention over whole tensors, under torch's name and arguments."""

from __future__ import annotations

from ingot.errors import OpError
from ingot.functional.tensor import Tensor
from ingot.ir import F


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale · query keyᵀ + mask) value: [..., H, T, D], [..., H, S, D], [..., H, S, V] → [..., H, T, V].

    A row that the mask hides whole gives zeros, as torch's function does; a softmax written out gives NaN there.

    Args:
        attn_mask: broadcasts to [..., H, T, S]; bool: True is attended to; float: added to the scores.
        dropout_p: must be 0: an engine does not train.
        is_causal: row t sees the tokens 0 .. t.
        scale: multiplies the scores; None: 1/√D.
        enable_gqa: query may have a multiple of the heads of key and value.

    Raises:
        OpError: dropout, other head counts without enable_gqa, shapes that do not fit together.
    """
    if dropout_p != 0:
        raise OpError(f"scaled_dot_product_attention: dropout_p is {dropout_p}, but an engine does not train; give 0")
    if not enable_gqa and len(query.shape) > 2:
        for name, other in (("key", key), ("value", value)):
            heads = (query.shape[-3], other.shape[-3] if len(other.shape) > 2 else 1)
            if heads[0] != heads[1] and 1 not in heads:
                raise OpError(f"scaled_dot_product_attention: query has {heads[0]} heads and {name} has {heads[1]}; "
                              "give enable_gqa=True if groups of query heads share one of them")
    operands = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    return F.scaled_dot_product_attention(*operands, scale=scale, causal=is_causal, empty_rows="zero")
