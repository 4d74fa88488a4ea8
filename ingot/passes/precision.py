"""A network computed in another float type: what `precision` means for a Module that was written in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir import F, Network, Node, Op, StateSpec, Value
from ingot.ops.control import CONTROL, Cond, bodies, body_operands, carried
from ingot.ops.conversion import Dequantize, Quantize


def in_precision(network: Network, dtype: DType) -> Network:
    """A copy whose parameters and states are of `dtype`, and with them all that is computed from them.

    Inputs and outputs keep their types: casts stand at the border. What the network casts by itself stays as written,
    scales of integers stay float32 (what else reads them reads a cast), and constants stay in theirs until they meet a
    tensor of another. Raises OpError where an op takes neither.
    """
    new = Network(network.name)
    copies = {network.absent: new.absent}
    scales = _scales(network)
    for value in network.inputs:
        copies[value] = new.input(value.name, value.spec)
    for value in network.parameters:
        kind = dtype if value.dtype in dtypes.PRECISIONS and value not in scales else value.dtype
        copies[value] = new.parameter(value.name, value.spec.like(dtype=kind))
    for value in network.states:
        spec: StateSpec = value.spec
        copies[value] = new.state(value.name, spec.like(dtype if spec.dtype in dtypes.PRECISIONS else spec.dtype))
    for value in network.inputs:
        if value.dtype in dtypes.PRECISIONS and value not in scales:
            copies[value] = cast(copies[value], dtype)
    _compute(network, new, copies, dtype)
    for name, value in network.outputs.items():
        new.outputs[name] = cast(copies[value], value.dtype)
    new.remove_dead()
    return new


def _compute(network: Network, new: Network, copies: dict[Value, Value], dtype: DType) -> None:
    """Constants and nodes again, on copies of what they read."""
    scales = _scales(network)
    for value in network.constants:
        copies[value] = new.constant(value.array, value.name)
    for node in network.nodes:
        with new.scope(node.where):
            op: Any = node.op
            if _is_weight(node):
                op = Dequantize(dtype=dtype, group=op.group)
            operands = tuple(_operand(node, at, copies, scales, dtype) for at in range(len(node.inputs)))
            made = _emit(new, op, operands, dtype)
        for old, result in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            copies[old] = result


def _scales(network: Network) -> set[Value]:
    """What is the scales of integers, or becomes them where elements are only moved: float32 in any precision."""
    found: set[Value] = set()
    for node in reversed(network.nodes):
        if isinstance(node.op, Dequantize | Quantize):
            found.add(node.inputs[1])
        elif _moves_scales(node, found):
            found.update(node.inputs)
    return found


def _moves_scales(node: Node, scales: set[Value]) -> bool:
    return node.op.in_scope == "moves" and not scales.isdisjoint(node.outputs)


def _operand(node: Node, at: int, copies: dict[Value, Value], scales: set[Value], dtype: DType) -> Value:
    """The copy that a node reads: scales in their own type, in another place of `dtype` as all else."""
    value = node.inputs[at]
    if isinstance(node.op, Dequantize | Quantize) and at == 1:
        return cast(copies[value], value.dtype)  # computed scales are of `dtype`
    if value not in scales or value.kind == "constant" or _moves_scales(node, scales):
        return copies[value]
    return cast(copies[value], dtype)


def _is_weight(node: Node) -> bool:
    """Whether a node is a weight that is stored as integers."""
    return isinstance(node.op, Dequantize) and all(v.kind == "parameter" for v in node.given)


def _with_bodies(op: Op, operands: Sequence[Value], dtype: DType) -> Op:
    """An op of control flow for operands of these types. What is carried keeps the type with which it begins, and
    branches give what both of them give, or else `dtype`.
    """
    inner = body_operands(op, operands)
    made = {name: _body(body, inner, dtype) for name, body in bodies(op).items()}
    if isinstance(op, Cond):
        for pair in zip(*(body.outputs.items() for body in made.values()), strict=False):
            if len({value.dtype for _, value in pair}) > 1:
                for (name, value), body in zip(pair, made.values(), strict=True):
                    body.outputs[name] = cast(value, dtype)
    elif "body" in made:
        outputs = made["body"].outputs
        for name, begins in zip(list(outputs)[: carried(op, len(inner))], inner, strict=False):
            outputs[name] = cast(outputs[name], begins.dtype)
    return dataclasses.replace(op, **made)


def _body(body: Network, operands: Sequence[Value], dtype: DType) -> Network:
    new = Network(body.name)
    copies = {body.absent: new.absent}
    for value, operand in zip(body.inputs, operands, strict=True):
        copies[value] = new.input(value.name, value.spec.like(dtype=operand.dtype))
    _compute(body, new, copies, dtype)
    for name, value in body.outputs.items():
        new.outputs[name] = copies[value]
    return new


def _emit(network: Network, op: Op, operands: tuple[Value, ...], dtype: DType) -> Value | tuple[Value, ...]:
    """The op on these operands; floats that it does not take together are all cast to `dtype`, or else to float32."""
    if isinstance(op, CONTROL):
        op = _with_bodies(op, operands, dtype)
    try:
        return network.emit(op, operands)  # type: ignore[no-any-return]
    except OpError:
        if len({v.dtype for v in operands if v.dtype in dtypes.PRECISIONS}) < 2:
            raise
    try:
        return network.emit(op, tuple(cast(v, dtype) for v in operands))  # type: ignore[no-any-return]
    except OpError:
        return network.emit(op, tuple(cast(v, dtypes.float32) for v in operands))  # type: ignore[no-any-return]


def cast(value: Value, dtype: DType) -> Value:
    """The value in `dtype` if it is a tensor of floats."""
    if value.is_state or value.dtype is dtype or value.dtype not in dtypes.PRECISIONS:
        return value
    return F.cast(value, dtype)  # type: ignore[no-any-return]
