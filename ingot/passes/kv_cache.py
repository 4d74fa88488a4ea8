"""Keys and values of the cache in int8: what `kv="int8"` means for a network."""

from __future__ import annotations

from ingot import dtypes
from ingot.errors import UserError
from ingot.ir import Network, StateSpec
from ingot.passes.clone import clone


def in_int8(network: Network) -> Network:
    """A copy whose key-value caches hold int8. Raises UserError for a network that has none."""
    if not network.states:
        raise UserError("kv 'int8' is how a key-value cache is stored, and this network has none: leave it out")
    new = clone(network)
    for value in new.values.values():
        if isinstance(value.spec, StateSpec):
            value.spec = value.spec.like(dtypes.int8)
    return new
