"""What steps of a language model launch, found before they do, and compiled into Triton's cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import triton
from triton import knobs

from ingot.backends.cuda.beside import Beside
from ingot.backends.cuda.choice import WORDS, Kind
from ingot.backends.cuda.driver import Architecture
from ingot.backends.cuda.executor import CudaExecutor
from ingot.backends.cuda.imagined import blank, imagined
from ingot.backends.cuda.kernel_calls import Prompts
from ingot.backends.cuda.kernel_files import Source, taken
from ingot.backends.cuda.steps import SLOTS, Size
from ingot.backends.cuda.transfer import Inputs
from ingot.backends.cuda.weights import arranged
from ingot.backends.device import Opening
from ingot.backends.torch_executor import lowered
from ingot.backends.torch_target import TORCH
from ingot.errors import IngotError
from ingot.ir import Network


class TracedSteps(CudaExecutor):
    """An executor for somebody who looks at what is launched: the inputs of its steps hold nothing."""

    def trace(self, shapes: Mapping[str, tuple[int, ...]], kinds: Sequence[Kind] = ()) -> None:
        """Makes the calls of a run, call by call, with inputs of these shapes, and those that choose its tokens."""
        torch, device = self._torch, self._device
        sizes = self._sizes({v.name: np.empty(shapes[v.name], np.int32) for v in self._network.inputs})
        rows = shapes["token_ids"][0]
        with self._alone():
            found = {name: torch.empty(shape, dtype=torch.int32, device=device) for name, shape in shapes.items()}
            found["token_ids"] = self._chooser.follow(found["token_ids"], torch.empty_like(found["token_ids"]))
            given = {v: found[v.name] for v in self._network.inputs}
            tiles = {g: torch.empty((1, 2), dtype=torch.int32, device=device) for g in self._groups}
            narrow = self._few(rows, len(found["logit_rows"]))
            outputs = self._calls(given, sizes, None, None, Prompts(tiles, rows), narrow)
            count = len(outputs.get("logits", ()))
            words = {n: torch.empty(count, dtype=getattr(torch, d), device=device) for n, d in WORDS.items()}
            self._trace_choices(outputs, words, kinds)

    def trace_step(self, size: Size, kinds: Sequence[Kind] = ()) -> None:
        """The same of a padded step."""
        torch, device = self._torch, self._device
        layout = size.layout([v.name for v in self._network.inputs], self._groups)
        ring = torch.empty((SLOTS, layout.words), dtype=torch.int32, device=device)
        inputs = Inputs.of(torch, device, layout, ring)
        with self._alone():
            self._trace_choices(self._padded_calls(inputs, size), inputs.tensors, kinds)

    def _trace_choices(self, outputs: Mapping[str, Any], words: Mapping[str, Any], kinds: Sequence[Kind]) -> None:
        logits = outputs.get("logits", ())
        for kind in kinds if len(logits) else ():
            self._chooser.choose(logits, words, kind, words.get("results"))


class StepsAhead:
    """Compiles what steps of a language model launch, before they do."""

    def __init__(self, torch: Any, wanted: Architecture, network: Network, opening: Opening) -> None:
        self._torch = torch
        self._wanted = wanted
        self._network = network
        self._opening = opening
        self._steps: TracedSteps | None = None

    def told(self) -> dict[str, Any]:
        """What another process needs to know to foresee the same (`of`), as JSON has it."""
        wanted, opening = self._wanted, self._opening
        header = {key: opening.header[key] for key in ("producer", "config") if key in opening.header}
        header["networks"] = {opening.entry: opening.header["networks"][opening.entry]}
        return {"architecture": [wanted.number, wanted.shared, wanted.multiprocessors], "header": header,
                "entry": opening.entry, "blocks": [opening.kv_blocks, opening.kv_block_size]}  # fmt: skip

    @staticmethod
    def of(torch: Any, told: Mapping[str, Any]) -> StepsAhead:
        """The same in another process."""
        number, shared, multiprocessors = told["architecture"]
        header, entry, (blocks, size) = told["header"], told["entry"], told["blocks"]
        opening = Opening(header, _stored, None, entry, None, blocks, size, "", {}, {})
        _, network = lowered(header, {}, entry, TORCH)
        return StepsAhead(torch, Architecture(number, shared, tuple(multiprocessors)), network, opening)

    def missing(self, step: Size | Mapping[str, tuple[int, ...]], kinds: Sequence[Kind]) -> list[Source]:
        """What a padded step launches, or one with inputs of these shapes, and nobody has compiled yet. What fails here
        the step itself will say."""
        found: dict[str, Source] = {}
        meta = self._torch.device("meta")
        with (
            imagined(self._torch, self._wanted, self._wanted.multiprocessors[0], found) as there,
            suppress(RuntimeError, NotImplementedError, IngotError),
        ):
            if self._steps is None:
                made = arranged(there, blank(there, self._network, meta))
                self._steps = TracedSteps(there, meta, made, self._opening)
            if isinstance(step, Size):
                self._steps.trace_step(step, kinds)
            else:
                self._steps.trace(step, kinds)
        return [source for source in found.values() if not source.cached]

    def compile(self, sources: Sequence[Source]) -> int:
        """Compiles kernels side by side, while a step waits for them; how many."""
        for source in sources:
            taken(source)
        return side_by_side(sources)


class Compiling:
    """Compiles what the steps of one session lack, and beside them what others are likely to launch."""

    def __init__(self, torch: Any, wanted: Architecture, network: Network, opening: Opening) -> None:
        self._ahead = StepsAhead(torch, wanted, network, opening)
        self.beside = Beside(self._ahead.told, lambda: str(knobs.cache.dir))
        if opening.external:
            self.beside.close()  # classes of the user's: another process does not have them

    def compile(
        self, step: Size | Mapping[str, tuple[int, ...]], kinds: Sequence[Kind], likely: Sequence[Size]
    ) -> None:
        """Compiles what a step lacks, and beside it, and beside those behind it, what `likely` ones do."""
        missing = self._ahead.missing(step, kinds)
        self.beside.ask(likely, tuple(kinds) or (Kind.GREEDY,), [source.key for source in missing])
        self._ahead.compile(missing)


def _stored(name: str) -> Any:
    raise AssertionError(f"{name}: what is foreseen depends on no weight")


def side_by_side(sources: Sequence[Source]) -> int:
    """Compiles kernels; how many. What fails here its launch will say. Where no thread can be started, as when the main
    one has ended, launches compile what is left."""
    if not sources:
        return 0
    begun: list[Future[bool]] = []
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(sources))) as pool, suppress(RuntimeError):
        for source in sources:
            begun.append(pool.submit(_compiles, source))
    return sum(made.result() for made in begun)


def _compiles(source: Source) -> bool:
    try:
        compiled(source)
    except (triton.CompilationError, RuntimeError):
        return False
    return True


def compiled(source: Source) -> None:
    """Compiles a kernel into Triton's cache, if that has it not. Raises triton.CompilationError, and RuntimeError where
    ptxas fails."""
    triton.compile(source.source, target=source.target, options=source.options.__dict__)
