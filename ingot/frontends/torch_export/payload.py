"""The tensors of a .pt2 archive: each a strided window of a stored member, checked before any of it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ingot.frontends.torch_export.archive import MAX_LISTED, MAX_MEMBERS, MAX_NAME, Archive
from ingot.frontends.torch_export.decode import Malformed, boolean, dict_of, optional, record, text
from ingot.frontends.torch_export.graph import STRIDED, TensorMeta, tensor_meta
from ingot.ir.spec import MAX_RANK, Spec
from ingot.tensor_table import name_fault

Array = np.ndarray[Any, Any]

WEIGHTS = "data/weights/"  # where the state dict lies
FREE = 64 << 20  # bytes that a tensor may have beyond its storage: expanded buffers repeat theirs


class Stored(NamedTuple):
    """One tensor: the member that holds its storage and the window of it. Tied tensors have equal ones."""

    member: str
    spec: Spec
    strides: tuple[int, ...]
    offset: int


class _Entry(NamedTuple):
    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None


_config = record(
    lambda config: config,
    {
        "config": dict_of(
            record(
                lambda path_name, is_param, use_pickle, tensor_meta: _Entry(path_name, use_pickle, tensor_meta),
                {"path_name": text, "is_param": boolean, "use_pickle": boolean, "tensor_meta": optional(tensor_meta)},
            )
        )
    },
)


class Payload(Mapping[str, Array]):
    """name → array for the weights and constants of one model, each read when asked for.

    Pickled entries are known by name only: asking for one is a CheckpointError, so is one whose member is too short.
    """

    def __init__(self, archive: Archive, model: str) -> None:
        self._archive = archive
        self._stored: dict[str, Stored] = {}
        self._refused: dict[str, str] = {}
        for folder, word in ((WEIGHTS, "weights"), ("data/constants/", "constants")):
            if f"{folder}{model}.pt" in archive:
                raise archive.error(
                    f"{folder}{model}.pt holds its {word} as pickle. Reading a pickle can run any code, so ingot never "
                    "does; save the model again with torch.export.save of torch >= 2.11"
                )
            self._read_config(folder, f"{folder}{model}_{word}_config.json")
        if len(self._stored) > MAX_MEMBERS:
            raise archive.error(f"names {len(self._stored):,} tensors; at most {MAX_MEMBERS:,} are read")

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def info(self, name: str) -> Stored:
        """Where a tensor lies. Raises CheckpointError when it is pickled, or not there."""
        if name in self._refused:
            raise self._archive.error(self._refused[name])
        if name not in self._stored:
            raise self._archive.error(f"has no tensor {name[:200]!r}, which its program reads")
        return self._stored[name]

    def state(self) -> dict[str, Stored]:
        """Where the tensors of the state dict lie; tied ones lie in one place."""
        return {name: stored for name, stored in self._stored.items() if stored.member.startswith(WEIGHTS)}

    def __getitem__(self, name: str) -> Array:
        stored = self.info(name)
        dtype = stored.spec.dtype.numpy
        flat = self._archive.array(stored.member).view(f"V{dtype.itemsize}")  # NumPy strides no floats of 8 bits
        shape = stored.spec.evaluate({})
        if 0 in shape:
            return np.empty(shape, dtype)
        strides = [step * dtype.itemsize for step in stored.strides]
        window = np.lib.stride_tricks.as_strided(flat[stored.offset :], shape, strides)
        return np.ascontiguousarray(window).reshape(shape).view(dtype)

    def _read_config(self, folder: str, member: str) -> None:
        if member not in self._archive:
            raise self._archive.error(f"has no {member}, which says where its tensors lie")
        try:
            entries = _config(self._archive.json(member))
        except Malformed as e:
            raise self._archive.error(f"{member}: {e}") from None
        faults = []
        for name, entry in entries.items():
            if name in self._stored or name in self._refused:
                faults.append(f"{name[:80]!r} is both a weight and a constant")
                continue
            found = self._entry(folder, name, entry)
            if isinstance(found, Stored):
                self._stored[name] = found
            elif found is not None:
                faults.append(f"{name[:80]!r}: {found}")
        if faults:
            rest = f"\n  … and {len(faults) - MAX_LISTED} more" if len(faults) > MAX_LISTED else ""
            raise self._archive.error("bad tensors:\n  " + "\n  ".join(faults[:MAX_LISTED]) + rest)

    def _entry(self, folder: str, name: str, entry: _Entry) -> Stored | str | None:
        """One checked tensor, what is wrong with it, or None for a pickle (which is remembered as such)."""
        if (fault := name_fault(name, MAX_NAME)) is not None:
            return fault
        member = folder + entry.path_name
        if "/" in entry.path_name or name_fault(entry.path_name, MAX_NAME) is not None:
            return f"{entry.path_name[:80]!r} is no plain name of a member"
        if entry.use_pickle or entry.tensor_meta is None:
            self._refused[name] = (
                f"{member} holds {name} as pickle. Reading a pickle can run any code, so ingot never does; "
                "give the module plain tensors and save it again"
            )
            return None
        if member not in self._archive:
            return f"its member {member} is not there"
        return _window(member, entry.tensor_meta, self._archive.size(member))


def _window(member: str, meta: TensorMeta, size: int) -> Stored | str:
    """The checked window of a member of `size` bytes, or what is wrong with it."""
    numbers = (*meta.sizes, *meta.strides, meta.storage_offset)
    if not all(isinstance(n, int) for n in numbers) or len(meta.sizes) > MAX_RANK:
        return f"its shape {str(meta.sizes)[:80]} must be at most {MAX_RANK} plain sizes"
    sizes, strides, offset = [tuple(map(int, part)) for part in (meta.sizes, meta.strides, (meta.storage_offset,))]
    if any(n < 0 for n in (*strides, *offset)):
        return f"its strides {list(strides)} and offset {offset[0]} must not be negative"
    if meta.layout != STRIDED:
        return f"its layout {meta.layout} is not the plain one (strided)"
    item = meta.dtype.numpy.itemsize
    elements = math.prod(sizes)
    if size % item:
        return f"its storage of {size:,} bytes is no whole number of {meta.dtype.name}s"
    if elements * item > size + FREE:
        return f"its {elements:,} elements of {item} bytes would come from a storage of {size:,} bytes"
    last = offset[0] + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if elements and last >= size // item:
        return f"it reaches element {last:,} of a storage of {size // item:,}"
    return Stored(member, Spec(sizes, meta.dtype), strides, offset[0])


def model_name(archive: Archive) -> str:
    """The one model of an archive. Raises CheckpointError when there is none, or several."""
    names = [n[len("models/") : -len(".json")] for n in archive if n.startswith("models/") and n.endswith(".json")]
    if len(names) != 1:
        listed = f": {', '.join(sorted(names))[:200]}" if names else ""
        raise archive.error(f"holds {len(names)} models{listed}; ingot reads archives of one")
    return names[0]

