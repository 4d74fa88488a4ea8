"""Arrays to a device and back without waiting for it: one copy there, and copies back that an event ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.ops.in_torch import to_array

Array = np.ndarray[Any, Any]

ALIGNMENT = 4  # words: 16 bytes


@dataclass(frozen=True)
class Place:
    """Where an array lies among words, its shape and its dtype."""

    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Layout:
    """Arrays one behind the other in one buffer of 32-bit words."""

    places: Mapping[str, Place]
    words: int

    @staticmethod
    def of(wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> Layout:
        """Of arrays of these shapes and dtypes."""
        places, at = {}, 0
        for name, (shape, dtype) in wanted.items():
            end = at + int(np.prod(shape)) * np.dtype(dtype).itemsize // 4
            places[name] = Place(at, end, shape, dtype)
            at = -(-end // ALIGNMENT) * ALIGNMENT
        return Layout(places, at)

    def arrays(self, words: Array) -> dict[str, Array]:
        """Views of an int32 array."""
        return {n: words[p.begin : p.end].view(p.dtype).reshape(p.shape) for n, p in self.places.items()}

    def tensors(self, torch: Any, words: Any) -> dict[str, Any]:
        """Views of an int32 tensor."""
        return {n: words[p.begin : p.end].view(getattr(torch, p.dtype)).view(p.shape) for n, p in self.places.items()}


class Transfer:
    """Copies between the host and one device, in the order of torch's current stream.

    Pinned memory is torch's: it is used again only when the copies from or to it have been made.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._on_gpu = device.type == "cuda"

    def words(self, layout: Layout) -> tuple[Any, dict[str, Array]]:
        """Memory of a layout on the host, and its arrays, for the caller to fill."""
        memory = self._torch.empty(layout.words, dtype=self._torch.int32, pin_memory=self._on_gpu)
        return memory, layout.arrays(memory.numpy())

    def back(self, tensor: Any) -> Any:
        """A tensor on the host that will hold the numbers of one on the device."""
        there = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._on_gpu)
        there.copy_(tensor, non_blocking=True)
        return there

    def mark(self) -> Any:
        """What `wait` waits for: all that was asked of the device so far."""
        if not self._on_gpu:
            return None
        event = self._torch.cuda.Event()
        event.record()
        return event

    @staticmethod
    def wait(event: Any) -> None:
        """Until it has happened."""
        if event is not None:
            event.synchronize()


def arrays_of(torch: Any, tensors: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of tensors on the host that belong to nobody else."""
    return dict(_arrays(torch, tensors))


def _arrays(torch: Any, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    for name, tensor in tensors.items():
        yield name, tensor.numpy() if tensor.dtype in (torch.float32, torch.int32) else to_array(torch, tensor)
