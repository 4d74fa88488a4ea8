"""What people hand to a build instead of a module or an exported program, and what to give in its place."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def is_program(source: Any) -> bool:
    """Whether it is a torch.export.ExportedProgram."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.export.ExportedProgram)


def is_module(source: Any) -> bool:
    """Whether it is a torch.nn.Module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def refusal(source: Any) -> str | None:
    """Why an object is nothing that can be built, with the way out; None for what may be."""
    torch = sys.modules.get("torch")
    if isinstance(source, type):
        return f"build takes an instance, not the class {source.__name__}: build({source.__name__}(…), …)"
    if isinstance(source, Mapping):
        return (
            "build takes a module, not a dict: a state_dict has weights and no network, so load it into its module by "
            "module.load_state_dict(…) and build that"
        )
    if torch is None:
        return None
    name = type(source).__name__
    if isinstance(source, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return (
            f"build takes no {name}, a scripted or traced module, whose Python code torch.export cannot see: build the "
            "module that it was made from, before torch.jit.script or torch.jit.trace"
        )
    if isinstance(source, torch.nn.Module) and isinstance(getattr(source, "_orig_mod", None), torch.nn.Module):
        return f"build takes no {name}, the result of torch.compile: build the module inside, model._orig_mod"
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    if isinstance(source, parallel):
        return f"build takes no {name}, which spreads a module over devices: build the module inside, model.module"
    if isinstance(source, torch.optim.Optimizer):
        return f"build takes a module, not the optimizer {name}: build the module that it trains"
    if isinstance(source, torch.Tensor):
        return "build takes a module, not a tensor: build the module, and give the tensor as its example input"
    if callable(source) and not is_module(source) and not is_program(source):
        return (
            f"build takes a module, not the function {getattr(source, '__name__', name)}: call it in the forward of a "
            "torch.nn.Module"
        )
    return None
