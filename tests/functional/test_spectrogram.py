"""stft and istft against torch: every argument, batches, signals of a length that a run shows; padding by edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ingot import functional as F
from ingot.dims import Dim
from ingot.errors import OpError
from tests.functional.test_fourier import close, native, normal, number, pairs

WINDOWS: dict[str, Any] = {"hann": F.hann_window, "hamming": F.hamming_window}

CASES: list[dict[str, Any]] = [
    {"n_fft": 16, "window": "hann"}, {"n_fft": 16, "hop_length": 5, "win_length": 12, "window": "hamming"},
    {"n_fft": 15, "hop_length": 4, "window": "hamming", "normalized": True},
    {"n_fft": 16, "hop_length": 7, "center": False, "window": "hamming"}, {"n_fft": 20, "onesided": False},
    {"n_fft": 16, "win_length": 9, "hop_length": 3}, {"n_fft": 16, "hop_length": 16, "pad_mode": "replicate"},
    {"n_fft": 12, "hop_length": 1, "pad_mode": "constant"}, {"n_fft": 16, "pad_mode": "circular", "window": "hann"},
]  # fmt: skip


def made(how: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments for ours and for torch's, whose window is in double precision."""
    width = how.get("win_length", how["n_fft"])
    window = WINDOWS[how["window"]](width) if "window" in how else None
    theirs = {**how, "window": torch.ones(width, dtype=torch.float64) if window is None else torch.from_numpy(
        window).double(), "return_complex": True}  # fmt: skip
    return {**how, "window": window}, theirs


@pytest.mark.parametrize("how", CASES)
def test_stft(how: dict[str, Any]) -> None:
    ours, theirs = made(how)
    runs = [[normal(2, 61)], [normal(3, 97)], [normal(0, 40)]]
    found = native(lambda x: F.stft(x, **ours), [(Dim("N"), Dim("T", 21, 200))], *runs)
    for (x,), got in zip(runs, found, strict=True):
        want = pairs(torch.stft(torch.from_numpy(x).double(), **theirs)) if len(x) else got
        close(got, want)
        close(F.stft(x, **ours), got.astype(np.float64))


@pytest.mark.parametrize("how", [c for c in CASES if c["n_fft"] != 16 or c.get("hop_length") != 16])
@pytest.mark.parametrize("length", [None, 20])
def test_istft(how: dict[str, Any], length: int | None) -> None:
    """Of spectra that are no signal's, too: then overlapping frames disagree."""
    ours, theirs = made(how)
    for at in (ours, theirs):
        at.pop("pad_mode", None)
    bins = how["n_fft"] // 2 + 1 if how.get("onesided", True) else how["n_fft"]
    spectra = normal(2, bins, 19, 2)
    if length is None:
        spectra = F.stft(normal(2, 61), **{**ours, "pad_mode": "constant"})
    theirs = {**theirs, "return_complex": False, "length": length}
    if not how.get("onesided", True):
        theirs["return_complex"] = True
    want = pairs(torch.istft(number(np.ascontiguousarray(spectra)), **theirs))
    want = want[..., 0] if theirs["return_complex"] else want
    frames = spectra.shape[-2]
    for shape in ((2, bins, frames, 2), (Dim("N"), bins, Dim("F", 4, 200), 2)):
        (got,) = native(lambda z: F.istft(z, **ours, length=length), [shape], [np.ascontiguousarray(spectra)])
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
def test_more_samples_than_frames_have() -> None:
    """They are zero, as in torch."""
    window, spectra = F.hann_window(16), normal(9, 7, 2)
    want = torch.istft(number(spectra), 16, window=torch.from_numpy(window).double(), length=60).numpy()
    for shape in ((9, 7, 2), (9, Dim("F", 4, 200), 2)):
        (got,) = native(lambda z: F.istft(z, 16, window=window, length=60), [shape], [spectra])
        close(got, want)


def test_there_and_back() -> None:
    """A signal of any length comes back, in one engine for all."""
    window = F.hann_window(32)

    def both(x: Any) -> Any:
        return F.istft(F.stft(x, 32, 8, window=window), 32, 8, window=window)

    runs = [[normal(2, 64)], [normal(1, 160)]]
    for (x,), got in zip(runs, native(both, [(Dim("N"), Dim("T", 17, 500))], *runs), strict=True):
        np.testing.assert_allclose(got, x, atol=2e-6)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_by_edges(mode: str) -> None:
    x = normal(2, 3, 7)
    want = torch.nn.functional.pad(torch.from_numpy(x), (3, 2), mode).numpy()
    for call in (F.pad(x, (3, 2), mode), *native(lambda v: F.pad(v, (3, 2), mode), [(2, 3, Dim("T", 4))], [x])):
        np.testing.assert_array_equal(call, want)
    np.testing.assert_array_equal(F.pad(x, (0, 1, 1, 0), mode)[:, 1:, :-1], x)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: F.stft(normal(40), 0), "n_fft=0 must be an int from 1"),
    (lambda: F.stft(normal(40), 16, 0), "hop_length=0 must be at least 1"),
    (lambda: F.stft(normal(40), 16, win_length=17), "win_length=17 from 1 to n_fft=16"),
    (lambda: F.stft(normal(40), 16, window=normal(15)), r"shape \[16\], which is win_length, not \[15\]"),
    (lambda: F.stft(normal(40), 16, pad_mode="edge"), "pad_mode must be one of constant, reflect"),
    (lambda: F.stft(normal(10), 16, center=False), "windows of 16 elements do not fit into the 10"),
    (lambda: F.stft(normal(5), 16), "starts at 8, and x has 5"),
    (lambda: F.istft(normal(8, 5, 2), 16), r"must be \[\.\.\., 9, frames, 2\], not \[8, 5, 2\]"),
    (lambda: F.istft(normal(9, 5, 2), 16, 16, window=F.hann_window(16)), "leave samples in no frame"),
    (lambda: F.istft(normal(9, 5, 2), 16, 17), "leave samples in no frame"),
    (lambda: F.pad(normal(4), (-1, 0), "reflect"), "mode reflect cannot cut off"),
    (lambda: F.pad(normal(4), (1, 0), "edge"), "mode must be one of"),
])  # fmt: skip
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(OpError, match=message):
        call()
