"""Every op of torch's core set is imported, or refused for a reason that is written here."""

from __future__ import annotations

import torch

from ingot.frontends.torch_export.aten import COMPLEX_TABLE, TABLE
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.frontends.torch_export.importer import NUMBERS
from ingot.frontends.torch_export.plain_forms import has_plain_form

BACKWARD = "a gradient: engines are not trained"
MEMORY = "it reads how a tensor lies in torch's memory, which an engine does not have"
RANDOM = "random numbers of torch's own generator, which an engine does not have"
REFUSED = {
    "aten._adaptive_avg_pool2d_backward.default": BACKWARD,
    "aten.avg_pool2d_backward.default": BACKWARD,
    "aten.convolution_backward.default": BACKWARD,
    "aten.embedding_dense_backward.default": BACKWARD,
    "aten.max_pool2d_with_indices_backward.default": BACKWARD,
    "aten.native_group_norm_backward.default": BACKWARD,
    "aten.native_layer_norm_backward.default": BACKWARD,
    "aten.as_strided.default": MEMORY,
    "aten.empty_strided.default": MEMORY,
    "aten.resize_.default": MEMORY,
    "aten.sym_is_contiguous.default": MEMORY,
    "aten.sym_storage_offset.default": MEMORY,
    "aten.sym_stride.int": MEMORY,
    "aten.rand.default": RANDOM,
    "aten.randn.default": RANDOM,
    "aten.randperm.default": RANDOM,
}


def test_the_core_ops_are_imported_or_refused_by_name() -> None:
    core = set()
    # What dir() has of torch.ops.aten depends on what was used of it before.
    spaced = (schema.name.partition("::") for schema in torch._C._jit_get_all_schemas())
    for name in sorted({name for space, _, name in spaced if space == "aten"}):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ():
            if torch.Tag.core in getattr(packet, overload).tags:
                core.add(f"aten.{name}.{overload}")
    assert len(core) > 150
    known = TABLE.keys() | COMPLEX_TABLE.keys() | size_ops.NAMES | NUMBERS
    missing = {op for op in core - known if not has_plain_form(op)}
    assert missing == REFUSED.keys()
