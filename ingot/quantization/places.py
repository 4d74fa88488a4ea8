"""Where int8 and float are timed: on this machine's CPU, or on the GPU that a build is for, with the inputs there."""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import Any

import numpy as np

from ingot import _lazy
from ingot._native import level
from ingot.backends.device import CUDA, DEFAULT, Device
from ingot.engine.session import Session
from ingot.ops.in_torch import to_tensor
from ingot.quantization.running import Feeds


def word_of(device: Device) -> str:
    """What a report calls it: of the CPU the level of its instructions, of a GPU its name."""
    if device.runtime.name == DEFAULT:
        return level()
    if device.runtime is CUDA:
        return str(_lazy.load("torch").cuda.get_device_name(int(device.name)))
    return str(device)


def placed(feeds: Feeds, device: Device) -> Any:
    """Inputs as sessions there read them without a copy: of a net on a GPU, copies take longer than the run."""
    if device.runtime is not CUDA:
        return feeds
    torch = _lazy.load("torch")
    return {name: to_tensor(torch, array, torch.device(str(device))) for name, array in feeds.items()}


def seconds_of(session: Session, feeds: Any) -> float:
    """Of one run, until its results are there."""
    begin = perf_counter()
    results: dict[str, Any] = session.run(feeds)  # tensors where inputs are
    for device in {result.device for result in results.values() if not isinstance(result, np.ndarray)}:
        _lazy.load("torch").cuda.synchronize(device)  # the one that torch is at may be another GPU
    return perf_counter() - begin


def own_seconds_of(session: Session, feeds: Feeds) -> float:
    """Of the processor, for a run of a session of one thread on the CPU: other programs take none of it."""
    begin = thread_time()
    session.run(feeds)
    return thread_time() - begin
