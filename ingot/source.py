"""What a SOURCE is, for Python and the command line alike: an engine is opened, anything else is built in memory."""

from __future__ import annotations

import os
from pathlib import Path

from ingot import _lazy
from ingot.backends.device import Device, device_of
from ingot.engine.session import Engine, load
from ingot.errors import UserError
from ingot.progress import Asked
from ingot.words import check_built, precision_word

BUILT = (".pt2", ".onnx", ".gguf", ".pt", ".pth")  # files that are built, as folders are, or refused with what to do


def is_engine(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a file that is opened as it is."""
    return Path(source).is_file() and not os.fspath(source).endswith(BUILT)


def open_engine(
    source: str | os.PathLike[str] | Engine, precision: str | None = None, weights: str | None = None,
    device: str | Device | None = None, lora: str | os.PathLike[str] | None = None, lora_scale: float | None = None,
    *, activations: str | None = None, kv: str | None = None, check: bool = True,
    progress: Asked = None,
) -> Engine:  # fmt: skip
    """The engine of a source in the number formats asked for, an adapter merged in, with its sessions on a device.

    Args:
        precision, weights, activations, kv: what an engine must have been built with, unless `check` is off; else what
            to build by.
        device: default, where the engine's sessions run already.
        progress: as `build` takes it.

    Raises:
        UserError: a device that is not there; a word that conflicts with the engine; what build and merge raise.
    """
    if lora is None and lora_scale is not None:
        raise UserError("lora_scale is the scale of an adapter: give its folder as lora")
    where, precision = None if device is None else device_of(device), precision_word(precision)
    if isinstance(source, Engine) or is_engine(source):
        engine = source if isinstance(source, Engine) else load(source)
        if check:
            where_from = source if engine.path is None else engine.path
            check_built(where_from, engine.config, precision, weights, activations, kv)
        if lora is not None:
            engine = _lazy.load("ingot.builder.adapter:merge")(engine, lora, lora_scale)
    else:
        given = {"precision": precision, "weights": weights, "activations": activations, "kv": kv}
        words = {name: word for name, word in given.items() if word is not None}
        engine = _lazy.load("ingot.builder.build:build")(
            source, report=False, lora=lora, lora_scale=lora_scale, progress=progress, **words
        )
    return engine if where is None else engine.on(where)
