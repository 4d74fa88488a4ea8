"""Format 1 is frozen: engines written when it froze load and give the outputs that they gave then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot.engine import file
from ingot.engine.session import load
from ingot.ir.recipe import Recipe, evaluate
from ingot.ir.text import from_json, to_json
from tests import nets
from tests.engine.make_golden import DTYPES, SIZES, make

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_golden_engine_loads_and_runs(dtype: str) -> None:
    engine = load(GOLDEN / f"format1-{dtype}.ingot")
    assert engine.header["format"] == 1 and engine.kind == "network" and engine.files() == {"note.txt": b"golden"}
    session = engine.session(kv_blocks=8)
    got = session.run(nets.step(vocabulary=SIZES["vocabulary"]))["logits"]
    want = np.load(GOLDEN / f"format1-{dtype}.npz")["logits"]
    scale = float(np.abs(want).max())
    np.testing.assert_allclose(got, want, atol=scale * (1e-5 if dtype == "float32" else 0.03))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_python_reader_verifies_it(dtype: str) -> None:
    found = file.read(GOLDEN / f"format1-{dtype}.ingot", verify=True)
    assert found.bytes < 100_000
    network = from_json(found.header["networks"]["main"])
    assert {v.name for v in network.parameters} >= {"model.embed_tokens.weight", "model.norm.weight"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_recipes_still_give_the_stored_bytes(dtype: str) -> None:
    found = file.read(GOLDEN / f"format1-{dtype}.ingot")
    weights = nets.weights(nets.llama(dtype=dtype, bias=True, **SIZES))
    checked = 0
    for name, entry in found.header["weights"].items():
        if entry["recipe"] is not None:
            made = evaluate(Recipe.from_json(entry["recipe"]), weights)
            assert made.tobytes() == found.read(name).tobytes(), name
            checked += 1
    assert checked > 10


def test_the_files_are_small_and_come_from_the_script(tmp_path: Path) -> None:
    """The script still makes engines of the same tensors; programs may improve, so bytes may differ."""
    make(tmp_path)
    for dtype in DTYPES:
        old, new = (file.read(folder / f"format1-{dtype}.ingot") for folder in (GOLDEN, tmp_path))
        assert old.bytes < 100_000
        assert to_json(from_json(old.header["networks"]["main"])) == new.header["networks"]["main"]
