"""`Embedder`: texts in, one vector for each out, from any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from ingot.engine.session import Engine
from ingot.errors import EngineFileError, RequestError
from ingot.llm.assembly import check_kind
from ingot.llm.vectors import POOLINGS, Pooler, Prompt, Texts, pooling_of, scaled
from ingot.source import open_engine
from ingot.text.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]

MAX_RUN_TOKENS = 4096  # of one run, padding included: texts of like length share a run


class Embedder:
    """An encoder ready to turn texts into vectors.

    Args:
        source: an engine file of kind "encoder", a Hugging Face directory (built in memory), or an Engine. How vectors
            are pooled is what the directory says; of one that says nothing, the mean of all tokens.
        precision, weights, activations, device, threads: as LLM takes them.

    Raises:
        UserError and its subclasses: a source that is no encoder, words that conflict with the engine.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Engine,
        *,
        precision: str | None = None,
        weights: str | None = None,
        activations: str | None = None,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.engine = open_engine(source, precision, weights, device, activations=activations)
        check_kind(self.engine, source, "encoder")
        config = self.engine.config
        faults = [n for n in ("vocab_size", "context_length", "hidden_size") if not _is_count(config.get(n))]
        if config.get("pooling") not in POOLINGS or not isinstance(config.get("normalize"), bool):
            faults.append("pooling")
        limits = config.get("limits")
        batch = limits.get("max_batch") if isinstance(limits, dict) else None
        if not _is_count(batch) or not isinstance(config.get("prompt"), str):
            faults.append("limits")
        if faults:
            where = self.engine.path or "the engine"
            raise EngineFileError(f"{where} is no whole encoder: see its {', '.join(faults)}")
        self.vocab_size: int = config["vocab_size"]
        self.context_length: int = config["context_length"]
        self.hidden_size: int = config["hidden_size"]
        self.pooling: str = config["pooling"]
        self.normalize: bool = config["normalize"]
        self._max_batch = cast(int, batch)
        data = self.engine.files().get("tokenizer.json")
        tokenizer = None if data is None else Tokenizer(data)
        self.texts = Texts(tokenizer, self.vocab_size, self.context_length, config["prompt"])
        self._session = self.engine.session(threads)
        self.runs = 0  # of the network, so far
        self._running = threading.Lock()  # one run at a time
        self._lock = threading.Lock()
        self._named: dict[str, threading.Event] = {}  # set: nobody waits for that request any more

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises UserError when the source came without tokenizer.json."""
        return self.texts.tokenizer

    def embed(
        self, text: Prompt | Sequence[Prompt], pooling: str | None = None, *, normalize: bool | None = None,
        truncate: bool = False, request_id: str | None = None,
    ) -> Array:  # fmt: skip
        """One vector for each text (or list of token ids, taken as they are): float32 [N, hidden_size].

        A text's vector is the same bits alone and among others.

        Args:
            pooling: mean, cls (the first token), last or max; default: the model's own.
            normalize: whether vectors are scaled to length 1; default: as the model's files say.
            truncate: whether a text with too many tokens loses those behind, its closing ones kept, or is refused.
            request_id: a name under which `abort` finds it.

        Raises RequestError for what is out of range or was aborted, TooLongError for a text beyond the context.
        """
        how = pooling_of(pooling, self.pooling)
        rows = self.texts.rows(text, truncate)
        vectors = np.empty((len(rows), self.hidden_size), np.float32)
        with self._under_way(request_id) as aborted:
            for batch in self._batches([len(row) for row in rows]):
                if aborted.is_set():
                    raise RequestError("the request was aborted")
                hidden = self._run([rows[i] for i in batch])
                for i, states in zip(batch, hidden, strict=True):
                    pooler = Pooler(how)
                    pooler.add(states[: len(rows[i])])
                    vectors[i] = pooler.vector()
        return scaled(vectors) if (self.normalize if normalize is None else normalize) else vectors

    def abort(self, request_id: str) -> bool:
        """Ends the request of that name after the run under way, with an error. False when there is none."""
        with self._lock:
            found = self._named.get(request_id)
        if found is not None:
            found.set()
        return found is not None

    @contextmanager
    def _under_way(self, request_id: str | None) -> Iterator[threading.Event]:
        """What `abort` sets while the block lasts."""
        aborted = threading.Event()
        if request_id is None:
            yield aborted
            return
        with self._lock:
            if request_id in self._named:
                raise RequestError(f"a request called {request_id!r} is under way: names must differ")
            self._named[request_id] = aborted
        try:
            yield aborted
        finally:
            with self._lock:
                del self._named[request_id]

    def _batches(self, lengths: list[int]) -> list[list[int]]:
        """Which texts run together: those of like length, up to MAX_RUN_TOKENS of the longest's size."""
        batches: list[list[int]] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            room = min(self._max_batch, MAX_RUN_TOKENS // lengths[batches[-1][0]]) if batches else 0
            if batches and len(batches[-1]) < room:
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches

    def _run(self, rows: list[list[int]]) -> Array:
        """Hidden states [B, T, hidden] of texts, padded behind."""
        width = max(len(row) for row in rows)
        ids = np.zeros((len(rows), width), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        positions = np.broadcast_to(np.arange(width, dtype=np.int32), ids.shape)
        mask = positions < np.array([[len(row)] for row in rows])
        feeds = {"token_ids": ids, "positions": np.ascontiguousarray(positions), "mask": mask}
        with self._running:
            hidden = self._session.run(feeds)["hidden"]
            self.runs += 1
        return hidden


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31
