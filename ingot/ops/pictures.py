"""The op that decodes images, by Pillow: formats of files are nothing that a network computes."""
from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.dims import Dim, Dimension
from ingot.errors import ValueFault
from ingot.ir import Case, Op, Spec, op, require
from ingot.ops.common import Array, f32, u8

CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}
FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # Pillow's words; PPM: all portable image formats
# Of Pillow's modes those of 8 bits a channel, or less. Others have no one right way to become bytes.
MODES = ("1", "CMYK", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr")
MAX_PIXELS = 1 << 26  # decoded, and checked before that: 192 MiB of RGB
MAX_SIDE = 1 << 16


@op("decode_image")
class DecodeImage(Op):
    """The image in a file's bytes, uint8 [height, width, channels]; BMP, JPEG, JPEG 2000, PNG, PNM, TIFF and WebP.

    `pixels` is RGB, BGR or Grayscale (1 channel): images of other channels are converted, and opacity is left out. Of
    several images in a file the first counts. `height` and `width` are unbacked dims that this op binds. What is no
    such image, or has more than 2²⁶ pixels, is a fault at run time. Pillow decodes (`ingot[images]`).
    """

    pixels: str = "RGB"
    height: Dimension | None = None
    width: Dimension | None = None
    in_scope = "keeps"
    binds = True
    host = "decode_image has no native kernel"
    cases = (
        Case("a file of any length", (u8("N"),), dims={"N": 70}),
        Case("the other order of channels", (u8(40),), {"pixels": "BGR"}),
        Case("one channel", (u8(64),), {"pixels": "Grayscale"}),
        Case("an unknown order", (u8(64),), {"pixels": "RGBA"}, error="pixels must be RGB, BGR or Grayscale"),
        Case("no bytes", (f32(64),), error=r"encoded must be uint8 \[bytes\]"),
        Case("several files", (u8(2, 64),), error=r"encoded must be uint8 \[bytes\]"),
        Case("sizes that are known", (u8(64),), {"height": 2, "width": 2}, error="must be two different unbacked dims"),
    )

    def infer(self, encoded: Spec) -> Spec:
        require(encoded.dtype is dtypes.uint8 and len(encoded.shape) == 1, "encoded must be uint8 [bytes]")
        require(self.pixels in CHANNELS, f"pixels must be RGB, BGR or Grayscale, not {self.pixels!r:.40}")
        require(len({d.name for d in self.bound_dims()}) == 2 and all(d.unbacked for d in self.bound_dims()),
                "height and width must be two different unbacked dims: leave them out, or give "
                "Dim(name, unbacked=True)")
        return Spec((*self.bound_dims(), CHANNELS[self.pixels]), dtypes.uint8)

    def bind(self, fresh: Callable[..., Dim], *specs: Any) -> Op:
        if self.height is not None or self.width is not None:
            return self
        return replace(self, height=fresh("height", max=MAX_SIDE), width=fresh("width", max=MAX_SIDE))

    def bound_dims(self) -> tuple[Dim, ...]:
        return tuple(d for d in (self.height, self.width) if isinstance(d, Dim))

    def reference(self, encoded: Array) -> Array:
        images: Any = _lazy.optional("PIL.Image", "decoding images", "ingot[images]")
        try:
            with images.open(io.BytesIO(encoded.tobytes()), formats=FORMATS) as image:
                _check(image)
                image.info.pop("transparency", None)  # a colour that convert would make opacity of
                found = np.asarray(image.convert("L" if self.pixels == "Grayscale" else "RGB"))
        except (MemoryError, ValueFault):
            raise
        except Exception as e:  # Pillow's readers of formats have no common error
            why = f"{type(e).__name__}: {e!s:.200}"
            if type(e).__name__ == "UnidentifiedImageError":  # it says at which address they lie
                why = f"they begin as none of {', '.join(FORMATS)}, or their header is damaged"
            raise ValueFault(f"these {len(encoded):,} bytes are no image that can be decoded: {why}") from e
        if self.pixels == "BGR":
            return np.ascontiguousarray(found[:, :, ::-1])
        return found.reshape(*found.shape[:2], -1)

    def sample(self, rng: np.random.Generator, encoded: Spec) -> tuple[Array, ...]:
        """A portable image, in the simplest of the formats; what stands behind its last pixel does not count."""
        (size,) = encoded.evaluate({})
        head = np.frombuffer(b"P6 3 2 255\n", np.uint8)
        return (np.concatenate([head, rng.integers(0, 256, size - len(head)).astype(np.uint8)]),)


def _check(image: Any) -> None:
    """Raises ValueFault for an image that is not decoded; its header has been read, and nothing more."""
    width, height = image.size
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise ValueFault(f"the image has {width:,} x {height:,} pixels, and at most {MAX_PIXELS:,} are decoded, "
                         f"{MAX_SIDE:,} a side: make it smaller first")
    if image.mode not in MODES:
        raise ValueFault(f"the image has pixels of the kind {image.mode!r:.20} ({image.format}), and none of 8 bits a "
                         "channel: convert it first")
