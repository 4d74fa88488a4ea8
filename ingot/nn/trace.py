"""From a Module to a Network: forward runs once, on symbolic tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.errors import ModuleError
from ingot.ir import Network, Spec, Value
from ingot.nn import tracer
from ingot.nn.module import Module, tracer_of


def trace(module: Module, inputs: Mapping[str, Spec], name: str = "main") -> Network:
    """Record what `module.forward` does.

    Args:
        module: the root; parameters are named by their path below it, and nodes carry the path of their module.
        inputs: Specs by the names of forward's parameters. Equal dim names are one dim.
        name: the network's.

    Returns:
        A verified-by-construction Network. Its outputs are the keys of the dict that forward returns, else
        `output_0`, ….

    Raises:
        ModuleError: inputs that do not fit forward's signature, or a result that is no tensor.
        OpError: an op refused its operands, with the module path and the line in forward.
    """
    network = Network(name)
    _check_inputs(module, inputs)
    values = {key: network.input(key, spec) for key, spec in inputs.items()}
    with tracer.activated(tracer_of(module, network)):
        result = module(**values)
    for key, value in _named_outputs(module, result).items():
        network.output(key, value)
    return network


def _check_inputs(module: Module, inputs: Mapping[str, Spec]) -> None:
    parameters = inspect.signature(module.forward).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {k: p for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [key for key in inputs if key not in named and not takes_any]
    missing = [key for key, p in named.items() if p.default is p.empty and key not in inputs]
    wrong = [key for key, spec in inputs.items() if type(spec) is not Spec]
    if unknown or missing or wrong:
        faults = [("unknown inputs", unknown), ("inputs without a Spec", missing), ("not a Spec", wrong)]
        told = "; ".join(f"{label}: {', '.join(names)}" for label, names in faults if names)
        raise ModuleError(f"{type(module).__name__}.forward({', '.join(parameters)}): {told}")


def _named_outputs(module: Module, result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        named = dict(result)
    else:
        several = list(result) if isinstance(result, tuple | list) else [result]
        named = {f"output_{i}": value for i, value in enumerate(several)}
    for key, value in named.items():
        if not isinstance(key, str) or not isinstance(value, Value | np.ndarray):
            raise ModuleError(
                f"{type(module).__name__}.forward must return tensors (one, a tuple, or a dict by name); "
                f"{key!r} is a {type(value).__name__}"
            )
    if not named:
        raise ModuleError(f"{type(module).__name__}.forward returns no tensor")
    return named
