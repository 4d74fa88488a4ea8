"""ATen ops that draw random numbers: an engine draws none, and needs none where nobody reads them.

Layers that training skips by chance draw in evaluation mode too, and do not look at what they drew.
"""

from __future__ import annotations

from ingot.frontends.torch_export.aten.table import MaybeDType, Results, Sizes, Tensor, aten


@aten("aten.rand.default", "aten.randn.default")
def drawn(size: Sizes, dtype: MaybeDType = None) -> Results:
    return (None,)


@aten("aten.rand_like.default", "aten.randn_like.default")
def drawn_like(self: Tensor, dtype: MaybeDType = None) -> Results:
    return (None,)
