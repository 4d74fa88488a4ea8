"""Discrete Fourier transforms and the spectra of 10 seconds of sound against torch eager."""

from __future__ import annotations

import torch

from benchmarks.harness import Options, Result
from benchmarks.order import Case, against_torch
from ingot import functional as F

SAMPLES = 160_000  # 10 s of 16 kHz
WINDOW, HOP = 400, 160  # as of speech nets
HANN = F.hann_window(WINDOW)

CASES: tuple[Case, ...] = (
    (
        "spectra of 10 s of 16 kHz",
        (1, SAMPLES),
        lambda x: F.stft(x, WINDOW, HOP, window=HANN),
        lambda t: torch.stft(t, WINDOW, HOP, window=torch.from_numpy(HANN), return_complex=True),
    ),
    *((f"rfft of 1000 rows of {n}", (1000, n), F.rfft, torch.fft.rfft) for n in (400, 512, 1024)),
    ("rfft of 1000 rows of a prime, 1009", (1000, 1009), F.rfft, torch.fft.rfft),
    ("rfft of one row of 4096", (1, 4096), F.rfft, torch.fft.rfft),
    ("rfft2 of 64 images of 64 x 64", (64, 64, 64), F.rfft2, torch.fft.rfft2),
)


def fourier(options: Options) -> Result:
    """Normal float32 numbers."""
    return against_torch("fourier", CASES, options)
