"""Padded steps of a language model, for each size and kind of choice: call by call, then as a CUDA graph.

The inputs of a step lie in one buffer at a fixed address, which its first kernel fills. Rows that nobody asked for
write nothing and see nothing. A graph repeats the calls that were made before it was there, so the numbers are the same
bits, whenever it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.backends.cuda.capturing import capturing
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

Work = Callable[[], Mapping[str, Any]]  # computes a step's outputs


@dataclass(frozen=True)
class Graph:
    """What computes a step's outputs again, where they lie."""

    replay: Callable[[], None]
    outputs: Mapping[str, Any]


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


LARGEST = Size(MOST_TOKENS, MOST_REQUESTS, MOST_REQUESTS, 64, False)


def likely_after(requests: int, columns: int) -> list[Size]:
    """Sizes of steps that come where one of so many requests came, the nearest ones first: one row a request, of other
    numbers of requests, and prompts of those. columns: of the block table, padded."""

    def distance(size: Size) -> int:
        return abs(size.requests.bit_length() - power(requests).bit_length())

    counts = [1 << i for i in range(MOST_REQUESTS.bit_length())]
    decodes = [Size(n, n, n, columns, True) for n in counts]
    prompts = [
        Size(tokens, n, n, columns, False)
        for n in sorted({requests_of(n) for n in counts})
        for tokens in (16, 128, MOST_TOKENS)  # each by kernels of its own
    ]
    return [*sorted(decodes, key=distance), *sorted(prompts, key=distance)]


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


class Step:
    """A padded step, and what chooses its tokens if somebody does: one kind of choice.

    Its inputs lie in a ring of page-locked memory of the host, which its first kernel reads, turn by turn; the tokens
    go where `results` of the inputs says, memory of the host too. So the device waits for no copy.

    runs: how often it was started. recorded: whether it is a graph. wants_graph: whether it is to be recorded, which is
    tried once.
    """

    def __init__(
        self, torch: Any, device: Any, size: Size, names: Sequence[str], groups: Sequence[int], kind: Kind | None
    ) -> None:
        self.kind = kind
        self.size = size
        self.runs = 0
        self._groups = () if size.each else groups
        layout = size.layout(names, groups)
        ring = PAGE_LOCKED.empty(torch, device, (SLOTS, layout.words), torch.int32)
        self._slots = [layout.arrays(words) for words in ring.numpy()]
        for array, name in ((array, name) for slot in self._slots for name, array in slot.items()):
            array[...] = size.padding(name)
        self.inputs = Inputs.of(torch, device, layout, ring)
        self._graph: Graph | None = None
        self._tried = False
        self._turns = 0
        self._lost = False  # whether the device may have taken fewer turns, for a run that failed
        self._ends: list[Any] = [None] * SLOTS  # events, of the runs that read the slots

    @property
    def recorded(self) -> bool:
        return self._graph is not None

    @property
    def wants_graph(self) -> bool:
        often = 1 if self.size.each else 2  # prompts have many lengths: some come once
        return not self._tried and self.runs >= often

    def record(self, graphs: Graphs, work: Work) -> None:
        """Records `work`, which computes the outputs and takes a turn, and has done so before."""
        self._tried = True
        self._graph = graphs.captured(work)

    def start(
        self, transfer: Transfer, feeds: Mapping[str, Array], choice: Choice | None, work: Work
    ) -> tuple[Any, Mapping[str, Any]]:
        """Fills the inputs and computes the outputs, by `work` until that is recorded. Tokens and log probabilities as
        the device will write them, int32 [2, rows] on the host; and the outputs, in memory that all recorded steps
        share: they are read, on the same stream, before another one is started. The caller tells `ends` what marks the
        end of it."""
        slot = self._turns % SLOTS
        transfer.wait(self._ends[slot])
        found = self._fill(self._slots[slot], transfer, feeds, choice)
        if self._lost:
            self.inputs.turn.fill_(slot)
        self._turns += 1
        graph, self._lost = self._graph, True
        try:
            if graph is None:
                outputs = work()
            else:
                graph.replay()
                outputs = graph.outputs
        except BaseException:
            self.ends(transfer.mark())  # it may have begun
            raise
        self._lost = False
        self.runs += 1
        return found, outputs

    def _fill(
        self, arrays: Mapping[str, Array], transfer: Transfer, feeds: Mapping[str, Array], choice: Choice | None
    ) -> Any:
        """Fills a slot; where the device will write the tokens."""
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
    """Captures work on one device. What the graphs hold lies in one arena, for one runs at a time. room: bytes of it,
    as the largest work needs; torch divides it for each.
    """

    def __init__(self, torch: Any, device: Any, room: int) -> None:
        self._torch = torch
        self._device = device
        self._room = room
        self._pool: Any = None
        self._stream: Any = None

    def captured(self, work: Work) -> Graph:
        """What computes `work` again, of which everything is compiled and loaded: it is not run.

        torch.cuda.graph is not used: it waits for the device, which computes meanwhile, and gives memory back, which
        the next step would ask for again.
        """
        torch = self._torch
        if self._stream is None:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        room, self._room = self._room, 0
        graph = torch.cuda.CUDAGraph()
        with capturing(), torch.cuda.stream(self._stream):
            few = torch.zeros((16, 16), dtype=torch.bfloat16, device=self._device)
            torch.mm(few, few)  # makes this thread's handle of the library and its memory, which a graph cannot
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                try:
                    if room:  # free again at once, and the pool's: sizes that grow would each take more
                        torch.empty(room, dtype=torch.uint8, device=self._device)
                    outputs = work()
                finally:
                    graph.capture_end()
            except BaseException:
                with suppress(Exception):  # an end that fails may leave torch's allocator inside of the capture
                    torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
                raise
        return Graph(graph.replay, {name: _lent(torch, tensor) for name, tensor in outputs.items()})
