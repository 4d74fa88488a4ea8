"""Trained ONNX models: the pins, and the comparison with ONNX Runtime where they have been fetched."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from ingot.errors import UserError

pytest.importorskip("onnx")

from tools import onnx_models, png

SAMPLE = ("ocr-direction", "silero-vad")
missing = sorted({*onnx_models.missing()} & {*SAMPLE})


def test_other_bytes_are_refused() -> None:
    pinned = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert onnx_models.checked(b"hello", pinned, "x.whl") == b"hello"
    with pytest.raises(UserError, match="x.whl has the SHA-256 .*, pinned is 2cf24dba"):
        onnx_models.checked(b"hellO", pinned, "x.whl")


@pytest.mark.skipif(bool(missing), reason=f"not fetched: {', '.join(missing)} (python -m tools.onnx_models)")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_agrees_with_onnx_runtime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    (model,) = [m for m in onnx_models.MODELS if m.name == name]
    for found in onnx_models.compare(model):
        assert found.good, found


def test_pictures_are_read() -> None:
    """Every way that a PNG says a row by the one above: what is packed here comes out again."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    before, packed = np.zeros((4, 3), int), b""
    for kind, row in enumerate(pixels.astype(int)):
        left, up = np.vstack([[[0, 0, 0]], row[:-1]]), before
        corner = np.vstack([[[0, 0, 0]], before[:-1]])
        guess = left + up - corner
        near = np.argmin([abs(guess - left), abs(guess - up), abs(guess - corner)], axis=0)
        add = (0, left, up, (left + up) // 2, np.choose(near, [left, up, corner]))[kind]
        packed += bytes([kind]) + ((row - add) % 256).astype(np.uint8).tobytes()
        before = row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I4s", len(data), kind) + data + bytes(4)

    header = struct.pack(">IIBBBBB", 4, 5, 8, 2, 0, 0, 0)
    data = png.SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(packed)) + chunk(b"IEND", b"")
    np.testing.assert_array_equal(png.decode(data), pixels)
    with pytest.raises(UserError, match="no PNG picture"):
        png.decode(b"GIF89a")
