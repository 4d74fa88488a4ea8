"""The step that merges a LoRA adapter into a weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import dtypes
from ingot.errors import RecipeError
from ingot.ir.recipe import Array, Known, Step, register, require
from ingot.ir.steps.check import is_bool, is_finite

# lora_merge: base + scale · (b · a) in float64, rounded to float32. Operands: base [O, I], a [r, I], b [O, r]; where
# `transposed` the product is: base [I, O].
MERGED_AT_ONCE = 1 << 20  # elements of base; bounds the float64 intermediates


def _lora_infer(known: Sequence[Known | None], scale: float, transposed: bool) -> Known:
    require(len(known) == 3, f"takes base, a and b, not {len(known)} operands")
    base, *pair = known
    if base is None:
        raise RecipeError("an adapter's own tensor is no base")
    require(len(base[1]) == 2 and 0 not in base[1], f"a base [O, I] is needed, not {list(base[1])}")
    if pair[0] is not None and pair[1] is not None:
        a, b = pair[0][1], pair[1][1]
        outputs, inputs = base[1][::-1] if transposed else base[1]
        require(len(a) == len(b) == 2 and a[0] == b[1] and (b[0], a[1]) == (outputs, inputs),
                f"a {list(a)} and b {list(b)} do not fit a base of {outputs} outputs and {inputs} inputs")  # fmt: skip
    return dtypes.float32, base[1]


def _lora_apply(arrays: Sequence[Array], scale: float, transposed: bool) -> Array:
    base = arrays[0]
    _lora_infer([(dtypes.get(x.dtype), x.shape) for x in arrays], scale, transposed)
    a, b = (x.astype(np.float64) for x in arrays[1:])
    left, right = (a.T, b.T) if transposed else (b, a)
    out = np.empty(base.shape, np.float32)
    step = max(1, MERGED_AT_ONCE // base.shape[1])
    lost = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(base), step):
            rows = slice(begin, begin + step)
            before = base[rows].astype(np.float64)
            out[rows] = before + (left[rows] @ right) * scale
            lost += int(np.count_nonzero(np.isfinite(before) & ~np.isfinite(out[rows])))
    require(not lost, f"{lost} merged numbers are no longer finite: a damaged adapter, or a scale {scale:g} too large")
    return out


register(Step("lora_merge", 1, _lora_infer, _lora_apply, {"scale": is_finite, "transposed": is_bool}))
