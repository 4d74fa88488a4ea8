"""Quantised weights as their files hold them, read as integers [outputs, inputs], scales and zero points.

What stands in the files: AWQ's GEMM layout packs eight outputs into 32 bits, in the order 0, 2, 4, 6, 1, 3, 5, 7; GPTQ
packs neighbouring inputs, and of its zero points neighbouring outputs, which lack 1 in its first version;
compressed-tensors packs neighbouring inputs of [outputs, inputs], or holds int8 and floats of 8 bits as they are. All
but the last hold numbers without a sign. Here half of their range is taken from them and from their zero points, so
that both are signed. The weight is (q − zero) · scale either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import CheckpointError

Array = np.ndarray[Any, Any]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that each four bits are of, the lowest first
GROUPS = (128, 64, 32)  # of int4 in an engine
AT_ONCE = 1 << 22  # elements that are unpacked at a time; bounds the intermediates


class BadTensorError(ValueError):
    """A tensor that cannot be what its name says: which, and why."""


@dataclass(frozen=True)
class Form:
    """How a weight is stored in an engine: as `dtype`, integers or floats of 8 bits, with a scale for each output and
    `group` inputs (0: all).

    scales: their type: float16 with groups, where that has all of them. repeat: how many groups one group of the file
    is. order: the column of the file that each column is; None: its own. zeros: whether there are zero points that are
    not 0. rows: whether its inputs become int8 by row.
    """

    dtype: DType
    group: int
    scales: DType
    repeat: int
    order: Array | None
    zeros: bool
    rows: bool


@dataclass(frozen=True)
class QuantizedWeight:
    """The weight of a layer, in the place of a float one.

    Attributes:
        name: of the weight that it stands for.
        shape: [outputs, inputs].
        tensors: what it is stored in.
        bits: of an integer; 0 where the file holds floats of 8 bits.
        group: so many inputs share a scale.
        columns: the group of each input, where that is not simply one after the other.
        scale_type: what the file holds scales as.
        integers, scales, zeros: read int8 [outputs, inputs], float32 [outputs, groups] and int8 [outputs, groups];
            of floats `integers` reads these, and scales are [outputs or 1, inputs or 1] by `block`.
    """

    name: str
    shape: tuple[int, int]
    tensors: tuple[str, ...]
    bits: int
    group: int
    integers: Callable[[], Array]
    scales: Callable[[], Array]
    zeros: Callable[[], Array] | None = None
    columns: Array | None = None
    block: tuple[int, int] | None = None
    rows: str = ""
    scale_type: DType = dtypes.float32

    @cached_property
    def has_zeros(self) -> bool:
        """Whether a zero point is not 0."""
        return self.zeros is not None and bool(self.zeros().any())

    @cached_property
    def order(self) -> Array | None:
        """The columns sorted by group, the first first; None where they lie so, or where groups are not of one size."""
        if self.columns is None or not self.even:
            return None
        return np.argsort(self.columns, kind="stable").astype(np.int32)

    @cached_property
    def even(self) -> bool:
        """Whether all groups are of one size."""
        if self.columns is None:
            return True
        counts = np.bincount(self.columns, minlength=self.shape[1] // self.group)
        return bool((counts == self.group).all())

    @cached_property
    def in_float16(self) -> bool:
        """Whether float16 has every scale as it is."""
        if self.scale_type is dtypes.float16:
            return True
        wide = self.scales()
        with np.errstate(over="ignore"):
            return bool((wide.astype(np.float16).astype(np.float32) == wide).all())

    def form(self) -> Form | str:
        """How an engine stores it, or why it becomes floats."""
        inputs = self.shape[1]
        if not self.bits and (self.block is not None or self.group != inputs):
            return "there is no product of floats of 8 bits in groups or blocks"
        if not self.bits:
            return Form(dtypes.float8_e4m3fn, 0, dtypes.float32, 1, None, False, False)
        if not self.even:
            return "its groups are of several sizes"
        size = next((n for n in GROUPS if self.group % n == 0), 0) if self.bits == 4 else 0
        if not size and self.group != inputs:
            return f"there is no product of {self.bits}-bit integers in groups of {self.group}"
        dtype = dtypes.int4 if size else dtypes.int8
        scales = dtypes.float16 if size and self.in_float16 else dtypes.float32
        rows = self.rows == "int8"
        return Form(dtype, size, scales, self.group // size if size else 1, self.order, self.has_zeros, rows)

    def floats(self) -> Array:
        """float32 [outputs, inputs]: (q − zero) · scale, rounded to float32 as that is where the scale has more than 16
        bits."""
        outputs, inputs = self.shape
        numbers, scales = self.integers(), self.scales()
        zeros = self.zeros() if self.has_zeros and self.zeros is not None else None
        found = np.empty(self.shape, np.float32)
        step = max(1, AT_ONCE // inputs)
        for begin in range(0, outputs, step):
            some = slice(begin, min(begin + step, outputs))
            if self.block is not None:
                lines = np.arange(some.start, some.stop) // self.block[0]
                by = np.repeat(scales[lines], self.block[1], 1)[:, :inputs]
            else:
                by = self._spread(scales[some])
            wide = numbers[some].astype(np.float32)
            if zeros is not None:
                wide -= self._spread(zeros[some])  # whole numbers below 2⁹: exact
            with np.errstate(all="ignore"):
                np.multiply(wide, by, out=found[some])
        return found

    def _spread(self, by_group: Array) -> Array:
        return by_group[:, self.columns] if self.columns is not None else np.repeat(by_group, self.group, 1)

    def stored(self, form: Form) -> dict[str, Callable[[], Array]]:
        """The arrays of a form, by the ends of their parameters' names."""

        def integers() -> Array:
            found = self.integers()
            found = found if form.order is None else found[:, form.order]
            return np.ascontiguousarray(found).astype(form.dtype.numpy, copy=False)

        made: dict[str, Callable[[], Array]] = {
            form.dtype.name: integers,
            "scales": lambda: np.repeat(self.scales().astype(form.scales.numpy), form.repeat, 1),
        }
        if form.zeros and self.zeros is not None:
            zeros = self.zeros
            made["zeros"] = lambda: np.repeat(zeros(), form.repeat, 1)
        return made


# ----------------------------------------------------------------------------------------------------------- unpacking


def unpacked(packed: Array, bits: int) -> Array:
    """int32 [..., n] → uint8 [..., n · 32 / bits], the lowest bits first."""
    found = np.ascontiguousarray(packed).view(np.uint8)
    if bits == 8:
        return found
    both = np.empty((*found.shape, 2), np.uint8)
    np.bitwise_and(found, 15, out=both[..., 0])
    np.right_shift(found, 4, out=both[..., 1])
    return both.reshape(*packed.shape[:-1], -1)


def awq_columns(packed: Array) -> Array:
    """AWQ's int32 [n, outputs / 8] → int8 [outputs, n], less 8."""
    by_eight = unpacked(packed, 4).reshape(len(packed), -1, 8)
    ordered = by_eight[..., np.argsort(AWQ_ORDER)].reshape(len(packed), -1)
    return np.ascontiguousarray((ordered.view(np.int8) - 8).T)


def gptq_rows(packed: Array, bits: int) -> Array:
    """GPTQ's int32 [inputs · bits / 32, outputs] → int8 [outputs, inputs], less half of the range."""
    return centred(unpacked(packed.T, bits), bits)


def gptq_zeros(packed: Array, bits: int, minus: int) -> Array:
    """GPTQ's int32 [groups, outputs · bits / 32] → int8 [outputs, groups], less half of the range. What a zero point
    lacks is added within its bits: the largest stands for the 0 that 1 was taken from."""
    found = unpacked(packed, bits) + np.uint8(minus)
    return np.ascontiguousarray(centred(found & np.uint8((1 << bits) - 1), bits).T)


def centred(numbers: Array, bits: int) -> Array:
    """uint8 less half of the range of so many bits, as int8."""
    return (numbers ^ np.uint8(128)).view(np.int8) if bits == 8 else numbers.view(np.int8) - np.int8(8)


def group_of_columns(index: Array, group: int) -> Array | None:
    """The group of each column, or None where that is one after the other. Raises BadTensorError for others."""
    groups = len(index) // group
    if index.size and (int(index.min()) < 0 or int(index.max()) >= groups):
        wrong = int(index[(index < 0) | (index >= groups)][0])
        raise BadTensorError(f"holds the group {wrong}, and there are 0 to {groups - 1}")
    plain = np.arange(len(index)) // group
    return None if np.array_equal(index, plain) else index.astype(np.int32)


def finite(scales: Array) -> Array:
    """Scales as float32. Raises BadTensorError for one that is no number."""
    wide = scales.astype(np.float32)
    if not np.isfinite(wide).all():
        raise BadTensorError(f"holds {int((~np.isfinite(wide)).sum()):,} scales that are NaN or infinite")
    return wide


def numbers_of_8(floats: Array) -> Array:
    """float8 as they are. Raises BadTensorError where one is no number."""
    if none := int(((floats.view(np.uint8) & 127) == 127).sum()):
        raise BadTensorError(f"holds {none:,} elements that are NaN")
    return floats


def named(name: str, where: Any, make: Callable[[], Array]) -> Array:
    """What is made of a tensor. Raises CheckpointError with its name where that fails."""
    try:
        return make()
    except BadTensorError as error:
        raise CheckpointError(f"{where}: {name} {error}") from None
