"""Which network is being built: net_guard, default_net, and the scope of a precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ingot.compat.datatype import as_dtype
from ingot.compat.refusal import refused

_current: ContextVar[Any] = ContextVar("ingot_compat_network", default=None)


def current() -> Any:
    """The network of the innermost net_guard, or None."""
    return _current.get()


def default_net() -> Any:
    """The network of the innermost net_guard.

    Raises:
        UnsupportedError: outside of every net_guard.
    """
    network = _current.get()
    if network is None:
        raise refused("no network is being built", "put this line inside `with tensorrt_llm.net_guard(network):`")
    return network


def default_trtnet() -> Any:
    """The same network under TensorRT's interface."""
    return default_net().trt_network


def set_network(network: Any) -> None:
    """Makes a network the default one until another is set."""
    _current.set(network)


@contextmanager
def net_guard(network: Any) -> Iterator[Any]:
    """What is called inside is recorded in `network`."""
    token = _current.set(network)
    try:
        yield network
    finally:
        _current.reset(token)


@contextmanager
def precision(dtype: Any) -> Iterator[None]:
    """Ops inside compute in `dtype`: their float operands are cast to it, and each cast is recorded.

    In a strongly typed network results come back to the type that they would have outside of the scope.
    """
    network = default_net()
    before, network.dtype = network.dtype, as_dtype(dtype)
    try:
        yield
    finally:
        network.dtype = before
