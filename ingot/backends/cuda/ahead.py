"""Compiles what an engine launches on GPUs of an architecture, where none of them is: into files that travel with it.

The engine's own executors run as they would with such a GPU (imagined.py), in the sizes that runs may have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import triton
from triton import knobs

from ingot import _lazy
from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.devices import require_float8
from ingot.backends.cuda.driver import Architecture, architecture
from ingot.backends.cuda.imagined import blank, imagined
from ingot.backends.cuda.kernel_files import SUFFIX, Kernel, Source, read, taken
from ingot.backends.cuda.launch_shapes import EXPANDED_ROWS, ROWS, TILE_ROWS
from ingot.backends.cuda.net_calls import Call
from ingot.backends.cuda.net_executor import NetExecutor
from ingot.backends.cuda.net_program import net_program
from ingot.backends.cuda.net_target import NET
from ingot.backends.cuda.net_weights import prepared
from ingot.backends.cuda.steps import MOST_REQUESTS, MOST_TOKENS, Size, columns_of, requests_of, tokens_of
from ingot.backends.cuda.steps_ahead import TracedSteps, side_by_side
from ingot.backends.cuda.weights import arranged
from ingot.backends.device import CUDA, Opening
from ingot.backends.torch_executor import lowered
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
    with imagined(torch, wanted, wanted.multiprocessors[0], found) as there, suppress(RuntimeError, IngotError):
        NetExecutor(there, meta, prepared(there, blank(there, network, meta), calls), opening).trace(sizes)
    return side_by_side([source for source in found.values() if not taken(source)])


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
            with imagined(torch, wanted, multiprocessors, found) as there:
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
    loaded = blank(torch, network, device)
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
    steps = TracedSteps(torch, device, arranged(torch, loaded), opening)
    wide = columns_of(-(-engine.config["context_length"] // CUDA.limits.block_size))
    for size in _sizes(wide):
        steps.trace_step(size, CHOICES)
    for shapes in _prompts(network):
        steps.trace(shapes, CHOICES)


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
