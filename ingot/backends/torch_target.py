"""The torch target: every op runs through its torch form, so nothing but the portable passes is done to a network."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.backends import device
from ingot.ir import Node
from ingot.passes import layout, simplify, weights
from ingot.passes.pipeline import Pass, decompose, portable


class TorchTarget:
    """See passes.pipeline.Lowers. Its kernels are the ops' torch forms, and it has no layouts."""

    runtime = device.TORCH

    @property
    def passes(self) -> Sequence[Pass]:
        """The portable passes, and simpler ops where one has no torch form."""
        return [
            *portable(),
            Pass("decompose", decompose(self)),
            Pass("fold again", simplify.fold),
            Pass("algebra again", simplify.algebra),
            Pass("share", simplify.share),
            Pass("lookups again", weights.lookups),
            Pass("remove dead again", simplify.remove_dead),
            Pass("settle", layout.settle),
        ]

    def refuses(self, node: Node) -> str | None:
        """Why no torch form takes a node; None when one does."""
        return f"{node.op.name} has no torch form" if node.op.torch is None else None


TORCH = TorchTarget()
