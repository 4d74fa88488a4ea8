"""torch's devices by their names, and arrays there and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.errors import MemoryLimitError, UserError

Array = np.ndarray[Any, Any]


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


def to_tensor(torch: Any, array: Array, device: Any) -> Any:
    """A tensor of its own there, with the array's numbers; integers of fewer bits than torch's have 8."""
    plain = np.array(array, order="C", copy=True)
    dtype = dtypes.get(plain.dtype)
    if dtype.is_integer and dtype.bits < 8:
        plain = plain.astype(np.int8 if dtype.kind == "int" else np.uint8)
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


def no_memory(error: Exception, what: str) -> MemoryLimitError | None:
    """The typed error of what torch raises when memory is short; None for any other error."""
    if type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error):
        return MemoryLimitError(f"{what}: {first_line(error)}")
    return None


def first_line(error: BaseException) -> str:
    """The beginning of an error's message: torch goes on with stacks."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
