"""Golden engines, one of each family of ops: what was written once is read, runs, and gives what it gave then."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import LLM, Embedder
from ingot.builder.layers import network_of
from ingot.builder.network import build_network
from ingot.engine import file
from ingot.engine.self_test import KEY as SELF_TEST
from ingot.engine.session import load
from ingot.ir import interpret
from ingot.ir.evaluation import evaluate
from ingot.ir.op import op_from_json
from ingot.ir.recipe import Recipe
from ingot.ir.text import attrs_json, from_json
from ingot.passes.quantize import quantized
from ingot.passes.weights import recipe_of
from tests import nets
from tests.engine.make_golden import FAMILIES, GOLDEN, KV_BLOCKS, Made, Record, Run, digest, make, record, run, stored

EVERY = pytest.mark.parametrize("name", FAMILIES)


@functools.cache
def made(name: str) -> Made:
    """The same engine, made by this release."""
    return FAMILIES[name][0]()


def path_of(name: str, folder: Path = GOLDEN) -> Path:
    return folder / f"{name}.ingot"


def assert_close(got: list[Run], want: list[Run], tolerance: float) -> None:
    """Floats within a share of the largest; all else equal."""
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.keys() == other.keys()
        for name, expected in other.items():
            assert one[name].dtype == expected.dtype, name
            scale = float(np.abs(expected).max(initial=0)) if expected.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(one[name], expected, rtol=0, atol=scale * tolerance, err_msg=name)


def test_every_family_has_its_files() -> None:
    wanted = {f"{name}{suffix}" for name in FAMILIES for suffix in (".ingot", ".npz")}
    assert {p.name for p in GOLDEN.iterdir()} == wanted | {"ops.json"}
    assert all(p.stat().st_size < 100_000 for p in GOLDEN.iterdir())


@EVERY
def test_it_gives_what_it_gave(name: str) -> None:
    """At the level of this process."""
    feeds, want = stored(path_of(name))
    assert_close(run(load(path_of(name)), feeds), want, FAMILIES[name][1])


@pytest.fixture(scope="module")
def portable() -> dict[str, list[str]]:
    """The digests of all results, with INGOT_ISA=portable."""
    command = [sys.executable, "-m", "tests.engine.make_golden", "--run", str(GOLDEN)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@EVERY
def test_it_gives_the_same_bits_without_vector_instructions(name: str, portable: dict[str, list[str]]) -> None:
    assert portable[name] == [digest(a) for one in stored(path_of(name))[1] for _, a in sorted(one.items())]


@EVERY
def test_the_python_reader_verifies_it(name: str) -> None:
    found = file.read(path_of(name), verify=True)
    assert found.header["format"] >= file.OLDEST_FORMAT
    assert found.header == load(path_of(name)).header


@EVERY
def test_its_network_means_what_it_meant(name: str) -> None:
    """The portable network in the file, by the references of its ops: an oracle of the results, too."""
    feeds, want = stored(path_of(name))
    network = quantized(network_of(load(path_of(name))), made(name).format)
    weights = {v.name: evaluate(recipe_of(v), made(name).weights) for v in network.parameters}
    states = nets.caches(network, KV_BLOCKS)
    got = [interpret(network, one, weights, states=states) for one in feeds]
    assert_close(got, want, 1e-5 if "float32" in name else 0.03)


OPS_JSON = GOLDEN / "ops.json"
RECORD: Record = json.loads(OPS_JSON.read_text())


def test_every_op_that_files_have_is_on_record() -> None:
    now = {name: set(versions) for name, versions in record(OPS_JSON).items()}
    here = {name: set(versions) for name, versions in RECORD.items()}
    assert here == now, "an op or a version is new, or an op is gone: python -m tests.engine.make_golden --ops"


@pytest.mark.parametrize(("name", "version"), [(name, int(v)) for name, versions in RECORD.items() for v in versions])
def test_attributes_that_files_have_are_read(name: str, version: int) -> None:
    """Of every op. Those of its version now are also all that it has."""
    for attrs in RECORD[name][str(version)]:
        read = op_from_json(name, version, attrs, "ops.json", from_json)
        why = f"{name}'s attributes have changed: raise its version (docs/format.md, Files age)"
        assert version < read.version or attrs_json(read) == attrs, why


@EVERY
def test_its_recipes_give_the_stored_bytes(name: str) -> None:
    found = file.read(path_of(name))
    recipes = {n: entry["recipe"] for n, entry in found.header["weights"].items() if entry["recipe"] is not None}
    for tensor, recipe in recipes.items():
        array = evaluate(Recipe.from_json(recipe), made(name).sources)
        assert array.tobytes() == found.read(tensor).tobytes(), tensor
    assert len(recipes) > (0 if name.startswith("mixed") else 5)


@EVERY
def test_it_runs_on_a_torch_device(name: str) -> None:
    """By its portable network and its recipes."""
    pytest.importorskip("torch")
    feeds, want = stored(path_of(name))
    engine = load(path_of(name)).on("torch")
    assert_close(run(engine, feeds), want, 1e-5 if "float32" in name else 0.03)


@EVERY
def test_its_network_builds_again(name: str) -> None:
    feeds, want = stored(path_of(name))
    old = load(path_of(name))
    again = build_network(network_of(old), made(name).weights, kind=old.kind, format=made(name).format)
    assert_close(run(again, feeds), want, FAMILIES[name][1])


def test_the_script_makes_the_same_engines(tmp_path: Path) -> None:
    """Programs may improve, so bytes may differ; networks, files and results may not."""
    command = [sys.executable, "-m", "tests.engine.make_golden", str(tmp_path / "made")]
    subprocess.run(command, check=True)
    for name in FAMILIES:
        old, new = load(path_of(name)), load(path_of(name, tmp_path / "made"))
        assert str(network_of(old)) == str(network_of(new)), name
        config = {key: value for key, value in new.config.items() if key != SELF_TEST}  # which old ones have not
        assert (old.kind, old.config, old.files()) == (new.kind, config, new.files()), name
        assert_close(stored(path_of(name, tmp_path / "made"))[1], stored(path_of(name))[1], FAMILIES[name][1])


def test_the_script_makes_nothing_of_words_it_does_not_know(tmp_path: Path) -> None:
    """A folder --help was made once, and committed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for word, code in (("--help", 0), ("--opps", 2)):
        command = [sys.executable, "-m", "tests.engine.make_golden", word]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        assert done.returncode == code and not [*tmp_path.iterdir()]


def test_results_of_another_level_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot._native.level", lambda: "avx2")
    with pytest.raises(SystemExit, match="INGOT_ISA=portable"):
        make(tmp_path)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n.startswith(("llama", "gemma2", "mixtral", "lora", "int"))])
def test_it_writes_text(name: str) -> None:
    """The likeliest word after the prompt is that of the stored logits."""
    feeds, want = stored(path_of(name))
    best: Any = int(want[0]["logits"][0].argmax())
    with LLM(str(path_of(name))) as llm:
        done = llm.generate([int(i) for i in feeds[0]["token_ids"][:7]], max_tokens=1)
        assert list(done.token_ids) == [best] and done.text == f"w{best}"


def test_it_gives_vectors() -> None:
    feeds, want = stored(path_of("bert-float32"))
    (hidden,) = want[0].values()
    got = Embedder(str(path_of("bert-float32"))).embed([[int(i) for i in feeds[0]["token_ids"][0]]], "mean")
    np.testing.assert_allclose(got[0], hidden[0].mean(0), atol=1e-5 * float(np.abs(hidden).max()))
