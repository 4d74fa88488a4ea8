"""Page-locked memory of this process: what a GPU copies from and to while the host goes on."""

from __future__ import annotations

import mmap
import weakref
from collections import defaultdict
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEAST = mmap.PAGESIZE


class PageLocked:
    """Blocks of powers of two bytes, which are used again and stay locked until the process ends.

    torch has an allocator of such memory. It asks the device when a tensor is freed, and throws in a destructor once
    the device is lost, which ends the process. Nothing is asked here when a tensor goes.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Array]] = defaultdict(list)  # by their size; threads append and pop

    def empty(self, torch: Any, device: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor on the host for copies from and to a device, its numbers not set. For a device that is the CPU
        nothing is locked. The block is free again when nobody holds the tensor, a view of it or an array of it: keep it
        until all its copies have been made. Raises RuntimeError, as torch does, where no memory can be locked.
        """
        size = int(np.prod(shape)) * dtype.itemsize
        if not size or device.type == "cpu":
            return torch.empty(shape, dtype=dtype)
        whole = max(LEAST, 1 << (size - 1).bit_length())
        free = self._free[whole]
        try:
            block = free.pop()
        except IndexError:
            block = _locked(torch, whole)
        lent = block[:size]
        weakref.finalize(lent, free.append, block).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)  # a storage that holds `lent` until it goes itself


def _locked(torch: Any, size: int) -> Array:
    block: Array = np.frombuffer(mmap.mmap(-1, size), np.uint8)  # pages that no other object shares
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(block.ctypes.data, size, 0)))
    return block


PAGE_LOCKED = PageLocked()
