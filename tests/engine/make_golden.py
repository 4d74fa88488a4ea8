"""Makes the golden engine of format 1 and its expected outputs: `python -m tests.engine.make_golden FOLDER`.

The files in tests/engine/golden were made once, when the format froze, and are never made again: that they still load
and give the stored outputs is what the format promises. This script says how they came to be, and serves for format 2.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ingot.builder.build import build_network
from ingot.ir.interpret import interpret
from tests import nets

SIZES = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "width": 16, "mlp": 24, "vocabulary": 40}
DTYPES = ("float32", "bfloat16")


def make(folder: Path) -> None:
    """Writes format1-<dtype>.ingot and format1-<dtype>.npz into the folder."""
    for dtype in DTYPES:
        net = nets.llama(dtype=dtype, bias=True, **SIZES)
        weights, feeds = nets.weights(net), nets.step(vocabulary=SIZES["vocabulary"])
        outputs = interpret(net, feeds, weights, states=nets.caches(net))
        engine = build_network(net, weights, config={"precision": dtype}, files={"note.txt": b"golden"})
        engine.save(folder / f"format1-{dtype}.ingot")
        np.savez_compressed(folder / f"format1-{dtype}.npz", **outputs)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
