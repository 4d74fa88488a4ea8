"""The CPU's passes: channels last, panels, and one call for what can be computed together."""

from __future__ import annotations

from ingot.ir import Node, Value
from ingot.ops.contraction import Einsum
from ingot.ops.mixture import Moe
from ingot.ops.movement import Reshape
from ingot.ops.product import Matmul
from ingot.ops.recurrent import Recurrent
from ingot.ops.spatial import Conv, ConvTranspose
from ingot.passes import (
    bodies,
    channels_last,
    convolution,
    dense_attention,
    einsum,
    experts,
    fuse,
    integers,
    kv_cache,
    layout,
    products,
    short_reductions,
    simplify,
    weights,
    whole,
    zero_points,
)
from ingot.passes.pipeline import Lowers, Pass, decompose, portable

# Ops that wait for their operands' layout before anything simpler is made of them.
LAID_OUT = (*channels_last.SPATIAL, Einsum)


def _declines(node: Node, weight: Value) -> str:
    """Why a node does not read the integers and the scales that its weight is dequantised of, or nothing."""
    if [i for i, v in enumerate(node.inputs) if v is weight] == [1]:
        if isinstance(node.op, Conv | ConvTranspose):
            return convolution.no_integers(node)
        if isinstance(node.op, Matmul):
            return products.no_integers(node)
        if isinstance(node.op, Recurrent):
            return integers.no_recurrent_integers(node)
    if isinstance(node.op, Reshape) and all(isinstance(user.op, ConvTranspose) for user in node.output.uses):
        whys = (_declines(user, node.output) for user in node.output.uses)  # its groups as a dimension
        return next(filter(None, whys), "")
    if isinstance(node.op, Moe) and not any(v is weight for v in node.inputs[:2]):
        return experts.no_integers(node, weight)
    return f"{node.op.name} reads floats there"


def passes(target: Lowers) -> list[Pass]:
    """The passes that make any network one that the native kernels run."""
    return [
        *portable(),
        Pass("caches", kv_cache.without_float8),
        Pass("whole", whole.whole),
        Pass("zero points", zero_points.zero_points),
        Pass("signed", integers.signed),
        Pass("integers", integers.integers),
        Pass("paddings", convolution.paddings),
        Pass("decompose", decompose(target, LAID_OUT)),
        Pass("channels last", channels_last.channels_last),
        Pass("einsum", einsum.einsum),
        Pass("dense attention", dense_attention.dense_attention),
        Pass("weights as floats", integers.weights(_declines)),
        Pass("moved weights again", weights.moved),
        Pass("convolutions", convolution.convolutions),
        Pass("decompose again", decompose(target)),
        Pass("reversals", simplify.reversals),
        Pass("sizes", simplify.sizes),
        Pass("fold again", simplify.fold),
        Pass("algebra again", simplify.algebra),
        Pass("short reductions", short_reductions.short_reductions),
        Pass("share", simplify.share),
        Pass("lookups again", weights.lookups),
        Pass("attention", fuse.attention),
        Pass("products", products.products),  # before elementwise, which would take their dequantize
        Pass("recurrent", layout.recurrent),  # so is this
        Pass("experts", experts.experts),  # and this
        Pass("biases", fuse.biases),
        Pass("elementwise", fuse.elementwise),
        Pass("epilogues", fuse.epilogues),
        Pass("siblings", fuse.siblings),
        Pass("pack", layout.pack),
        Pass("strides", layout.strides),
        Pass("remove dead again", simplify.remove_dead),
        Pass("settle", layout.settle),
        Pass("bodies", bodies.lower_bodies(target)),
    ]
