"""The host's checks of a step's integers, against the ops' own on torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.backends.cuda.faults import faulty
from ingot.ops.attention import KvWrite, PagedAttention
from ingot.ops.indexing import Embedding, Take

torch: Any = pytest.importorskip("torch", reason="the ops' own checks are torch's")

RNG = np.random.default_rng(0)


def ints(low: int, end: int, *shape: int) -> Any:
    return RNG.integers(low, end, shape).astype(np.int32)


def step() -> list[Any]:
    """Metadata of up to three requests in a cache of 6 blocks of 4, mostly good."""
    requests, columns = int(RNG.integers(0, 4)), int(RNG.integers(1, 4))
    rows = ints(0, 3, requests)
    if RNG.random() < 0.1:
        rows = rows - 1
    starts = np.concatenate([[int(RNG.random() < 0.05)], np.cumsum(rows)]).astype(np.int32)
    context = np.maximum(rows + ints(-1, 9, requests), 0).astype(np.int32)
    table = ints(-1 if RNG.random() < 0.3 else 0, 7 if RNG.random() < 0.3 else 6, requests, columns)
    return [(max(int(starts[-1]) + int(RNG.integers(-1, 2)), 0), 2, 8), (6, 4, 2, 1, 8), starts, context, table]


def cases(op: Any) -> list[Any]:
    low = -int(RNG.integers(0, 14))
    index = ints(low, int(RNG.integers(1, 8)), int(RNG.integers(0, 3)))
    if isinstance(op, PagedAttention):
        return step()
    if isinstance(op, KvWrite):
        t = len(index)
        return [(2, 3, 2, 1, 8), (t, 1, 8), (t, 1, 8), index]
    return [index, (6, 4)] if isinstance(op, Embedding) else [(4, 6), index]


@pytest.mark.parametrize(
    "op",
    [Embedding(), Embedding(from_end=True), Take(axis=1), Take(axis=-2, from_end=True), KvWrite(),
     PagedAttention(scale=1.0)],
)  # fmt: skip
def test_as_the_op_says(op: Any) -> None:
    said = []
    for _ in range(150):
        operands = cases(op)
        tensors = [torch.zeros(()).expand(x) if isinstance(x, tuple) else torch.from_numpy(x) for x in operands]
        said.append(bool(op.torch_fault(torch, *tensors)))
        assert faulty(op, operands) == said[-1], operands
    assert 10 < sum(said) < 140  # both verdicts are met
