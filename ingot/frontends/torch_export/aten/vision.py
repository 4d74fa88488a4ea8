"""torchvision's own ops, which torch.export keeps whole: boxes, regions of images, deformable convolutions."""

from __future__ import annotations

from ingot.frontends.torch_export.aten.table import Result, Results, Tensor, aten, few
from ingot.functional import regions


def _bins(height: int, width: int) -> tuple[int, int]:
    few(max(height, 1) * max(width, 1))
    return height, width


def _places(ratio: int) -> int:
    few(max(ratio, 0) ** 2)
    return ratio


@aten("torchvision.nms.default")
def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Result:
    return regions.nms(dets, scores, iou_threshold)


@aten("torchvision.roi_align.default")
def roi_align(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
              sampling_ratio: int, aligned: bool) -> Result:  # fmt: skip
    bins = _bins(pooled_height, pooled_width)
    return regions.roi_align(input, rois, spatial_scale, bins, _places(sampling_ratio), aligned)


@aten("torchvision.ps_roi_align.default")
def ps_roi_align(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
                 sampling_ratio: int) -> Results:  # fmt: skip
    bins = _bins(pooled_height, pooled_width)
    found = regions.ps_roi_align(input, rois, spatial_scale, bins, _places(sampling_ratio))
    return found, None  # which channels it read, for training


@aten("torchvision.roi_pool.default")
def roi_pool(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> Results:
    return regions.roi_pool(input, rois, spatial_scale, _bins(pooled_height, pooled_width)), None


@aten("torchvision.ps_roi_pool.default")
def ps_roi_pool(input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int) -> Results:
    found = regions.ps_roi_pool(input, rois, spatial_scale, _bins(pooled_height, pooled_width))
    return found, None  # which channels it read, for training


@aten("torchvision.deform_conv2d.default")
def deform_conv2d(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int,
    pad_h: int, pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Result:  # fmt: skip
    return regions.deform_conv2d(
        input, weight, offset, mask if use_mask else None, bias, (stride_h, stride_w), (pad_h, pad_w),
        (dilation_h, dilation_w), few(groups), few(offset_groups),
    )  # fmt: skip
