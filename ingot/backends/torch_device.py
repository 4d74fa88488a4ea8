"""torch's devices by their names, and what is free there."""

from __future__ import annotations

from typing import Any

from ingot import _lazy
from ingot.errors import MemoryLimitError, UserError
from ingot.ops.in_torch import first_line, out_of_memory


def package() -> Any:
    """torch. Raises UserError when it is not installed."""
    return _lazy.optional("torch", "device torch", "ingot[torch]")


def resolve(name: str) -> str:
    """The full name of a device ("cuda" is "cuda:0"); "" is torch's default one, the CPU unless somebody changed that.

    Raises UserError for a word that torch does not know, and for a device that is not there.
    """
    torch = package()
    try:
        device = torch.device(name) if name else torch.get_default_device()
    except RuntimeError as e:
        raise UserError(f"device 'torch:{name}': torch knows no such device: {first_line(e)}") from None
    if device.type == "meta":
        raise UserError("device 'torch:meta' computes no numbers: use torch:cpu")
    try:
        there: str = str(torch.empty(1, device=device).device)
    except (RuntimeError, AssertionError, NotImplementedError, ModuleNotFoundError, ImportError) as e:
        raise UserError(
            f"device 'torch:{device}' is not there ({first_line(e)}); torch {torch.__version__} has here: "
            f"{', '.join(present(torch))}"
        ) from None
    return "cpu" if there.startswith("cpu") else there


def present(torch: Any) -> list[str]:
    """The devices that can be named here."""
    kind = torch.accelerator.current_accelerator()
    count = torch.accelerator.device_count() if kind is not None else 0
    return ["torch:cpu", *(f"torch:{kind.type}:{i}" for i in range(count))]


def available(name: str) -> int | None:
    """The bytes that are free there; None for the host's own memory, and where torch does not say."""
    torch = package()
    device = torch.device(name)
    if device.type == "cpu":
        return None
    module = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    return int(module.mem_get_info(device)[0])  # type: ignore[union-attr]


def no_memory(error: Exception, what: str) -> MemoryLimitError | None:
    """The typed error of what torch raises when memory is short; None for any other error."""
    return MemoryLimitError(f"{what}: {first_line(error)}") if out_of_memory(error) else None
