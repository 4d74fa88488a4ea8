"""ONNX ops on signals: Fourier transforms, spectra, weights of mel scales, and counts of n-grams."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.dims import Dimension
from ingot.frontends.onnx.ops.common import cast, few, number
from ingot.frontends.onnx.ops.shape import part
from ingot.frontends.onnx.table import Anything, onnx
from ingot.frontends.onnx.tensors import dtype_of
from ingot.frontends.table import Ints, MaybeFloats, MaybeInt, MaybeInts, MaybeTensor, Result, Tensor, Unsupported
from ingot.ir import F
from ingot.ir.spec import axis_of


def _pairs(x: Any) -> Any:
    """[..., 1] of real numbers, or [..., 2], as [..., 2]."""
    return x if x.shape[-1] == 2 else F.concat(x, F.mul(x, 0.0), dim=len(x.shape) - 1)


def _fitted(x: Any, axis: int, count: int | None) -> Any:
    """So many elements along an axis: the first ones, or zeros behind those there are."""
    size = x.shape[axis]
    if count is None or count == size:
        return x
    if not isinstance(size, int):
        raise Unsupported("a length beside a size that only a run knows is not supported")
    if count < size:
        return part(x, axis, 0, count)
    rank = len(x.shape)
    after = tuple(count - size if i == axis else 0 for i in range(rank))
    return F.pad(x, before=(0,) * rank, after=after, value=0.0)


def _transform(x: Any, length: int | None, axis: int, inverse: bool, onesided: bool) -> Any:
    rank = len(x.shape)
    at = axis_of(axis, rank, "axis")
    if at == rank - 1 or x.shape[-1] not in (1, 2):
        raise Unsupported(f"{x.spec} must have 1 or 2 numbers for each element, and another axis")
    if inverse and onesided:
        found = fn.irfft(_pairs(x), length, at - rank + 1)
        return F.reshape(found, (*found.shape, 1))
    whole = _fitted(x, at, length)
    if inverse:
        return fn.ifft(_pairs(whole), None, at - rank + 1)
    if x.shape[-1] == 2:
        if onesided:
            raise Unsupported("complex numbers have no one-sided transform")
        return fn.fft(whole, None, at - rank + 1)
    return F.rfft(F.reshape(whole, whole.shape[:-1]), axis=at - rank + 1, norm="backward", onesided=onesided)


@onnx("DFT", until=19)
def dft_17(x: Tensor, length: MaybeInt = None, *, axis: int = 1, inverse: bool = False, onesided: bool = False
           ) -> Result:  # fmt: skip
    return _transform(x, length, axis, inverse, onesided)


@onnx("DFT", since=20)
def dft(
    x: Tensor, length: MaybeInt = None, axis: MaybeInt = None, *, inverse: bool = False, onesided: bool = False
) -> Result:
    return _transform(x, length, -2 if axis is None else axis, inverse, onesided)


@onnx("STFT")
def stft(
    signal: Tensor, step: int, window: MaybeTensor = None, length: MaybeInt = None, *, onesided: bool = True
) -> Result:
    if len(signal.shape) == 3 and signal.shape[2] == 2:
        raise Unsupported("spectra of complex signals are not supported")
    samples: Dimension = signal.shape[1]
    given = window.shape[0] if window is not None and length is None else length
    count = samples if given is None else given
    if not isinstance(count, int):
        raise Unsupported("the length of a frame must be known")
    plain = F.reshape(signal, signal.shape[:2])
    found = fn.stft(plain, count, step, count, window, center=False, onesided=onesided)
    return F.permute(found, (0, 2, 1, 3))


@onnx("MelWeightMatrix")
def mel_weight_matrix(
    bins: int, length: int, rate: int, low: float, high: float, *, output_datatype: int = 1
) -> Result:
    """Triangles between neighbouring frequencies, each 1 at its peak."""
    rows = length // 2 + 1
    few(max(rows, 1) * max(bins + 2, 1))
    ends = [2595 * math.log10(1 + f / 700) for f in (low, high)]
    mels = ends[0] + np.arange(bins + 2) * (ends[1] - ends[0]) / (bins + 2)
    edges = np.floor((length + 1) * 700 * (10 ** (mels / 2595) - 1) / rate)
    first, peak, last = edges[:-2], edges[1:-1], edges[2:]
    row = np.arange(rows)[:, None]
    up = np.where(peak > first, (row - first) / np.maximum(peak - first, 1), 1.0)
    down = np.where(last > peak, (last - row) / np.maximum(last - peak, 1), 0.0)
    rising = np.where((row >= first) & (row <= peak), up, 0.0)
    falling = (row > peak) & (row < last)
    return np.where(falling, down, rising).astype(dtype_of(output_datatype, "output_datatype").numpy)


@onnx("TfIdfVectorizer")
def tf_idf(
    x: Tensor, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str, ngram_counts: Ints,
    ngram_indexes: Ints, pool_int64s: MaybeInts = None, pool_strings: Anything = None, weights: MaybeFloats = None,
) -> Result:  # fmt: skip
    """How often each n-gram of the pool stands in each row: windows compared with all of the pool at once."""
    if pool_int64s is None or mode not in ("TF", "IDF", "TFIDF"):
        raise Unsupported("only integers, by TF, IDF or TFIDF, are supported")
    rows = F.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    batch, size = rows.shape
    if not isinstance(size, int):
        raise Unsupported("the length of a row must be known")
    pool, total, first = np.array(pool_int64s, np.int64), None, 0
    width = max(ngram_indexes) + 1
    few(width * max(len(pool), 1))
    for n, start in enumerate(ngram_counts, 1):
        end = ngram_counts[n] if n < len(ngram_counts) else len(pool)
        grams = pool[start:end].reshape(-1, n)
        columns = np.array(ngram_indexes[first : first + len(grams)])
        first += len(grams)
        if not len(grams) or not min_gram_length <= n <= max_gram_length:
            continue
        for skip in range(max_skip_count + 1 if n > 1 else 1):
            if (n - 1) * (skip + 1) >= size:
                break
            places = np.arange(few(size) - (n - 1) * (skip + 1))[:, None] + np.arange(n) * (skip + 1)
            windows = F.take(cast(rows, dtypes.int64), x.network.constant(places), axis=1)  # [B, P, n]
            same = F.equal(F.reshape(windows, (batch, len(places), 1, n)), x.network.constant(grams[None, None]))
            hits = F.reduce_min(cast(same, dtypes.int32), axes=(3,), keepdims=False)
            counts = cast(F.reduce_sum(hits, axes=(1,), keepdims=False), dtypes.float32)  # [B, grams]
            put = np.zeros((len(grams), width), np.float32)
            put[np.arange(len(grams)), columns] = 1
            found = F.matmul(counts, x.network.constant(put))
            total = found if total is None else F.add(total, found)
    if total is None:
        total = F.expand(number(cast(rows, dtypes.float32), 0), (batch, width))
    if mode != "TF":
        share = np.ones(width, np.float32)
        share[list(ngram_indexes)] = weights if weights is not None else 1.0
        total = F.mul(total if mode == "TFIDF" else F.minimum(total, 1.0), share)
    return F.reshape(total, (width,)) if len(x.shape) == 1 else total


