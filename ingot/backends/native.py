"""The CPU's executor: a session of the native core, its errors typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot import _lazy, _native
from ingot.backends.device import Opening, program_of
from ingot.errors import typed
from ingot.release import reading

Array = np.ndarray[Any, Any]


def open_session(opening: Opening) -> NativeExecutor:
    """A session of the native core."""
    return NativeExecutor(opening)


class NativeExecutor:
    """See device.Executor. Ops without a native kernel are answered by their NumPy references."""

    def __init__(self, opening: Opening) -> None:
        cache = (opening.kv_blocks, opening.kv_block_size)
        try:
            host = None
            if opening.native.host_calls(opening.entry):
                with reading(opening.header):
                    host = _lazy.load("ingot.ops.host:HostCalls")(
                        program_of(opening.header, opening.entry), opening.external
                    )
            self._session = _native.Session(opening.native, opening.entry, opening.threads or 0, *cache, host)
        except _native.Error as e:
            raise typed(e) from None
        self.inputs = self._session.inputs
        self.outputs = self._session.outputs

    @property
    def threads(self) -> int:
        return int(self._session.threads)

    def run(self, feeds: dict[str, Array], out: dict[str, Array] | None = None) -> dict[str, Array]:
        try:
            return self._session.run(feeds) if out is None else self._session.run(feeds, out)
        except _native.Error as e:
            raise typed(e) from None

    def own(self, value: Any) -> Any:
        return None

    def profile(self, feeds: dict[str, Array]) -> list[dict[str, Any]]:
        try:
            return list(self._session.profile(feeds))
        except _native.Error as e:
            raise typed(e) from None

    def memory(self) -> Mapping[str, int]:
        return self._session.memory()

    def planned(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        try:
            return self._session.planned(sizes)
        except _native.Error as e:
            raise typed(e) from None

    def sample(
        self, logits: Array, samplers: Sequence[_native.Sampler], positions: Array
    ) -> tuple[Array, Array, Array, Array]:
        return sample(logits, samplers, positions)

    def log_probs(self, logits: Array, targets: Array) -> Array:
        return log_probs(logits, targets)


def processors() -> int:
    """How many there are for this process: the smaller of its affinity and its quota."""
    return int(_native.default_threads())


def sample(
    logits: Array, samplers: Sequence[_native.Sampler], positions: Array
) -> tuple[Array, Array, Array, Array]:
    """Executor.sample of logits in the host's memory."""
    try:
        return _native.sample(logits, samplers, positions)
    except _native.Error as e:
        raise typed(e) from None


def log_probs(logits: Array, targets: Array) -> Array:
    """Executor.log_probs of logits in the host's memory."""
    try:
        return _native.log_probs(logits, targets)
    except _native.Error as e:
        raise typed(e) from None
