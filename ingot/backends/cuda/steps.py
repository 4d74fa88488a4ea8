"""Captured steps of a language model: a CUDA graph for each padded size of a step and kind of choice.

The inputs of a step lie in one buffer at a fixed address, which its first kernel fills. Rows that nobody asked for
write nothing and see nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.backends.cuda.choice import WORDS, Kind
from ingot.backends.cuda.launch_shapes import most_tiles, power, tiles_of
from ingot.backends.cuda.page_locked import PAGE_LOCKED
from ingot.backends.cuda.transfer import Inputs, Layout, Transfer
from ingot.backends.device import Choice

Array = np.ndarray[Any, Any]

MOST_REQUESTS = 256  # of a captured step
MOST_TOKENS = 1024  # of one with prompts: the device computes more for longer than the host needs to launch it
SLOTS = 4  # of a ring of inputs: a power of two, and more than steps that are under way
# What the inputs of a padded step hold in the rows that nobody asked for.
PADDING = {"token_ids": 0, "positions": 0, "slot": -1, "context_len": 0, "block_table": 0, "logit_rows": -1,
           "long_rope": 0}  # fmt: skip
TILES = "tiles"  # begins the name of what a prompt's attention is told, by how many query heads share keys
NOBODY = np.array([-1, 0], np.int32)  # of these, for a program that has nothing to do

_NOTHING = np.zeros(0, np.int32)

Replay = Callable[[], None]


@dataclass(frozen=True)
class Size:
    """What a step is padded to. each: every request has one row, and one of logits; otherwise some have more of the
    first, and `logits` is `requests` or 0.
    """

    tokens: int
    requests: int
    logits: int
    columns: int  # of the block table
    each: bool

    @staticmethod
    def of(feeds: Mapping[str, Array]) -> Size | None:
        """Of the inputs of a step; None where it is not one that is captured."""
        start, tokens, rows = feeds["query_start"], len(feeds["token_ids"]), feeds["logit_rows"]
        requests, columns = len(start) - 1, columns_of(feeds["block_table"].shape[1])
        if not tokens or requests > MOST_REQUESTS or len(rows) > requests or len(feeds.get("hidden_rows", ())):
            return None
        if tokens == requests and np.array_equal(start, np.arange(tokens + 1)):
            return Size(power(tokens), power(tokens), power(tokens), columns, True)
        if tokens > MOST_TOKENS or np.any((rows < 0) | (rows >= tokens)):
            return None
        padded = requests_of(requests)
        return Size(tokens_of(tokens), padded, padded if len(rows) else 0, columns, False)

    def padding(self, name: str) -> Any:
        """What an input holds where nobody asked for anything."""
        if name.startswith(TILES):
            return NOBODY
        if name == "logit_rows" and not self.each:
            return 0  # the last layer of a step with prompts takes these rows alone: each is one that there is
        return -1 if name == "behind" else PADDING.get(name, 0)

    def layout(self, names: Sequence[str], groups: Sequence[int]) -> Layout:
        """Of the inputs of a step, and of what chooses its tokens. groups: see `tiles_of`."""
        shapes: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(names, ((self.tokens,), "int32"))
        shapes["block_table"] = (self.requests, self.columns), "int32"
        shapes["query_start"] = (self.requests + 1,), "int32"
        shapes["context_len"] = (self.requests,), "int32"
        shapes["logit_rows"] = (self.logits,), "int32"
        if "hidden_rows" in shapes:
            shapes["hidden_rows"] = (0,), "int32"
        if not self.each:
            for group in groups:
                shapes[f"{TILES}{group}"] = (most_tiles(self.tokens, self.requests, group), 2), "int32"
        shapes |= {name: ((self.logits,), dtype) for name, dtype in WORDS.items()}
        shapes["behind"] = (self.tokens,), "int32"
        shapes["results"] = (1,), "int64"
        return Layout.of(shapes)


def columns_of(width: int) -> int:
    """How wide the block table of a captured step is: few widths, for each is captured by itself."""
    columns = 64
    while columns < width:
        columns *= 8
    return columns


def tokens_of(count: int) -> int:
    """To how many tokens a captured step with prompts is padded: in eighths of a power of two, from 128 on."""
    unit = max(16, power(count) // 8)
    return -(-count // unit) * unit


def requests_of(count: int) -> int:
    """To how many requests: a power of four."""
    padded = 1
    while padded < count:
        padded *= 4
    return padded


def _never() -> None:
    raise AssertionError("a step is captured before it is started")


class Step:
    """A captured step, and what chooses its tokens if somebody does: one kind of choice.

    Its inputs lie in a ring of page-locked memory of the host, which its first kernel reads, turn by turn; the tokens
    go where `results` of the inputs says, memory of the host too. So the device waits for no copy. `outputs` lie in
    memory that all steps share: they are read, on the same stream, before another one is started.
    """

    def __init__(
        self, torch: Any, device: Any, size: Size, names: Sequence[str], groups: Sequence[int], kind: Kind | None
    ) -> None:
        self._torch = torch
        self.kind = kind
        self.size = size
        self.outputs: Mapping[str, Any] = {}
        self._groups = () if size.each else groups
        layout = size.layout(names, groups)
        ring = PAGE_LOCKED.empty(torch, device, (SLOTS, layout.words), torch.int32)
        self._slots = [layout.arrays(words) for words in ring.numpy()]
        for array, name in ((array, name) for slot in self._slots for name, array in slot.items()):
            array[...] = size.padding(name)
        self.inputs = Inputs.of(torch, device, layout, ring)
        self._replay: Replay = _never
        self._turns = 0
        self._ends: list[Any] = [None] * SLOTS  # events, of the runs that read the slots

    def capture(self, graphs: Graphs, work: Callable[[], Mapping[str, Any]]) -> None:
        """Captures `work`, which computes the outputs and takes a turn."""
        self._replay, outputs = graphs.captured(work)
        self.outputs = {name: _lent(self._torch, tensor) for name, tensor in outputs.items()}
        self.inputs.turn.zero_()  # it ran before, to compile

    def start(self, transfer: Transfer, feeds: Mapping[str, Array], choice: Choice | None) -> Any:
        """Fills the inputs, and computes the outputs. Tokens and log probabilities as the device will write them, int32
        [2, rows] on the host. The caller tells `ends` what marks the end of it."""
        slot = self._turns % SLOTS
        transfer.wait(self._ends[slot])
        arrays = self._slots[slot]
        found = None
        given: dict[str, Array] = dict(feeds)
        for group in self._groups:
            given[f"{TILES}{group}"] = tiles_of(feeds["query_start"], group)
        for name in (*WORDS, "behind"):
            given[name] = _NOTHING if choice is None else getattr(choice, name)
        for name, array in arrays.items():
            if name == "results":
                if self.kind is not None:
                    found = transfer.host((2, self.size.logits), "int32")
                array[0] = 0 if found is None else found.data_ptr()
                continue
            rows = given[name]
            count = len(rows)
            if name == "block_table":
                width = rows.shape[1]
                array[:count, :width] = rows
                array[:count, width:] = 0
            else:
                array[:count] = rows
            array[count:] = rows[-1] if name == "query_start" else self.size.padding(name)
        self._replay()
        self._turns += 1
        return found

    def ends(self, event: Any) -> None:
        """What was started last ends with an event."""
        self._ends[(self._turns - 1) % SLOTS] = event


class _Lender:
    """Memory on a GPU, for whoever uses it without owning it."""

    def __init__(self, words: Any) -> None:
        self.__cuda_array_interface__ = dict(words.__cuda_array_interface__)


def _lent(torch: Any, tensor: Any) -> Any:
    """The same numbers where they lie, in memory that a later capture may take too: logits of one size after the other
    would fill the device."""
    if not tensor.is_cuda or not tensor.numel():
        return tensor
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return torch.as_tensor(_Lender(tensor.view(words)), device=tensor.device).view(tensor.dtype)


class Graphs:
    """Captures work on one device. What they hold lies in memory that all share: one runs at a time."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pool: Any = None

    def captured(self, work: Callable[[], Any]) -> tuple[Replay, Any]:
        """What computes `work` again where its results lie, and these."""
        torch = self._torch
        here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            work()  # compiles what has to be
        here.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found = work()
        return graph.replay, found
