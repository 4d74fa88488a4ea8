"""torchvision's own ops: imported and run natively, against torchvision where it is installed, else against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnsupportedError
from tools import torchvision_ops
from tools.conformance.onnx_nodes import host_calls

torchvision_ops.define()
OPS = torch.ops.torchvision


class _Net(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


def compared(function: Callable[..., Any], x: Any, y: Any, dynamic: Any = None, others: Any = ()) -> None:
    """One op of two tensors in an engine, at the sizes of the export and others, against what torch calls."""
    examples = [torch.from_numpy(a) for a in (x, y)]
    engine = ingot.build(_Net(function), tuple(examples), dynamic=dynamic, report=False)
    assert host_calls(engine) == ()
    for given in ((x, y), *others):
        found = engine.run(dict(zip("xy", given, strict=True)))["output_0"]
        wanted = function(*map(torch.from_numpy, given)).numpy()
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def boxes(rng: Any, count: int, size: float = 20.0) -> Any:
    low = rng.uniform(-3, size, (count, 2))
    return np.concatenate([low, low + rng.uniform(0, size / 2, (count, 2))], 1).astype(np.float32)


def regions(rng: Any, count: int, images: int, size: float = 20.0) -> Any:
    found = np.concatenate([rng.integers(0, images, (count, 1)), boxes(rng, count, size)], 1)
    return found.astype(np.float32)


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_nms(threshold: float) -> None:
    rng = np.random.default_rng(0)

    def given(count: int) -> Any:
        found = boxes(rng, count, 9)
        found[count // 2 :] = found[: count - count // 2] + np.float32(0.25)
        scores = rng.integers(0, 9, count).astype(np.float32)  # some are equal: the first comes first
        return found, scores

    compared(lambda x, y: OPS.nms(x, y, threshold), *given(40), dynamic={"x": {0: "N"}, "y": {0: "N"}},
             others=[given(1), given(0), given(90)])  # fmt: skip


def test_a_box_without_area_covers_nothing() -> None:
    both = np.zeros((2, 4), np.float32)
    compared(lambda x, y: OPS.nms(x, y, 0.5), both, np.array([1, 2], np.float32))


def test_nms_by_classes_as_torchvision_writes_it() -> None:
    """Its trick: the boxes of each class are moved where no other class has any."""
    rng = np.random.default_rng(1)

    def batched(x: Any, y: Any) -> Any:
        kinds = (torch.arange(x.shape[0]) % 3).to(x)
        return OPS.nms(x + (kinds * (x.max() + 1))[:, None], y, 0.4)

    compared(batched, boxes(rng, 30, 9), rng.random(30, np.float32))


@pytest.mark.parametrize(("ratio", "aligned"), [(2, False), (0, True), (-1, False), (3, True)])
def test_roi_align(ratio: int, aligned: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 11, 9), np.float32)
    compared(lambda x, y: OPS.roi_align(x, y, 0.5, 3, 2, ratio, aligned), x, regions(rng, 7, 2))


def test_roi_align_of_any_sizes() -> None:
    rng = np.random.default_rng(3)
    images = [rng.standard_normal((n, 4, h, w), np.float32) for n, h, w in ((2, 8, 9), (3, 13, 6))]
    compared(lambda x, y: OPS.roi_align(x, y, 1.0, 2, 2, 2, True), images[0], regions(rng, 5, 2, 9),
             dynamic={"x": {0: "N", 2: "H", 3: "W"}, "y": {0: "K"}},
             others=[(images[1], regions(rng, 9, 3, 9)), (images[1], regions(rng, 0, 3))])  # fmt: skip


@pytest.mark.parametrize("ratio", [2, 0])
def test_ps_roi_align(ratio: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 12, 7, 8), np.float32)
    compared(lambda x, y: OPS.ps_roi_align(x, y, 0.5, 2, 3, ratio)[0], x, regions(rng, 4, 2))


def test_roi_pool() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 11, 9), np.float32)
    far = np.array([[1, 90, 90, 95, 95], [0, 1, 1, 1, 1]], np.float32)  # outside of the image; of one element
    compared(lambda x, y: OPS.roi_pool(x, y, 0.5, 3, 2)[0], x, np.concatenate([regions(rng, 6, 2), far]))


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_ps_roi_pool(scale: float) -> None:
    rng = np.random.default_rng(7)
    images = [rng.standard_normal((n, 12, h, w), np.float32) for n, h, w in ((2, 11, 9), (1, 6, 21))]
    far = np.array([[0, 90, 90, 95, 95], [0, 1, 1, 1, 1]], np.float32)  # outside of the image; of no element
    some = [np.concatenate([regions(rng, count, 1), far]) for count in (6, 3)]
    compared(lambda x, y: OPS.ps_roi_pool(x, y, scale, 3, 2)[0], images[0], some[0],
             dynamic={"x": {0: "N", 2: "H", 3: "W"}, "y": {0: "K"}}, others=[(images[1], some[1])])  # fmt: skip


@pytest.mark.parametrize(("groups", "offset_groups", "masked"), [(1, 1, True), (2, 2, False)])
def test_deform_conv2d(groups: int, offset_groups: int, masked: bool) -> None:
    rng = np.random.default_rng(6)
    weight = torch.from_numpy(rng.standard_normal((6, 4 // groups, 3, 2), np.float32))
    bias = torch.from_numpy(rng.standard_normal(6, np.float32))
    shares = rng.random((2, offset_groups * 6, 3, 4), np.float32) if masked else np.zeros((2, 1), np.float32)
    mask = torch.from_numpy(shares)
    x = rng.standard_normal((2, 4, 6, 7), np.float32)
    offset = (3 * rng.standard_normal((2, offset_groups * 12, 3, 4))).astype(np.float32)

    def run(x: Any, y: Any) -> Any:
        return OPS.deform_conv2d(x, weight, y, mask, bias, 2, 2, 1, 1, 1, 2, groups, offset_groups, masked)

    compared(run, x, offset)


@pytest.mark.parametrize(("bins", "ratio"), [(1 << 12, 2), (2, 1 << 12)])
def test_more_bins_than_any_detector_has(bins: int, ratio: int) -> None:
    """A file may name any number; nothing is made before it is refused."""
    examples = (torch.zeros(1, 1, 4, 4), torch.zeros(1, 5))
    net = _Net(lambda x, y: OPS.roi_align(x, y, 1.0, bins, bins, ratio, False))
    with torch.device("meta"):
        exported = torch.export.export(net.eval(), tuple(e.to("meta") for e in examples), strict=False)
    with pytest.raises(UnsupportedError, match="more than any network has"):
        ingot.build(exported, report=False)


# ------------------------------------------------------------------------------------------- torchvision, installed

with_torchvision = pytest.mark.skipif(
    not torchvision_ops.installed(), reason="torchvision is not installed, or is made for another torch"
)


def _calls(rng: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Arguments of every op, in NumPy, of several sizes."""
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in torchvision_ops.SCHEMAS}
    for count in (0, 1, 7, 120):
        near = boxes(rng, count, 9)
        near[count // 2 :] = near[: count - count // 2] + np.float32(0.25)
        found["nms"].append((near, rng.permutation(count).astype(np.float32), 0.5))
    for (n, height, width), scale, ratio in itertools.product(((2, 11, 9), (1, 24, 31)), (0.5, 1.0), (-1, 2, 3)):
        some, x = regions(rng, 5, n), rng.standard_normal((n, 12, height, width), np.float32)
        for name in ("roi_pool", "ps_roi_pool"):
            found[name].append((x, some, scale, 3, 2))
        found["ps_roi_align"].append((x, some, scale, 3, 2, ratio))
        found["roi_align"] += [(x, some, scale, 3, 2, ratio, aligned) for aligned in (False, True)]
    for groups, offsets, masked, step in ((1, 1, True, (2, 2, 1, 1, 1, 2)), (2, 4, False, (1, 2, 0, 2, 2, 1))):
        x = rng.standard_normal((2, 4, 9, 8), np.float32)
        rows, columns = ((s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in zip((9, 8), (3, 2), step[:2],
                         step[2:4], step[4:], strict=True))  # fmt: skip
        moved = (3 * rng.standard_normal((2, offsets * 12, rows, columns))).astype(np.float32)
        shares = rng.random((2, offsets * 6, rows, columns), np.float32) if masked else np.zeros((2, 1), np.float32)
        weight = rng.standard_normal((6, 4 // groups, 3, 2), np.float32)
        bias = rng.standard_normal(6, np.float32)
        found["deform_conv2d"].append((x, weight, moved, shares, bias, *step, groups, offsets, masked))
    return found


@with_torchvision
@pytest.mark.parametrize("name", torchvision_ops.SCHEMAS)
def test_the_references_are_what_torchvision_computes(name: str) -> None:
    op = getattr(OPS, name)
    assert str(op.default._schema).partition("(")[2] == torchvision_ops.SCHEMAS[name].partition("(")[2]
    for given in _calls(np.random.default_rng(8))[name]:
        theirs = op(*(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in given))
        ours = getattr(torchvision_ops, name)(*given)
        for a, b in zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]:
            assert a.shape == tuple(b.shape) and a.dtype == b.numpy().dtype
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-5)


@with_torchvision
def test_a_deformable_layer_as_people_write_it() -> None:
    from torchvision.ops import DeformConv2d

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.moves, self.shares = nn.Conv2d(3, 18, 3, padding=1), nn.Conv2d(3, 9, 3, padding=1)
            self.layer = DeformConv2d(3, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, self.moves(x), self.shares(x).sigmoid())

    torch.manual_seed(0)
    net = Net().eval()
    engine = ingot.build(net, (torch.randn(1, 3, 20, 24),), dynamic={"x": {0: "N", 2: "H", 3: "W"}}, report=False)
    for size in ((1, 3, 20, 24), (2, 3, 33, 17)):
        x = torch.randn(size)
        wanted = net(x).detach().numpy()
        np.testing.assert_allclose(engine.run({"x": x})["output_0"], wanted, rtol=1e-4, atol=1e-5)
