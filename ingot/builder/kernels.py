"""The kernels of an engine for GPUs elsewhere, compiled into a folder beside its file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ingot import _lazy
from ingot.backends.device import Device
from ingot.engine.inputs import sizes_of
from ingot.engine.session import Engine
from ingot.errors import FileError, UserError
from ingot.progress import Asked, told


def beside(
    engine: Engine, path: str | os.PathLike[str], device: Device | None = None, sizes: Sequence[str] = (),
    progress: Asked = None,
) -> Any:  # fmt: skip
    """Compiles what the engine launches on a device of cuda into PATH.cuda: backends.cuda.ahead.Built.

    Args:
        device: default, where the engine's sessions run. A GPU of this machine stands for those like it.
        sizes: of a net's dims ("N=8"); those that are not given are small ones, of which kernels are compiled anew.

    Raises UserError, FileError.
    """
    ahead, driver = (_lazy.load(f"ingot.backends.cuda.{name}") for name in ("ahead", "driver"))
    chosen = partial(_sizes, engine, sizes)
    with told(progress) as tell:
        return ahead.build_kernels(
            engine, driver.architecture((device or engine.device).name), ahead.folder_of(path), tell, chosen
        )


def check(device: Device, path: str | os.PathLike[str]) -> None:
    """Before an engine is built. Raises UserError where nothing can be compiled for a device, FileError where a file
    has the place of the folder beside PATH."""
    if device.runtime.name != "cuda":
        raise UserError(f"device {device}: engines are built for the CPU, and kernels for cuda:sm_90 and others")
    _lazy.optional("triton", f"device {device}", "ingot[cuda]")
    _lazy.optional("torch", f"device {device}", "ingot[cuda]")
    folder = _lazy.load("ingot.backends.cuda.ahead:folder_of")(path)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder}, where the kernels of {path} go, is a file: move it away, or build to another name")


def _sizes(engine: Engine, given: Sequence[str], usual: int) -> Mapping[str, int]:
    return sizes_of(engine, given, usual=usual)
