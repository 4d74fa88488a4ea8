"""Launches compiled kernels through NVIDIA's driver.

Triton 3.6 makes a launcher for each signature of a kernel, by a C compiler: some 0.3 s each, in every process whose
cache lacks it, also where the kernels themselves have travelled. Those of ingot's kernels need no code of their own:
their parameters are pointers and numbers, which lie one behind the other in a buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from struct import Struct, calcsize
from threading import get_ident
from typing import Any

from triton.backends.nvidia import driver as nvidia
from triton.runtime.driver import driver

PDL = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
OURS = "ingot."  # begins the names of the modules whose kernels are launched so
# How parameters lie in memory, as `struct` calls it. A kernel takes float32 for every float that a call is given.
_LAYOUT = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I",
           "u64": "Q", "fp32": "f", "f32": "f", "fp64": "d"}  # fmt: skip


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("value", ctypes.c_ulonglong * 8)]  # a union of 64 bytes


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


Entry = Callable[[Any, Any, Any, Any], int]  # cuLaunchKernelEx: config, function, parameters, None


@cache
def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _entry() -> Entry:
    found: Entry = _library().cuLaunchKernelEx
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]  # type: ignore[attr-defined]
    return found


def _said(code: int) -> str:
    """What the driver calls an error."""
    text = ctypes.c_char_p()
    _library().cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"an error that it does not know").decode()


class _Place:
    """Memory of one thread for the launches of one kernel: its parameters, where each lies, and the configuration. The
    driver copies all of it before a launch returns."""

    def __init__(self, layout: Struct, offsets: Sequence[int], threads: int, shared: int, dependent: bool) -> None:
        self.parameters = ctypes.create_string_buffer(layout.size)
        begin = ctypes.addressof(self.parameters)
        self.pointers = (ctypes.c_void_p * len(offsets))(*(begin + offset for offset in offsets))
        self._attribute = _Attribute(PDL, (ctypes.c_ulonglong * 8)(1))
        count = int(dependent)
        self.config = _Config((0, 0, 0), (threads, 1, 1), shared, None, ctypes.pointer(self._attribute), count)
        self.grid = self.config.grid


class Launch:
    """Launches one compiled kernel, as Triton calls its own launchers. signature: the type of each argument, by its
    name; those that are compiled in, "constexpr", are no parameters. sizes: bytes of each parameter.
    """

    def __init__(self, signature: Mapping[str, Any], metadata: Any, entry: Entry | None = None) -> None:
        types = list(signature.values())
        self._tensors = [i for i, kind in enumerate(types) if kind[0] == "*"]
        self._numbers = [i for i, kind in enumerate(types) if kind in _LAYOUT]
        order = [*self._tensors, *self._numbers]
        order += [len(types), len(types) + 1]  # memory that no kernel of ours asks for: two pointers
        form = ["Q" if i in self._tensors or i >= len(types) else _LAYOUT[types[i]] for i in order]
        self._layout = Struct("".join(form))
        ends = [Struct("".join(form[: at + 1])).size for at in range(len(form))]
        lies = {i: (end - calcsize(kind), calcsize(kind)) for i, kind, end in zip(order, form, ends, strict=True)}
        self._offsets, self.sizes = (list(found) for found in zip(*(lies[i] for i in sorted(lies)), strict=True))
        self._told = (32 * metadata.num_warps, metadata.shared, bool(metadata.launch_pdl))
        self._entry = entry or _entry()
        self._places: dict[int, _Place] = {}  # of threads that launch nothing at this moment

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: int, packed: Any, said: Any, enter: Any, leave: Any,
        *arguments: Any,
    ) -> None:  # fmt: skip
        place = self._places.pop(get_ident(), None)  # a signal handler may launch the same kernel meanwhile
        if place is None:
            place = _Place(self._layout, self._offsets, *self._told)
        if enter is not None:
            enter(said)
        self._layout.pack_into(
            place.parameters, 0, *[arguments[i].data_ptr() for i in self._tensors],
            *[arguments[i] for i in self._numbers], 0, 0,
        )  # fmt: skip
        place.grid[:] = (x, y, z)
        place.config.stream = stream
        if x * y * z and (code := self._entry(ctypes.byref(place.config), function, place.pointers, None)):
            raise RuntimeError(f"Triton Error [CUDA]: {_said(code)}")  # as Triton itself says it
        self._places[get_ident()] = place
        if leave is not None:
            leave(said)


def fits(source: Any, metadata: Any) -> bool:
    """Whether a kernel is one of ours, and needs nothing beside its parameters."""
    plain = all(isinstance(t, str) and (t[0] == "*" or t == "constexpr" or t in _LAYOUT)
                for t in source.signature.values())  # fmt: skip
    more = (metadata.global_scratch_size, metadata.profile_scratch_size, metadata.launch_cooperative_grid)
    return bool(source.fn.module.startswith(OURS) and plain and metadata.num_ctas == 1 and not any(more))


def use() -> None:
    """Has Triton launch kernels of ours so from now on. Later versions than 3.6 have one launcher for all kernels, of
    theirs as of others': they keep it."""
    made = driver.active.launcher_cls
    if made is _chosen or not hasattr(nvidia, "make_launcher"):
        return
    driver.active.launcher_cls = _chosen


def _chosen(source: Any, metadata: Any) -> Any:
    return Launch(source.signature, metadata) if fits(source, metadata) else nvidia.CudaLauncher(source, metadata)
