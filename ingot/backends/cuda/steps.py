"""Captured steps of a language model, one row a request: a CUDA graph for each number of rows and width of the table.

The inputs of a step lie in one buffer at a fixed address, which its first kernel fills. Rows that nobody asked for
write nothing and see nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot.backends.cuda.choice import WORDS, Kind
from ingot.backends.cuda.page_locked import PAGE_LOCKED
from ingot.backends.cuda.transfer import Inputs, Layout, Transfer
from ingot.backends.device import Choice

Array = np.ndarray[Any, Any]

MOST_ROWS = 64  # of a captured step
SLOTS = 4  # of a ring of inputs: a power of two, and more than steps that are under way
# What the inputs of a padded step hold in the rows that nobody asked for.
PADDING = {"token_ids": 0, "positions": 0, "slot": -1, "context_len": 0, "block_table": 0, "logit_rows": -1,
           "long_rope": 0}  # fmt: skip

_NOTHING = np.zeros(0, np.int32)

Replay = Callable[[], None]


def _padding(name: str) -> int:
    return -1 if name == "behind" else PADDING.get(name, 0)


def _never() -> None:
    raise AssertionError("a step is captured before it is started")


class Step:
    """A captured step, and what chooses its tokens if somebody does: one kind of choice.

    Its inputs lie in a ring of page-locked memory of the host, which its first kernel reads, turn by turn; the tokens
    go where `results` of the inputs says, memory of the host too. So the device waits for no copy.
    """

    def __init__(self, torch: Any, device: Any, layout: Layout, kind: Kind | None) -> None:
        self.kind = kind
        self.outputs: Mapping[str, Any] = {}
        ring = PAGE_LOCKED.empty(torch, device, (SLOTS, layout.words), torch.int32)
        self._slots = [layout.arrays(words) for words in ring.numpy()]
        for array, name in ((array, name) for slot in self._slots for name, array in slot.items()):
            array[...] = _padding(name)
        self.inputs = Inputs.of(torch, device, layout, ring)
        self._replay: Replay = _never
        self._turns = 0
        self._ends: list[Any] = [None] * SLOTS  # events, of the runs that read the slots

    def capture(self, graphs: Graphs, work: Callable[[], Mapping[str, Any]]) -> None:
        """Captures `work`, which computes the outputs and takes a turn."""
        self._replay, self.outputs = graphs.captured(work)
        self.inputs.turn.zero_()  # it ran before, to compile

    def start(self, transfer: Transfer, feeds: Mapping[str, Array], choice: Choice | None) -> Any:
        """Fills the inputs, and computes the outputs. Tokens and log probabilities as the device will write them, int32
        [2, rows] on the host. The caller tells `ends` what marks the end of it."""
        slot = self._turns % SLOTS
        transfer.wait(self._ends[slot])
        arrays = self._slots[slot]
        found = None
        for name, array in arrays.items():
            if name == "results":
                if self.kind is not None:
                    found = transfer.host((2, len(arrays["behind"])), "int32")
                array[0] = 0 if found is None else found.data_ptr()
                continue
            if name in WORDS or name == "behind":
                given: Array = _NOTHING if choice is None else getattr(choice, name)
            else:
                given = feeds[name]
            count = len(given)
            if name == "block_table":
                width = given.shape[1]
                array[:count, :width] = given
                array[:count, width:] = 0
            else:
                array[:count] = given
            array[count:] = given[-1] if name == "query_start" else _padding(name)
        self._replay()
        self._turns += 1
        return found

    def ends(self, event: Any) -> None:
        """What was started last ends with an event."""
        self._ends[(self._turns - 1) % SLOTS] = event


def layout_of(names: list[str], rows: int, columns: int) -> Layout:
    """Of the inputs of a step, and of what chooses its tokens."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(names, ((rows,), "int32"))
    shapes["block_table"] = (rows, columns), "int32"
    shapes["query_start"] = (rows + 1,), "int32"
    if "hidden_rows" in shapes:
        shapes["hidden_rows"] = (0,), "int32"
    shapes |= {name: ((rows,), dtype) for name, dtype in WORDS.items()}
    shapes["behind"] = (rows,), "int32"
    shapes["results"] = (1,), "int64"
    return Layout.of(shapes)


def columns_of(width: int) -> int:
    """How wide the block table of a captured step is: few widths, for each is captured by itself."""
    columns = 64
    while columns < width:
        columns *= 8
    return columns


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

