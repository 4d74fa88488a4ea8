"""Where the largest elements of windows stand, as importers have it alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.frontends.table import Unsupported
from ingot.ir import F, Value
from ingot.ir.spec import elements

MAX_WINDOW = 1 << 20  # elements of one


def places_of_largest(
    x: Any, out: Sequence[Dimension], kernel: Sequence[int], step: Sequence[int], before: Sequence[int],
    apart: Sequence[int],
) -> Any:  # fmt: skip
    """Where the first of the largest elements of each window stands among those of its image.

    Only what reads places computes them: they take all windows written out.

    Args:
        x: [N, C, *S], of floats.
        out: how many windows there are along each dimension, as the pool counts them.
        before, apart: the padding in front of each dimension, and the dilation.

    Returns:
        int64 [N, C, *out].
    """
    rank, sizes = len(kernel), x.shape[2:]
    if math.prod(kernel) > MAX_WINDOW:
        raise Unsupported(f"a window of {math.prod(kernel):,} elements; the most are {MAX_WINDOW:,}")
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, apart, strict=True)]
    after = tuple(
        dims.add(dims.mul(dims.add(n, -1), s), e - p, dims.mul(size, -1))
        for n, s, e, p, size in zip(out, step, extents, before, sizes, strict=True)
    )
    windows = F.pad(x, before=(0, 0, *before), after=(0, 0, *after), value=-math.inf)
    for i in range(rank):
        windows = F.unfold(windows, axis=2 + i, size=extents[i], step=step[i])
        if apart[i] > 1:
            shape = (*windows.shape[:-1], kernel[i])
            windows = F.slice(windows, (0,) * len(shape), shape, (*[1] * (len(shape) - 1), apart[i]))
    best = F.argmax(F.reshape(windows, (*x.shape[:2], *out, math.prod(kernel))), axis=2 + rank, keepdims=False)
    best, index = F.cast(best, dtypes.int64), None
    for i in range(rank):
        inner, line = math.prod(kernel[i + 1 :]), elements(sizes[i + 1 :])
        lines, planes = (F.floordiv(best, np.array(n)) for n in (inner, inner * kernel[i]))
        within = F.sub(lines, F.mul(planes, np.array(kernel[i])))
        count = F.iota(size=out[i], dtype=dtypes.int64)
        count = count if isinstance(count, Value) else x.network.constant(count)
        first = F.sub(F.mul(count, np.array(step[i])), np.array(before[i]))
        own = F.reshape(first, tuple(out[i] if k == i else 1 for k in range(rank)))
        at = F.add(F.mul(within, np.array(apart[i])), own)
        at = F.mul(at, np.array(line) if isinstance(line, int) else F.iota(size=1, start=line, dtype=dtypes.int64))
        index = at if index is None else F.add(index, at)
    return index
