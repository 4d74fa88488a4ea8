"""Random bools for inputs that nobody gave: masks that hide something of every row, and no row whole."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def bools(rng: np.random.Generator, shape: tuple[int, ...], shows: bool | None = None) -> Array:
    """Every row along the last axis begins with what shows, so that masks together, and a causal one beside them, leave
    it something to see. Where nobody knows whether True shows or hides, rows begin with False and end with True.
    """
    drawn = rng.integers(0, 2, shape).astype(np.bool_)
    if drawn.size and drawn.ndim:
        if shows is not None:
            drawn[..., 0] = shows
        elif shape[-1] > 1:
            drawn[..., 0], drawn[..., -1] = False, True
    return drawn
