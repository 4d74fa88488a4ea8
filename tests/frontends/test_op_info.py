"""Some of torch's own samples (OpInfo), as `make conformance PART=op-info` builds and runs them all."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from tools.conformance import op_info
from tools.conformance.op_info import FAILED, PASSED, REFUSED

# torch's samples import it; torch does not ask for it.
needs_samples = pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None, reason="torch's samples need the package expecttest"
)

# One of every kind. The others are in docs/conformance.md.
NAMES = (
    "add", "addmm", "argmax", "bitwise_xor", "cat", "clamp", "cumsum", "einsum", "expand", "floor_divide", "gather",
    "log_softmax", "logical_or", "matmul", "mean", "nn.functional.conv2d", "nn.functional.conv_transpose2d",
    "nn.functional.gelu", "nn.functional.avg_pool2d", "nn.functional.scaled_dot_product_attention", "permute",
    "pow", "remainder", "sort", "std", "topk", "where",
)  # fmt: skip


@needs_samples
@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", NAMES)
def test_samples_agree_with_torch(name: str) -> None:
    """Those that are refused say why, and at least one agrees."""
    found = list(op_info.results([name], {"float32": 1, "int64": 1}))
    assert [r for r in found if r.outcome == FAILED] == []
    assert any(r.outcome == PASSED for r in found)
    assert all(r.why for r in found if r.outcome == REFUSED)


@needs_samples
def test_torch_stays_as_it_is() -> None:
    """Other tests of the process set its flags."""
    assert op_info.database() and not torch.backends.flags_frozen()


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (np.zeros(3, np.float32), "differs by 1 of 1"),
        (np.ones(3, np.float64), r"float64\[3\], torch has torch.float32"),
        (np.ones((3, 1), np.float32), r"float32\[3, 1\]"),
        (np.full(3, np.nan, np.float32), "differs by nan"),
        (np.ones(3, np.float32), None),
    ],
)
def test_a_difference_is_seen(found: np.ndarray, error: str | None) -> None:
    said = op_info.difference([found], [torch.ones(3)])
    if error is None:
        assert said == ""
    else:
        with pytest.raises(AssertionError, match=error):
            raise AssertionError(said)
    assert op_info.difference([], [torch.ones(3)]) == "0 results, torch has 1"


@needs_samples
def test_what_is_not_ours_to_raise_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **named: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(op_info.ingot, "build", broken)
    (found,) = op_info.results(["exp"], {"float32": 1})
    assert found.outcome == FAILED and found.why == "ZeroDivisionError: boom"
