"""Where a session runs: targets by the names that people write, their limits, and how a session opens there.

Only what a run needs is here. What lowers networks for a target is its `Target` (backends/base.py), which serving a
built engine never loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any, Protocol

import numpy as np

from ingot import _lazy
from ingot.errors import MemoryLimitError, UserError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Limits:
    """How a target likes to run a language model.

    block_size: tokens in a block of the KV cache. max_running: requests in flight at once. max_step_tokens: of one
    step; a chunk of that size already keeps the machine busy. max_mixed_tokens: of prompts, in a step of answers that
    are read as they come, until it is known how long steps take (llm/step_times.py). max_row_bytes: of logits and
    hidden states that one step may leave for scores and vectors.
    narrow_tables: whether a step's block table is as wide as its longest request, for attention goes over all of it.
    chooses: whether its executors choose tokens themselves (LaunchingExecutor).
    """

    block_size: int = 16
    max_running: int = 64
    max_step_tokens: int = 512
    max_mixed_tokens: int = 12
    max_row_bytes: int = 64 << 20
    narrow_tables: bool = False
    chooses: bool = False


class Executor(Protocol):
    """What runs one program of an engine: memory of its own, one run at a time. Raises ingot errors only.

    inputs, outputs: (name, dtype, dims) each; dims as in a program. threads: that a run uses.
    """

    inputs: Sequence[tuple[str, str, Sequence[Any]]]
    outputs: Sequence[tuple[str, str, Sequence[Any]]]
    threads: int

    def run(self, feeds: dict[str, Array], out: dict[str, Array] | None = None) -> dict[str, Array]:
        """The results by name, in arrays of `out` where it has them."""

    def own(self, value: Any) -> Any:
        """What a run takes for something that lies on the device itself; None for anything else."""

    def profile(self, feeds: dict[str, Array]) -> list[dict[str, Any]]:
        """One run with the time of every call, as Session.profile gives it."""

    def memory(self) -> Mapping[str, int]:
        """Bytes: weights, arena, arena_lower_bound, state."""

    def planned(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Bytes of a run with dims of these sizes: buffers, lower_bound, working, arena; and most_at, the
        number of the first call at which the most is alive.
        """

    def sample(
        self, logits: Array, samplers: Sequence[Any], positions: Array
    ) -> tuple[Array, Array, Array, Array]:
        """A token for each row of logits (float32 [rows, vocabulary]): ids, their log probabilities, the likeliest
        ids [rows, most] (-1: none) and theirs."""

    def log_probs(self, logits: Array, targets: Array) -> Array:
        """log softmax of each row of logits at its target, float32 [rows]."""


class CacheRoomError(MemoryLimitError):
    """The KV cache that a session was opened with does not fit on its device. blocks: as many as would."""

    def __init__(self, message: str, blocks: int) -> None:
        super().__init__(message)
        self.blocks = blocks


@dataclass(frozen=True)
class Choice:
    """How a launched run takes and chooses tokens.

    behind: int32 [T], for each position which of the tokens that the launch before chose it holds; -1: what token_ids
        says. temperature, top_k, top_p, min_p, uniform: of each of the first rows of logits, as `_native.draws` gives
        them; without rows nothing is chosen. back: the rows of logits that the host wants.
    """

    behind: Array
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    uniform: Array
    back: Sequence[int] = ()


@dataclass(frozen=True)
class Chosen:
    """What came of a launched run: tokens, int64, and their log probabilities, float32, one of each row that chose one
    (token -1: no logit is finite, or one is NaN or infinite); its outputs, of the logits the rows asked for.
    """

    tokens: Array
    logprobs: Array
    outputs: Mapping[str, Array]


class LaunchingExecutor(Executor, Protocol):
    """An executor of language models that works by itself, and chooses tokens itself.

    One launch may be under way when the next one is made. They run in order.
    """

    def launch(self, feeds: dict[str, Array], choice: Choice) -> Callable[[], Chosen]:
        """Starts a run. Returns what waits for it, and raises what `run` raises."""


@dataclass(frozen=True)
class Opening:
    """What a session is opened on.

    tensor: a stored tensor by name. native: the engine in the native core. device: what follows the target's name.
    kept: the engine's, for what its sessions share on this target; whoever puts something there may be one of several
    threads. external: the user's own ops that the engine may call, by name.
    """

    header: Mapping[str, Any]
    tensor: Callable[[str], Array]
    native: Any
    entry: str
    threads: int | None
    kv_blocks: int
    kv_block_size: int
    device: str
    kept: dict[Any, Any]
    external: Mapping[str, Any]


@dataclass(frozen=True)
class Runtime:
    """The half of a target that a run needs.

    opener: where the function stands that makes an Executor of an Opening. resolver: where the one stands that makes a
    device's full name of what follows the target's ("" for nothing), or raises UserError; without it nothing follows.
    meter: where the one stands that gives the bytes that are free on a device, or None for the host's memory.
    words: how it is written, for messages.
    """

    name: str
    words: str
    opener: str
    limits: Limits = Limits()
    resolver: str = ""
    meter: str = ""


CPU = Runtime(
    "cpu", "cpu", "ingot.backends.native:open_session",
    # A dozen rows more make a step of a large model half as long again, for it waits for its weights; prompts beside
    # answers then still advance nearly as fast as alone.
    Limits(max_step_tokens=512, max_mixed_tokens=12),
)  # fmt: skip
TORCH = Runtime(
    "torch", "torch[:DEVICE]", "ingot.backends.torch_executor:open_session",
    Limits(max_step_tokens=512, max_mixed_tokens=512, narrow_tables=True),  # a step's time hardly depends on its rows
    "ingot.backends.torch_device:resolve", "ingot.backends.torch_device:available",
)  # fmt: skip
CUDA = Runtime(
    "cuda", "cuda[:N]", "ingot.backends.cuda.executor:open_session",
    # A prompt's attention finds its keys a fifth faster in blocks of 64 tokens than of 16. Weights of few bits are
    # widened once a step, and kernels of 2,048 tokens are so short that the host hardly launches them in time.
    Limits(block_size=64, max_step_tokens=4096, max_mixed_tokens=512, narrow_tables=True, chooses=True),
    "ingot.backends.cuda.devices:resolve", "ingot.backends.cuda.devices:available",
)  # fmt: skip
RUNTIMES = {runtime.name: runtime for runtime in (CPU, TORCH, CUDA)}
DEFAULT = CPU.name
WORDS = "|".join(runtime.words for runtime in RUNTIMES.values())


@dataclass(frozen=True)
class Device:
    """A target, and which of its devices ("" where it has one only)."""

    runtime: Runtime = CPU
    name: str = ""

    def __str__(self) -> str:
        return f"{self.runtime.name}:{self.name}" if self.name else self.runtime.name

    @property
    def is_architecture(self) -> bool:
        """Whether it is what kernels are compiled for, and no device of this machine."""
        return self.name.startswith("sm_")

    @property
    def limits(self) -> Limits:
        """Its target's."""
        return self.runtime.limits

    def available(self) -> int | None:
        """The bytes that are free there; None: it has the host's memory, or nobody says."""
        free: int | None = _lazy.load(self.runtime.meter)(self.name) if self.runtime.meter else None
        return free

    def open(self, opening: Opening) -> Executor:
        """An executor there."""
        executor: Executor = _lazy.load(self.runtime.opener)(opening)
        return executor


def device_of(word: str | Device | None) -> Device:
    """The device of a word: "cpu", "torch", "torch:cuda:0", "cuda". None is the CPU.

    Raises UserError for words that name none, and for a device that is not there.
    """
    if word is None or isinstance(word, Device):
        return word or Device()
    asked: Any = word  # whatever a caller gave
    target, colon, rest = asked.partition(":") if isinstance(asked, str) else ("", "", "")
    runtime = RUNTIMES.get(target)
    if runtime is None or (colon and not (rest and runtime.resolver)):
        raise UserError(f"device {brief(word)} is not available: write {WORDS.replace('|', ' or ')}")
    return Device(runtime, _lazy.load(runtime.resolver)(rest) if runtime.resolver else "")


def programs_of(header: Mapping[str, Any], target: str = DEFAULT) -> dict[str, Any]:
    """The programs of an engine for a target, by the names of their entries; none where it was not built for it."""
    entries: dict[str, Any] = header["programs"].get(target, {}).get("entries", {})
    return entries


def program_of(header: Mapping[str, Any], entry: str = "main", target: str = DEFAULT) -> dict[str, Any]:
    """One of them. Raises UserError when there is none."""
    found = programs_of(header, target)
    if entry not in found:
        raise UserError(f"the engine has no program {brief(entry)} for {target}; it has {', '.join(found) or 'none'}")
    program: dict[str, Any] = found[entry]
    return program


def with_bodies(program: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A program, and the programs that its calls hold, however deep."""
    yield program
    for call in program["calls"]:
        for body in call.get("bodies", ()):
            yield from with_bodies(body["program"])
