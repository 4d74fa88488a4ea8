"""ONNX's op on files of images."""

from __future__ import annotations

from ingot.frontends.onnx.table import onnx
from ingot.frontends.table import Result, Tensor
from ingot.ir import F


@onnx("ImageDecoder", folds=False)
def image_decoder(encoded: Tensor, *, pixel_format: str = "RGB") -> Result:
    return F.decode_image(encoded, pixels=pixel_format)
