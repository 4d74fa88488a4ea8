"""Calibration data from a user: batches of arrays for the inputs of a network, checked before they are used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dim
from ingot.engine.session import as_array
from ingot.errors import DTypeError, InputError, UserError
from ingot.ir import Network, Value
from ingot.llm.memory import available_memory
from ingot.npz_file import read_npz

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

GIVE = "give samples of its inputs, as the network will see them (a few hundred are usual): scales follow from those"
AT_ONCE = 32  # samples of a .npz file in a batch, where the network takes any number


class Batches:
    """The batches of a user's data as inputs of a network: one pass over them, at most `most` batches.

    Each batch is a dict by the inputs' names, a tuple or list in their order (what is left over, such as labels, is not
    read), or an array where the network has one input. Arrays are NumPy's, torch's, or any DLPack's. A path is that of
    a .npz file with an array for each input, of which the first dimension is cut into batches.

    A batch of zero samples is passed over.

    Raises UserError for what holds no samples, or the same element everywhere, InputError for a batch that does not
    fit, by its number.
    """

    def __init__(self, data: Any, network: Network, most: int | None) -> None:
        self.inputs = network.inputs
        self.flat: list[str] = []  # after a pass the float inputs of which all elements were alike
        self.most = most
        self.who, self._what = "data", "batches"
        if isinstance(data, str | os.PathLike):
            if not os.fspath(data):
                raise UserError("data is an empty path: give a .npz file, or an iterable of batches")
            self.who, self._what = str(Path(data)), "samples"
            self._data: Iterable[Any] = _of_file(Path(data), network.inputs)
        elif isinstance(data, Mapping):
            raise UserError("data is one dict of arrays: give a list of batches, [data], or a .npz file")
        elif isinstance(data, np.ndarray) or hasattr(data, "__dlpack__"):
            raise UserError(f"data is a single {type(data).__name__}: wrap it in a list of batches, [data]")
        elif isinstance(data, type) or not hasattr(data, "__iter__"):
            kind = f"the class {data.__name__}" if isinstance(data, type) else f"a {type(data).__name__}"
            raise UserError(f"data is {kind}: give an iterable of batches (a DataLoader, a list), or a .npz file")
        else:
            self._data = data
        try:
            self.total: int | None = len(self._data)  # type: ignore[arg-type]
        except Exception:  # none, or whatever another library says of one that it does not know
            self.total = None
        if self.total is not None and most is not None:
            self.total = min(self.total, most)

    def __iter__(self) -> Iterator[tuple[int, Feeds]]:
        """Each batch with its number."""
        count, empty = 0, True
        flat = {v.name: _Flat() for v in self.inputs}
        iterator = iter(self._data)
        for batch in iterator:
            feeds = self._feeds(batch, count)
            if any(array.size for array in feeds.values()):
                empty = False
                for name, one in flat.items():
                    one.add(feeds[name])
                yield count, feeds
            count += 1
            if count == self.most:
                break
        if not count:
            used = " (it is an iterator: was it used up before?)" if iterator is self._data else ""
            raise UserError(f"{self.who} has no {self._what}{used}: {GIVE}")
        if empty:
            raise UserError(f"{self.who} has no samples in {count} batch(es): {GIVE}")
        if flat and all(one.is_flat for one in flat.values()):
            what = ", ".join(f"{name!r} is {one.value + type(one.value)(0)}" for name, one in flat.items())
            raise UserError(f"{self.who}: samples are the same everywhere, {what}: {GIVE}")
        self.flat = [v.name for v in self.inputs if v.dtype.is_float and flat[v.name].is_flat]

    def _feeds(self, batch: Any, number: int) -> Feeds:
        who = f"batch {number} of {self.who}"
        names = [v.name for v in self.inputs]
        if isinstance(batch, Mapping):
            if missing := [name for name in names if name not in batch]:
                raise InputError(f"{who} has no {', '.join(missing)}; the network's inputs are {', '.join(names)}")
            if unknown := [str(name) for name in batch if name not in names]:
                raise InputError(f"{who} has {', '.join(unknown)[:200]}; the network's inputs are {', '.join(names)}")
            given = [batch[name] for name in names]
        elif isinstance(batch, tuple | list):
            if len(batch) < len(names):
                raise InputError(f"{who} has {len(batch)} arrays, and the network has the inputs {', '.join(names)}")
            given = list(batch[: len(names)])
        elif len(names) == 1:
            given = [batch]
        else:
            raise InputError(f"{who} is a {type(batch).__name__}, and the network has the inputs {', '.join(names)}")
        return {v.name: _fitted(value, v, who, self.inputs) for v, value in zip(self.inputs, given, strict=True)}


class _Flat:
    """Whether all elements that were seen, more than one, are alike. Once two differ, no more are looked at."""

    def __init__(self) -> None:
        self.value: Any = None
        self._count, self._alike = 0, True

    @property
    def is_flat(self) -> bool:
        return self._alike and self._count > 1

    def add(self, array: Array) -> None:
        if not self._alike or not array.size:
            return
        self.value = array.flat[0] if self.value is None else self.value
        self._count += array.size
        self._alike = bool((array == self.value).all())


def _fitted(value: Any, port: Value, who: str, inputs: Sequence[Value]) -> Array:
    """An array as an input takes it: floats become its float type, in this machine's byte order; nothing else is
    converted."""
    name = port.name
    try:
        array = as_array(value, name)
    except InputError as e:
        raise InputError(f"{who}: {e}") from None
    try:
        kind, wanted = dtypes.get(array.dtype.newbyteorder("=")), port.dtype
    except DTypeError:
        raise InputError(f"{who}: input {name!r} is an array of {array.dtype}, and the network takes "
                         f"{port.dtype.name}") from None  # fmt: skip
    array = array.astype(kind.numpy, copy=False)  # the other byte order is converted
    if kind is not wanted and kind in dtypes.FLOATS and wanted in dtypes.FLOATS:
        array = array.astype(wanted.numpy)
    elif kind is not wanted:
        raise InputError(f"{who}: input {name!r} is {kind.name}, and the network takes {wanted.name}")
    shape = port.shape
    if len(array.shape) != len(shape) or any(
        type(d) is int and d != n for d, n in zip(shape, array.shape, strict=True)
    ):
        todo = f": {_named(inputs)}" if _of_other_size(array, port) else ""
        raise InputError(f"{who}: input {name!r} is {list(array.shape)}, and the network takes {port.spec}{todo}")
    if kind in dtypes.FLOATS and not np.isfinite(array).all():
        raise InputError(f"{who}: input {name!r} has NaN or infinite elements")
    return array


def _of_other_size(array: Array, port: Value) -> bool:
    """Whether an array would fit an input if the number of samples were not fixed."""
    given, shape = array.shape, port.shape
    if len(given) != len(shape):
        return False
    return all(type(d) is not int or d == n for d, n in zip(shape[1:], given[1:], strict=True))


def _named(inputs: Sequence[Value]) -> str:
    """What to do so that a network takes any number of samples."""
    names = ", ".join(f'"{v.name}": {{0: "N"}}' for v in inputs if v.shape)
    return f"name the batch, dynamic={{{names}}} for a torch module, or in the export of a file"


def _of_file(path: Path, inputs: Sequence[Value]) -> list[Feeds]:
    """The batches of a .npz file: of as many samples as the network takes, or AT_ONCE within its bounds."""
    if path.suffix != ".npz":
        raise UserError(f"{path}: calibration data come from a .npz file, or in Python from an iterable of batches")
    arrays = read_npz(path, available_memory())
    names = [v.name for v in inputs]
    if arrays.keys() != set(names):
        raise InputError(f"{path} has the arrays {', '.join(arrays) or '(none)'}, and the network's inputs are "
                         f"{', '.join(names)}: write one array for each, under its name")  # fmt: skip
    if flat := [name for name in names if arrays[name].ndim != len(inputs[names.index(name)].shape)]:
        port = inputs[names.index(flat[0])]
        raise InputError(f"{path}: {flat[0]} is {list(arrays[flat[0]].shape)}, and the network takes {port.spec}")
    if any(not v.shape for v in inputs):
        return [arrays]
    sizes = {v.shape[0] for v in inputs}
    (size,) = sizes if len(sizes) == 1 else (None,)
    counts = {len(array) for array in arrays.values()}
    if size is None or len(counts) > 1:  # inputs of which not all are cut into samples: one batch
        return [arrays]
    (count,) = counts
    least = max(size.min, 1) if isinstance(size, Dim) else 1
    most = size if isinstance(size, int) else min(AT_ONCE, getattr(size, "max", None) or AT_ONCE)
    each = max(most, least)
    if isinstance(size, int) and (not size or count % size):
        raise InputError(f"{path} has {count} samples, and the network takes {size} at a time: a multiple of that is "
                         f"needed; or {_named(inputs)}")  # fmt: skip
    cuts = [*range(0, count, each), count]
    if count > each and 0 < count % each < least:  # too few are left over: all batches are of nearly one size
        pieces = min(len(cuts) - 1, count // least)
        cuts = [count * i // pieces for i in range(pieces + 1)]
    return [{name: array[a:b] for name, array in arrays.items()} for a, b in pairwise(cuts)]
