"""Keys and values of the cache in 8 bits: what `kv="int8"` and `kv="fp8"` mean for a network, and on a CPU."""

from __future__ import annotations

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import UserError
from ingot.ir import Network, Value
from ingot.passes.clone import clone
from ingot.passes.rewrite import Log, note
from ingot.words import SAME

DTYPES = {"int8": dtypes.int8, "fp8": dtypes.float8_e4m3fn}


def stored_as(network: Network, kv: str) -> Network:
    """A copy whose KV caches are stored as a word of `words.KV` says; the same network where that is `same`.

    Raises UserError for a network that has none.
    """
    if kv == SAME:
        return network
    if not network.states:
        raise UserError(f"kv {kv!r} is how a KV cache is stored, and this network has none: leave it out")
    new = clone(network)
    _become(new, DTYPES[kv])
    return new


def without_float8(network: Network, log: Log) -> None:
    """Caches of float8 hold int8 with scales, which as many bits keep better: for targets without float8."""
    found = [node for node in network.nodes if any(_is_float8(v) for v in node.inputs)]
    if not found:
        return
    for node in found:
        note(log, "caches", node, "its cache of float8 holds int8 here, with a scale for each vector")
    _become(network, dtypes.int8, dtypes.float8_e4m3fn)


def _is_float8(value: Value) -> bool:
    return value.is_state and value.spec.dtype is dtypes.float8_e4m3fn


def _become(network: Network, dtype: DType, only: DType | None = None) -> None:
    """Caches, or those that hold `only`, hold a dtype."""
    for value in network.values.values():
        if value.is_state and only in (None, value.spec.dtype):
            value.spec = value.spec.like(dtype)
