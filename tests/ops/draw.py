"""How an op's `draw` asks for random shapes and attributes: a small face over hypothesis."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


class Draw:
    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.data.draw(st.integers(0, len(options) - 1))]

    def boolean(self) -> bool:
        return self.data.draw(st.booleans())

    def size(self, least: int = 0) -> int:
        return self.data.draw(st.sampled_from([n for n in (0, 1, 2, 3, 5, 8, 17, 33) if n >= least]))

    def shape(self, least: int = 0, min_rank: int = 0, max_rank: int = 4) -> tuple[int, ...]:
        rank = self.data.draw(st.integers(min_rank, max_rank))
        return tuple(min(self.size(least), 9) if rank > 3 else self.size(least) for _ in range(rank))

    def axis(self, rank: int) -> int:
        return self.data.draw(st.integers(-rank, rank - 1))

    def axes(self, rank: int) -> tuple[int, ...] | None:
        if self.boolean():
            return None
        chosen = self.data.draw(st.lists(st.integers(0, max(rank - 1, 0)), unique=True, max_size=rank))
        return tuple(a - rank if self.boolean() else a for a in chosen)

    def broadcastable(self, count: int, rank: int = 3) -> list[tuple[int, ...]]:
        """Shapes that broadcast together: one shape, with sizes turned to 1 and leading dimensions dropped."""
        whole = self.shape(max_rank=rank)
        shapes = []
        for _ in range(count):
            kept = [1 if self.data.draw(st.integers(0, 3)) == 0 else d for d in whole]
            shapes.append(tuple(kept[self.data.draw(st.integers(0, len(kept))):]))
        return shapes
