"""How a KV cache of 8 bits holds a vector. int8: its whole numbers, padded to a multiple of 16, and its float32
scale. float8 (e4m3): its numbers, rounded and held in their range.

The scale is the greatest magnitude / 127, of that vector alone, so what is stored does not depend on its company. A
vector with an element that is not finite has the scale NaN, and a key has it too when its value is such a vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.ops.common import Array, torch_wide, widen

SCALE = 4  # bytes


def to_int8(k: Array, v: Array) -> tuple[Array, Array]:
    """Keys and values [..., D] as int8 [..., stored width]."""
    parts = []
    for x in (widen(k), widen(v)):
        with np.errstate(all="ignore"):
            scale = np.abs(x).max(-1) / np.float32(127)
            scale[~np.isfinite(x).all(-1)] = np.nan
            whole = np.rint(x / np.where(scale == 0, np.float32(1), scale)[..., None]).clip(-127, 127)
        parts.append((np.nan_to_num(whole).astype(np.int8), scale))
    (keys, key_scale), (values, value_scale) = parts
    key_scale[np.isnan(value_scale)] = np.nan
    return _joined(keys, key_scale), _joined(values, value_scale)


def _joined(whole: Array, scale: Array) -> Array:
    padding = np.zeros((*whole.shape[:-1], -whole.shape[-1] % 16), np.int8)
    return np.concatenate([whole, padding, scale[..., None].view(np.int8)], -1)


def from_int8(stored: Array, width: int) -> Array:
    """The vectors [..., width] in float32."""
    scale = np.ascontiguousarray(stored[..., -SCALE:]).view(np.float32)
    return stored[..., :width].astype(np.float32) * scale


def to_float8(x: Array) -> Array:
    """Keys or values as float8."""
    return np.asarray(np.clip(widen(x), -dtypes.MOST_FLOAT8, dtypes.MOST_FLOAT8).astype(dtypes.float8_e4m3fn.numpy))


def torch_to_float8(torch: Any, x: Any) -> Any:
    """As `to_float8`, of a torch tensor; as bytes."""
    return x.float().clamp(-dtypes.MOST_FLOAT8, dtypes.MOST_FLOAT8).to(torch.float8_e4m3fn).view(torch.uint8)


def torch_to_int8(torch: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """As `to_int8`, of torch tensors."""
    parts = []
    for x in (k.float(), v.float()):
        largest = x.abs().amax(-1)
        scale = largest / torch.full_like(largest, 127)  # by a number, CUDA multiplies with its reciprocal
        scale = scale.masked_fill(~torch.isfinite(x).all(-1), torch.nan)
        whole = torch.round(x / torch.where(scale == 0, 1, scale)[..., None]).clamp(-127, 127)
        parts.append((whole.nan_to_num().to(torch.int8), scale))
    (keys, key_scale), (values, value_scale) = parts
    key_scale = key_scale.masked_fill(value_scale.isnan(), torch.nan)
    pad = -keys.shape[-1] % 16
    joined = [
        torch.cat([torch.nn.functional.pad(whole, (0, pad)), scale[..., None].contiguous().view(torch.int8)], -1)
        for whole, scale in ((keys, key_scale), (values, value_scale))
    ]
    return joined[0], joined[1]


def torch_vectors(torch: Any, stored: Any, width: int) -> Any:
    """The vectors [..., width] of a cache of any type, as wide as they are computed with."""
    if stored.dtype != torch.int8:
        return torch_wide(stored)
    return stored[..., :width].float() * stored[..., -SCALE:].contiguous().view(torch.float32)
