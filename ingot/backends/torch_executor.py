"""An executor that runs any network on a torch device, by the ops' torch forms.

Of an engine it takes the portable network, which it lowers here and now, and the stored weights, whose layouts are
undone (backends/stored.py). An op without a torch form, or of a dtype that torch does not compute there, is computed by
its NumPy reference. Its operands are read back, and the profile calls it a host call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from time import perf_counter_ns
from typing import Any

import numpy as np

import ingot.ops  # noqa: F401  (registers every op)
from ingot import dims
from ingot.backends import native
from ingot.backends.device import CacheRoomError, Opening
from ingot.backends.stored import Operands, Reader, Shown
from ingot.backends.torch_device import Settings, Threads, available_again, own_threads, package, typed
from ingot.backends.torch_target import TORCH
from ingot.errors import ArgumentError, BusyError, DimError, EngineFileError, InputError, MemoryLimitError, UserError
from ingot.ir import Network, Node, Op, StateSpec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import bind, learn, rounds_together
from ingot.ir.text import from_json
from ingot.ir.verify import verify
from ingot.ops.in_torch import call, check, known, shared, to_arrays, to_tensor
from ingot.passes.calibrated import computed
from ingot.passes.pipeline import Lowers, lower
from ingot.passes.weights import recipe_of
from ingot.release import reading

Array = np.ndarray[Any, Any]

STEPS_SHARE = 8  # of what is free, that part is left to what steps take, where it is said which cache would fit
PLANS = 64  # of sizes, that a session remembers
# Where torch would compute float32 with fewer bits, if somebody told it to.
_OF_CPU, _OF_GPU = ("mkldnn.matmul", "mkldnn.conv"), ("cuda.matmul", "cudnn.conv")  # torch's settings of float32


def open_session(opening: Opening) -> TorchExecutor:
    """A session on a torch device. Raises UserError for an engine that cannot run there, MemoryLimitError."""
    torch = package()
    device = torch.device(opening.device)
    if opening.threads is not None and device.type != "cpu":
        raise ArgumentError(f"threads={opening.threads}: device torch:{opening.device} has no threads to choose")
    key = ("torch", opening.device, opening.entry)
    loaded = opening.kept.get(key)
    if loaded is None:
        loaded = opening.kept.setdefault(key, load(torch, opening, device))
    return TorchExecutor(torch, device, loaded, opening)


@dataclass(frozen=True)
class Loaded:
    """A lowered network, and the tensors of its parameters and constants on a device; shared by sessions."""

    network: Network
    tensors: dict[Value, Any]
    bytes: int


def load(torch: Any, opening: Opening, device: Any, target: Lowers = TORCH) -> Loaded:
    """Lowers an engine's network, its weights brought to the device. Raises what reading, verifying and lowering do."""
    network, made = lowered(opening.header, opening.external, opening.entry, target)
    shown = Shown.of(opening.header, opening.tensor, network)
    reader = Reader(shown)
    tensors: dict[Value, Any] = {}
    total = 0
    for value in (*made.parameters, *made.constants):
        with typed_errors(f"{value.name} on torch:{opening.device}"):
            array = value.array if value.kind == "constant" else stored(reader, value)
            tensors[value] = to_tensor(torch, array, device)
        total += array.nbytes
    return Loaded(made, tensors, total)


def lowered(
    header: Mapping[str, Any], external: Mapping[str, Any], entry: str, target: Lowers
) -> tuple[Network, Network]:
    """The portable network of an engine's entry, and what a target makes of it."""
    portable = header["networks"].get(entry)
    if portable is None:
        raise UserError(f"the engine has no network {entry!r}, which device torch needs: build it again")
    with reading(header):
        network = from_json(portable, external)
    verify(network)
    return network, lower(computed(network, header["config"]), target)


def stored(reader: Reader, value: Value) -> Array:
    """A parameter's array out of what is stored: by its recipe, as far as its values cannot be recovered.

    Raises UserError when parameters that it needs cannot.
    """
    shown = reader.shown
    derivation = shown.derivation(recipe_of(value))
    if derivation.lacking:
        raise UserError(
            f"{value.name} cannot be had for device torch: {', '.join(derivation.lacking)} is stored only in a form "
            "that cannot be undone: build the engine again from its source"
        )
    ((dtype, shape),) = shown.check([derivation], None, 0)
    if (dtype, shape) != (value.dtype, value.spec.evaluate({})):
        raise EngineFileError(f"weight {value.name} should be {value.spec}, and its recipe gives {dtype.name}"
                              f"{list(shape)}")  # fmt: skip
    return evaluate(derivation.recipe, Operands(reader, [derivation]))


class TorchExecutor:
    """See device.Executor."""

    def __init__(self, torch: Any, device: Any, loaded: Loaded, opening: Opening) -> None:
        self._torch = torch
        self._device = device
        self._loaded = loaded
        self._network = loaded.network
        self._busy = Lock()
        self._threads = opening.threads or 0
        self.inputs = [_port(v.name, v) for v in self._network.inputs]
        self.outputs = [_port(name, v) for name, v in self._network.outputs.items()]
        self._states: dict[Value, Any] = {}
        self._open_states(opening)
        self._plans: dict[tuple[tuple[str, int], ...], list[Op]] = {}
        self._last: dict[str, int] = {}  # sizes of the last run
        self._left = _readers(self._network)
        self._looks = False  # whether a run notes where the first number is none
        self._bad = ""
        self._late = any(node.op.bound_dims() for node in self._network.nodes)  # only a run shows some sizes

    def _open_states(self, opening: Opening) -> None:
        """Raises CacheRoomError, with what would fit, where the device says how much is free."""
        try:
            with typed_errors(f"the states on torch:{opening.device}"):
                for value in self._network.states:
                    self._states[value] = self._empty(value.spec, opening)
        except MemoryLimitError as e:
            self._states.clear()
            free = available_again(opening.device)
            if free is None:
                raise
            wanted = sum(_block_bytes(v.spec, opening) for v in self._network.states) * opening.kv_blocks
            blocks = opening.kv_blocks * (free - free // STEPS_SHARE) // wanted
            raise CacheRoomError(
                f"{e}; the KV cache takes {wanted:,} bytes, and {opening.device} has {free:,} free", blocks
            ) from None

    def _empty(self, spec: StateSpec, opening: Opening) -> Any:
        shape = (opening.kv_blocks, opening.kv_block_size, 2, spec.heads, spec.width)
        if self._device.type != "cpu":
            return self._torch.zeros(shape, dtype=getattr(self._torch, spec.dtype.name), device=self._device)
        return shared(self._torch, np.zeros(shape, spec.dtype.numpy))  # pages are taken as they are used

    @property
    def threads(self) -> int:
        return self._threads or own_threads(self._torch) if self._device.type == "cpu" else 1

    # ------------------------------------------------------------------------------------------------------------ runs
    def run(self, feeds: dict[str, Array], out: dict[str, Array] | None = None) -> dict[str, Array]:
        with self._alone():
            results, faults = self._results(feeds, None)
            found = to_arrays(self._torch, [*results.values(), *self._flags(faults)])  # all that is read back
        if faults:
            check(list(faults), found.pop())
        named = dict(zip(results, found, strict=True))
        return named if out is None else written(named, out)

    def own(self, value: Any) -> Any:
        return None

    def profile(self, feeds: dict[str, Array]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        with self._alone():
            _, faults = self._results(feeds, items)
            flags = to_arrays(self._torch, self._flags(faults))
        if faults:
            check(list(faults), flags[0])
        return items

    def first_bad(self, feeds: dict[str, Array]) -> str:
        """Where a run first has a number that is NaN or infinite, by its node and the node's place in the model; ""
        where it has none. States are written as by any other run.
        """
        with self._alone():
            self._looks, self._bad = True, ""
            try:
                self._results(feeds, None)
            finally:
                self._looks = False
        return self._bad

    def _look(self, node: Node, tensors: Mapping[Value, Any]) -> None:
        """Notes a node whose results are the first that are not all finite."""
        for value in node.outputs:
            found = tensors.get(value)
            if self._bad or found is None or value.is_state or not found.is_floating_point():
                continue
            if not bool(self._torch.isfinite(found).all()):
                self._bad = f"{node.op.name} in {node.where}"

    def _flags(self, faults: Mapping[Node, Any]) -> list[Any]:
        """As one tensor, if there are any."""
        return [self._torch.stack(list(faults.values()))] if faults else []

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise BusyError("this session is running already: give each thread a session of its own")
        try:
            with self._exactly():
                yield
        finally:
            self._busy.release()

    @contextmanager
    def _exactly(self) -> Iterator[None]:
        """What torch is told while ops run, in this thread and in all, and errors typed."""
        with (
            typed_errors(f"a run on torch:{self._device}"), _exact_on_cpu(self._torch),
            nullcontext() if self._device.type == "cpu" else _exact_on_gpu(self._torch), self._torch.no_grad(),
            _without_autocast(self._torch, self._device.type), rounds_together(),
            _threads(self._torch, self._threads) if self._device.type == "cpu" else nullcontext(),
        ):  # fmt: skip
            yield

    def _results(
        self, feeds: dict[str, Array], items: list[dict[str, Any]] | None
    ) -> tuple[dict[str, Any], dict[Node, Any]]:
        """On the device the outputs, and flags of nodes that may have had values that they do not take.

        `items` gets the time of every call.
        """
        sizes = self._sizes(feeds)
        ops = None if self._late else self._ops(sizes)
        tensors = self._loaded.tensors | self._states
        tensors |= {v: to_tensor(self._torch, feeds[v.name], self._device) for v in self._network.inputs}
        left = dict(self._left)
        faults: dict[Node, Any] = {}
        for number, node in enumerate(self._network.nodes):
            op = known(node.op, sizes) if ops is None else ops[number]
            operands = [None if v.spec is None else tensors[v] for v in node.inputs]
            if op.torch_fault is not None:
                faults[node] = op.torch_fault(self._torch, *operands)
            begin = self._now(items)
            results, by_reference = call(self._torch, node, op, operands, self._device, sizes)
            if items is not None:
                items.append(item_of(number, node, by_reference, self._now(items) - begin, operands, results))
            for value, result in zip(node.outputs, results, strict=True):
                tensors[value] = result
                if op.binds:
                    learn(node, value.spec, tuple(result.shape), op.bound_dims(), sizes)
            if self._looks:
                self._look(node, tensors)
            for value in set(node.given):
                left[value] -= 1
                if not left[value]:
                    del tensors[value]
        self._last = sizes
        return {name: tensors[value] for name, value in self._network.outputs.items()}, faults

    def _now(self, items: list[dict[str, Any]] | None) -> int:
        """The time, when all that was asked of the device has been done; 0 where nobody wants to know."""
        if items is None:
            return 0
        if self._device.type != "cpu":
            self._torch.accelerator.synchronize(self._device)
        return perf_counter_ns()

    # ----------------------------------------------------------------------------------------------------------- sizes
    def _sizes(self, feeds: dict[str, Array]) -> dict[str, int]:
        """The value of every dim. Raises InputError for arrays that do not fit."""
        names = [v.name for v in self._network.inputs]
        missing = [name for name in names if name not in feeds]
        unknown = [name for name in feeds if name not in names]
        if missing or unknown:
            raise InputError(
                f"inputs: {', '.join(missing) or 'none'} missing, {', '.join(unknown) or 'none'} unknown; the engine "
                f"takes {', '.join(names)}"
            )
        for value in self._network.inputs:
            if feeds[value.name].dtype != value.dtype.numpy:
                raise InputError(f"input {value.name!r} is {feeds[value.name].dtype}, the engine takes {value.spec}")
        return bind(self._network, {name: feeds[name].shape for name in names})

    def _ops(self, sizes: Mapping[str, int]) -> list[Op]:
        """The op of every node at these sizes."""
        key = tuple(sizes.items())
        if key not in self._plans:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[key] = [known(node.op, sizes) for node in self._network.nodes]
        return self._plans[key]

    def planned(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        if self._late:
            raise ArgumentError("only a run shows all sizes of this network")
        needed = {d for v in self._network.inputs for d in dims.dims_of(v.shape)}
        if absent := sorted(needed - sizes.keys()):
            raise ArgumentError(f"sizes has no {', '.join(absent)}")
        for name in sorted(needed):
            dim = self._network.dims[name]
            if sizes[name] < dim.min or (dim.max is not None and sizes[name] > dim.max):
                raise InputError(f"{name} is {sizes[name]}, outside its bounds: {dim.claims()}")
        try:
            most, most_at = self._live(sizes)
        except DimError as e:
            raise InputError(str(e)) from None
        return {"buffers": most, "lower_bound": most, "working": 0, "arena": most, "most_at": most_at}

    def _live(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The bytes of inputs and results that are alive at once, at most, and at which node first; what an op takes
        meanwhile comes on top.
        """
        left = dict(self._left)
        bytes_: dict[Value, int] = {v: _bytes(v, sizes) for v in self._network.inputs}
        now = most = sum(bytes_.values())
        most_at = 0
        for number, node in enumerate(self._network.nodes):
            made = {v: _bytes(v, sizes) for v in node.outputs if not v.is_state}
            bytes_ |= made
            now += sum(made.values())
            if now > most:
                most, most_at = now, number
            for value in set(node.given):
                left[value] -= 1
                if not left[value]:
                    now -= bytes_.pop(value, 0)
        return most, most_at

    def memory(self) -> Mapping[str, int]:
        arena = self._live(self._last)[0] if self._last and not self._late else 0
        state = sum(tensor.nbytes for tensor in self._states.values())
        return {"weights": self._loaded.bytes, "arena": arena, "arena_lower_bound": arena, "state": state}

    # ---------------------------------------------------------------------------------------------------------- tokens
    def sample(self, logits: Array, samplers: Sequence[Any], positions: Array) -> tuple[Array, Array, Array, Array]:
        return native.sample(logits, samplers, positions)

    def log_probs(self, logits: Array, targets: Array) -> Array:
        return native.log_probs(logits, targets)


def _block_bytes(spec: StateSpec, opening: Opening) -> int:
    """Of a block of one layer's keys and values."""
    return opening.kv_block_size * 2 * spec.heads * spec.width * spec.dtype.numpy.itemsize


def _readers(network: Network) -> dict[Value, int]:
    """How many nodes read each value; one more where it is wanted for longer than a run's steps."""
    left = {v: len(set(v.uses)) for v in network.values.values()}
    for value in (*network.parameters, *network.constants, *network.states, *network.outputs.values()):
        left[value] += 1
    return left


def _bytes(value: Value, sizes: Mapping[str, int]) -> int:
    return int(np.prod(value.spec.evaluate(sizes), dtype=np.int64)) * value.dtype.numpy.itemsize


def _port(name: str, value: Value) -> tuple[str, str, list[Any]]:
    return name, value.dtype.name, [dims.to_json(d) for d in value.shape]


def item_of(number: int, node: Node, host: bool, ns: int, operands: Sequence[Any], results: Any) -> dict[str, Any]:
    """A call as Session.profile lists it. A view has no bytes: nothing is read or written."""
    kind = "host" if host else "kernel"
    operands = [x for x in operands if x is not None]
    ins, outs = ([(str(x.dtype).removeprefix("torch."), list(x.shape)) for x in xs] for xs in (operands, results))
    viewed = node.op.is_view and _memory(results[0]) == _memory(operands[0])
    bytes_ = 0 if viewed else sum(x.nbytes for x in (*operands, *results))
    return {"call": number, kind: node.op.name, "where": node.where, "ns": ns, "bytes": bytes_, "in": ins,
            "out": outs}  # fmt: skip


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def written(found: dict[str, Array], out: dict[str, Array]) -> dict[str, Array]:
    """The results, those of `out` written into its arrays. Raises InputError for one that does not fit."""
    for name, array in out.items():
        if name not in found:
            raise InputError(f"out {name!r} is no output: the outputs are {', '.join(found)}")
        result = found[name]
        if (array.shape, array.dtype) != (result.shape, result.dtype) or not array.flags.writeable:
            raise InputError(
                f"out {name!r} is {array.dtype}{list(array.shape)}, the result is {result.dtype}{list(result.shape)}, "
                "and the array must be one that can be written to"
            )
    for name, array in out.items():
        np.copyto(array, found[name])
    return found | out


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as e:
        if (found := typed(e, what)) is None:
            raise
        raise found from None


class _Precision:
    """How torch computes float32 in one place. `own` is "none" where it takes the word of a setting above it, as it
    shall again after a run: torch itself tells only which word that is.
    """

    def __init__(self, torch: Any, name: str) -> None:
        family, kind = name.split(".")
        self._all = torch.backends
        self._family = torch.backends.mkldnn if family == "mkldnn" else torch.backends.cudnn  # cudnn: all of CUDA
        self._place = getattr(getattr(torch.backends, family), kind)

    @property
    def own(self) -> str:
        found: str = self._place.fp32_precision
        family = self._family.fp32_precision
        if found in ("none", "ieee") or found != family:
            return found  # "ieee" is not changed
        if family == self._all.fp32_precision:
            family, place = self._while_exact(self._all)
            if place != found:
                return "none"
            if family != found:
                return found
        return "none" if self._while_exact(self._family)[1] != found else found

    @own.setter
    def own(self, word: str) -> None:
        self._place.fp32_precision = word

    def _while_exact(self, above: Any) -> tuple[str, str]:
        """The words of the family and the place while a setting above is "ieee", for an instant."""
        before = above.fp32_precision
        above.fp32_precision = "ieee"
        try:
            return self._family.fp32_precision, self._place.fp32_precision
        finally:
            above.fp32_precision = before


def _exact(names: Sequence[str]) -> Settings:
    """torch computes float32 as float32, whatever it was told before."""
    return Settings(lambda torch: [(_Precision(torch, name), "own", "ieee") for name in names])


_exact_on_cpu, _exact_on_gpu = _exact(_OF_CPU), _exact(_OF_GPU)  # a run leaves alone what it does not need


def _without_autocast(torch: Any, kind: str) -> AbstractContextManager[Any]:
    """A caller's autocast would compute products of float32 in another type; it is a thread's own and comes back."""
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)  # type: ignore[no-any-return]


_threads = Threads()
