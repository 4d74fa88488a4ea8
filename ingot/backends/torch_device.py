"""torch's devices by their names, and what is free there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import Any

from ingot import _lazy
from ingot.backends.native import processors
from ingot.errors import DeviceError, IngotError, MemoryLimitError, UserError
from ingot.ops.in_torch import first_line, of_device, out_of_memory


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
    module = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    return int(module.mem_get_info(device)[0])  # type: ignore[union-attr]


def available_again(name: str) -> int | None:
    """The same, when torch has given back what it keeps there for later."""
    module = getattr(package(), package().device(name).type, None)
    if hasattr(module, "empty_cache"):
        module.empty_cache()  # type: ignore[union-attr]
    return available(name)


def typed(error: Exception, what: str) -> IngotError | None:
    """The typed error of what torch raises when memory is short, or when a device fails; None for any other error."""
    if out_of_memory(error):
        return MemoryLimitError(f"{what}: {first_line(error)}")
    if of_device(error):
        return DeviceError(f"{what}: {first_line(error)}; the device is of no more use to this process: start another")
    return None


def own_threads(torch: Any) -> int:
    """How many threads torch's CPU has for us: torch's own number, but not more than processors."""
    return min(int(torch.get_num_threads()), processors())


class Settings:
    """torch's settings for the whole process that sessions need: so while any runs, and as they were after the last.

    They are set where a process has forbidden that outside of a context, as torch's own tests do: this is one.

    wanted: what is set, from torch: objects, the names of their attributes, and the values.
    """

    def __init__(self, wanted: Callable[[Any], list[tuple[Any, str, Any]]]) -> None:
        self._wanted = wanted
        self._running = 0
        self._before: list[tuple[Any, str, Any]] = []

    @contextmanager
    def __call__(self, torch: Any) -> Iterator[None]:
        """While a run lasts."""
        with _allowed(torch):
            if not self._running:
                self._before = []
                try:
                    for place, name, value in self._wanted(torch):
                        if (before := getattr(place, name)) != value:
                            setattr(place, name, value)
                            self._before.append((place, name, before))
                except BaseException:
                    _set(self._before)
                    raise
            self._running += 1
        try:
            yield
        finally:
            with _allowed(torch):
                self._running -= 1
                if not self._running:
                    _set(self._before)


_changes = RLock()  # for all Settings: torch's flag is of the process; a signal handler may run a session too


@contextmanager
def _allowed(torch: Any) -> Iterator[None]:
    """Where one thread may change settings, though torch.backends.disable_global_flags() was called."""
    allow = getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)  # what its own contexts do
    with _changes, allow():
        yield


def _set(values: list[tuple[Any, str, Any]]) -> None:
    for place, name, value in values:
        setattr(place, name, value)


class Threads:
    """Divides torch's threads among the sessions that run on its CPU at once.

    A run with a number of its own gets that; another one gets what those under way leave of `own_threads`, at least
    one: so runs side by side do not slow each other down by more threads than processors. torch keeps the number for
    each thread that calls it, and a new thread begins with the last one that anybody set: so it is told when a run
    begins, and when it ends what it was before.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may run a session too
        self._running = 0
        self._used = 0
        self._before = self._own = 1  # torch's number when nothing ran, and how many of it are ours

    @contextmanager
    def __call__(self, torch: Any, wanted: int) -> Iterator[None]:
        """While a run lasts. wanted: 0 for what is there."""
        with self._lock:
            if not self._running:
                self._before, self._own = torch.get_num_threads(), own_threads(torch)
            mine, before = wanted or max(1, self._own - self._used), self._before
            self._running += 1
            self._used += mine
        try:
            _tell(torch, mine)
            yield
        finally:
            _tell(torch, before)
            with self._lock:
                self._running -= 1
                self._used -= mine


def _tell(torch: Any, threads: int) -> None:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
