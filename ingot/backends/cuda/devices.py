"""Which GPU a name means to target cuda, what is free there, and whether an engine can run on it."""

from __future__ import annotations

from ingot import _lazy, dtypes
from ingot.backends.cuda.driver import architecture, driver, why_not
from ingot.backends.torch_device import available as free
from ingot.backends.torch_device import resolve as torch_device
from ingot.errors import UserError
from ingot.ir import Network

OLDEST = (8, 0)  # compute capability
FLOAT8 = (8, 9)  # the same, to convert floats of 8 bits


def resolve(name: str) -> str:
    """The number of a GPU ("" is the first), or an architecture to build for, such as sm_90, as it is.

    Raises UserError where there is no such GPU, for one that is too old, and for an architecture that is not known.
    """
    if name.startswith("sm_"):
        return architecture(name).word
    torch = _lazy.optional("torch", f"device cuda:{name or 0}", "ingot[cuda]")
    if name and not name.isdecimal():
        raise UserError(f"device 'cuda:{name}': write cuda or cuda:N, N the number of a GPU; or, to build for GPUs "
                        "elsewhere, cuda:sm_90")  # fmt: skip
    try:
        number = torch_device(f"cuda:{name or 0}").removeprefix("cuda:")
    except UserError as e:
        why = why_not(torch.version.cuda, int(name or 0), driver())
        raise UserError(f"device 'cuda:{name or 0}': {f'{why}; ' if why else ''}{e}") from None
    found = torch.cuda.get_device_capability(int(number))
    if found < OLDEST:
        raise UserError(f"device 'cuda:{number}' has compute capability {found[0]}.{found[1]}; ingot's kernels need "
                        f"{OLDEST[0]}.{OLDEST[1]}: torch:cuda:{number} runs there")  # fmt: skip
    _lazy.optional("triton", f"device cuda:{number}", "ingot[cuda]")
    return number


def available(name: str) -> int | None:
    """The bytes that are free there. Raises UserError for an architecture."""
    require_gpu(name)
    return free(f"cuda:{name}")


def require_gpu(name: str) -> None:
    """Raises UserError for an architecture: engines are built for it, and run on a GPU."""
    if not name.isdecimal():
        raise UserError(f"cuda:{name} is what engines are built for: run them on cuda or cuda:N")


def require_float8(capability: tuple[int, int], network: Network) -> None:
    """Raises UserError where a network holds floats of 8 bits, and a GPU of that capability does not convert them."""
    held = {v.dtype for v in network.parameters} | {v.spec.dtype for v in network.states}
    if dtypes.float8_e4m3fn in held and capability < FLOAT8:
        raise UserError(
            f"weights fp8 and kv fp8 need a GPU of compute capability {FLOAT8[0]}.{FLOAT8[1]}, and this one has "
            f"{capability[0]}.{capability[1]}: build with weights int8 and kv int8, or run on device torch:cuda"
        )
