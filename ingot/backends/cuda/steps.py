"""Captured steps of a language model, one row a request: a CUDA graph for each number of rows and width of the table.

The inputs of a step lie in one buffer at a fixed address, which one copy from pinned memory fills. Rows that nobody
asked for write nothing and see nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.backends.cuda.choice import WORDS, Chooser, Kind
from ingot.backends.cuda.transfer import Layout, Transfer
from ingot.backends.device import Choice

Array = np.ndarray[Any, Any]

MOST_ROWS = 64  # of a captured step
# What the inputs of a padded step hold in the rows that nobody asked for.
PADDING = {"token_ids": 0, "positions": 0, "slot": -1, "context_len": 0, "block_table": 0, "logit_rows": -1,
           "long_rope": 0}  # fmt: skip

_NOTHING = np.zeros(0, np.int32)

Replay = Callable[[], None]


def _padding(name: str) -> int:
    return -1 if name == "behind" else PADDING.get(name, 0)


@dataclass
class Step:
    """A captured step.

    memory: its inputs on the device; tensors: views of that. replay: computes `outputs`. choices: of each kind of
    choice that was asked for, what chooses, and where the tokens are then.
    """

    layout: Layout
    memory: Any
    tensors: Mapping[str, Any]
    replay: Replay
    outputs: Mapping[str, Any]
    choices: dict[Kind, tuple[Replay, Any]] = field(default_factory=dict)

    def start(self, transfer: Transfer, feeds: Mapping[str, Array], choice: Choice | None) -> None:
        """Fills the inputs, and computes the outputs."""
        memory, arrays = transfer.words(self.layout)
        for name, array in arrays.items():
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
        self.memory.copy_(memory, non_blocking=True)
        self.replay()


def blank(layout: Layout, torch: Any, device: Any) -> tuple[Any, dict[str, Any]]:
    """The inputs of a step in which nobody has a row."""
    memory = torch.zeros(layout.words, dtype=torch.int32, device=device)
    tensors = layout.tensors(torch, memory)
    for name, tensor in tensors.items():
        tensor.fill_(_padding(name))
    return memory, tensors


def layout_of(names: list[str], rows: int, columns: int) -> Layout:
    """Of the inputs of a step, and of what chooses its tokens."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(names, ((rows,), "int32"))
    shapes["block_table"] = (rows, columns), "int32"
    shapes["query_start"] = (rows + 1,), "int32"
    if "hidden_rows" in shapes:
        shapes["hidden_rows"] = (0,), "int32"
    shapes |= {name: ((rows,), dtype) for name, dtype in WORDS.items()}
    shapes["behind"] = (rows,), "int32"
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


def choosing(step: Step, kind: Kind, graphs: Graphs, chooser: Chooser) -> tuple[Replay, Any]:
    """What chooses the tokens of a step, and where they are then."""
    if kind not in step.choices:
        kept = chooser.chosen.clone()  # capturing runs it once
        step.choices[kind] = graphs.captured(lambda: chooser.choose(step.outputs["logits"], step.tensors, kind))
        chooser.chosen.copy_(kept)
    return step.choices[kind]
