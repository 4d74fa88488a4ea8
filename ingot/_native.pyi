"""The native core: reads, plans and runs engines (native/src/bindings.cpp)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Array: TypeAlias = NDArray[Any]
_Dim: TypeAlias = int | str | list[Any]  # a constant, a symbol's name, or [operator, operands…]
# (place of the call, operands, (dtype, dims) of each declared result, (name, value) of each symbol) -> results
_Host: TypeAlias = Callable[[int, list[_Array], list[Any], list[Any]], list[_Array]]

class Error(Exception):
    """A typed error; `code` is one of docs/errors.md."""

    code: str

# Bytes behind every buffer of an arena that nothing may touch: 0 but in builds for the fuzzer and the sanitizers.
RED_ZONE: int

# The oldest and the newest format of engine files that is read here, and version of programs that runs here.
FORMATS: tuple[int, int]
PROGRAMS: tuple[int, int]

def is_newer(producer: str) -> bool:
    """Whether what a header names as its producer ("ingot 0.2.0") is a newer ingot than this one."""

def who_reads(producer: str) -> str:
    """Which ingot reads a file that this one does not: "written by ingot 0.2.0, this is ingot 0.1.0: use …"."""

def level() -> str:
    """The instruction-set level in use: the best one here, or what INGOT_ISA names. Raises Error("argument")."""

def levels() -> list[str]:
    """The levels that can run here, lowest first."""

def kernels() -> list[dict[str, Any]]:
    """The kernel table: name, version, doc (operands and parameters) and levels (those with code of their own)."""

def default_threads() -> int:
    """The smaller of the process's CPU affinity and its cgroup's quota."""

def plan_layout(program_json: str, symbols: Mapping[str, int]) -> dict[str, Any]:
    """Where the buffers of a program lie in the arena, for values of its symbols.

    Returns {arena, lower_bound, buffers: [{buffer, offset, bytes, first, last}]}: a buffer's memory is its own from
    the start of call `first` (-1: before all) to the end of call `last`. Raises Error("program"), ("input"),
    ("argument").
    """

class Sampler:
    """How one request's tokens are chosen, and what it has seen. Raises Error("argument") for what is out of range."""

    def __init__(
        self,
        vocabulary: int,
        prompt: NDArray[np.int64],
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        repetition: float = 1.0,
        presence: float = 0.0,
        frequency: float = 0.0,
        bias: Sequence[tuple[int, float]] = (),
        bad_words: Sequence[Sequence[int]] = (),
        top_logprobs: int = 0,
    ) -> None: ...

def sample(
    logits: NDArray[np.float32], samplers: Sequence[Sampler], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """Chooses a token per row of logits [rows, vocabulary], which its sampler remembers.

    Returns (token ids, their log probabilities, the likeliest tokens [rows, most], their log probabilities).
    """

def draws(
    samplers: Sequence[Sampler], positions: NDArray[np.int64]
) -> tuple[
    NDArray[np.float32], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float64],
    NDArray[np.bool_],
]:  # fmt: skip
    """What a device needs to choose as these samplers would: temperature, top_k (1 to the vocabulary), top_p, min_p,
    the random number, and whether the logits alone decide: no penalty, bias or forbidden sequence, nothing reported.
    """

def log_probs(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float32]:
    """The log softmax of each row of logits [rows, vocabulary] at its target."""

class Engine:
    """A container whose programs are parsed and verified. Immutable; safe to share between threads."""

    @staticmethod
    def open(path: str, weights: str = "mapped") -> Engine:
        """Reads an engine file; weights stay in the mapped file, or are copied into huge pages ("resident").

        Raises Error("io"), ("engine_file"), ("engine_version"), ("program"), ("memory"), ("argument").
        """

    @staticmethod
    def from_memory(header_json: bytes, tensors: Mapping[str, _Array]) -> Engine:
        """An engine that is no file. The arrays are used where they are (copied only when not contiguous)."""

    def with_tensors(self, tensors: Mapping[str, _Array]) -> Engine:
        """An engine of the same programs with these tensors, as from_memory takes them.

        Where they are the same memory as this engine's, what kernels have made of them is shared.
        Raises Error("program"), ("kernel_refused").
        """

    def header(self) -> bytes:
        """Our JSON."""

    def tensor(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes: read-only, in place. Raises Error("argument")."""

    def tensor_spec(self, name: str) -> tuple[str, list[int]]:
        """Its element type and shape in the file. Raises Error("argument")."""

    def entries(self, target: str = "cpu") -> list[str]: ...
    def host_calls(self, entry: str = "main") -> list[str]:
        """The operations of an entry that have no native kernel, each once."""

    @property
    def bytes_mapped(self) -> int:
        """The size of the file while it is mapped; else 0."""

class Session:
    """One arena, one set of states, one run at a time. Raises what Engine.open does, and Error("kernel_refused")."""

    def __init__(
        self,
        engine: Engine,
        entry: str = "main",
        threads: int = 0,
        kv_blocks: int = 0,
        kv_block_size: int = 16,
        host: _Host | None = None,
        rounds: int = ...,
    ) -> None:
        """rounds: of all loops of a run together; more are Error("value")."""

    @property
    def inputs(self) -> list[tuple[str, str, list[_Dim]]]:
        """Name, dtype and dimensions of each."""

    @property
    def outputs(self) -> list[tuple[str, str, list[_Dim]]]: ...
    @property
    def threads(self) -> int: ...
    def run(self, feeds: dict[str, _Array], out: dict[str, _Array] = ...) -> dict[str, _Array]:
        """Runs once; results are fresh arrays, or those of `out`, which are written.

        Raises Error("input"), ("value"), ("busy"), ("memory"), and what the host raises.
        """

    def profile(self, feeds: dict[str, _Array]) -> list[dict[str, Any]]:
        """Runs once; {call, kernel or host, where, ns, bytes, in, out} of every call, in and out as (dtype, shape)."""

    def memory(self) -> dict[str, int]:
        """Bytes of weights, arena, arena_lower_bound (of the last run) and state."""

    def planned(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """Bytes that a run of these sizes would take: buffers, lower_bound, working and arena (all of it); and most_at,
        the number of the first call at which the most is alive.

        Raises Error("argument") when the program binds symbols while it runs, Error("kernel_refused").
        """
