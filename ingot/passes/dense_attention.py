"""Attention as models write it out, two products around a softmax, becomes one op. It takes in what stands around it: a
scale of queries or keys, heads repeated for grouped queries, the permutation of the result. Rows that a mask hides
whole stay what they were: NaN from a softmax alone, zeros where the program asks for them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension
from ingot.ir import F, Hole, Network, Value
from ingot.ops.binary import Add, Div, Mul
from ingot.ops.conversion import Cast, Dequantize
from ingot.ops.elementwise import Where
from ingot.ops.movement import Expand, Permute, Reshape
from ingot.ops.product import Matmul
from ingot.passes.rewrite import Log, Rule, apply, number_of, viewed
from ingot.passes.weights import FIXED

SMALL = -1e4  # a score that weighs nothing beside others
MAX_SCALE = 1e9  # of scores, queries or keys; a larger one, or one that is no number, stays a product


class Scores(NamedTuple):
    """scale · q kᵀ; of those that are `turned` the last two dimensions are exchanged."""

    q: Value
    q_turned: bool
    k: Value
    k_turned: bool
    scale: float


class Masked(NamedTuple):
    """Scores with what is added to them; or, with `low`, what they become where the mask is `kept` or is not."""

    scores: Scores
    mask: Value | None = None
    low: float | None = None
    kept: bool = True


def _only_here(value: Value, readers: int = 1) -> bool:
    return len(value.uses) <= readers and not value.network.is_output(value)


def _widened(value: Value) -> Value:
    """What a cast to a wider float was made of."""
    node = value.node
    if node is None or not isinstance(node.op, Cast) or not _only_here(value):
        return value
    x = node.inputs[0]
    return x if x.dtype.is_float and value.dtype.is_float and x.dtype.bits <= value.dtype.bits else value


def _scaled(value: Value, readers: int = 1, most: float | None = None) -> tuple[Value, float]:
    """A value without the numbers that it was multiplied with or divided by, and their product, where it is at most so
    large."""
    scale = 1.0
    while value.node is not None and isinstance(value.node.op, Mul | Div) and _only_here(value, readers):
        readers = 1
        a, b = value.node.inputs
        if isinstance(value.node.op, Mul) and number_of(a) is not None:
            a, b = b, a
        number = number_of(b)
        if number is None or a.shape != value.shape or isinstance(value.node.op, Div) and number == 0:
            break
        product = scale / number if isinstance(value.node.op, Div) else scale * number
        if most is not None and not abs(product) <= most:
            break
        value, scale = _widened(a), product
    return value, scale


def _scores(value: Value, readers: int = 1) -> Scores | None:
    whole = _widened(value)
    value, scale = _scaled(whole, readers)
    readers = readers if value is whole else 1
    node = value.node
    reversed_ = node is not None and isinstance(node.op, Permute) and _swaps(node.op.dims)
    reversed_ = reversed_ and _only_here(value, readers)
    if node is not None and reversed_:  # (k qᵀ)ᵀ
        value, node, readers = node.inputs[0], node.inputs[0].node, 1
    if node is None or not isinstance(node.op, Matmul) or not _only_here(value, readers):
        return None
    a, b = node.inputs
    if reversed_:
        return Scores(b, not node.op.transpose_b, a, node.op.transpose_a, scale)
    return Scores(a, node.op.transpose_a, b, not node.op.transpose_b, scale)


def _swaps(dims: tuple[int, ...]) -> bool:
    rank = len(dims)
    return tuple(d % rank for d in dims) == (*range(rank - 2), rank - 1, rank - 2)


def _masked(value: Value, readers: int) -> Masked | None:
    """The scores and the mask that a softmax is taken of; `readers`: how many read the sum of both."""
    value = _widened(value)
    node = value.node
    if node is not None and isinstance(node.op, Add) and _only_here(value, readers):
        for x, mask in (node.inputs, node.inputs[::-1]):
            if x.shape == value.shape and (found := _scores(x)) is not None:
                return Masked(found, mask)
    if node is not None and isinstance(node.op, Where) and _only_here(value, readers):
        condition, a, b = node.inputs
        for x, other, kept in ((a, b, True), (b, a, False)):
            low, scores = number_of(other), _scores(x) if x.shape == value.shape else None
            if low is not None and low <= SMALL and scores is not None:
                return Masked(scores, condition, low, kept)
    found = _scores(value, readers)
    return None if found is None else Masked(found)


def _is_weight(value: Value) -> bool:
    """Whether it is a weight, as it is or as integers; where it is an operand of a branch or body, 4 bits show it."""
    made = value.node
    stored = made.inputs[0] if made is not None and isinstance(made.op, Dequantize) else value
    return stored.kind in FIXED or stored.dtype is dtypes.int4


def _is_attention(scores: Value, v: Value, axis: int, root: Value, readers: int) -> bool | str:
    """Whether the op may stand for it all, or why not."""
    found = _masked(scores, readers)
    if found is None:
        return False
    q, k = found.scores.q, found.scores.k
    rank = len(scores.shape)
    if axis not in (-1, rank - 1) or rank < 3:
        return "the softmax is not along the last dimension of a batch of matrices"
    if _is_weight(k) or _is_weight(v):
        return "keys or values are a weight, which products have in panels"
    if not q.dtype.is_float or any(x.dtype is not q.dtype for x in (k, v, root)):
        return f"q is {q.dtype.name}, k {k.dtype.name}, v {v.dtype.name} and the result {root.dtype.name}"
    mask = found.mask
    if mask is not None and found.low is None and mask.dtype not in (q.dtype, dtypes.float32):
        return f"the mask is {mask.dtype.name}"
    if not abs(found.scores.scale) <= MAX_SCALE:
        return f"the scale is {found.scores.scale:g}"
    return True


def _swapped(x: Value) -> Value:
    """The last two dimensions exchanged; of a value in which they are, what it was before."""
    rank = len(x.shape)
    if x.node is not None and isinstance(x.node.op, Permute) and _swaps(x.node.op.dims):
        return x.node.inputs[0]  # type: ignore[no-any-return]
    return F.permute(x, (*range(rank - 2), rank - 1, rank - 2))  # type: ignore[no-any-return]


def _attention(scores: Value, v: Value, turned: bool, empty_rows: str) -> Value:
    found = _masked(scores, 2)  # how many there may be was asked before
    assert found is not None
    q, of_q = _scaled_view(found.scores.q)
    k, of_k = _scaled_view(found.scores.k)
    q, k = _swapped(q) if found.scores.q_turned else q, _swapped(k) if found.scores.k_turned else k
    operands = [q, k, _swapped(v) if turned else v]
    if found.mask is not None:
        operands.append(_bias(found))
    return F.scaled_dot_product_attention(  # type: ignore[no-any-return]
        *operands, scale=found.scores.scale * of_q * of_k, empty_rows=empty_rows
    )


def _scaled_view(x: Value) -> tuple[Value, float]:
    """A value that may have been scaled before it was transposed, or afterwards."""
    x, scale = _scaled(x, most=MAX_SCALE)
    if x.node is not None and isinstance(x.node.op, Permute) and _only_here(x):
        inner, more = _scaled(x.node.inputs[0], most=MAX_SCALE)
        if more != 1.0:
            return F.permute(inner, x.node.op.dims), scale * more
    return x, scale


def _bias(found: Masked) -> Value:
    """The mask as the op takes it. For a finite low value the least float is added: rows of nothing else are a mean."""
    mask = found.mask
    assert mask is not None
    if found.low is None:
        return mask
    if found.low == -math.inf:
        return mask if found.kept else F.logical_not(mask)
    low, zero = np.array(np.finfo(np.float32).min), np.array(0, np.float32)
    return F.where(mask, *((zero, low) if found.kept else (low, zero)))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------ batches and heads


def _joined(a: Value, b: Value, root: Value) -> bool:
    """Whether a reshape only parts the leading dimension of a product."""
    product = root.node.inputs[0]
    whole = root.shape[-2:] == product.shape[-2:] and a.shape[:-2] == b.shape[:-2] == product.shape[:-2]
    return bool(whole and len(root.shape) > len(product.shape) == 3)


def _joined_and_turned(x: Value, dims: tuple[int, ...], root: Value) -> bool:
    """Whether reshapes only join leading dimensions, and part them, around an exchange of the last two."""
    swapped = len(x.shape) > 2 and len(root.shape) > 2 and root.shape[-2:] == (x.shape[-1], x.shape[-2])
    inner = root.node.inputs[0].node.inputs[0]
    return bool(swapped and len(inner.shape) == 3 and inner.shape[-2:] == x.shape[-2:] and _swaps(dims))


def _parted(x: Value, leading: tuple[Dimension, ...]) -> Value:
    """A value with other leading dimensions of as many elements."""
    shape = (*leading, *x.shape[-2:])
    while x.node is not None and isinstance(x.node.op, Reshape):
        x = x.node.inputs[0]
    return x if x.shape == shape else F.reshape(x, shape)


def _heads(x: Value) -> Value | None:
    """What a value repeats each head of: [..., H, S, D] reshaped, expanded and reshaped to [..., H·G, S, D]."""
    chain = []
    for kind in (Reshape, Expand, Reshape):
        if x.node is None or not isinstance(x.node.op, kind):
            return None
        chain.append(x.shape)
        x = x.node.inputs[0]
    last, wide = chain[0], chain[1]
    if len(last) < 3 or len(wide) != len(last) + 1 or len(x.shape) != len(last):
        return None
    *leading, heads, tokens, width = x.shape
    apart = (*leading, heads, 1, tokens, width)
    fits = chain[2] == apart and wide[:-3] == (*leading, heads) and wide[-2:] == (tokens, width)
    return x if fits and last[-2:] == (tokens, width) else None


def _repeats(k: Value, v: Value) -> bool:
    a, b = _heads(k), _heads(v)
    return a is not None and b is not None and a.shape[-3] == b.shape[-3] and isinstance(a.shape[-3], int)


def _grouped(root: Value, q: Value, k: Value, v: Value, mask: Value | None = None) -> Value:
    operands = (q, _heads(k), _heads(v), *([] if mask is None else [mask]))
    return q.network.emit(root.node.op, operands)  # type: ignore[no-any-return]


def _masks_nothing(mask: Value) -> bool:
    """Whether a mask is True, or zero, everywhere."""
    mask = viewed(mask)
    if mask.kind != "constant":
        return False
    return bool(mask.array.all() if mask.dtype is dtypes.bool_ else (mask.array == 0).all())


def _hides(mask: Value, c: Value, x: Value, y: Value) -> bool:
    """Whether a mask adds 0 where c shows and −inf where it hides, or the other way round."""
    return c.shape == mask.shape and {number_of(x), number_of(y)} == {0.0, -math.inf}


def _chosen(root: Value, q: Value, k: Value, v: Value, c: Value, x: Value) -> Value:
    return q.network.emit(root.node.op, (q, k, v, c if number_of(x) == 0 else F.logical_not(c)))  # type: ignore[no-any-return]


def _puts_heads_inside(root: Value, dims: tuple[int, ...]) -> bool:
    rank = len(root.shape)
    return tuple(d % rank for d in dims) == (*range(rank - 3), rank - 2, rank - 3, rank - 1)


ANY = {"scale": Hole("scale"), "causal": Hole("causal"), "heads_inside": Hole("inside"), "empty_rows": Hole("empty")}
OUTSIDE = ANY | {"heads_inside": False}
PRODUCT = {"transpose_a": False, "transpose_b": Hole("turned"), "out_dtype": Hole("dtype")}

JOINED = Rule(
    "batches joined around a product",
    lambda a, b: F.reshape(F.matmul(a, b, transpose_a=Hole("turned_a"), transpose_b=Hole("turned_b"),
                                    out_dtype=Hole("dtype")), Hole("shape")),
    lambda a, b, turned_a, turned_b, dtype, root: F.matmul(
        _parted(a, root.shape[:-2]), _parted(b, root.shape[:-2]), transpose_a=turned_a, transpose_b=turned_b,
        out_dtype=dtype),
    _joined,
)  # fmt: skip
TURNED = Rule(
    "batches joined around a transposition",
    lambda x: F.reshape(F.permute(F.reshape(x, Hole("joined")), Hole("dims")), Hole("shape")),
    lambda x, root: _swapped(_parted(x, root.shape[:-2])),
    _joined_and_turned,
)


def _without_nan(scores: Any) -> Any:
    """How torch.onnx writes the same: what a softmax of −inf alone makes, NaN, becomes 0. NaN that comes in stays NaN
    in the op, as in torch's own function.
    """
    found = F.softmax(scores, axis=Hole("axis"))
    return F.where(F.not_equal(found, found), 0.0, found)


def _safe(scores: Any) -> Any:
    """torch's decomposition of its own function: rows whose scores are all −inf weigh nothing."""
    some = F.cast(F.logical_not(F.equal(scores, -math.inf)), Hole("counted"))
    none = F.logical_not(F.cast(F.reduce_max(some, axes=Hole("axes"), keepdims=True), Hole("truth")))
    return F.where(none, 0.0, F.softmax(scores, axis=Hole("axis")))


def _plain_attention(scores: Value, v: Value, turned: bool) -> Value:
    return _attention(scores, v, turned, "nan")


def _is_plain_attention(scores: Value, v: Value, axis: int, root: Value) -> bool | str:
    return _is_attention(scores, v, axis, root, 1)


ATTENTION = (
    Rule("attention", lambda scores, v: F.matmul(F.softmax(scores, axis=Hole("axis")), v, **PRODUCT),
         _plain_attention, _is_plain_attention),
    Rule("attention with a wide softmax",
         lambda scores, v: F.matmul(F.cast(F.softmax(scores, axis=Hole("axis")), Hole("narrow")), v, **PRODUCT),
         _plain_attention, _is_plain_attention),
    Rule("attention with a safe softmax", lambda scores, v: F.matmul(_safe(scores), v, **PRODUCT),
         lambda scores, v, turned: _attention(scores, v, turned, "zero"),
         lambda scores, v, axis, axes, root: tuple(axes) in ((-1,), (len(scores.shape) - 1,)) and _is_attention(
             scores, v, axis, root, 2)),
    Rule("attention with a softmax without NaN", lambda scores, v: F.matmul(_without_nan(scores), v, **PRODUCT),
         lambda scores, v, turned: _attention(scores, v, turned, "zero"),
         lambda scores, v, axis, root: _is_attention(scores, v, axis, root, 1)),
)  # fmt: skip

AROUND = (
    Rule("a mask of no effect", lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, **ANY),
         lambda root, q, k, v: q.network.emit(root.node.op, (q, k, v)), _masks_nothing),
    Rule("a mask of 0 and −inf",
         lambda q, k, v, c, x, y: F.scaled_dot_product_attention(q, k, v, F.where(c, x, y), **ANY), _chosen,
         lambda root, c, x, y: _hides(root.node.inputs[3], c, x, y), shared=True),
    Rule("heads repeated", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **ANY),
         lambda root, q, k, v: _grouped(root, q, k, v), _repeats),
    Rule("heads repeated under a mask", lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, **ANY),
         lambda root, q, k, v, mask: _grouped(root, q, k, v, mask), _repeats),
    Rule("heads inside",
         lambda q, k, v: F.permute(F.scaled_dot_product_attention(q, k, v, **OUTSIDE), Hole("dims")),
         lambda q, k, v, scale, causal, empty: F.scaled_dot_product_attention(
             q, k, v, scale=scale, causal=causal, heads_inside=True, empty_rows=empty),
         _puts_heads_inside),
    Rule("heads inside under a mask",
         lambda q, k, v, mask: F.permute(F.scaled_dot_product_attention(q, k, v, mask, **OUTSIDE), Hole("dims")),
         lambda q, k, v, mask, scale, causal, empty: F.scaled_dot_product_attention(
             q, k, v, mask, scale=scale, causal=causal, heads_inside=True, empty_rows=empty),
         _puts_heads_inside),
)  # fmt: skip


def dense_attention(network: Network, log: Log) -> None:
    """Products around a softmax, and what stands around those, become scaled_dot_product_attention."""
    apply(network, (JOINED, TURNED), log)
    apply(network, ATTENTION, log)
    apply(network, AROUND, log)
