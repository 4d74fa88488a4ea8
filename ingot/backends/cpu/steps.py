"""The CPU's steps: channels last, panels, and one call for what can be computed together."""

from __future__ import annotations

from ingot.ops.contraction import Einsum
from ingot.ops.fused import Bodied
from ingot.passes import (
    channels_last,
    convolution,
    dense_attention,
    einsum,
    fuse,
    layout,
    simplify,
    weights,
)
from ingot.passes.pipeline import Lowers, Step, decompose, portable

# Ops that wait for their operands' layout before anything simpler is made of them.
LAID_OUT = (*channels_last.SPATIAL, Einsum)


def steps(target: Lowers) -> list[Step]:
    """The steps that make any network one that the native kernels run."""
    return [
        *portable(),
        Step("paddings", convolution.paddings),
        Step("decompose", decompose(target, LAID_OUT)),
        Step("channels last", channels_last.channels_last),
        Step("einsum", einsum.einsum),
        Step("dense attention", dense_attention.dense_attention),
        Step("convolutions", convolution.convolutions),
        Step("decompose again", decompose(target, (Bodied,))),
        Step("reversals", simplify.reversals),
        Step("sizes", simplify.sizes),
        Step("fold again", simplify.fold),
        Step("algebra again", simplify.algebra),
        Step("share", simplify.share),
        Step("lookups again", weights.lookups),
        Step("attention", fuse.attention),
        Step("products", fuse.products),  # before elementwise, which would take their dequantize
        Step("elementwise", fuse.elementwise),
        Step("epilogues", fuse.epilogues),
        Step("siblings", fuse.siblings),
        Step("pack", layout.pack),
        Step("strides", layout.strides),
        Step("remove dead again", simplify.remove_dead),
        Step("settle", layout.settle),
    ]
