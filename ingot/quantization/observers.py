"""The magnitudes of values as a histogram in bounded memory, whatever the number of values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.errors import ValueFault

Array = np.ndarray[Any, Any]

BINS = 2048
AT_ONCE = 1 << 16  # elements that are counted at a time: what is made of them stays in the caches


class Observer:
    """How often |x| lies in each of BINS bins of one width, from 0 on, and the largest |x|.

    The width is a power of two, so that it does not depend on the order of the data. A larger value doubles it until it
    fits: neighbouring bins become one, and no count is lost. Zeros are counted apart, for every scale has them.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.zeros = 0
        self.largest = 0.0
        self.width = 0.0

    @property
    def any(self) -> bool:
        """Whether a value was counted."""
        return bool(self.zeros or self.largest)

    @property
    def is_flat(self) -> bool:
        """Whether all magnitudes were alike, as far as bins tell them apart."""
        return int(np.count_nonzero(self.counts)) + bool(self.zeros) == 1

    def add(self, values: Array, what: str) -> None:
        """Counts an array of floats. Raises ValueFault where `what` is NaN or infinite."""
        flat = values.ravel(order="K")  # as it lies in memory
        magnitudes = np.empty(min(flat.size, AT_ONCE), np.float32)
        bins = np.empty(magnitudes.size, np.intp)
        for begin in range(0, flat.size, AT_ONCE):
            some = flat[begin : begin + AT_ONCE].astype(np.float32, copy=False)
            self._add(np.abs(some, out=magnitudes[: some.size]), bins[: some.size], what)

    def beyond(self, limit: float) -> float:
        """The share of the values that are larger. Those of the limit's bin are taken to be spread evenly."""
        if not limit < self.largest:
            return 0.0
        at = int(limit / self.width)
        inside = (at + 1) - limit / self.width
        larger = inside * int(self.counts[at]) + int(self.counts[at + 1 :].sum())
        return float(larger / (self.zeros + int(self.counts.sum())))

    def _add(self, magnitudes: Array, bins: Array, what: str) -> None:
        """Counts magnitudes, which are lost. bins: as many integers, to work in."""
        largest = float(magnitudes.max())
        if not math.isfinite(largest):
            raise ValueFault(f"{what} is NaN or infinite: scales follow from finite values only")
        zeros = int(np.count_nonzero(magnitudes == 0))
        self.zeros += zeros
        if largest == 0:
            return
        self._reach(largest)
        if self.width > np.finfo(np.float32).tiny:  # exact, by a power of two
            magnitudes *= np.float32(1 / self.width)
            np.copyto(bins, magnitudes, casting="unsafe")
        else:
            np.copyto(bins, magnitudes * np.float64(1 / self.width), casting="unsafe")
        counts = np.bincount(bins, minlength=BINS + 1)
        counts[0] -= zeros
        counts[BINS - 1] += counts[BINS]  # the largest magnitude that the bins reach
        self.counts += counts[:BINS]
        self.largest = max(self.largest, largest)

    def _reach(self, largest: float) -> None:
        """Makes bins wide enough for a magnitude."""
        if not self.width:
            self.width = float(np.exp2(np.ceil(np.log2(largest / BINS))))
        while self.width * BINS < largest:
            halved = self.counts[0::2] + self.counts[1::2]
            self.counts = np.concatenate([halved, np.zeros(BINS - halved.size, np.int64)])
            self.width *= 2


class Means:
    """The mean of each channel over all that was seen: channels are dimension `axis`."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.sums: Array | None = None
        self.count = 0

    def add(self, values: Array) -> None:
        """Counts an array in."""
        others = tuple(i for i in range(values.ndim) if i != self.axis % values.ndim)
        sums = values.sum(others, dtype=np.float64)
        self.sums = sums if self.sums is None else self.sums + sums
        self.count += values.size // max(values.shape[self.axis], 1)

    @property
    def mean(self) -> Array:
        """Float64 [channels]."""
        assert self.sums is not None
        return self.sums / max(self.count, 1)
