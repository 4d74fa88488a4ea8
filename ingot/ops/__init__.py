"""All ops, as functions: `ops.rms_norm(x, weight, eps=1e-5)`. The classes behind them are in the families' files.

No family may be called as an op is: `ops.NAME` would then be the module.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.ir import OPS, functions
from ingot.ops import (
    attention,
    binary,
    checks,
    contraction,
    control,
    conversion,
    dense_attention,
    elementwise,
    fourier,
    fused,
    indexing,
    lowering,
    mixture,
    movement,
    norm,
    order,
    pictures,
    pool,
    product,
    recurrent,
    reduce,
    resample,
    scattering,
    sizes,
    spatial,
    state_space,
)

FAMILIES = (
    elementwise,
    conversion,
    binary,
    reduce,
    product,
    contraction,
    movement,
    indexing,
    scattering,
    order,
    sizes,
    checks,
    norm,
    spatial,
    pool,
    resample,
    attention,
    dense_attention,
    control,
    fused,
    mixture,
    recurrent,
    state_space,
    fourier,
    pictures,
    lowering,
)


def table() -> list[dict[str, Any]]:
    """The coverage table, one row per op: name, family, operands, attributes, how it is lowered, cases."""
    return [
        {
            "op": name,
            "family": cls.__module__.rpartition(".")[2],
            "operands": [f"*{o.name}" if o.variadic else f"{o.name}?" if o.optional else o.name for o in cls.operands],
            "attributes": list(cls.attributes),
            "lowering": [w for w in ("expr", "decompose") if getattr(cls, w) is not None],
            "cases": len(cls.cases),
            "doc": (cls.__doc__ or "").partition("\n")[0],
        }
        for name, cls in sorted(OPS.items())
    ]


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        return functions[name]
    except KeyError:
        raise AttributeError(f"there is no op {name!r}; ops.table() lists them") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *functions})
