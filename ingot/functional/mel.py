"""Mel filter banks: which frequencies of a spectrum make up each band."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.errors import OpError

Array = np.ndarray[Any, Any]

MAX_WEIGHTS = 1 << 26
# Slaney's scale: 3 mels for 200 Hz up to 1000 Hz, from there on 27 for every factor of 6.4.
_BREAK, _PER_HERTZ, _PER_FACTOR = 1000.0, 3 / 200, 27 / math.log(6.4)


def _to_mel(hertz: Array, scale: str) -> Array:
    if scale == "htk":
        return np.asarray(2595 * np.log10(1 + hertz / 700))
    above = _BREAK * _PER_HERTZ + _PER_FACTOR * np.log(np.maximum(hertz, _BREAK) / _BREAK)
    return np.where(hertz < _BREAK, hertz * _PER_HERTZ, above)


def _to_hertz(mel: Array, scale: str) -> Array:
    if scale == "htk":
        return np.asarray(700 * (10 ** (mel / 2595) - 1))
    above = _BREAK * np.exp((mel - _BREAK * _PER_HERTZ) / _PER_FACTOR)
    return np.where(mel < _BREAK * _PER_HERTZ, mel / _PER_HERTZ, above)


def melscale_fbanks(
    n_freqs: int,
    f_min: float,
    f_max: float,
    n_mels: int,
    sample_rate: int,
    norm: str | None = None,
    mel_scale: str = "htk",
) -> Array:
    """Triangles that are equally far apart in mel: float32 [n_freqs, n_mels], for a product with a power spectrum.

    Args:
        n_freqs: frequencies of the spectrum, from 0 to half the sample rate.
        f_min, f_max: where the first triangle begins and the last one ends, in hertz.
        n_mels: how many triangles.
        sample_rate: in hertz.
        norm: "slaney" makes every triangle's area the same; None: their height is 1.
        mel_scale: "htk" or "slaney".

    Raises:
        OpError: sizes that are not positive, frequencies out of order, another norm or scale.
    """
    if norm not in (None, "slaney") or mel_scale not in ("htk", "slaney"):
        raise OpError(f"melscale_fbanks: norm must be None or slaney and mel_scale htk or slaney, not {norm!r:.40} and "
                      f"{mel_scale!r:.40}")
    if n_freqs < 2 or n_mels < 1 or sample_rate < 1 or n_freqs * n_mels > MAX_WEIGHTS:
        raise OpError(f"melscale_fbanks: n_freqs={n_freqs} must be at least 2, n_mels={n_mels} and sample_rate="
                      f"{sample_rate} at least 1, and a bank has at most {MAX_WEIGHTS:,} weights")
    if not 0 <= f_min < f_max < math.inf:
        raise OpError(f"melscale_fbanks: f_min={f_min} and f_max={f_max} must ascend from 0 on")
    low, high = _to_mel(np.array([f_min, f_max], np.float64), mel_scale)
    corners = _to_hertz(np.linspace(low, high, n_mels + 2), mel_scale)
    hertz = np.linspace(0, sample_rate // 2, n_freqs)[:, None]
    widths = np.diff(corners)
    rising, falling = (hertz - corners[:-2]) / widths[:-1], (corners[2:] - hertz) / widths[1:]
    bank = np.maximum(0, np.minimum(rising, falling))
    if norm == "slaney":
        bank = bank * (2 / (corners[2:] - corners[:-2]))
    return bank.astype(np.float32)
