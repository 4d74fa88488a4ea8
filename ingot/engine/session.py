"""Engines and sessions: the Python face of the native core. Loads without passes, ops or frontends.

An `Engine` is immutable and shared; a `Session` owns one arena and one set of states and runs one call at a time.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np

from ingot import _lazy, _native, dims_parsing, dtypes, foreign
from ingot.backends.device import Choice, Chosen, Device, Executor, Opening, device_of, programs_of, with_bodies
from ingot.engine import file
from ingot.engine.external import declared, matching
from ingot.errors import ArgumentError, EngineFileError, FileError, InputError, UserError, typed

Array = np.ndarray[Any, Any]

IDLE_SESSIONS = 2  # that an engine keeps: while one computes with all threads, another brings in and takes out


class Dims(tuple[Any, ...]):
    """The sizes of a port: ints, names of dims, and expressions in their JSON form. Prints as `[N, 3, 2*H, W]`."""

    def __str__(self) -> str:
        return f"[{', '.join(str(dims_parsing.from_json(dim)) for dim in self)}]"

    __repr__ = __str__


class Port(NamedTuple):
    """One input or output. Prints as `image: f32[N, 3, 2*H, W]`."""

    name: str
    dtype: str
    dims: Dims

    def __str__(self) -> str:
        return f"{self.name}: {dtypes.get(self.dtype)}{self.dims}"

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Planned:
    """Bytes that a run of given sizes takes. buffers: what calls hand to each other. lower_bound: the most of it that
    is alive at once. working: the kernels' scratch, over all threads. arena: all together. most_at: the number of the
    first call at which the most is alive.
    """

    buffers: int
    lower_bound: int
    working: int
    arena: int
    most_at: int


@dataclass(frozen=True)
class Memory:
    """Bytes that a session uses, or would use at the sizes of its last run."""

    weights: int
    arena: int
    arena_lower_bound: int
    state: int


_REAL = {dtype.numpy for dtype in dtypes.ALL if dtype.kind != "complex"}  # .astype would drop a complex one's half
_CPU_DEVICES = (1, 3)  # DLPack's kDLCPU, and kDLCUDAHost: pinned memory of the host


def as_array(value: Any, name: str, what: str = "input") -> Array:
    """A NumPy array over the memory of an array, a torch tensor or any DLPack object on the CPU, without a copy.

    Raises InputError for anything else: numbers and lists have no dtype of their own, so they are not guessed at.
    """
    if type(value) is np.ndarray:
        return value
    who = f"{what} {name!r}"
    if isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.ma.MaskedArray):
            raise InputError(f"{who} is a masked array, and the mask would be lost: pass .filled(…) or .data")
        return np.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value.detach(), who)
    if hasattr(value, "__dlpack__"):
        kind = type(value).__name__
        try:
            device, number = value.__dlpack_device__()
            if device not in _CPU_DEVICES:
                raise InputError(
                    f"{who} is a {kind} on device {number} of DLPack's type {int(device)}; this engine runs on the "
                    "CPU: copy it there"
                )
            return np.from_dlpack(value)
        except InputError:
            raise
        except Exception as e:  # whatever another library's object may raise
            raise InputError(f"{who}: NumPy cannot read this {kind} through DLPack: {e}") from None
    raise InputError(f"{who} is a {type(value).__name__}; pass a NumPy array, a torch tensor or another DLPack array")


def _casts(ports: Sequence[Port], given: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """What to write in the place of arrays that have the wrong dtype and nothing else against them, or nothing."""
    ways = []
    for port in ports:
        array, wanted = arrays.get(port.name), dtypes.get(port.dtype)
        if not isinstance(array, np.ndarray) or array.dtype == wanted.numpy or array.dtype not in _REAL:
            continue
        if array.ndim != len(port.dims):
            continue
        if any(isinstance(dim, int) and dim != size for dim, size in zip(port.dims, array.shape, strict=True)):
            continue
        is_tensor = type(given[port.name]).__module__.partition(".")[0] == "torch"
        ways.append(f"{port.name}.to(torch.{wanted.name})" if is_tensor else f"{port.name}.astype({wanted.name!r})")
    return f": pass {' and '.join(ways)}" if ways else ""


def _results(out: Mapping[str, Any], own: Callable[[Any], Any]) -> dict[str, Any]:
    """The arrays to write results into. Refuses those in which one result would overwrite another, or itself.

    own: what gives an executor's view of its own memory; the executor looks at that itself.
    """
    found: dict[str, Array] = {}
    there: dict[str, Any] = {}
    for name, value in _named(out, "out").items():
        if type(value) is not np.ndarray and (tensor := own(value)) is not None:
            there[name] = tensor
            continue
        if isinstance(value, np.generic):
            raise InputError(f"out {name!r} is a NumPy scalar, which nothing can be written to; pass a 0-d array")
        array = as_array(value, name, "out")
        if not array.flags.c_contiguous and _overlaps_itself(array):
            raise InputError(f"out {name!r}: its elements overlap in memory (strides {array.strides}): pass a copy")
        for other, earlier in found.items():
            if np.shares_memory(array, earlier):
                raise InputError(f"out {name!r} and out {other!r} share memory: each needs an array of its own")
        found[name] = array
    return found | there


def _overlaps_itself(array: Array) -> bool:
    """Whether two elements may lie at one address: some stride is less than what the smaller ones span."""
    span = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < span:
            return array.size > 0
        span += stride * (size - 1)
    return False


def _named(arrays: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    if not isinstance(arrays, Mapping):
        raise InputError(f"{what} must be a dict of arrays by name, not a {type(arrays).__name__}")
    return arrays


def _of_tensor(torch: Any, tensor: Any, who: str) -> Array:
    if tensor.device.type != "cpu":
        raise InputError(f"{who} is on {tensor.device}; inputs are read from the host's memory: pass value.cpu()")
    try:
        if tensor.dtype == torch.bfloat16:  # NumPy's side of DLPack knows no bfloat16
            return tensor.view(torch.int16).numpy().view(dtypes.bfloat16.numpy)  # type: ignore[no-any-return]
        return tensor.numpy()  # type: ignore[no-any-return]
    except (RuntimeError, TypeError) as e:  # sparse, quantised, conjugated
        raise InputError(f"{who}: torch has no NumPy view of this tensor: {e}") from None


class Engine:
    """A built network: header, weights and programs. Made by `ingot.build` and `ingot.load`; shared by threads safely.

    `header` is the engine's own JSON: producer, kind, config, networks, weights (recipes and digests), programs, files.
    `device` is where its sessions run unless they are told otherwise.
    """

    def __init__(
        self, native: Any, header: dict[str, Any], tensors: Mapping[str, Array] | None, path: Path | None,
        device: Device | None = None, external: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._native = native
        self.external = dict(external or {})  # classes of the user's own ops that it uses, by name
        self._tensors = tensors
        self.device = device or Device()
        self._kept: dict[Any, Any] = {}  # of targets, for the sessions that run there
        # No lock: a signal handler or destructor that runs the engine, or a fork, could meet it held.
        self._idle: deque[Session] = deque(maxlen=IDLE_SESSIONS)
        self.header = header
        self.path = path
        self.report: Any = None  # the accuracy report of the build that made it, when there was one
        self.summary: Any = None  # of that build: ops, inputs and outputs, and what makes it slow
        self.calibrated: Any = None  # the quantisation report of that build, where data showed the scales
        self.seconds: dict[str, float] = {}  # of each phase of that build
        self.log: list[str] = []  # what the passes of that build did, and what they refused and why

    @classmethod
    def from_memory(
        cls, header: dict[str, Any], tensors: Mapping[str, Array], external: Mapping[str, Any] | None = None
    ) -> Engine:
        """An engine that lies in memory only, as `build` makes it. Keeps references to the arrays.

        external: classes of the user's own ops that it uses, by name.
        """
        text = file.canonical_json({"format": header["format"], "programs": header["programs"]}).encode()
        plain = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        try:
            native = _native.Engine.from_memory(text, plain)
        except _native.Error as e:
            raise typed(e) from None
        return cls(native, header, plain, None, None, external)

    def with_tensors(self, header: dict[str, Any], tensors: Mapping[str, Array]) -> Engine:
        """An engine of these programs with other tensors. Where those are this one's, both use the same memory, and
        what kernels have made of it.
        """
        plain = {name: np.asarray(array, order="C") for name, array in tensors.items()}
        try:
            native = self._native.with_tensors(plain)
        except _native.Error as e:
            raise typed(e) from None
        made = Engine(native, header, plain, None, self.device, self.external)
        made.log = list(self.log)
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str], ops: Sequence[Any] = ()) -> Engine:
        """Opens and verifies an engine file; the weights are mapped, not read.

        ops: the user's own ops that it may call (docs/own-ops.md).

        Raises FileError, EngineFileError, EngineVersionError, ProgramError, MemoryLimitError, or ExternalOpError for an
        op that the file lists and `ops` has not, or has otherwise.
        """
        given = declared(ops)
        where = file.path_text(path)
        try:
            native = _native.Engine.open(where)
        except _native.Error as e:
            if (why := foreign.missing(Path(where))) is not None:
                raise FileError(why) from None
            why = foreign.refusal(Path(where)) or foreign.to_build(Path(where))
            raise (typed(e) if why is None else EngineFileError(why)) from None
        header = file.check_header(where, json.loads(native.header()))
        return cls(native, header, None, Path(where), None, matching(where, header, given))

    def on(self, device: str | Device | None) -> Engine:
        """The same engine, weights shared, with its sessions on a device ("cpu", "torch", "torch:cuda:0").

        Raises UserError for a device that is not there.
        """
        other = Engine(self._native, self.header, self._tensors, self.path, device_of(device), self.external)
        other.report, other.summary, other.seconds = self.report, self.summary, self.seconds
        other.calibrated, other.log, other._kept = self.calibrated, self.log, self._kept
        return other

    def __repr__(self) -> str:
        return f"Engine({self.header['producer']}, {self.header['kind']}, {', '.join(self.entries)})"

    @property
    def kind(self) -> str:
        """ "network", "llm" or "encoder" (of texts, for embeddings)."""
        return str(self.header["kind"])

    @property
    def config(self) -> dict[str, Any]:
        """What the network's maker wrote down about it; for a language model see docs/format.md."""
        return dict(self.header["config"])

    @property
    def entries(self) -> list[str]:
        """The names of its programs."""
        return sorted(programs_of(self.header))

    def tensor(self, name: str) -> Array:
        """A stored tensor, read-only, without a copy. Raises UserError when there is none of that name."""
        return _stored(self._native, self._tensors, name)

    @cached_property
    def _read(self) -> dict[str, None]:
        """The tensors that programs read, in their order."""
        entries = programs_of(self.header)
        programs = (inner for _, program in sorted(entries.items()) for inner in with_bodies(program))
        return dict.fromkeys(b["tensor"] for program in programs for b in program["buffers"] if b["kind"] == "weight")

    def refit(self, parameters: Mapping[str, Any]) -> Engine:
        """A new engine with new values of some parameters, which shares what did not change. This one stays as it is.

        Args:
            parameters: arrays (NumPy, torch, any DLPack) by the names of the source's state dict (docs/refit.md).

        Raises InputError for arrays that do not fit, RecipeError where parameters are stored as one with others that
        have to be given too. All that is wrong is in one error.
        """
        made: Engine = _lazy.load("ingot.builder.refit:refit")(self, parameters)
        return made

    def files(self) -> dict[str, bytes]:
        """The files that travel with the engine, such as tokenizer.json."""
        return {name: self.tensor(tensor).tobytes() for name, tensor in self.header["files"].items()}

    def save(self, path: str | os.PathLike[str]) -> int:
        """Writes the engine file (beside `path`, then renamed) and returns its bytes. Equal engines are equal files.

        Of an engine that was built for GPUs elsewhere, device="cuda:sm_90", the kernels that it launches there are
        compiled too, into the folder PATH.cuda (docs/devices.md). A language model's that was built with its report
        gets a self-test for `ingot inspect --check`, a run of a few tokens: what this machine computes, so that the
        file is another one where instructions of another level round elsewhere.
        """
        known = self.header["weights"]
        names = [*self._read, *sorted(known.keys() - self._read.keys())]  # in the order in which programs read them
        tensors = {name: self.tensor(name) for name in names}
        weights = {n: {**known[n], "hash": file.digests(tensors[n])} for n in names}
        config = self.config
        if self.kind == "llm" and self.path is None and self.report is not None:
            test = _lazy.load("ingot.engine.self_test:made_of_tokens")(self)
            config = config if test is None else {**config, "self_test": test}
        written = file.write(path, {**self.header, "config": config, "weights": weights}, tensors)
        if self.device.is_architecture:
            _lazy.load("ingot.builder.kernels:beside")(self, path)
        return written

    def session(
        self, threads: int | None = None, *, entry: str = "main", kv_blocks: int = 0, kv_block_size: int = 16,
        device: str | Device | None = None,
    ) -> Session:  # fmt: skip
        """A session of its own arena and states. `threads`: default, the smaller of affinity and cgroup quota.

        `device`: where it runs; default, where the engine's sessions run.
        """
        return Session(self, threads, entry=entry, kv_blocks=kv_blocks, kv_block_size=kv_block_size, device=device)

    def __call__(self, *arrays: Any, **inputs: Any) -> dict[str, Array]:
        """A run on arrays in the order of the inputs, or by their names: engine(x), engine(ids, mask=mask)."""
        names = [port.name for port in self.inputs]
        if len(arrays) > len(names):
            raise InputError(f"{len(arrays)} arrays for {len(names)} inputs: {', '.join(names)}")
        given = dict(zip(names, arrays, strict=False))
        if twice := sorted(given.keys() & inputs.keys()):
            raise InputError(f"{', '.join(twice)} is given twice, by place and by name")
        return self.run({**given, **inputs})

    def run(self, feeds: Any = None, out: Mapping[str, Array] | None = None, **inputs: Any) -> dict[str, Array]:
        """One run in a session that the engine keeps for it; from several threads at once, in several.

        feeds: arrays by the names of the inputs, or the array of the only one; by name also as in run(x=x).

        At most IDLE_SESSIONS of them are kept for the next runs; others end with their run, and their arenas with them.
        Raises InputError for what does not fit the inputs. An engine with states needs a session of yours.
        """
        session = None
        with suppress(IndexError):
            session = self._idle.pop()
        if session is None:
            session = self.session()
        try:
            return session.run(feeds, out, **inputs)
        finally:  # one whose run failed is as good as before
            self._idle.append(session)

    @property
    def inputs(self) -> list[Port]:
        """The inputs of the program "main"."""
        return self._ports("input")

    @property
    def outputs(self) -> list[Port]:
        """The outputs of the program "main"."""
        return self._ports("output")

    def _ports(self, kind: str) -> list[Port]:
        entries = programs_of(self.header)
        program = entries.get("main") or next(iter(entries.values()))
        buffers = program["buffers"]
        if kind == "input":
            found = [(b["name"], b) for b in buffers if b["kind"] == "input"]
        else:
            found = [(o["name"], buffers[o["buffer"]]) for o in program["outputs"]]
        return [Port(name, _dtype(buffers, b), Dims(b["shape"])) for name, b in found]


def _stored(native: Any, tensors: Mapping[str, Array] | None, name: Any) -> Array:
    """What `Engine.tensor` gives, of an engine in the native core and what it keeps of its arrays."""
    if tensors is not None and isinstance(name, str) and name in tensors:
        array = tensors[name].view()
        array.flags.writeable = False
        return array
    try:
        raw, (dtype, shape) = native.tensor(name), native.tensor_spec(name)
    except (_native.Error, TypeError):  # a TypeError for what is no name
        raise UserError(f"this engine has no tensor {brief(name)}") from None
    return np.asarray(raw).view(dtypes.get(dtype).numpy).reshape(shape)


def _count(what: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """An int within bounds; by default the native core says which is too much."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{what} must be an int, not {brief(value)}")
    try:
        number = operator.index(value)
    except TypeError:  # an array of several
        raise ArgumentError(f"{what} must be an int, not {brief(value)}") from None
    if not least <= number <= most:
        raise ArgumentError(f"{what}: {brief(number)} is not in {least} … {most}")
    return number


def _dtype(buffers: list[dict[str, Any]], buffer: dict[str, Any]) -> str:
    """A buffer's element type; a view has that of the memory it shows."""
    while buffer["kind"] == "view":
        buffer = buffers[buffer["of"]]
    return str(buffer["dtype"])


def load(path: str | os.PathLike[str], device: str | None = None, *, ops: Sequence[Any] = ()) -> Engine:
    """Opens an engine file. The weights are mapped, so this takes milliseconds whatever the size.

    `device`: where its sessions run; default, the CPU. `ops`: your own ops that it calls (docs/own-ops.md); a file
    brings none with it, and names none that you did not give.
    """
    engine = Engine.load(path, ops)
    return engine if device is None else engine.on(device)


class Session:
    """One arena, one set of states, one run at a time (a second one meanwhile is a BusyError).

    It keeps what it reads of an engine, and not the engine: one that keeps sessions would be a cycle, whose weights
    stay until Python looks for those.
    """

    def __init__(
        self,
        engine: Engine,
        threads: int | None = None,
        *,
        entry: str = "main",
        kv_blocks: int = 0,
        kv_block_size: int = 16,
        device: str | Device | None = None,
    ) -> None:
        self.device = engine.device if device is None else device_of(device)
        asked: Any = entry  # whatever a caller gave
        if not isinstance(asked, str) or asked not in engine.entries:
            raise ArgumentError(f"the engine has no entry {brief(entry)}; it has {', '.join(engine.entries)}")
        opening = Opening(
            engine.header, partial(_stored, engine._native, engine._tensors), engine._native, entry,
            None if threads is None else _count("threads", threads, 0, 2**31 - 1),
            _count("kv_blocks", kv_blocks, 0), _count("kv_block_size", kv_block_size, 1),
            self.device.name, engine._kept, engine.external,
        )  # fmt: skip
        self._executor: Executor = self.device.open(opening)
        self.inputs = [Port(name, dtype, Dims(sizes)) for name, dtype, sizes in self._executor.inputs]
        self.outputs = [Port(name, dtype, Dims(sizes)) for name, dtype, sizes in self._executor.outputs]

    @property
    def threads(self) -> int:
        """How many threads a run uses."""
        return self._executor.threads

    def run(self, feeds: Any = None, out: Mapping[str, Array] | None = None, **inputs: Any) -> dict[str, Array]:
        """Runs the program on arrays by the names of its inputs, or on the array of its only input.

        Results are fresh arrays, or those given in `out`, which are written when all is done. A net on device cuda also
        takes tensors that lie there (torch's, or any that speak DLPack), as inputs and in `out`, and then gives torch
        tensors there, whose numbers are ready for what is asked next of torch's current stream.

        Large inputs may be read where they lie: no other thread may write to them until the run returns. Raises
        InputError (an array missing, unknown or not fitting), BusyError, ValueFault, MemoryLimitError.
        """
        if inputs or not isinstance(feeds, Mapping):
            feeds = self._named(feeds, inputs)
        arrays = self._feeds(feeds)
        results = None if out is None else _results(out, self._executor.own)
        try:
            found = self._executor.run(arrays, results)
        except InputError as e:
            raise InputError(f"{e}{_casts(self.inputs, feeds, arrays)}") from None
        return found if out is None else {**found, **out}

    def _named(self, feeds: Any, inputs: dict[str, Any]) -> Mapping[str, Any]:
        """Arrays by name, of what a run was given otherwise."""
        if feeds is None:
            return inputs
        if isinstance(feeds, Mapping):
            return {**feeds, **inputs}
        names = [port.name for port in self.inputs]
        if inputs or len(names) != 1 or isinstance(feeds, list | tuple | str):
            example = ", ".join(f"'{name}': {name}" for name in names)
            given = f"a {type(feeds).__name__}" + (" and others by name" if inputs else "")
            raise InputError(f"the inputs must be a dict of arrays by name, run({{{example}}}), not {given}")
        return {names[0]: feeds}

    def launch(self, feeds: Mapping[str, Any], choice: Choice) -> Callable[[], Chosen]:
        """Starts a run whose tokens the device chooses, where it does that (Limits.chooses).

        Returns what waits for it. The next run may be launched before that; they run in order. Raises as `run`.
        """
        launching: Any = self._executor
        waits: Callable[[], Chosen] = launching.launch(self._feeds(feeds), choice)
        return waits

    def profile(self, feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One run with the time of every call: {call, kernel or host, where, ns, bytes, in, out}.

        `in` and `out` list (dtype, shape); `bytes` counts both, what is broadcast once.
        """
        return self._executor.profile(self._feeds(feeds))

    def first_bad(self, feeds: Mapping[str, Any]) -> str:
        """Where a run, which this makes, first has a number that is NaN or infinite: a node and its place in the model;
        "" where it has none. Language models on devices torch and cuda.
        """
        executor: Any = self._executor
        found: str = executor.first_bad(self._feeds(feeds))
        return found

    def sample(self, logits: Array, samplers: Sequence[Any], positions: Array) -> tuple[Array, Array, Array, Array]:
        """A token for each row of logits (float32 [rows, vocabulary]), chosen and remembered by the row's sampler.

        Returns (ids, their log probabilities, the likeliest ids [rows, most] with -1 for none, their log
        probabilities). Raises ValueFault for a row of which no token can be chosen.
        """
        return self._executor.sample(logits, samplers, positions)

    def log_probs(self, logits: Array, targets: Array) -> Array:
        """log softmax of each row of logits at its target, float32 [rows]. Raises ArgumentError, ValueFault."""
        return self._executor.log_probs(logits, targets)

    def memory(self) -> Memory:
        """What this session holds, at the sizes of its last run."""
        found = self._executor.memory()
        return Memory(found["weights"], found["arena"], found["arena_lower_bound"], found["state"])

    def planned(self, sizes: Mapping[str, int]) -> Planned:
        """The memory of a run with dims of these sizes, without running.

        Raises ArgumentError when a size is missing or no int, or when only a run shows the sizes, and what a run of
        these sizes would raise.
        """
        if not isinstance(sizes, Mapping):
            raise ArgumentError(f"sizes must be a dict of ints by name, not a {type(sizes).__name__}")
        given = {name: _count(f"the size of {brief(name)}", value, 0) for name, value in sizes.items()}
        try:
            return Planned(**self._executor.planned(given))
        except TypeError:  # a name that is no UTF-8
            raise ArgumentError(f"sizes has names that are none: {brief(list(given))}") from None

    def _feeds(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        given = _named(feeds, "the inputs")
        own = {name: self._executor.own(value) for name, value in given.items() if type(value) is not np.ndarray}
        return {name: as_array(v, name) if own.get(name) is None else own[name] for name, v in given.items()}
