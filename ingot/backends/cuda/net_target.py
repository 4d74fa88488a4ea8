"""How networks are lowered for nets on device cuda."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.backends.torch_target import TorchTarget
from ingot.passes.dense_attention import dense_attention
from ingot.passes.pipeline import Pass


class NetTarget(TorchTarget):
    """The torch target, with attention as one op."""

    @property
    def passes(self) -> Sequence[Pass]:
        found = list(super().passes)
        at = next(i for i, stage in enumerate(found) if stage.name == "decompose")
        return [*found[:at], Pass("dense attention", dense_attention), *found[at:]]


NET = NetTarget()
