"""Mixed precision: the layers that stay float so that the outputs keep to a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.errors import UserError


def left_float(errors: Sequence[float | None], within: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """The layers to leave float, by number: as few as keep the budget, those with the largest error first.

    Args:
        errors: of each layer alone; None for those that are float anyway.
        within: whether a network with these layers float keeps the budget. It is asked about log2(layers) times, and of
            the answer last.

    Raises UserError where not even one layer can be int8.
    """
    order = sorted((i for i, e in enumerate(errors) if e is not None), key=lambda i: (-(errors[i] or 0.0), i))
    if within(frozenset()):
        return frozenset()
    low, high = 0, len(order)  # low layers are too few; high are enough, or all there are
    while high - low > 1:
        middle = (low + high) // 2
        if within(frozenset(order[:middle])):
            high = middle
        else:
            low = middle
    if high == len(order):
        raise UserError(
            "no layer can be int8 within this budget: the one with the smallest error exceeds it already; give a "
            "larger budget, or build without data"
        )
    return frozenset(order[:high])
