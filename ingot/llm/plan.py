"""What memory a language model takes at a concurrency and a context length, before anything is loaded.

The figures come from the code that allocates: a session plans its arena, and the cache counts its blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.llm.config import model_config
from ingot.llm.memory import cache_blocks


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that `concurrency` requests of `context_length` tokens at once take.

    weights: as they lie in memory. activations: the arena of the largest step. results: the logits of a step, which
    leave the arena. kv_bytes: of keys and values. total: all of them; the interpreter, its libraries and the tokenizer
    come on top.
    """

    concurrency: int
    context_length: int
    weights: int
    activations: int
    results: int
    kv_bytes: int

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.weights + self.activations + self.results + self.kv_bytes


class MemoryPlanner:
    """Plans for one model.

    Args:
        engine: a language model's; an outline will do.
        threads: as a session takes them; working memory is by thread.
    """

    def __init__(self, engine: Engine, threads: int | None = None) -> None:
        if engine.kind != "llm":
            what = "an encoder of texts" if engine.kind == "encoder" else "a plain network"
            raise UserError(
                f"{engine.path or 'this'} is {what}, and plans are made for requests to a language model: "
                f"`ingot inspect {engine.path or 'ENGINE'} --size DIM=N` tells the memory of its runs"
            )
        self._config = model_config(engine)
        if not self._config.generates:
            raise UserError("this model has no head: it generates nothing, so it has no requests to plan for")
        limits = engine.device.limits
        self._block_size = limits.block_size
        self._session = engine.session(threads, kv_blocks=1, kv_block_size=limits.block_size)
        self.threads = self._session.threads
        self.step_tokens = min(limits.max_step_tokens, self._config.max_step_tokens)
        self.context_limit = self._config.context_length
        self.windowed = self._config.window is not None

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Of keys and values in all layers."""
        return self._config.state_bytes

    @cached_property
    def weights(self) -> int:
        """Bytes of the weights."""
        return self._session.memory().weights

    def plan(self, concurrency: int, context_length: int) -> MemoryPlan:
        """The memory of one combination. Raises UserError for one that the runtime does not take."""
        if not 1 <= concurrency <= self.step_tokens:
            raise UserError(f"the concurrency must be from 1 to {self.step_tokens}, a step's tokens, not {concurrency}")
        if not 1 <= context_length <= self.context_limit:
            raise UserError(f"the context must be from 1 to {self.context_limit}, the model's, not {context_length}")
        blocks = cache_blocks(1, context_length, self._block_size)
        sizes = {"T": self.step_tokens, "B": concurrency, "N": blocks, "R": concurrency, "E": 0}
        return MemoryPlan(
            concurrency,
            context_length,
            self.weights,
            self._session.planned(sizes).arena,
            concurrency * self._config.vocab_size * 4,
            cache_blocks(concurrency, context_length, self._block_size) * self._block_size * self.kv_bytes_per_token,
        )

    def most_requests(self, context_length: int, memory: int) -> int:
        """How many requests of that length fit at once; 0 when not even one does."""
        return bisect_left(
            range(1, self.step_tokens + 1), True, key=lambda n: self.plan(n, context_length).total > memory
        )

    def longest_context(self, concurrency: int, memory: int) -> int:
        """The longest context with which so many requests fit at once; 0 when they do not fit at all.

        Whole blocks, but for the model's own limit.
        """
        blocks = cache_blocks(1, self.context_limit, self._block_size)

        def length(n: int) -> int:
            return min(n * self._block_size, self.context_limit)

        fitting = bisect_left(
            range(1, blocks + 1), True, key=lambda n: self.plan(concurrency, length(n)).total > memory
        )
        return length(fitting) if fitting else 0

    def contexts(self, asked: int) -> list[int]:
        """Context lengths worth a row of a table: powers of two, the model's own limit and the one asked for."""
        powers = {1 << i for i in range(8, 31) if 1 << i < self.context_limit}
        return sorted(powers | {self.context_limit, asked})
