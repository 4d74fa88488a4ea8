"""Mel filter banks against those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers.audio_utils import mel_filter_bank

from ingot import functional as F
from ingot.errors import OpError


@pytest.mark.parametrize("norm", [None, "slaney"])
@pytest.mark.parametrize("scale", ["htk", "slaney"])
@pytest.mark.parametrize(("bins", "bands", "low", "high", "rate"), [
    (201, 80, 0.0, 8000.0, 16000), (201, 128, 0.0, 8000.0, 16000), (513, 64, 50.0, 14000.0, 32000),
    (2, 1, 0, 900, 2000),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values")
def test_banks(bins: int, bands: int, low: float, high: float, rate: int, scale: str, norm: str | None) -> None:
    want = mel_filter_bank(bins, bands, low, high, rate, norm, scale)
    got = F.melscale_fbanks(bins, low, high, bands, rate, norm, scale)
    assert got.dtype == np.float32 and got.shape == (bins, bands)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


def test_refusals() -> None:
    for arguments, message in (
        ((201, 0.0, 8000.0, 80, 16000, "area"), "norm must be None or slaney"),
        ((201, 0.0, 8000.0, 80, 16000, None, "bark"), "mel_scale htk or slaney, not None and 'bark'"),
        ((1, 0.0, 8000.0, 80, 16000), "n_freqs=1 must be at least 2"),
        ((201, 0.0, 8000.0, 0, 16000), "n_mels=0"),
        ((1 << 20, 0.0, 8000.0, 1 << 10, 16000), "at most 67,108,864 weights"),
        ((201, 8000.0, 20.0, 80, 16000), "must ascend from 0 on"),
    ):
        with pytest.raises(OpError, match=message):
            F.melscale_fbanks(*arguments)
