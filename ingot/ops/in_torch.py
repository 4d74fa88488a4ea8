"""Networks by the ops' torch forms: arrays to tensors and back, one call, and what control flow holds.

torch is handed in by whoever has it; nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.errors import ValueFault
from ingot.ir import Network, Node, Op, Value
from ingot.ir.interpret import bind, learn
from ingot.ops.common import Array


def to_tensor(torch: Any, array: Array, device: Any) -> Any:
    """A tensor of its own there, with the array's numbers."""
    plain = np.array(array, order="C", copy=True)
    dtype = dtypes.get(plain.dtype)
    if dtype is dtypes.bfloat16:
        return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16).to(device)
    if dtype.bits < 8:  # one element in a byte
        return torch.from_numpy(plain.astype(np.int8 if dtype.kind == "int" else np.uint8)).to(device)
    if dtype.name.startswith("float8"):
        return torch.from_numpy(plain.view(np.uint8)).view(getattr(torch, dtype.name)).to(device)
    return torch.from_numpy(plain).to(device)


def to_array(torch: Any, tensor: Any) -> Array:
    """An array of its own with a tensor's numbers."""
    here = tensor.detach().to("cpu").contiguous()
    name = str(here.dtype).removeprefix("torch.")
    if here.dtype == torch.bfloat16:
        return here.view(torch.int16).numpy().view(dtypes.bfloat16.numpy)  # type: ignore[no-any-return]
    if name.startswith("float8"):
        return here.view(torch.uint8).numpy().view(dtypes.get(name).numpy)  # type: ignore[no-any-return]
    return here.numpy()  # type: ignore[no-any-return]


def known(op: Op, sizes: Mapping[str, int]) -> Op:
    """An op with the sizes of a run in its attributes."""
    return op if op.binds or not op.symbolic else op.evaluate(sizes)


def call(torch: Any, node: Node, op: Op, operands: Sequence[Any], device: Any) -> tuple[tuple[Any, ...], bool]:
    """A node's results on the device, and whether its reference gave them, on operands that were read back. `op`: the
    node's, with known sizes. The reference runs where it has no torch form, or has dtypes that torch does not compute
    there.

    Raises ValueFault with what else torch says, but for a lack of memory.
    """
    results = None
    if op.torch is not None and not op.reads_back:
        try:
            with nullcontext() if operands else device:  # which says where new tensors lie
                results = op.torch(torch, *operands)
        except (NotImplementedError, RuntimeError) as e:
            if out_of_memory(e):
                raise
            if "not implemented" not in str(e):
                raise ValueFault(f"{node.describe()} on torch:{device}: {first_line(e)}") from None
    if results is not None:
        return (results if isinstance(results, tuple) else (results,)), False
    arrays = op.reference(*(to_array(torch, x) for x in operands))
    given = arrays if isinstance(arrays, tuple) else (arrays,)
    return tuple(to_tensor(torch, np.asarray(a), device) for a in given), True


def check(torch: Any, faults: Sequence[tuple[Node, Any]]) -> None:
    """Raises ValueFault when an op had values that it does not take: flags on the device, read back at once."""
    if not faults:
        return
    found = torch.stack([fault for _, fault in faults]).tolist()
    for (node, _), fault in zip(faults, found, strict=True):
        if fault:
            raise ValueFault(f"{node.describe()}: {node.op.fault}")


def run(torch: Any, network: Network, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a network without parameters and states, on its operands' device."""
    device = operands[0].device
    tensors: dict[Value, Any] = dict(zip(network.inputs, operands, strict=True))
    sizes = bind(network, {v.name: tuple(x.shape) for v, x in tensors.items()})
    tensors |= {v: to_tensor(torch, v.array, device) for v in network.constants}
    faults: list[tuple[Node, Any]] = []
    for node in network.nodes:
        op, given = known(node.op, sizes), [tensors[v] for v in node.inputs]
        if op.torch_fault is not None:
            faults.append((node, op.torch_fault(torch, *given)))
        results, _ = call(torch, node, op, given, device)
        for value, result in zip(node.outputs, results, strict=True):
            tensors[value] = result
            if op.binds:
                learn(node, value.spec, tuple(result.shape), op.bound_dims(), sizes)
    check(torch, faults)
    return tuple(tensors[v] for v in network.outputs.values())


def out_of_memory(error: Exception) -> bool:
    """Whether this is what torch raises when memory is short."""
    return type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error)


def first_line(error: BaseException) -> str:
    """The beginning of an error's message: torch goes on with stacks."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
