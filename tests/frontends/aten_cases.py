"""Cases of ATen ops: how one is written, and its random tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

rng = torch.Generator().manual_seed(0)


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=rng).to(dtype)


def i(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=rng).to(dtype)


def b(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=rng).bool()


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=rng) + 0.5


class Case(NamedTuple):
    """One call; its engine runs natively but for host calls of the op `host`."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    host: str


class Cases(list[Case]):
    def __call__(self, names: str, *args: Any, host: str = "", **kwargs: Any) -> None:
        """One call for each of the ops named, by their names after `aten.`."""
        for name in names.split():
            self.append(Case(name if "." in name and name.startswith("prims") else f"aten.{name}", args, kwargs, host))
