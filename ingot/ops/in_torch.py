"""Networks by the ops' torch forms: arrays to tensors and back, one call, and what control flow holds.

torch is handed in by whoever has it; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import IngotError, UserError, ValueFault
from ingot.ir import Network, Node, Op, Spec, Value
from ingot.ir.interpret import bind, inside_of, learn
from ingot.ops.common import Array

WIDENED = ("uint16", "uint32")  # few devices compute with them, and int64 has all their numbers


def to_tensor(torch: Any, array: Array, device: Any) -> Any:
    """A tensor of its own there, with the array's numbers. Raises UserError for a dtype that the device lacks."""
    plain = np.array(array, order="C", copy=True)
    dtype = dtypes.get(plain.dtype)
    if dtype.bits < 8:  # one element in a byte
        plain = plain.astype(np.int8 if dtype.kind == "int" else np.uint8)
    try:
        return shared(torch, plain).to(device)
    except TypeError as e:
        raise UserError(f"device torch:{device} holds no {dtype.name}: {first_line(e)}") from None


def shared(torch: Any, array: Array) -> Any:
    """A tensor on the CPU over an array's memory."""
    dtype = dtypes.get(array.dtype)
    seen = _seen(dtype)
    if seen is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(seen)).view(getattr(torch, dtype.name))


def array_over(torch: Any, tensor: Any) -> Array:
    """The array over the memory of a tensor on the CPU."""
    dtype = dtypes.get(_name(tensor))
    seen = _seen(dtype)
    array: Array = (tensor if seen is None else tensor.view(getattr(torch, seen.name))).numpy()
    return array.view(dtype.numpy)


def _seen(dtype: DType) -> np.dtype[Any] | None:
    """What NumPy and torch both know of that size, where they do not share the type itself."""
    alone = dtype is dtypes.bfloat16 or dtype.name.startswith("float8")
    return np.dtype(f"{'u' if dtype.bits == 8 else ''}int{dtype.bits}") if alone else None


def to_array(torch: Any, tensor: Any) -> Array:
    """An array of its own with a tensor's numbers."""
    return to_arrays(torch, [tensor])[0]


def to_arrays(torch: Any, tensors: Sequence[Any]) -> list[Array]:
    """Arrays of their own with the numbers of tensors on one device, from which they come in one transfer."""
    memory = [_row(torch, x).view(torch.uint8) for x in tensors]
    if memory and away(tensors[0].device):
        memory = torch.cat(memory).to("cpu").split([x.numel() for x in memory])
    found = []
    for here, tensor in zip(memory, tensors, strict=True):
        array = here.numpy().copy()  # what it is on the CPU may belong to others: to a weight, to a state
        found.append(array.view(dtypes.get(_name(tensor)).numpy).reshape(tuple(tensor.shape)))
    return found


def _row(torch: Any, x: Any) -> Any:
    """The elements in order, one behind the other."""
    row = x.detach().reshape(-1)
    return row if row.stride(0) == 1 else row.clone(memory_format=torch.contiguous_format)


def away(device: Any) -> bool:
    """Whether a device's memory is another one than the host's."""
    return bool(device.type != "cpu")


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def known(op: Op, sizes: Mapping[str, int]) -> Op:
    """An op with the sizes of a run in its attributes."""
    return op if op.binds or not op.symbolic else op.evaluate(sizes)


def call(
    torch: Any, node: Node, op: Op, operands: Sequence[Any], device: Any, sizes: Mapping[str, int]
) -> tuple[tuple[Any, ...], bool]:
    """A node's results on the device, and whether its reference gave them, on operands that were read back. `op`: the
    node's, with known sizes. The reference runs where it has no torch form, or has dtypes that torch does not compute
    there. Results without elements are made even where torch refuses to compute them.

    Raises ValueFault with what else torch or the reference says, but for a lack of memory and a device that fails.
    """
    try:
        with inside_of(sizes):
            return _results(torch, node, op, operands, device, sizes)
    except IngotError:
        raise
    except (RuntimeError, ArithmeticError, LookupError, ValueError) as e:
        if out_of_memory(e) or of_device(e):
            raise
        raise ValueFault(f"{node.describe()} on torch:{device}: {first_line(e)}") from None


def _results(
    torch: Any, node: Node, op: Op, operands: Sequence[Any], device: Any, sizes: Mapping[str, int]
) -> tuple[tuple[Any, ...], bool]:
    results = None
    if op.torch is not None and not op.reads_back:
        try:
            with nullcontext() if operands else device:  # which says where new tensors lie
                results = op.torch(torch, *_widened(torch, operands))
        except (NotImplementedError, RuntimeError, IndexError, TypeError) as e:
            if out_of_memory(e) or of_device(e):
                raise
            if (nothing := _nothing(torch, node, device, sizes)) is not None:
                return nothing, False
            if not _lacking(e):
                raise
    if results is not None:
        given = results if isinstance(results, tuple) else (results,)
        return tuple(_narrowed(torch, x, v) for x, v in zip(given, node.outputs, strict=True)), False
    there = iter(to_arrays(torch, [x for x in operands if x is not None]))
    arrays = op.reference(*(None if x is None else next(there) for x in operands))
    found = arrays if isinstance(arrays, tuple) else (arrays,)
    return tuple(to_tensor(torch, np.asarray(a), device) for a in found), True


def _nothing(torch: Any, node: Node, device: Any, sizes: Mapping[str, int]) -> tuple[Any, ...] | None:
    """A node's results where none has an element; None for any other node."""
    specs = [value.spec for value in node.outputs]
    if node.op.binds or any(value.is_state for value in node.outputs):
        return None
    shapes = [spec.evaluate(sizes) for spec in specs]
    if not all(0 in shape for shape in shapes):
        return None
    return tuple(to_tensor(torch, np.empty(n, s.dtype.numpy), device) for n, s in zip(shapes, specs, strict=True))


def _widened(torch: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Operands with which every device computes. Results are then the same in the low bits, which `_narrowed` takes."""
    return [x.long() if x is not None and _name(x) in WIDENED else x for x in operands]


def _narrowed(torch: Any, result: Any, value: Value) -> Any:
    return result.to(getattr(torch, value.dtype.name)) if value.dtype.name in WIDENED else result


def _lacking(error: Exception) -> bool:
    """Whether this is what torch raises where a device does not compute a dtype."""
    words = ("not implemented", "not currently implemented", "not support", "n't support", "unsupported")
    return isinstance(error, NotImplementedError) or any(word in str(error).lower() for word in words)


def check(nodes: Sequence[Node], faults: Iterable[Any]) -> None:
    """Raises ValueFault for the first node whose flag, read back, says that it had values that its op does not take."""
    for node, fault in zip(nodes, faults, strict=True):
        if fault:
            raise ValueFault(f"{node.describe()}: {node.op.fault}")


def run(
    torch: Any, network: Network, operands: Sequence[Any], device: Any = None, keep: bool = False
) -> tuple[Any, ...]:
    """The outputs of a network without parameters and states, on its operands' device; without operands that has to be
    given. Reads back what may be a fault. keep: whether its constants stay on the device as long as the network is
    there, for one that whoever captures this run holds.
    """
    device = operands[0].device if operands else device
    tensors: dict[Value, Any] = dict(zip(network.inputs, operands, strict=True))
    sizes = bind(network, {v.name: tuple(x.shape) for v, x in tensors.items()})
    tensors |= (_kept_constants if keep else _constants)(torch, network, device)
    faults: dict[Node, Any] = {}
    for node in network.nodes:
        op, given = known(node.op, sizes), [tensors.get(v) for v in node.inputs]
        if op.torch_fault is not None:
            faults[node] = op.torch_fault(torch, *given)
        results, _ = call(torch, node, op, given, device, sizes)
        for value, result in zip(node.outputs, results, strict=True):
            tensors[value] = result
            if op.binds:
                learn(node, value.spec, tuple(result.shape), op.bound_dims(), sizes)
    if faults:
        check(list(faults), to_array(torch, torch.stack(list(faults.values()))))
    # A constant that is kept is nobody's to change.
    return tuple(tensors[v].clone() if keep and v.kind == "constant" else tensors[v] for v in network.outputs.values())


def _constants(torch: Any, network: Network, device: Any) -> dict[Value, Any]:
    return {v: to_tensor(torch, v.array, device) for v in network.constants}


def _kept_constants(torch: Any, network: Network, device: Any) -> dict[Value, Any]:
    """Brought there once: loops run a body many times, and nothing comes from the host while a graph is captured."""
    there = _CONSTANTS.setdefault(network, {})
    if device not in there:
        there[device] = list(_constants(torch, network, device).values())
    return dict(zip(network.constants, there[device], strict=True))


_CONSTANTS: WeakKeyDictionary[Network, dict[Any, list[Any]]] = WeakKeyDictionary()  # in the order of the network's


def by_simpler_ops(torch: Any, op: Op, operands: Sequence[Any]) -> Any:
    """The one result of an op, by what it is made of (Op.decompose)."""
    return run(torch, _simpler(op, tuple(Spec(tuple(x.shape), _name(x)) for x in operands)), operands)[0]


@lru_cache(maxsize=64)
def _simpler(op: Op, specs: tuple[Spec, ...]) -> Network:
    network = Network(op.name)
    made: Any = op
    network.output("y", made.decompose(*(network.input(f"x{i}", spec) for i, spec in enumerate(specs))))
    return network


_TRITON = "Triton Error [CUDA]: "
_SHORT = ("allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # of torch, CUDA and Triton; of cuBLAS
_FAILED = ("CUBLAS_STATUS_EXECUTION_FAILED", "CUDNN_STATUS_EXECUTION_FAILED")  # libraries met a device that had failed


def out_of_memory(error: BaseException) -> bool:
    """Whether this is what torch raises when memory is short."""
    named = type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in _SHORT)
    return named or isinstance(error, MemoryError)


def of_device(error: BaseException) -> bool:
    """Whether this is what torch or Triton raises when a device fails, of which they may say so at a later call. What
    cannot be captured in a CUDA graph leaves the device as it was.
    """
    if out_of_memory(error):
        return False
    named = type(error).__name__ in ("AcceleratorError", "CudaError")
    if named or any(words in str(error) for words in _FAILED):
        return "captur" not in first_line(error)  # in all that CUDA says of captures: errors 900 to 908
    return _TRITON in str(error)


def first_line(error: BaseException) -> str:
    """The beginning of an error's message: torch goes on with stacks."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
