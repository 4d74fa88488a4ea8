"""The same network with other dtypes: in float32, which accuracy is measured against, and without float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import F, Network, Op, Spec, StateSpec, Value

NARROW = (dtypes.bfloat16, dtypes.float16)


def widened(dtype: DType) -> DType:
    """float32 for the narrower floats, others as they are."""
    return dtypes.float32 if dtype in NARROW else dtype


def widen(network: Network) -> Network:
    """A copy in which every narrow float (of inputs, parameters, constants, states and casts) is float32."""
    return _retyped(network, widened, border=True)


def without_float64(network: Network) -> Network:
    """A copy that computes in float32 wherever the network computes in float64.

    Inputs and outputs keep their types, with casts at the border; a parameter is cast once, when it is stored.
    """
    return _retyped(network, lambda dtype: dtypes.float32 if dtype is dtypes.float64 else dtype, border=False)


def _retyped(network: Network, change: Callable[[DType], DType], border: bool) -> Network:
    """A copy with every dtype changed: of parameters, constants, states and attributes, and of inputs and outputs."""
    new = Network(network.name)
    copies = {network.absent: new.absent}
    for value in network.inputs:
        made = new.input(value.name, _spec(value.spec, change) if border else value.spec)
        copies[value] = made if border else _cast(made, change(value.dtype))
    for value in network.parameters:
        copies[value] = new.parameter(value.name, _spec(value.spec, change))
    for value in network.constants:
        with np.errstate(over="ignore"):  # the lowest float64 of a mask is −∞
            copies[value] = new.constant(value.array.astype(change(value.dtype).numpy), value.name)
    for value in network.states:
        spec: StateSpec = value.spec
        copies[value] = new.state(value.name, spec.like(_cache(spec.dtype, change)))
    for node in network.nodes:
        with new.scope(node.where):
            made = new.emit(_op(node.op, change), tuple(copies[v] for v in node.inputs))
        for old, result in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            copies[old] = result
    for name, value in network.outputs.items():
        new.outputs[name] = copies[value] if border else _cast(copies[value], value.dtype)
    return new


def _cast(value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else F.cast(value, dtype)


def _spec(spec: Spec, change: Callable[[DType], DType]) -> Spec:
    return spec.like(dtype=change(spec.dtype))


def _cache(dtype: DType, change: Callable[[DType], DType]) -> DType:
    """A cache of 8 bits is float32 wherever all is."""
    return dtypes.float32 if dtype.bits == 8 and change is widened else change(dtype)


def _op(op: Op, change: Callable[[DType], DType]) -> Op:
    changed: dict[str, Any] = {}
    for name, value in op.attrs().items():
        if isinstance(value, DType) and change(value) is not value:
            changed[name] = change(value)
        elif isinstance(value, Network):
            changed[name] = _retyped(value, change, border=True)
    return dataclasses.replace(op, **changed) if changed else op
