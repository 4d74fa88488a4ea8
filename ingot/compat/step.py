"""The tokens of a step by the requests that they belong to, padded or packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot import functional as f
from ingot.compat import context
from ingot.dtypes import DType


def column(x: Any) -> Any:
    """A vector [n] as [n, 1]."""
    return f.unsqueeze(x, 1)


def is_packed() -> bool:
    """Whether the network being built has its texts without padding, one behind the other."""
    return bool(context.default_net().plugin_config.remove_input_padding)


class Step:
    """The tokens of a step, one row for each request: [B, S, …].

    Padded texts lie so already. Packed ones are taken apart, into as many places as the longest has.
    """

    def __init__(self, tokens: Any, packed: bool, types: Any, last: Any) -> None:
        last = f.cast(last, "int32")
        self.packed, self.prompt = packed, f.eq(f.cast(types, "int32"), 0)
        self.start = f.slice(f.pad(last, (1, 0)), [0], last.shape) if packed else None
        self.count = f.sub(last, self.start) if packed else last
        places = f.max(self.count, 0) if packed else tokens.shape[1]
        self.place = f.arange(0, places, "int32")
        self.valid = f.lt(self.place, column(self.count))
        self.rows, (self.width,) = tokens.shape[0], self.place.shape
        if packed:
            token = f.arange(0, self.rows, "int32")
            most = f.cast(f.sub(f.shape(last, 0), 1), "int32")
            owner = f.minimum(f.sum(f.cast(f.ge(column(token), last), "int32"), 1), most)
            place = f.sub(token, f.index_select(self.start, 0, owner))
            self._back = f.add(f.mul(owner, f.cast(f.shape(self.place, 0), "int32")), place)

    def apart(self, tokens: Any) -> Any:
        """[B, S, width] of tokens as they were given; zeros where a row has no token."""
        if self.packed:
            last = f.cast(f.sub(f.shape(tokens, 0), 1), "int32")
            tokens = f.embedding(f.minimum(f.add(column(self.start), self.place), last), tokens)
        return f.where(f.unsqueeze(self.valid, 2), tokens, np.zeros((), dtypes.get(tokens.dtype).numpy))

    def together(self, rows: Any, dtype: Any) -> Any:
        """Rows [B, S, width] as the tokens were given."""
        rows = f.cast(rows, dtypes.get(dtype))
        if not self.packed:
            return rows
        flat = f.view(rows, (dims.mul(rows.shape[0], rows.shape[1]), rows.shape[2]), False)
        return f.index_select(flat, 0, self._back)

    def before(self, state: Any, dtype: DType) -> Any:
        """The states [B, …] that a step begins with: zeros for prompts."""
        fresh = f.view(self.prompt, (state.shape[0], *[1] * (len(state.shape) - 1)), False)
        return f.where(fresh, np.zeros((), dtype.numpy), f.cast(state, dtype))
