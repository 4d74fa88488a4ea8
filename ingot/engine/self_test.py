"""The self-test of an engine: a small run of its build, which another machine repeats in under a second.

Inputs follow from a seed, by numbers that no version of NumPy changes. Of the outputs the file keeps some elements and
the root mean square of all. Another level of instructions rounds elsewhere, and what is near a border of two integers
falls to the other side, so that numbers agree up to a tolerance.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.engine.inputs import shape_of, sizes_that_run
from ingot.engine.session import Engine, Port
from ingot.errors import DimError, EngineFileError, InputError, MismatchError, UserError

Array = np.ndarray[Any, Any]

KEY = "self_test"  # of it in an engine's config
KEPT = 64  # elements of each output
LEAST = 0.01  # of the root mean square of an output, that its elements may differ by, in the root mean square of them
MAX_ELEMENTS = 1 << 26  # of the inputs


@dataclass(frozen=True)
class Checked:
    """What a repeated self-test found: the largest difference, of each output's root mean square, and seconds."""

    difference: float
    tolerance: float
    seconds: float


def made(engine: Engine, error: float | None) -> dict[str, Any] | None:
    """What an engine's config keeps of a run; None where no size was found that runs.

    error: how far its outputs are from those in float. Numbers may differ as far on another machine.
    """
    try:
        sizes = sizes_that_run(engine)
        if sum(math.prod(shape_of(port, sizes)) for port in engine.inputs) > MAX_ELEMENTS:
            return None
        found = engine.run(_feeds(engine, sizes))
    except (InputError, UserError):
        return None
    kept = {name: _outline(array) for name, array in found.items()}
    if not all(math.isfinite(one["rms"]) for one in kept.values()):
        return None
    tolerance = LEAST if error is None or not math.isfinite(error) else max(LEAST, error)
    return {"sizes": sizes, "tolerance": float(np.float32(tolerance)), "outputs": kept}


def check(engine: Engine) -> Checked:
    """Repeats an engine's self-test on this machine.

    Raises UserError for an engine without one, EngineFileError for a damaged one, MismatchError where numbers differ.
    """
    found = engine.config.get(KEY)
    if found is None:
        raise UserError("this engine has no self-test: ingot.quantize, or ingot build with --data, gives one to nets")
    sizes, tolerance, outputs = _read(found)
    begin = perf_counter()
    results = engine.run(_feeds(engine, sizes))
    seconds = perf_counter() - begin
    if results.keys() != outputs.keys():
        raise EngineFileError(f"config {KEY} is of the outputs {', '.join(outputs)[:80]}: the file is damaged")
    worst = max((_apart(results[name], *outputs[name]), name) for name in outputs)
    if not worst[0] <= tolerance:
        raise MismatchError(
            f"output {worst[1]} differs by {worst[0]:.2g} of its root mean square from what the build computed; up to "
            f"{tolerance:.2g} is rounding. Weights are checked by --verify; if those agree, a kernel is at fault here: "
            "INGOT_ISA=portable runs without vector instructions"
        )
    return Checked(worst[0], tolerance, seconds)


def _feeds(engine: Engine, sizes: Mapping[str, int]) -> dict[str, Array]:
    return {port.name: _drawn(port, sizes, seed) for seed, port in enumerate(engine.inputs)}


def _drawn(port: Port, sizes: Mapping[str, int], seed: int) -> Array:
    """Floats from −2 to 2, whole numbers 0 and 1. The raw stream of a generator is the same in every version."""
    dtype = dtypes.get(port.dtype)
    try:
        shape = shape_of(port, sizes)
    except DimError as e:
        raise EngineFileError(f"config {KEY}: {e}: the file is damaged") from None
    if math.prod(shape) > MAX_ELEMENTS or min(shape, default=0) < 0:
        raise EngineFileError(f"config {KEY} makes {port.name} of the shape {list(shape)}: the file is damaged")
    raw = np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(40)  # 24 bits: float32 holds them
    wide = (raw.astype(np.float32) / np.float32(1 << 22) - np.float32(2)).reshape(shape)
    return wide.astype(dtype.numpy) if dtype.is_float else (wide > 0).astype(dtype.numpy)


def _sample(array: Array) -> Array:
    """At most KEPT elements, evenly spread."""
    flat = array.reshape(-1)
    return flat[np.linspace(0, flat.size - 1, min(KEPT, flat.size)).astype(np.int64)].astype(np.float32)


def _outline(array: Array) -> dict[str, Any]:
    wide = array.astype(np.float64)
    rms = float(np.sqrt(np.mean(wide * wide))) if array.size else 0.0
    return {"rms": rms, "sample": base64.b64encode(_sample(array).astype("<f4").tobytes()).decode()}


def _apart(array: Array, rms: float, sample: Array) -> float:
    ours = _sample(array)
    if ours.shape != sample.shape:
        return math.inf
    if not np.isfinite(ours).all():
        return math.inf
    apart = float(np.sqrt(np.mean((ours.astype(np.float64) - sample) ** 2))) if ours.size else 0.0
    worst = max(apart, abs(_outline(array)["rms"] - rms))
    return 0.0 if not worst else worst / rms if rms else math.inf


def _read(found: Any) -> tuple[dict[str, int], float, dict[str, tuple[float, Array]]]:
    """Raises EngineFileError."""
    try:
        sizes, tolerance, outputs = (found[key] for key in ("sizes", "tolerance", "outputs"))
        if not all(type(n) is int and 0 <= n < dims.MAX_VALUE for n in sizes.values()):
            raise ValueError
        read = {}
        for name, one in outputs.items():
            array = np.frombuffer(base64.b64decode(one["sample"], validate=True), "<f4")
            if len(array) > KEPT or not (0 <= float(one["rms"]) < math.inf):
                raise ValueError
            read[name] = (float(one["rms"]), array)
        if not read or not 0 <= float(tolerance) < math.inf:
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error):
        raise EngineFileError(f"config {KEY} is no self-test: the file is damaged") from None
    return sizes, float(tolerance), read
