"""A GPU that is not there: torch and Triton as they would be with it, for one thread.

The engine's own executors run, on torch's device meta, whose tensors have shapes and strides and no numbers. Triton's
hook sees each kernel that is about to be compiled, notes it, and nothing is launched. So what is compiled then has the
key that a run looks for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from ingot import _lazy
from ingot.backends.cuda.driver import Architecture
from ingot.backends.cuda.kernel_files import Source
from ingot.backends.torch_executor import Loaded
from ingot.ir import Network

_alone = threading.RLock()  # one thread at a time has such a GPU


@contextmanager
def imagined(
    torch: Any, wanted: Architecture, multiprocessors: int, found: dict[str, Source]
) -> Iterator[Any]:
    """torch as it would be with such a GPU, for this thread: nothing is launched, and what would be is noted."""
    here, target = threading.get_ident(), GPUTarget("cuda", wanted.number, 32)
    met: set[tuple[Any, str]] = set()

    def note(**asked: Any) -> bool:
        if threading.get_ident() != here:
            return bool(hook(**asked)) if hook is not None else False
        jitted, key = asked["fn"].jit_function, asked["key"]
        if (jitted, key) in met:
            return True
        met.add((jitted, key))
        source = Source.of(jitted, asked["compile"], target)
        found.setdefault(source.key, source)
        return True  # nothing is compiled and nothing launched

    with _alone, ExitStack() as stack:
        before, hook = driver.active if driver._active is not None else None, knobs.runtime.jit_cache_hook
        knobs.runtime.jit_cache_hook = note
        stack.callback(setattr, knobs.runtime, "jit_cache_hook", hook)
        driver.set_active(_Driver(before, here, target, f"{wanted.word} {multiprocessors}"))
        stack.callback(setattr, driver, "_active", before)
        stack.enter_context(torch.no_grad())
        stack.enter_context(_functions(torch))
        yield _Torch(torch, wanted, multiprocessors)


class _Torch:
    """torch, but for what it says of GPUs."""

    def __init__(self, torch: Any, wanted: Architecture, multiprocessors: int) -> None:
        self._torch = torch
        said = SimpleNamespace(
            multi_processor_count=multiprocessors, shared_memory_per_block_optin=wanted.shared,
            major=wanted.number // 10, minor=wanted.number % 10,
        )  # fmt: skip
        self.cuda = SimpleNamespace(
            is_available=lambda: True, current_device=lambda: 0, get_device_properties=lambda device: said,
            get_device_capability=lambda device: (said.major, said.minor), device=lambda device: nullcontext(),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


class _Driver:
    """Triton's driver of a GPU that is not there, for one thread. device: what Triton keeps its functions by."""

    def __init__(self, real: Any, thread: int, target: Any, device: str) -> None:
        self._real = real
        self._thread = thread
        self._said = {"get_current_target": target, "get_current_device": device, "get_current_stream": 0}

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() != self._thread:
            return getattr(self._real or driver.default, name)
        return lambda *args: self._said[name]


def _functions(torch: Any) -> Any:
    """Functions of torch whose results lie otherwise in a GPU's memory, and those for which torch, of tensors that hold
    nothing, imports its compiler and algebra: that takes seconds, which somebody may wait for.
    """
    overrides, functional = _lazy.load("torch.overrides"), torch.nn.functional

    def convolution(x: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        y = functional.conv2d(x, weight, *args, **kwargs)
        last = x.dtype in (torch.float16, torch.bfloat16)  # cuDNN's results lie as its operands do
        return y.contiguous(memory_format=torch.channels_last) if last else y

    def attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        shape = (q.shape[0], q.shape[2], q.shape[1], v.shape[3])  # heads lie inside
        return torch.empty(shape, dtype=q.dtype, device=q.device).transpose(1, 2)

    def cat(tensors: Any, dim: int = 0, **kwargs: Any) -> Any:
        first = tensors[0]
        if kwargs or any(t.ndim > 2 or t.dtype != first.dtype or not t.is_contiguous() for t in tensors):
            return torch.cat(tensors, dim, **kwargs)
        shape = list(first.shape)
        shape[dim] = sum(t.shape[dim] for t in tensors)
        return torch.empty(shape, dtype=first.dtype, device=first.device)

    def addmm(added: Any, a: Any, b: Any, *, out: Any = None, **kwargs: Any) -> Any:
        return torch.addmm(added, a, b, **kwargs) if out is None else out

    def mm(a: Any, b: Any, out_dtype: Any = None, *, out: Any = None) -> Any:
        return torch.empty((len(a), b.shape[1]), dtype=out_dtype or a.dtype, device=a.device) if out is None else out

    def empty_like(x: Any, *, memory_format: Any = torch.preserve_format, **kwargs: Any) -> Any:
        if kwargs or not (x.is_contiguous() or memory_format is torch.contiguous_format):
            return torch.empty_like(x, memory_format=memory_format, **kwargs)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    instead = {functional.conv2d: convolution, functional.scaled_dot_product_attention: attention, torch.cat: cat,
               torch.addmm: addmm, torch.mm: mm, torch.empty_like: empty_like}  # fmt: skip

    class Functions(overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return instead.get(func, func)(*args, **(kwargs or {}))

    return Functions()


def blank(torch: Any, network: Network, device: Any) -> Loaded:
    """A network with tensors that hold nothing in the place of what is stored."""
    tensors = {}
    for value in (*network.parameters, *network.constants):
        dtype = value.dtype
        name = dtype.name if dtype.bits >= 8 else "int8" if dtype.kind == "int" else "uint8"
        tensors[value] = torch.empty(value.spec.evaluate({}), dtype=getattr(torch, name), device=device)
    return Loaded(network, tensors, 0)
