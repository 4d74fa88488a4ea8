"""Compiles what an engine launches on GPUs of an architecture, where none of them is: into files that travel with it.

The engine's own executors run, on torch's device meta, whose tensors have shapes and strides and no numbers. Triton's
hook sees each kernel that is about to be compiled, notes it, and nothing is launched. So what is compiled here has the
key that a run looks for.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from ingot import _lazy
from ingot.backends.cuda.background import Background
from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.devices import require_float8
from ingot.backends.cuda.driver import Architecture, architecture
from ingot.backends.cuda.executor import CudaExecutor
from ingot.backends.cuda.kernel_files import SUFFIX, Kernel, Source, read, taken
from ingot.backends.cuda.launch_shapes import EXPANDED_ROWS, ROWS, TILE_ROWS
from ingot.backends.cuda.net_calls import Call
from ingot.backends.cuda.net_executor import NetExecutor
from ingot.backends.cuda.net_program import net_program
from ingot.backends.cuda.net_target import NET
from ingot.backends.cuda.net_weights import prepared
from ingot.backends.cuda.steps import MOST_REQUESTS, MOST_TOKENS, Size, columns_of, requests_of, tokens_of
from ingot.backends.cuda.weights import arranged
from ingot.backends.device import CUDA, Opening
from ingot.backends.torch_executor import Loaded, lowered
from ingot.backends.torch_target import TORCH
from ingot.errors import FileError, IngotError, UserError
from ingot.ir import Network
from ingot.progress import Progress

PHASE = "kernels"
BLOCKS = 64  # of the cache of a language model whose launches are looked at
CHOICES = (Kind.GREEDY, Kind.DRAWN, Kind.TOP)  # RANKED launches what TOP does


@dataclass
class Built:
    """What was made: `kernels` in `folder`, of them `compiled` now, the others were there. left_out: entries of the
    engine whose launches cannot be foreseen, and why."""

    folder: Path
    kernels: int = 0
    compiled: int = 0
    bytes: int = 0
    seconds: float = 0.0
    left_out: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {"folder": str(self.folder), "kernels": self.kernels, "compiled": self.compiled, "bytes": self.bytes,
                "seconds": round(self.seconds, 3), "left_out": self.left_out}  # fmt: skip


def folder_of(path: str | os.PathLike[str]) -> Path:
    """The folder of an engine file's kernels, beside it."""
    return Path(f"{os.fspath(path)}.cuda")


def build_kernels(
    engine: Any, wanted: Architecture, folder: Path, progress: Progress, sizes: Callable[[int], Mapping[str, int]]
) -> Built:
    """Compiles what the engine launches into a folder. What is there already stays.

    sizes: of a net's dims, where sizes that nobody has chosen are as given.

    Raises UserError where Triton only interprets, FileError, IngotError for a kernel that does not compile, and what
    opening the engine raises.
    """
    if knobs.runtime.interpret:
        raise UserError("TRITON_INTERPRET is set, so nothing is compiled: unset it")
    begin = perf_counter()
    built = Built(folder)
    sources = _launched(engine, wanted, built, sizes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FileError(f"{folder} cannot be written: {e.strerror}") from None
    progress(PHASE, 0, len(sources))
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), max(1, len(sources)))) as pool:
        waiting = [pool.submit(_made, key, source, folder) for key, source in sources.items()]
        try:
            for number, done in enumerate(as_completed(waiting)):
                nbytes, compiled = done.result()
                built.kernels += 1
                built.bytes += nbytes
                built.compiled += compiled
                progress(PHASE, number + 1, len(sources))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    built.seconds = perf_counter() - begin
    return built


def compile_net(
    torch: Any, device: Any, network: Network, calls: tuple[Call, ...], opening: Opening, sizes: Mapping[str, int]
) -> int:  # fmt: skip
    """Compiles what the first run of a net launches at these sizes, side by side, into Triton's cache; how many kernels
    that are. What fails here the run itself will say."""
    wanted, meta = architecture(str(device.index)), torch.device("meta")
    found: dict[str, Source] = {}
    with _imagined(torch, wanted, wanted.multiprocessors[0], found) as there, suppress(RuntimeError, IngotError):
        NetExecutor(there, meta, prepared(there, _loaded(there, network, meta), calls), opening).trace(sizes)
    return _side_by_side([source for source in found.values() if not taken(source)])


class StepsAhead:
    """Compiles what steps of a language model launch, before they do: into Triton's cache."""

    def __init__(self, torch: Any, wanted: Architecture, network: Network, opening: Opening) -> None:
        self._torch = torch
        self._wanted = wanted
        self._network = network
        self._opening = opening
        self._steps: CudaExecutor | None = None
        self._begun: dict[str, object] = {}  # keys of what is compiled, or will be in an instant, and by whom

    def missing(self, step: Size | Mapping[str, tuple[int, ...]], kinds: Sequence[Kind]) -> list[Source]:
        """What a padded step launches, or one with inputs of these shapes, and nobody has compiled yet. What fails here
        the step itself will say."""
        found: dict[str, Source] = {}
        meta = self._torch.device("meta")
        with (
            _imagined(self._torch, self._wanted, self._wanted.multiprocessors[0], found) as there,
            suppress(RuntimeError, NotImplementedError, IngotError),
        ):
            if self._steps is None:
                made = arranged(there, _loaded(there, self._network, meta))
                self._steps = CudaExecutor(there, meta, made, self._opening)
            if isinstance(step, Size):
                self._steps.trace_step(step, kinds)
            else:
                self._steps.trace(step, kinds)
        return [source for source in found.values() if not source.cached]

    def compile(self, sources: Sequence[Source]) -> int:
        """Compiles kernels side by side, while a step waits for them; how many."""
        self._begun.update({source.key: self for source in sources})
        for source in sources:
            taken(source)
        return _side_by_side(sources)

    def compile_beside(self, sources: Sequence[Source], thread: Background) -> int:
        """Compiles kernels one after the other in a thread beside steps, until that is closed, and none that another
        thread compiles; how many."""
        count = 0
        for source in sources:
            if thread.closed:
                break
            mine = object()
            if self._begun.setdefault(source.key, mine) is mine:  # atomic: of two threads one compiles
                taken(source)
                _loadable(source)
                count += 1
        return count


def _side_by_side(sources: Sequence[Source]) -> int:
    """Compiles kernels; how many."""
    if sources:
        with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(sources))) as pool:
            list(pool.map(_loadable, sources))
    return len(sources)


def _loadable(source: Source) -> None:
    with suppress(triton.CompilationError, RuntimeError):
        triton.compile(source.source, target=source.target, options=source.options.__dict__)


def _made(key: str, source: Source, folder: Path) -> tuple[int, bool]:
    """Bytes of a kernel's file, and whether it was compiled for it."""
    path = folder / f"{key}{SUFFIX}"
    if path.is_file():
        try:
            read(path)
            return path.stat().st_size, False
        except FileError:
            path.unlink()  # damaged: it is made again
    try:
        made = triton.compile(source.source, target=source.target, options=source.options.__dict__)
    except (triton.CompilationError, RuntimeError) as e:  # ptxas' errors too
        said = str(e).strip().splitlines()[-1][:300]
        raise IngotError(f"the kernel {source.name} does not compile for sm_{source.target.arch}: {said}") from e
    (metadata,) = (Path(p) for p in made.metadata_group.values() if p.endswith(".json") and "__grp__" not in p)
    said = json.dumps(json.loads(metadata.read_text()))  # one line
    kernel = Kernel(key, source.name, source.target.arch, triton.__version__, said, made.asm["cubin"])
    return kernel.write(folder), True


# -------------------------------------------------------------------------------------------------- what is launched


def _launched(
    engine: Any, wanted: Architecture, built: Built, sizes: Callable[[int], Mapping[str, int]]
) -> dict[str, Source]:
    """Every kernel that runs of the engine compile, by its key."""
    torch = _lazy.optional("torch", "device cuda", "ingot[cuda]")
    found: dict[str, Source] = {}
    for multiprocessors in wanted.multiprocessors:
        for entry in engine.entries:
            with _imagined(torch, wanted, multiprocessors, found) as there:
                try:
                    _trace(there, engine, entry, sizes)
                except (RuntimeError, NotImplementedError) as e:  # sizes that only numbers show
                    if isinstance(e, IngotError):
                        raise
                    built.left_out[entry] = str(e).strip().splitlines()[0][:200]
    return found


def _trace(torch: Any, engine: Any, entry: str, sizes: Callable[[int], Mapping[str, int]]) -> None:
    device = torch.device("meta")
    net = engine.kind != "llm"
    _, network = lowered(engine.header, engine.external, entry, NET if net else TORCH)
    loaded = _loaded(torch, network, device)
    opening = Opening(engine.header, engine.tensor, None, entry, None, BLOCKS, CUDA.limits.block_size, "0", {},
                      engine.external)  # fmt: skip
    if net:
        executor = NetExecutor(torch, device, prepared(torch, loaded, net_program(network)), opening)
        seen: list[Mapping[str, int]] = []
        for usual in (1, 2, 32):
            if (chosen := sizes(usual)) not in seen:
                seen.append(chosen)
                executor.trace(chosen)
        return
    require_float8(torch.cuda.get_device_capability(device), network)
    steps = CudaExecutor(torch, device, arranged(torch, loaded), opening)
    wide = columns_of(-(-engine.config["context_length"] // CUDA.limits.block_size))
    for size in _sizes(wide):
        steps.trace_step(size, CHOICES)
    for shapes in _prompts(network):
        steps.trace(shapes, CHOICES)


def _loaded(torch: Any, network: Network, device: Any) -> Loaded:
    """A network with tensors that hold nothing in the place of what is stored."""
    tensors = {}
    for value in (*network.parameters, *network.constants):
        dtype = value.dtype
        name = dtype.name if dtype.bits >= 8 else "int8" if dtype.kind == "int" else "uint8"
        tensors[value] = torch.empty(value.spec.evaluate({}), dtype=getattr(torch, name), device=device)
    return Loaded(network, tensors, 0)


_ROWS = [1 << i for i in range(MOST_REQUESTS.bit_length())]
_FEW = [*range(1, ROWS + 1), *(n + 1 for n in _ROWS if ROWS <= n < TILE_ROWS)]  # rows that kernels take each in its way


def _sizes(wide: int) -> Iterator[Size]:
    """Of captured steps, those of which each launches something that others do not: one row a request, in each number
    of rows and width of the table; prompts, in each number of tokens, and of requests and their logits."""
    columns = 64
    while columns <= wide:
        for count in _ROWS:
            yield Size(count, count, count, columns, True)
        columns *= 8
    most = requests_of(MOST_REQUESTS)
    for tokens in sorted({tokens_of(count) for count in range(1, MOST_TOKENS + 1)}):
        yield Size(tokens, most, 0, 64, False)
    for requests in (n for n in _ROWS if n == requests_of(n)):
        for tokens in (16, 128, MOST_TOKENS):
            yield Size(tokens, requests, requests, 64, False)


def _prompts(network: Network) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes of steps that are not captured: prompts, by how kernels take their rows, and by their rows of logits."""
    for count in (*_FEW, TILE_ROWS + 1, EXPANDED_ROWS + 1):
        yield _shapes(network, max(count, 2), 1, 2, 1)
    for count in _FEW[1:]:
        yield _shapes(network, TILE_ROWS + 1, 1, 2, count)


def _shapes(network: Network, tokens: int, requests: int, columns: int, logits: int) -> dict[str, tuple[int, ...]]:
    known = {"query_start": (requests + 1,), "context_len": (requests,), "block_table": (requests, columns),
             "logit_rows": (logits,), "hidden_rows": (0,)}  # fmt: skip
    return {v.name: known.get(v.name, (tokens,)) for v in network.inputs}


# --------------------------------------------------------------------------------------------- a GPU that is not there


_alone = threading.RLock()  # one thread at a time has such a GPU


@contextmanager
def _imagined(
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

