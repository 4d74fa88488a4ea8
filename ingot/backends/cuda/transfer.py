"""Arrays to a device and back without waiting for it: one copy there, and copies back that an event ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.backends.cuda.page_locked import PAGE_LOCKED
from ingot.ops.in_torch import to_array

Array = np.ndarray[Any, Any]

ALIGNMENT = 4  # words: 16 bytes
WHOLE = 16  # words, of which a layout has a multiple: kernels are compiled for such numbers


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
        return Layout(places, -(-at // WHOLE) * WHOLE)

    def arrays(self, words: Array) -> dict[str, Array]:
        """Views of an int32 array."""
        return {n: words[p.begin : p.end].view(p.dtype).reshape(p.shape) for n, p in self.places.items()}

    def tensors(self, torch: Any, words: Any) -> dict[str, Any]:
        """Views of an int32 tensor."""
        return {n: words[p.begin : p.end].view(getattr(torch, p.dtype)).view(p.shape) for n, p in self.places.items()}


@dataclass(frozen=True)
class Inputs:
    """Where the inputs of a step lie. ring: on the host; turn: how many times the device has read it; memory: a slot of
    it on the device, tensors: views of that; tokens: what token_ids and the step before say."""

    layout: Layout
    ring: Any
    turn: Any
    memory: Any
    tensors: Mapping[str, Any]
    tokens: Any

    @staticmethod
    def of(torch: Any, device: Any, layout: Layout, ring: Any) -> Inputs:
        """Inputs that a device reads from a ring."""
        turn, memory = (torch.zeros(n, dtype=torch.int32, device=device) for n in (1, layout.words))
        tensors = layout.tensors(torch, memory)
        return Inputs(layout, ring, turn, memory, tensors, torch.empty_like(tensors["token_ids"]))


class Transfer:
    """Copies between the host and one device, in the order of torch's current stream.

    Memory on the host is held here until the copies from or to it have been made.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._asked: list[Any] = []  # memory of copies since the last mark
        self._under_way: deque[tuple[Any, list[Any]]] = deque()  # and of earlier ones, by the event that ends them

    def words(self, layout: Layout) -> tuple[Any, dict[str, Array]]:
        """Memory of a layout on the host, and its arrays, for the caller to fill."""
        memory = self._memory((layout.words,), self._torch.int32)
        return memory, layout.arrays(memory.numpy())

    def there(self, given: Mapping[str, Array]) -> dict[str, Any]:
        """Arrays of whole words on the device, by one copy."""
        layout = Layout.of({name: (array.shape, array.dtype.name) for name, array in given.items()})
        memory, arrays = self.words(layout)
        for name, array in arrays.items():
            array[...] = given[name]
        return layout.tensors(self._torch, memory.to(self._device, non_blocking=True))

    def host(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor on the host that the device will write into."""
        return self._memory(shape, getattr(self._torch, dtype))

    def back(self, tensor: Any) -> Any:
        """A tensor on the host that will hold the numbers of one on the device."""
        there = self._memory(tuple(tensor.shape), tensor.dtype)
        there.copy_(tensor, non_blocking=True)
        return there

    def _memory(self, shape: tuple[int, ...], dtype: Any) -> Any:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        memory = PAGE_LOCKED.empty(self._torch, self._device, shape, dtype)
        if self._on_gpu:
            self._asked.append(memory)
        return memory

    def mark(self) -> Any:
        """What `wait` waits for: all that was asked of the device so far."""
        if not self._on_gpu:
            return None
        event = self._torch.cuda.Event()
        event.record()
        self._under_way.append((event, self._asked))
        self._asked = []
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
