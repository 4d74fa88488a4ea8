"""The kernels of mixtures of experts, interpreted on the CPU, against the op's own torch form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.cuda.interpreted import WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="the kernels are compared with torch")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda.launch import Launcher  # noqa: E402
from ingot.backends.cuda.operands import Mixture  # noqa: E402
from ingot.ops.mixture import Moe  # noqa: E402
from tests.backends.cuda.test_kernels import DEVICE, HALF, close, draw  # noqa: E402

LAUNCHER = Launcher(torch)
pytestmark = one_of_each()


@one_of_each(by=lambda given: given["rows"] <= 4)
@pytest.mark.parametrize(
    ("rows", "experts", "top", "hidden", "inner", "dtype", "normalize"),
    [
        (1, 4, 2, 40, 24, torch.float32, True),
        (3, 5, 3, 33, 50, HALF, False),
        (7, 4, 1, 40, 70, torch.float32, True),
        (40, 6, 2, 72, 33, HALF, True),
        (150, 3, 2, 70, 24, HALF, False),
    ],
)
def test_experts(rows: int, experts: int, top: int, hidden: int, inner: int, dtype: Any, normalize: bool) -> None:
    """Few rows, and more by tiles: of experts that many rows choose, of such that none does, and of equal scores."""
    x = draw(rows, hidden + 3, dtype=dtype, seed=1)[:, :hidden]
    router = draw(rows, experts, dtype=torch.float32, seed=2)
    router[:, 1] -= 30  # nobody's
    router[::2, 0] += 3
    router[-1] = 0.5
    gates, ups = (draw(experts * inner, hidden, dtype=dtype, seed=s) / hidden**0.5 for s in (3, 4))
    downs = draw(experts * hidden, inner, dtype=dtype, seed=5) / inner**0.5
    out = torch.full((rows, hidden + 1), float("nan"), dtype=dtype, device=DEVICE)
    LAUNCHER.experts(x, router, Mixture(gates, ups, downs, experts, top, normalize), out[:, :hidden])
    weights = [*gates.view(experts, inner, hidden), *ups.view(experts, inner, hidden), *downs.view(experts, hidden, -1)]
    wanted = Moe(top_k=top, normalize=normalize).torch(torch, x, router, *weights)
    close(out[:, :hidden], wanted, dtype, 2)
    assert out[:, hidden:].isnan().all()


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter's maximum
def test_scores_that_are_no_numbers() -> None:
    """Their rows are none, and no others."""
    for rows in (3, 9):
        x = draw(rows, 16, dtype=torch.float32, seed=1)
        router = draw(rows, 4, dtype=torch.float32, seed=2)
        router[1] = float("nan")
        router[2, 3] = float("nan")
        weights = [draw(4 * 16, 16, dtype=torch.float32, seed=s) for s in (3, 4, 5)]
        out = torch.zeros((rows, 16), device=DEVICE)
        LAUNCHER.experts(x, router, Mixture(*weights, 4, 2, True), out)
        assert out[1:3].isnan().all() and out[[0, *range(3, rows)]].isfinite().all()
