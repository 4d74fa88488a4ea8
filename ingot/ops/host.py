"""Host calls: what the executor asks of Python for a node that has no native kernel. The op's own reference answers."""

from __future__ import annotations

from typing import Any

import numpy as np

import ingot.ops  # noqa: F401  (registers every op)
from ingot.ir import OPS
from ingot.ir.op import op_from_json
from ingot.ir.text import from_json
from ingot.ops.common import Array


def run(name: str, version: int, params: dict[str, Any], arrays: list[Array]) -> list[Array]:
    """The results of an op of ingot's table; OpError or NetworkError for any other name, version or attribute."""
    kinds = OPS[name].attributes if name in OPS else {}
    attrs = {k: from_json(v) if k in kinds and kinds[k].name == "Network" else v for k, v in params.items()}
    found = op_from_json(name, version, attrs, "host call").reference(*arrays)
    results = found if isinstance(found, tuple) else (found,)
    return [np.asarray(r, order="C") for r in results]
