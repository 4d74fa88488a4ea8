"""What rounding a weight takes from the mean of each output, piece by piece of the weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.ir import F, Network, Spec
from ingot.passes.calibrated import layers_of, weight_as_stored
from ingot.quantization import search

Array = np.ndarray[Any, Any]
WINDOW: dict[str, Any] = {"stride": (1, 1), "pre_padding": (0, 0), "post_padding": (0, 0), "dilation": (1, 1)}


def layer_of(kind: str, weight: Array) -> Any:
    """A layer of this kind with this weight."""
    n = Network("net")
    w = n.parameter("w", Spec(weight.shape, "float32"))
    if kind.startswith("matmul"):
        turned = kind == "matmul, transposed"
        y = F.matmul(n.input("x", Spec(("N", weight.shape[1 if turned else 0]), "float32")), w, transpose_b=turned)
    else:
        groups = 3 if kind.endswith("in groups") else 1
        transposed = kind.startswith("conv_transpose")
        x = n.input("x", Spec(("N", weight.shape[0] if transposed else weight.shape[1] * groups, 9, 9), "float32"))
        if transposed:
            y = F.conv_transpose(x, w, **WINDOW | {"stride": (2, 2)}, groups=groups)
        else:
            y = F.conv(x, w, **WINDOW, groups=groups)
    n.output("y", y)
    (layer,) = layers_of(n)
    return layer


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("matmul", (20, 7)), ("matmul, transposed", (7, 20)), ("conv", (7, 5, 3, 3)), ("conv in groups", (6, 5, 3, 3)),
        ("conv_transpose", (5, 7, 2, 2)), ("conv_transpose in groups", (6, 7, 2, 2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [1, 50, 1 << 16])
def test_shifts_are_the_lost_weights_times_the_means(
    kind: str, shape: tuple[int, ...], pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SHIFTED", pieces)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    layer = layer_of(kind, weight)
    lost = weight.astype(np.float64) - weight_as_stored(weight, layer.node)
    inputs = {"matmul, transposed": shape[1], "conv": shape[1], "conv in groups": 3 * shape[1]}.get(kind, shape[0])
    mean = rng.standard_normal(inputs)
    if kind.startswith("matmul"):
        wanted = mean @ (lost if kind == "matmul" else lost.T)
    elif kind == "conv_transpose":
        wanted = np.einsum("i,iohw->o", mean, lost) / 4
    elif kind == "conv_transpose in groups":
        wanted = np.einsum("gi,giohw->go", mean.reshape(3, -1), lost.reshape(3, 2, 7, 2, 2)).reshape(-1) / 4
    elif kind == "conv":
        wanted = np.einsum("i,oihw->o", mean, lost)
    else:
        wanted = np.einsum("gi,goihw->go", mean.reshape(3, -1), lost.reshape(3, 2, 5, 3, 3)).reshape(-1)
    np.testing.assert_allclose(search._shift(weight, layer, mean), wanted, rtol=1e-5, atol=1e-9)
