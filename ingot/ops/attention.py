"""Rotary position embedding, the paged KV cache, and attention over it.

One ragged token axis T carries the tokens of B requests. Request b owns the rows query_start[b] .. query_start[b+1]−1;
rows from query_start[B] on are padding. Of request b, context_len[b] counts all tokens in the cache, this step's
included. So its rows stand at the positions context_len[b] − rows .. context_len[b] − 1. The token at position p lies
in block block_table[b, p // block_size] at offset p % block_size; its slot is block · block_size + offset.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.errors import ValueFault
from ingot.ir import Case, F, Op, Spec, StateSpec, op, require
from ingot.ops.common import (
    Array,
    bf16,
    f32,
    i32,
    i64,
    require_float,
    require_index,
    rounded,
    show,
    torch_wide,
    widen,
)
from ingot.ops.narrow_cache import (
    from_int8,
    to_float8,
    to_int8,
    torch_to_float8,
    torch_to_int8,
    torch_vectors,
)

NARROWER = (dtypes.int8, dtypes.float8_e4m3fn)  # caches that take floats of other types …
INTO = (dtypes.float32, dtypes.bfloat16, dtypes.float16)  # … which are these (ops/narrow_cache.py)
GATHERED = 1 << 26  # elements of keys and values that attention by torch brings together at once


@op("rope_table")
class RopeTable(Op):
    """cos and sin of positions[T] · inv_freq[R], times `scale`: two float32 [T, R]."""

    scale: float = 1.0
    cases = (
        Case("a prompt", (i32("T"), f32(8))),
        Case("scaled, as YaRN does", (i64(5), f32(16)), {"scale": 1.1386}),
        Case("float positions", (f32(5), f32(8)), error="positions must be int32 or int64"),
        Case("bfloat16 frequencies", (i32(5), bf16(8)), error="inv_freq must be float32"),
    )

    def infer(self, positions: Spec, inv_freq: Spec) -> tuple[Spec, Spec]:
        require_index(positions=positions)
        require(len(positions.shape) == 1 and len(inv_freq.shape) == 1, "positions and inv_freq must be vectors")
        require(inv_freq.dtype is dtypes.float32, "inv_freq must be float32: narrower ones lose the position")
        table = Spec((positions.shape[0], inv_freq.shape[0]), dtypes.float32)
        return table, table

    def reference(self, positions: Array, inv_freq: Array) -> tuple[Array, Array]:
        angle = positions.astype(np.float32)[:, None] * inv_freq[None, :]
        scale = np.float32(self.scale)
        return np.cos(angle) * scale, np.sin(angle) * scale

    def decompose(self, positions: Any, inv_freq: Any) -> tuple[Any, Any]:
        column = F.reshape(F.cast(positions, dtypes.float32), (-1, 1))
        angle = F.mul(column, inv_freq)
        return F.mul(F.cos(angle), self.scale), F.mul(F.sin(angle), self.scale)

    def torch(self, torch: Any, positions: Any, inv_freq: Any) -> Any:
        angle = torch.outer(positions.float(), inv_freq)
        return torch.cos(angle) * self.scale, torch.sin(angle) * self.scale

    def sample(self, rng: np.random.Generator, positions: Spec, inv_freq: Spec) -> tuple[Array, ...]:
        count, width = positions.evaluate({})[0], inv_freq.evaluate({})[0]
        return (rng.integers(0, 500, count).astype(positions.dtype.numpy),
                (10000.0 ** (-np.arange(width) / max(width, 1))).astype(np.float32))


@op("rope")
class Rope(Op):
    """Rotates pairs of x[T, H, D] by the angles of cos, sin [T, R]: the first 2·R of D elements, the rest unchanged.

    style "half" pairs element i with i + R (Llama), "interleaved" 2i with 2i + 1 (GPT-J). Computes in float32
    and rounds once.
    """

    style: str = "half"
    cases = (
        Case("Llama", (f32("T", 4, 16), f32("T", 8), f32("T", 8))),
        Case("bfloat16 rounds once", (bf16("T", 2, 16), f32("T", 8), f32("T", 8))),
        Case("GPT-J", (f32(3, 2, 16), f32(3, 8), f32(3, 8)), {"style": "interleaved"}),
        Case("partial, as Phi", (f32(3, 2, 16), f32(3, 4), f32(3, 4))),
        Case("partial and interleaved", (bf16(3, 2, 10), f32(3, 2), f32(3, 2)), {"style": "interleaved"}),
        Case("no such style", (f32(3, 2, 16), f32(3, 8), f32(3, 8)), {"style": "full"}, error="half or interleaved"),
        Case("too wide", (f32(3, 2, 8), f32(3, 8), f32(3, 8)), error="rotate 16 of only 8"),
        Case("other rows", (f32(3, 2, 16), f32(4, 8), f32(4, 8)), error=r"cos must be f32\[3, R\]"),
        Case("no heads", (f32(3, 16), f32(3, 8), f32(3, 8)), error=r"x must be \[tokens, heads, width\]"),
    )

    def infer(self, x: Spec, cos: Spec, sin: Spec) -> Spec:
        require_float(x=x)
        require(self.style in ("half", "interleaved"), f"style must be half or interleaved, not {self.style!r}")
        require(len(x.shape) == 3, "x must be [tokens, heads, width]")
        require(len(cos.shape) == 2 and cos.shape[0] == x.shape[0] and cos.dtype is dtypes.float32,
                f"cos must be f32[{x.shape[0]}, R]")
        require(cos == sin, f"cos is {cos} and sin is {sin}")
        rotated = dims.mul(cos.shape[1], 2)
        left = dims.add(x.shape[2], dims.mul(rotated, -1))
        require(dims.bounds(left)[0] >= 0, f"cos and sin rotate {rotated} of only {x.shape[2]} elements")
        return x

    def reference(self, x: Array, cos: Array, sin: Array) -> Array:
        half = cos.shape[1]
        out = widen(x).copy()
        first, second = ((slice(0, half), slice(half, 2 * half)) if self.style == "half"
                         else (slice(0, 2 * half, 2), slice(1, 2 * half, 2)))
        a, b = out[..., first].copy(), out[..., second].copy()
        c, s = cos[:, None, :], sin[:, None, :]
        out[..., first], out[..., second] = a * c - b * s, b * c + a * s
        return rounded(out, x)

    def decompose(self, x: Any, cos: Any, sin: Any) -> Any:
        tokens, heads, width = x.shape
        half = cos.shape[1]
        wide = F.cast(x, dtypes.float32)
        c, s = (F.reshape(v, (tokens, 1, half)) for v in (cos, sin))
        step = 1 if self.style == "half" else 2

        def part(start: Any, size: Any, stride: int) -> Any:
            return F.slice(wide, (0, 0, start), (tokens, heads, size), (1, 1, stride))

        a, b = part(0, half, step), part(half if step == 1 else 1, half, step)
        turned = [F.sub(F.mul(a, c), F.mul(b, s)), F.add(F.mul(b, c), F.mul(a, s))]
        if step == 2:  # pair them again: [T, H, R, 2] → [T, H, 2R]
            pairs = F.concat([F.reshape(v, (tokens, heads, half, 1)) for v in turned], 3)
            turned = [F.reshape(pairs, (tokens, heads, dims.mul(half, 2)))]
        rest = dims.add(width, dims.mul(half, -2))
        parts = turned if rest == 0 else [*turned, part(dims.mul(half, 2), rest, 1)]
        return F.cast(F.concat(parts, 2) if len(parts) > 1 else parts[0], x.dtype)

    def torch(self, torch: Any, x: Any, cos: Any, sin: Any) -> Any:
        half = cos.shape[1]
        wide, rest = torch_wide(x)[..., : 2 * half], x[..., 2 * half :]
        pairs = wide.unflatten(-1, (2, half)).mT if self.style == "half" else wide.unflatten(-1, (half, 2))
        turned = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)[:, None, :]
        out = torch.view_as_real(turned)
        out = (out.mT if self.style == "half" else out).flatten(-2)
        return torch.cat([out.to(x.dtype), rest], -1)


def _check_cache(cache: StateSpec, heads: Any, width: Any, dtype: dtypes.DType, what: str) -> None:
    require(cache.type == "kv_cache", f"cache must be a kv_cache, not {cache}")
    require(width == cache.head_dim, f"{what} has head width {width}, the cache holds {cache.head_dim}")
    require(dtype is cache.dtype or (cache.dtype in NARROWER and dtype in INTO),
            f"{what} is {dtype.name}, the cache holds {cache.dtype.name}; cast it first")
    require(heads is None or heads == cache.heads, f"{what} has {heads} heads, the cache holds {cache.heads}")


def _random_cache(rng: np.random.Generator, cache: StateSpec, blocks: int, block_size: int) -> Array:
    vectors = rng.standard_normal((blocks, block_size, 2, cache.heads, cache.head_dim)).astype(np.float32)
    if cache.dtype is not dtypes.int8:
        return vectors.astype(cache.dtype.numpy)
    return np.stack(to_int8(vectors[:, :, 0], vectors[:, :, 1]), 2)


@op("kv_write")
class KvWrite(Op):
    """Writes the keys and values of each token, k and v [T, KV, D], to its slot[T]; slot −1 writes nothing.

    Consumes a state and returns the next. A slot outside the cache is a fault at run time. A cache of int8 takes
    floats: each vector becomes whole numbers up to 127 times a scale of its own, or NaN where an element is not finite.
    One of float8_e4m3fn takes floats too: each is rounded to nearest even, and held within ±448.
    """

    cases = (
        Case("a step", (StateSpec("f32", heads=2, head_dim=8), f32("T", 2, 8), f32("T", 2, 8), i32("T"))),
        Case("bfloat16", (StateSpec("bf16", heads=1, head_dim=4), bf16(5, 1, 4), bf16(5, 1, 4), i32(5))),
        Case("int8", (StateSpec("int8", heads=2, head_dim=10), f32("T", 2, 10), f32("T", 2, 10), i32("T"))),
        Case("int8 of bfloat16", (StateSpec("int8", heads=1, head_dim=32), bf16(5, 1, 32), bf16(5, 1, 32), i32(5))),
        Case("float8", (StateSpec("float8_e4m3fn", heads=2, head_dim=10), f32("T", 2, 10), f32("T", 2, 10), i32("T"))),
        Case("another width", (StateSpec("f32", heads=2, head_dim=8), f32(3, 2, 4), f32(3, 2, 4), i32(3)),
             error="k has head width 4, the cache holds 8"),
        Case("another dtype", (StateSpec("bf16", heads=2, head_dim=8), f32(3, 2, 8), f32(3, 2, 8), i32(3)),
             error="k is float32, the cache holds bfloat16"),
        Case("no state", (f32(3, 2, 8), f32(3, 2, 8), f32(3, 2, 8), i32(3)), error="cache must be a state"),
        Case("v unlike k", (StateSpec("f32", heads=2, head_dim=8), f32(3, 2, 8), f32(2, 2, 8), i32(3)),
             error="k is f32.3, 2, 8. and v is"),
        Case("slots of other length", (StateSpec("f32", heads=2, head_dim=8), f32(3, 2, 8), f32(3, 2, 8), i32(4)),
             error=r"slot must have shape \(3,\)"),
    )

    def infer(self, cache: StateSpec, k: Spec, v: Spec, slot: Spec) -> StateSpec:
        require(len(k.shape) == 3, "k must be [tokens, heads, width]")
        require(k == v, f"k is {k} and v is {v}")
        _check_cache(cache, k.shape[1], k.shape[2], k.dtype, "k")
        require_index(slot=slot)
        require(slot.shape == k.shape[:1], f"slot must have shape {show(k.shape[:1])}, one per token")
        return cache

    def reference(self, cache: Array, k: Array, v: Array, slot: Array) -> Array:
        blocks, block_size = cache.shape[:2]
        out = cache.copy()
        if cache.dtype == np.int8:
            k, v = to_int8(k, v)
        elif cache.dtype == dtypes.float8_e4m3fn.numpy:
            k, v = to_float8(k), to_float8(v)
        for t, s in enumerate(slot.tolist()):
            if s == -1:
                continue
            if not 0 <= s < blocks * block_size:
                raise ValueFault(f"kv_write: slot {s} of token {t} is outside the cache of {blocks * block_size} slots")
            out[s // block_size, s % block_size] = k[t], v[t]
        return out

    def torch(self, torch: Any, cache: Any, k: Any, v: Any, slot: Any) -> Any:
        """In place. A row that writes nothing repeats what another row writes, or what stands in the first slot: so how
        many rows write is nobody's to know but the device's.
        """
        rows = cache.view(-1, *cache.shape[2:])
        if cache.dtype == torch.int8:
            k, v = torch_to_int8(torch, k, v)
        elif cache.dtype == torch.float8_e4m3fn:  # not all that follows is there for it
            k, v, rows = torch_to_float8(torch, k), torch_to_float8(torch, v), rows.view(torch.uint8)
        if not slot.numel() or not rows.shape[0]:
            return cache
        kept = (slot >= 0) & (slot < rows.shape[0])
        writer = torch.where(kept, torch.arange(slot.numel(), device=slot.device), kept.int().argmax())
        to = torch.where(kept.any(), slot[writer], 0).long()
        rows.index_copy_(0, to, torch.where(kept.any(), torch.stack([k, v], 1)[writer], rows[to]))
        return cache

    def torch_fault(self, torch: Any, cache: Any, k: Any, v: Any, slot: Any) -> Any:
        return ((slot < -1) | (slot >= cache.shape[0] * cache.shape[1])).any()

    def sample(self, rng: np.random.Generator, cache: StateSpec, k: Spec, v: Spec, slot: Spec) -> tuple[Array, ...]:
        shape = k.evaluate({})
        blocks = shape[0] // 16 + 2
        slots = rng.permutation(blocks * 16)[: shape[0]]
        slots[rng.random(shape[0]) < 0.3] = -1
        state = _random_cache(rng, cache, blocks, 16)
        return (state, rng.standard_normal(shape).astype(k.dtype.numpy),
                rng.standard_normal(shape).astype(k.dtype.numpy), slots.astype(slot.dtype.numpy))


@op("paged_attention")
class PagedAttention(Op):
    """softmax(scale · q kᵀ + causal mask) v over the cached tokens of each row's request: q[T, H, D] → [T, H, D].

    H is a multiple of the cache's heads (grouped queries). `window`: a row sees only the last `window` positions, its
    own included. `slopes`, float32 [H]: slope · (key position − query position) is added to the scaled scores (ALiBi,
    arXiv 2108.12409). `softcap`: scores become softcap · tanh(score / softcap). Padding rows give zeros. Accumulates
    in float32.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None

    def infer(self, q: Spec, cache: StateSpec, query_start: Spec, context_len: Spec, block_table: Spec,
              slopes: Spec | None = None) -> Spec:
        require_float(q=q)
        require(len(q.shape) == 3, "q must be [tokens, heads, width]")
        _check_cache(cache, None, q.shape[2], q.dtype, "q")
        heads = q.shape[1]
        require(isinstance(heads, int) and heads % cache.heads == 0,
                f"q has {heads} heads, which is not a multiple of the cache's {cache.heads}")
        for name, spec, rank in (("query_start", query_start, 1), ("context_len", context_len, 1),
                                 ("block_table", block_table, 2)):
            require(spec.dtype is dtypes.int32 and len(spec.shape) == rank, f"{name} must be int32 of rank {rank}")
        requests = context_len.shape[0]
        require(query_start.shape[0] == dims.add(requests, 1),
                f"query_start must have {dims.add(requests, 1)} entries, one more than context_len's {requests}")
        require(block_table.shape[0] == requests, f"block_table must have {requests} rows, as many as context_len")
        require(slopes is None or slopes == Spec((heads,), dtypes.float32),
                f"slopes must be f32[{heads}], one per head, not {slopes}")
        require(self.scale > 0 and self.scale < float("inf"), f"scale must be positive and finite, not {self.scale}")
        require(self.window is None or self.window > 0, f"window must be positive, not {self.window}")
        require(self.softcap is None or self.softcap > 0, f"softcap must be positive, not {self.softcap}")
        return q

    def reference(self, q: Array, cache: Array, query_start: Array, context_len: Array, block_table: Array,
                  slopes: Array | None = None) -> Array:
        out = np.zeros(q.shape, np.float32)
        check_step(len(q), cache.shape, query_start, context_len, block_table)
        block_size, _, kv_heads = cache.shape[1:4]
        group = q.shape[1] // kv_heads
        for b, length in enumerate(context_len.tolist()):
            first, last = int(query_start[b]), int(query_start[b + 1])
            if first == last:
                continue
            blocks = block_table[b, : -(-length // block_size)]
            held = cache[blocks].reshape(-1, 2, kv_heads, cache.shape[4])[:length]
            kv = from_int8(held, q.shape[2]) if cache.dtype == np.int8 else widen(held)
            keys, values = (np.repeat(kv[:, i], group, axis=1) for i in (0, 1))
            for t in range(first, last):
                position = length - (last - t)
                start = 0 if self.window is None else max(0, position + 1 - self.window)
                scores = np.einsum("hd,phd->hp", widen(q[t]), keys[start : position + 1]) * np.float32(self.scale)
                if slopes is not None:
                    scores = scores + slopes[:, None] * np.arange(start - position, 1, dtype=np.float32)
                if self.softcap is not None:
                    scores = np.tanh(scores / np.float32(self.softcap)) * np.float32(self.softcap)
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                out[t] = np.einsum("hp,phd->hd", weights, values[start : position + 1])
        return rounded(out, q)

    def torch(self, torch: Any, q: Any, cache: Any, query_start: Any, context_len: Any, block_table: Any,
              slopes: Any = None) -> Any:
        """Tiles of rows of one request each, padded, with all that the request's blocks may hold: one computation, or a
        few where it would take much memory. Only shapes say how much is done, so nothing is read back.
        """
        rows, requests, columns = len(q), len(context_len), block_table.shape[1]
        blocks, block_size, _, kv_heads, _ = cache.shape
        width = q.shape[2]
        if not (q.numel() and requests and columns and blocks):
            return torch.zeros_like(q)
        length = columns * block_size
        # As long as the mean request: there are at most twice as many, however the rows are divided among requests.
        tile = max(1, min(rows // requests, GATHERED // (q.shape[1] * length)))
        starts, ends = query_start[:-1], query_start[1:]
        counts = (ends - starts + tile - 1) // tile
        first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))  # tile of each request
        number = torch.arange((rows + requests * (tile - 1)) // tile, device=q.device)
        owner = torch.searchsorted(first[1:].contiguous(), number, right=True).clamp(max=requests - 1)
        row = (starts[owner] + (number - first[owner]) * tile)[:, None] + torch.arange(tile, device=q.device)
        at = (context_len - ends)[owner, None] + row  # positions
        queries = torch_wide(q[row.clamp(0, rows - 1)]).unflatten(2, (kv_heads, -1))
        table = block_table.clamp(0, blocks - 1).long()
        where = torch.arange(length, device=q.device)
        out = []
        step = max(1, GATHERED // (length * max(2 * kv_heads * width, tile * q.shape[1])))
        for begin in range(0, len(number), step):
            part = slice(begin, begin + step)
            mine = owner[part]
            keys, values = torch_vectors(torch, cache[table[mine]].flatten(1, 2), width).unbind(2)
            left = where >= context_len[mine, None]  # by others, and it may be no number
            values = values.masked_fill(left[:, :, None, None], 0)
            away = where - at[part, :, None]
            seen = (away <= 0) if self.window is None else (away <= 0) & (away > -self.window)
            scores = torch.einsum("stkgd,slkd->skgtl", queries[part], keys) * self.scale
            if slopes is not None:
                scores = scores + slopes.view(kv_heads, -1, 1, 1) * away[:, None, None]
            if self.softcap is not None:
                scores = torch.tanh(scores / self.softcap) * self.softcap
            weights = torch.softmax(scores.masked_fill(~seen[:, None, None], -torch.inf), -1)
            out.append(torch.einsum("skgtl,slkd->stkgd", weights, values).flatten(2, 3))
        every = torch.arange(rows, device=q.device)
        owner = torch.searchsorted(ends.contiguous(), every.to(ends.dtype), right=True)
        real = owner < requests
        owner = owner.clamp(max=requests - 1)
        place = first[owner] * tile + every - starts[owner]  # of each row among those of the tiles
        found = torch.cat(out).flatten(0, 1)[place.clamp(0, len(number) * tile - 1)]
        return torch.where(real[:, None, None], found, 0).to(q.dtype)

    def torch_fault(self, torch: Any, q: Any, cache: Any, query_start: Any, context_len: Any, block_table: Any,
                    slopes: Any = None) -> Any:
        """As `check_step`."""
        columns, block_size = block_table.shape[1], cache.shape[1]
        rows = query_start.diff()
        used = torch.arange(columns, device=q.device) * block_size < context_len[:, None]
        outside = (block_table < 0) | (block_table >= cache.shape[0])
        faults = (
            (query_start[:1] != 0).any(), (rows < 0).any(), (query_start[-1:] > len(q)).any(),
            (context_len < rows).any(), (context_len > columns * block_size).any(),
            (outside & used & (rows > 0)[:, None]).any(),
        )  # fmt: skip
        return torch.stack(faults).any()

    def sample(self, rng: np.random.Generator, q: Spec, cache: StateSpec, *metadata: Spec) -> tuple[Array, ...]:
        """Requests of random lengths, one without rows, two rows of padding, blocks in random order."""
        tokens = q.evaluate({})[0]
        requests, width = metadata[2].evaluate({})
        block_size = 4
        cuts = np.sort(rng.integers(0, max(tokens - 2, 0) + 1, max(requests - 1, 0)))
        query_start = np.array([0, *cuts, max(tokens - 2, 0)][: requests + 1], np.int32)
        rows = np.diff(query_start)
        context = np.where(rows > 0, np.minimum(rows + rng.integers(0, 9, requests), width * block_size), 0)
        table = rng.permutation(requests * width).reshape(requests, width).astype(np.int32)
        state = _random_cache(rng, cache, max(requests * width, 1), block_size)
        slopes = [rng.uniform(0, 0.5, q.evaluate({})[1]).astype(np.float32) for _ in metadata[3:]]
        return (rng.standard_normal(q.evaluate({})).astype(q.dtype.numpy), state, query_start,
                context.astype(np.int32), table, *slopes)


def check_step(tokens: int, cache: tuple[int, ...], query_start: Array, context_len: Array, block_table: Array) -> None:
    """Raises ValueFault unless the metadata describe rows and blocks that exist."""
    starts, lengths = query_start.astype(np.int64), context_len.astype(np.int64)
    rows = np.diff(starts)
    if len(starts) and starts[0] != 0 or (rows < 0).any() or starts[-1] > tokens:
        raise ValueFault(f"paged_attention: query_start must rise from 0 to at most {tokens}, got {starts.tolist()}")
    if (lengths < rows).any() or (lengths > block_table.shape[1] * cache[1]).any():
        raise ValueFault(f"paged_attention: context_len {lengths.tolist()} must hold the {rows.tolist()} rows of this "
                         f"step and fit the {block_table.shape[1]} blocks of {cache[1]}")
    for b, length in enumerate(lengths.tolist()):
        used = block_table[b, : -(-length // cache[1])]
        if rows[b] and ((used < 0) | (used >= cache[0])).any():
            raise ValueFault(f"paged_attention: block_table[{b}] names a block outside the cache of {cache[0]}")


def _attention(heads: int, tokens: Any = "T", kv: int = 2, width: int = 8, make: Any = f32, requests: Any = 3,
               cache: str | None = None) -> Any:
    count = dims.add(dims.as_dim(requests), 1)
    state = StateSpec(cache or make().dtype, heads=kv, head_dim=width)
    return make(tokens, heads, width), state, i32(count), i32(requests), i32(requests, 8)


PagedAttention.cases = (
    Case("decode and prefill together, grouped queries", _attention(4), {"scale": 0.35}, dims={"T": 12}),
    Case("an unknown number of requests", _attention(2, requests="B"), {"scale": 0.35}, dims={"T": 9, "B": 2}),
    Case("bfloat16", _attention(2, make=bf16), {"scale": 0.35}, dims={"T": 12}),
    Case("a sliding window", _attention(4), {"scale": 0.35, "window": 3}, dims={"T": 14}),
    Case("soft-capped scores", _attention(4, kv=1), {"scale": 0.35, "softcap": 2.0}, dims={"T": 12}),
    Case("ALiBi", (*_attention(4), f32(4)), {"scale": 0.35}, dims={"T": 12}),
    Case("ALiBi, a window and soft-capped scores in bfloat16", (*_attention(2, kv=1, make=bf16), f32(2)),
         {"scale": 0.35, "window": 4, "softcap": 2.0}, dims={"T": 14}),
    Case("a cache of int8", _attention(4, cache="int8"), {"scale": 0.35}, dims={"T": 12}),
    Case("a cache of int8, ALiBi, a window and soft-capped scores in bfloat16",
         (*_attention(4, width=34, make=bf16, cache="int8"), f32(4)), {"scale": 0.35, "window": 4, "softcap": 2.0},
         dims={"T": 14}),
    Case("a cache of float8", _attention(4, cache="float8_e4m3fn"), {"scale": 0.35}, dims={"T": 12}),
    Case("a cache of whole numbers without scales", _attention(2, cache="int32"), {"scale": 0.35},
         error="q is float32, the cache holds int32"),
    Case("only padding", _attention(2, tokens=2), {"scale": 0.35}),
    Case("no requests", _attention(2, tokens=2, requests=0), {"scale": 0.35}),
    Case("heads that do not group", _attention(3), {"scale": 0.35}, error="q has 3 heads, which is not a multiple"),
    Case("slopes of other heads", (*_attention(4), f32(3)), {"scale": 0.35}, error=r"slopes must be f32\[4\]"),
    Case("narrow slopes", (*_attention(4), bf16(4)), {"scale": 0.35}, error=r"slopes must be f32\[4\], one per head"),
    Case("no scale", _attention(4), {}, error="scale must be given|missing"),
    Case("window 0", _attention(4), {"scale": 0.35, "window": 0}, error="window must be positive"),
)
