"""The short-time Fourier transform and its way back, with torch's arguments; spectra are pairs (real, imaginary)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.errors import OpError
from ingot.functional.shape import PAD_MODES, Size, pad
from ingot.functional.tensor import Tensor
from ingot.ir import F, Value
from ingot.ir.sizes import as_size

Array = np.ndarray[Any, Any]

MAX_POINTS = 1 << 20
LEAST = 1e-11  # a sum of squared windows below this says that a sample is in no frame


def _lengths(function: str, n_fft: int, hop_length: int | None, win_length: int | None) -> tuple[int, int]:
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if any(type(n) is not int for n in (n_fft, hop, width)) or not 1 <= n_fft <= MAX_POINTS:
        raise OpError(f"{function}: n_fft={n_fft!r:.40} must be an int from 1 to {MAX_POINTS:,}, and hop_length and "
                      "win_length ints")
    if hop < 1 or not 1 <= width <= n_fft:
        raise OpError(f"{function}: hop_length={hop} must be at least 1 and win_length={width} from 1 to n_fft={n_fft}")
    return hop, width


def _window(function: str, window: Tensor | None, width: int, n_fft: int, like: Tensor) -> Tensor | None:
    """The window in the middle of n_fft elements, in the type of the signal; None for one of ones that fills them."""
    if window is None:
        if width == n_fft:
            return None
        window = np.ones(width, np.float32)
    if tuple(window.shape) != (width,):
        raise OpError(f"{function}: the window must have shape [{width}], which is win_length, not "
                      f"{list(window.shape)}")
    if not isinstance(window, Value):
        window = np.asarray(window).astype(dtypes.get(like.dtype).numpy)
    left = (n_fft - width) // 2
    return pad(window, (left, n_fft - width - left)) if width < n_fft else window


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool = True,
) -> Tensor:
    """Spectra of windows on a signal: [..., samples] → [..., n_fft/2 + 1, frames, 2], or [..., n_fft, frames, 2].

    Frames are views of the signal, each multiplied by the window and transformed.

    Args:
        input: real floats, batches of signals of any length.
        n_fft: samples that are transformed.
        hop_length: how far frames are apart; None: n_fft / 4.
        win_length: the window's length; None: n_fft. A shorter one has zeros at both sides.
        window: [win_length]; None: ones.
        center: frame t has sample t·hop_length in its middle; else it begins there.
        pad_mode: of center: what n_fft/2 samples at both ends are (`pad`'s modes).
        normalized: divides by √n_fft.
        onesided: the first n_fft/2 + 1 numbers; the others are their conjugates.

    Raises:
        OpError: lengths that do not fit together, another mode, a signal shorter than a frame; no floats.
    """
    hop, width = _lengths("stft", n_fft, hop_length, win_length)
    if pad_mode not in PAD_MODES:
        raise OpError(f"stft: pad_mode must be one of {', '.join(PAD_MODES)}, not {pad_mode!r:.40}")
    if not len(input.shape):
        raise OpError("stft: the input must have a dimension of samples")
    if center:
        input = pad(input, (n_fft // 2, n_fft // 2), pad_mode)
    frames = F.unfold(input, axis=-1, size=n_fft, step=hop)
    scale = _window("stft", window, width, n_fft, input)
    frames = frames if scale is None else F.mul(frames, scale)
    spectra = F.rfft(frames, norm="ortho" if normalized else "backward", onesided=onesided)
    rank = len(spectra.shape)
    return F.permute(spectra, (*range(rank - 3), rank - 2, rank - 3, rank - 1))


def _joined(frames: Tensor, hop: int) -> Tensor:
    """The sums of frames that overlap: [..., frames, n] → [..., (frames + q − 1)·hop], q = ⌈n / hop⌉.

    Pieces of one hop of all frames are rows: [q, frames]. A row of q zeros more, read as if it were one shorter, shifts
    row i by i: what belongs to one place then stands in one column.
    """
    *batch, count, n = frames.shape
    q = -(-n // hop)
    whole = pad(frames, (0, q * hop - n)) if q * hop > n else frames
    at = len(batch)
    rows = F.permute(F.reshape(whole, (*batch, count, q, hop)), (*range(at), at + 1, at, at + 2))
    longer, columns = dims.add(count, q), dims.add(count, q - 1)
    rows = F.reshape(pad(rows, (0, 0, 0, q)), (*batch, dims.mul(q, longer), hop))
    sizes = (*batch, dims.mul(q, columns), hop)
    shifted = F.reshape(F.slice(rows, (0,) * len(sizes), sizes, (1,) * len(sizes)), (*batch, q, columns, hop))
    return F.reshape(F.reduce_sum(shifted, axes=(at,)), (*batch, dims.mul(columns, hop)))


def _samples(x: Tensor, start: int, size: Dimension) -> Tensor:
    sizes = (*x.shape[:-1], size)
    return F.slice(x, (*[0] * (len(sizes) - 1), start), sizes, (1,) * len(sizes))


def _check_overlap(window: Array, hop: int, count: Dimension, start: int, size: Dimension) -> None:
    """Whether every sample is in a frame, by the frames that there are; of a number that only a run shows, by some."""
    few = count if isinstance(count, int) else 2 * -(-len(window) // hop) + 1
    total = _joined(np.broadcast_to(window.astype(np.float64) ** 2, (few, len(window))), hop)
    end = start + size if isinstance(size, int) and isinstance(count, int) else len(window) + hop * (few - 1) - start
    least = float(np.min(total[start : max(end, start)], initial=np.inf))
    if least < LEAST:
        raise OpError(f"istft: the window and a hop of {hop} leave samples in no frame: the squares of the windows sum "
                      f"to {least:.3g} somewhere; take a shorter hop_length, or center=True")


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool = True,
    length: Size | None = None,
) -> Tensor:
    """The way back from `stft`: [..., bins, frames, 2] → [..., samples], by least squares where frames overlap.

    Args:
        length: of the signal; None: all samples that frames have, with `center` without n_fft/2 at both ends.

    The others are as in `stft`.

    Raises:
        OpError: another number of bins, lengths that do not fit together, a known window that leaves samples in no
            frame; no floats.
    """
    hop, width = _lengths("istft", n_fft, hop_length, win_length)
    rank = len(input.shape)
    bins = n_fft // 2 + 1 if onesided else n_fft
    if rank < 3 or input.shape[-1] != 2 or input.shape[-3] != bins:
        raise OpError(f"istft: the input must be [..., {bins}, frames, 2], not {list(input.shape)}")
    spectra = F.permute(input, (*range(rank - 3), rank - 2, rank - 3, rank - 1))
    norm = "ortho" if normalized else "backward"
    if onesided:
        frames = F.irfft(spectra, n=n_fft, norm=norm)
    else:
        pairs = F.fft(spectra, norm=norm, inverse=True)
        sizes = (*pairs.shape[:-1], 1)
        frames = F.reshape(F.slice(pairs, (0,) * rank, sizes, (1,) * rank), sizes[:-1])
    scale = _window("istft", window, width, n_fft, input)
    count: Dimension = frames.shape[-2]
    start = n_fft // 2 if center else 0
    whole = dims.add(n_fft, dims.mul(hop, dims.add(count, -1)))
    there = dims.add(whole, -start)
    wanted = dims.add(there, -start) if length is None else as_size(length)
    behind = dims.add(wanted, dims.mul(there, -1))  # samples that no frame has: none where this is not above 0
    short = dims.bounds(behind)[1] > 0
    size = there if short else wanted
    if scale is None:
        scale = np.ones(n_fft, dtypes.get(input.dtype).numpy)
    if not isinstance(scale, Value):
        _check_overlap(scale, hop, count, start, size)
    squares = F.mul(scale, scale)
    if isinstance(frames, Value) and not isinstance(squares, Value):
        squares = frames.network.constant(squares)
    total = _samples(_joined(F.expand(squares, (count, n_fft)), hop), start, size)
    signal = F.div(_samples(_joined(F.mul(frames, scale), hop), start, size), total)
    if not short:
        return signal
    return _samples(pad(signal, (0, behind if isinstance(behind, int) else wanted)), 0, wanted)
