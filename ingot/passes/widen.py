"""The same network in float32: what accuracy is measured against."""

from __future__ import annotations

import dataclasses
from typing import Any

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import Network, Op, Spec, StateSpec, Value

NARROW = (dtypes.bfloat16, dtypes.float16)


def widened(dtype: DType) -> DType:
    """float32 for the narrower floats, others as they are."""
    return dtypes.float32 if dtype in NARROW else dtype


def widen(network: Network) -> Network:
    """A copy in which every narrow float (of inputs, parameters, constants, states and casts) is float32."""
    new = Network(network.name)
    copies: dict[Value, Value] = {}
    for value in network.inputs:
        copies[value] = new.input(value.name, _spec(value.spec))
    for value in network.parameters:
        copies[value] = new.parameter(value.name, _spec(value.spec))
    for value in network.constants:
        copies[value] = new.constant(value.array.astype(widened(value.dtype).numpy), value.name)
    for value in network.states:
        spec: StateSpec = value.spec
        copies[value] = new.state(
            value.name, StateSpec(widened(spec.dtype), spec.type, heads=spec.heads, head_dim=spec.head_dim)
        )
    for node in network.nodes:
        with new.scope(node.where):
            made = new.emit(_op(node.op), tuple(copies[v] for v in node.inputs))
        for old, result in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            copies[old] = result
    new.outputs = {name: copies[value] for name, value in network.outputs.items()}
    return new


def _spec(spec: Spec) -> Spec:
    return spec.like(dtype=widened(spec.dtype))


def _op(op: Op) -> Op:
    changed: dict[str, Any] = {}
    for name, value in op.attrs().items():
        if isinstance(value, DType) and value in NARROW:
            changed[name] = dtypes.float32
        elif isinstance(value, Network):
            changed[name] = widen(value)
    return dataclasses.replace(op, **changed) if changed else op
