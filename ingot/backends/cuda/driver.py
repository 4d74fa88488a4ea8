"""What NVIDIA's driver says of this machine, why a GPU cannot be used, and whether an engine's weights fit there.

The driver is asked through its own library, libcuda, so that its answer does not depend on what torch was built for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.backends.device import Opening, program_of, with_bodies
from ingot.errors import MemoryLimitError, UserError

MODULE = Path("/proc/driver/nvidia/version")
# What cuInit answers where nothing can run, and what to do.
STARTS = {
    34: "libcuda.so.1 is the stub of a toolkit: the driver's own library has to come first on the library path",
    100: "the driver sees no GPU",
    803: "the driver's library and its kernel module are of different versions: start the machine again, or install "
         "the driver again",
}  # fmt: skip
FORMS = (("int8", 8.5), ("fp8", 8.5), ("int4-g128", 4.2))  # of --weights, and bits of a weight with its scales


@dataclass(frozen=True)
class Architecture:
    """GPUs of one compute capability, for which kernels are compiled where none of them is.

    number: 90 for 9.0. shared: bytes of memory that the threads of a program share, at most. multiprocessors: of the
    GPUs that there are, for some kernels are cut by it.
    """

    number: int
    shared: int
    multiprocessors: tuple[int, ...]

    @property
    def word(self) -> str:
        """As it is written: sm_90."""
        return f"sm_{self.number}"


ARCHITECTURES = {
    found.word: found
    for found in (
        Architecture(80, 166912, (108,)),  # A100
        Architecture(86, 101376, (84, 82, 72)),  # A40, RTX 3090, A10
        Architecture(89, 101376, (142, 128, 58)),  # L40, RTX 4090, L4
        Architecture(90, 232448, (132, 114)),  # H100 and H200, H100 PCIe
        Architecture(100, 232448, (148,)),  # B200
        Architecture(120, 101376, (188, 170)),  # RTX PRO 6000, RTX 5090
    )
}


def architecture(word: str) -> Architecture:
    """Of a word such as sm_90, or of a GPU of this machine by its number. Raises UserError for one that is not known.
    """
    if word.isdecimal():
        found = _lazy.load("torch").cuda.get_device_properties(int(word))
        return Architecture(
            10 * found.major + found.minor, found.shared_memory_per_block_optin, (found.multi_processor_count,)
        )
    if word not in ARCHITECTURES:
        raise UserError(f"device 'cuda:{word}': kernels are compiled for {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[word]


@dataclass(frozen=True)
class Driver:
    """version: of the kernel module, where it says so. cuda: the newest CUDA that it runs. why: there is no GPU."""

    version: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: int = 0
    why: str = ""


def driver(library: Callable[[str], Any] = ctypes.CDLL, module: Path = MODULE) -> Driver:
    """What is there."""
    version = None
    if module.is_file():
        words = module.read_text(errors="replace").split()
        version = next((word for word in words if word[0].isdigit() and "." in word), None)
    try:
        cuda = library("libcuda.so.1")
    except OSError:
        return Driver(version, why="there is no NVIDIA driver here (libcuda.so.1 cannot be loaded)")
    number = ctypes.c_int(0)
    runs = None
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        runs = (number.value // 1000, number.value % 1000 // 10)
    if code := cuda.cuInit(0):
        return Driver(version, runs, why=STARTS.get(code, f"the driver does not start: CUDA's error {code}"))
    if code := cuda.cuDeviceGetCount(ctypes.byref(number)):
        return Driver(version, runs, why=f"the driver does not list its GPUs: CUDA's error {code}")
    return Driver(version, runs, number.value, "" if number.value else STARTS[100])


def why_not(built_for: str | None, number: int, found: Driver) -> str:
    """Why a GPU cannot be used, and what to do; "" where nothing of that is known. built_for: torch's CUDA version."""
    if found.why:
        return found.why
    if built_for is None:
        return "this torch is built without CUDA: install one that is built with it (pytorch.org/get-started)"
    needs = tuple(int(part) for part in built_for.split(".")[:2])
    if found.cuda is not None and found.cuda[0] < needs[0]:
        known = f" {found.version}" if found.version else ""
        return (f"the driver{known} runs CUDA up to {_dotted(found.cuda)} and torch is built for {built_for}: install "
                f"a newer driver, or a torch that is built for CUDA {found.cuda[0]}")  # fmt: skip
    if number >= found.gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        return f"GPUs here: {found.gpus}, counted from cuda:0{shown}"
    return ""


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def require_room(opening: Opening, free: int | None, float8: bool) -> None:
    """Raises MemoryLimitError where weights are larger than what is free on a device, and says what would fit. float8:
    whether the device has numbers of that kind.
    """
    if free is None:
        return
    sizes = _stored(opening)
    needed = sum(nbytes for nbytes, _, _ in sizes.values())
    if needed <= free:
        return
    fits = []
    if opening.header["kind"] == "llm":
        for word, bits in FORMS:
            taken = sum(int(count * bits / 8) if is_matrix else nbytes for nbytes, count, is_matrix in sizes.values())
            if taken <= free and taken < needed and (float8 or word != "fp8"):
                fits.append(f"--weights {word} ({_gigabytes(taken)})")
    advice = f"built with {' or '.join(fits)} they fit" if fits else "no other format of ours would fit there"
    there = f"cuda:{opening.device} has {_gigabytes(free)} free"
    raise MemoryLimitError(f"the engine's weights take {_gigabytes(needed)} and {there}: {advice}")


def _stored(opening: Opening) -> Mapping[str, tuple[int, int, bool]]:
    """Of every stored tensor that the entry reads: bytes, elements, and whether it is a matrix of floats."""
    found: dict[str, tuple[int, int, bool]] = {}
    for program in with_bodies(program_of(opening.header, opening.entry)):
        for buffer in program["buffers"]:
            if buffer["kind"] == "weight":
                array = opening.tensor(buffer["tensor"])
                matrix = len(buffer["shape"]) > 1 and buffer["dtype"] in ("float32", "bfloat16", "float16")
                found[buffer["tensor"]] = (array.nbytes, int(np.prod(array.shape, dtype=np.int64)), matrix)
    return found


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
