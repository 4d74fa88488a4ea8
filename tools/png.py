"""Reads PNG pictures of 8 bits a channel, for sample images out of packages."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from ingot.errors import UserError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type


def decode(data: bytes) -> np.ndarray[Any, Any]:
    """The pixels, uint8 [height, width, channels]. Raises UserError for pictures of other kinds."""
    if not data.startswith(SIGNATURE):
        raise UserError("this is no PNG picture")
    header, packed, at = b"", b"", len(SIGNATURE)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + length]
        header, packed = (chunk if kind == b"IHDR" else header), packed + (chunk if kind == b"IDAT" else b"")
        at += 12 + length
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if bits != 8 or colour not in CHANNELS or interlaced:
        raise UserError(f"a PNG picture of {bits} bits, colour type {colour}, interlaced {interlaced} is not read here")
    step = CHANNELS[colour]
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * step)
    before = [0] * (width * step)
    found = []
    for row in rows.tolist():
        before = _restored(row[0], row[1:], before, step)
        found.append(before)
    return np.array(found, np.uint8).reshape(height, width, step)


def _restored(kind: int, row: list[int], above: list[int], step: int) -> list[int]:
    """A row of bytes from its differences to the pixels on the left and above."""
    row = [0] * step + row
    above = [0] * step + above
    for i in range(step, len(row)):
        left, up, corner = row[i - step], above[i], above[i - step]
        if kind == 4:
            guess = left + up - corner
            near = (abs(guess - left), abs(guess - up), abs(guess - corner))
            add = (left, up, corner)[near.index(min(near))]
        else:
            add = (0, left, up, (left + up) // 2)[kind]
        row[i] = (row[i] + add) & 255
    return row[step:]
