"""Words of their own for the head and for tables of embeddings, beside layers in another format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.builder.build import build
from ingot.builder.network import build_network
from ingot.cli.main import main
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.ir import Network, Spec
from ingot.ir.evaluation import evaluate
from ingot.ir.weight_format import FORMATS, config_of, format_of, weight_format
from ingot.passes.quantize import quantized
from tests import nets
from tests.kept import PICO

Array = np.ndarray[Any, Any]
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def ran(engine: Engine, **words: Any) -> Array:
    return engine.session(threads=1, kv_blocks=8, **words).run(dict(nets.step()))["logits"]


def in_numpy(net: Network, weights: Mapping[str, Array], word: str) -> dict[str, Array]:
    """The floats that each matrix stands for where all of them are stored by one word: by NumPy alone for int8, for
    int4 of the stored integers."""
    matrices = {name: w for name, w in weights.items() if w.ndim == 2}
    if word == "same":
        return matrices
    if word == "int8":
        scales = {name: np.abs(w).max(1, keepdims=True) / np.float32(127) for name, w in matrices.items()}
        return {name: np.rint(w / scales[name]) * scales[name] for name, w in matrices.items()}
    made = {
        v.name: evaluate(v.recipe, weights) for v in quantized(net, FORMATS[word]).parameters if v.recipe is not None
    }
    found = in_numpy(net, weights, "int8")  # where groups do not divide the inputs
    for name in [name for name in matrices if f"{name}.int4" in made]:
        group, scales, whole = FORMATS[word].group, made[f"{name}.scales"], made[f"{name}.int4"].astype(np.float32)
        zeros = made.get(f"{name}.zeros", np.zeros_like(scales))
        wide = [np.repeat(one.astype(np.float32), group, 1) for one in (scales, zeros)]
        found[name] = (whole - wide[1]) * wide[0]
    return found


@pytest.mark.parametrize(("words", "layers", "head", "table"), [
    ({"word": "int4-g32", "head": "same"}, "int4-g32", "same", "int8"),
    ({"word": "int4-g32", "head": "int8", "embeddings": "same"}, "int4-g32", "int8", "same"),
    ({"word": "int4-g32", "embeddings": "int8"}, "int4-g32", "int4-g32", "int8"),
    ({"word": "int8", "head": "int4-g32"}, "int8", "int4-g32", "int8"),
    ({"word": "int4-g32-asym", "head": "int4-g64", "embeddings": "same"}, "int4-g32-asym", "int4-g64", "same"),
    ({"word": "same", "head": "int4-g64-asym"}, "same", "int4-g64-asym", "same"),
    ({"word": "same", "embeddings": "int8"}, "same", "same", "int8"),
])  # fmt: skip
def test_each_matrix_has_its_own_format(words: dict[str, str], layers: str, head: str, table: str) -> None:
    """Against a network of floats with the weights that NumPy makes of them; a refit and a reader go on with it."""
    net = nets.llama(tied=False)
    weights = nets.weights(net)
    format = weight_format(**words)
    engine = build_network(net, weights, format=format)
    meant = {**weights, **in_numpy(net, weights, layers)}
    meant |= {HEAD: in_numpy(net, weights, head)[HEAD], TABLE: in_numpy(net, weights, table)[TABLE]}
    want, found = ran(build_network(net, meant)), ran(engine)
    np.testing.assert_allclose(found, want, atol=2e-5 * np.abs(want).max(), rtol=0)
    assert np.abs(ran(build_network(net, weights)) - want).max() > 1e-3 * np.abs(want).max(), "the formats show"
    assert format_of(engine.config) == format_of(config_of(format))
    assert {name: engine.config.get(name) for name in ("head", "embeddings")} == {
        name: words.get(name) for name in ("head", "embeddings")
    }
    other = {**weights, HEAD: weights[HEAD] * 2, TABLE: weights[TABLE] + 1}
    again, fresh = engine.refit({HEAD: other[HEAD], TABLE: other[TABLE]}), build_network(net, other, format=format)
    for tensor in fresh.header["weights"]:
        assert again.tensor(tensor).tobytes() == fresh.tensor(tensor).tobytes(), tensor


@pytest.mark.parametrize(("words", "tied"), [
    ({"word": "int4-g32", "head": "same"}, "same"), ({"word": "int4-g32", "embeddings": "same"}, "same"),
    ({"word": "int8", "head": "same", "embeddings": "same"}, "same"), ({"word": "same", "head": "int8"}, "int8"),
])  # fmt: skip
def test_a_tied_table_is_stored_once(words: dict[str, str], tied: str) -> None:
    net = nets.llama(tied=True)
    weights = nets.weights(net)
    engine = build_network(net, weights, format=weight_format(**words))
    layers = in_numpy(net, weights, words["word"])
    want = ran(build_network(net, {**weights, **layers, TABLE: in_numpy(net, weights, tied)[TABLE]}))
    np.testing.assert_allclose(ran(engine), want, atol=2e-5 * np.abs(want).max(), rtol=0)
    kinds = {engine.tensor(name).dtype.name for name in engine.header["weights"] if name.startswith(TABLE)}
    assert kinds == ({"float32"} if tied == "same" else {"int8", "float32"})  # float32: scales


def test_rows_of_int8_meet_no_head_of_floats() -> None:
    net = nets.llama(tied=False)
    weights = nets.weights(net)
    engine = build_network(net, weights, format=weight_format("int8", "int8", head="same"))
    text = str(quantized(net, format_of(engine.config)))
    assert text.count("quantize_rows") == 2 * 7, "of the products of two layers, and no more"
    assert np.isfinite(ran(engine)).all()


def test_other_targets_read_the_same_words() -> None:
    pytest.importorskip("torch")
    net = nets.llama(tied=False)
    engine = build_network(net, nets.weights(net), format=weight_format("int4-g32", head="int8", embeddings="same"))
    want = ran(engine)
    np.testing.assert_allclose(ran(engine, device="torch"), want, atol=1e-4 * np.abs(want).max(), rtol=0)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pico-python, whose head is its table: in bfloat16 beside layers of int4."""
    to, data = str(tmp_path / "pico.ingot"), tmp_path / "calib.txt"
    data.write_text("import os\n" * 200)
    assert main(["build", str(PICO), "-o", to, "--weights", "int4-g128", "--head", "same"]) == 0
    assert "model.embed_tokens.weight" in capsys.readouterr().out
    engine = ingot.load(to)
    assert (engine.config["weights"], engine.config["head"]) == ("int4-g128", "same")
    assert engine.report is None and engine.config["float32_scales"] == []
    with ingot.LLM(to, weights="int4-g128", threads=1) as llm:
        assert llm.generate("import", max_tokens=4).token_ids
    words = ["build", str(PICO), "-o", to]
    for more, told in (
        (["--weights", "int4-g128", "--head", "int4-g128"], "the head and the table of embeddings, stored once"),
        (["--weights", "int8", "--head", "same", "--embeddings", "int8"], "give one word for both"),
        (["--activations", "int8", "--data", str(data), "--head", "same"], "--head and --embeddings do not go with it"),
    ):
        assert main([*words, *more]) == 2
        assert told in capsys.readouterr().err.replace("\n", " ")
    assert build(to, weights="int4-g128", head="same").config == engine.config
    for more, told in (
        ({"head": "int8"}, "head 'int8' conflicts with .* built with 'same'"),
        ({"embeddings": "int8"}, "embeddings 'int8' conflicts with .* built with 'what weights say'"),
    ):
        with pytest.raises(UserError, match=told):
            build(to, **more)


def test_what_is_refused() -> None:
    module = nn.Linear(8, 8)
    for parameter in module.parameters():
        parameter.value = np.ones(parameter.spec.evaluate({}), np.float32)
    for words, told in (
        ({"head": "int8"}, "this network has no head of floats"), ({"embeddings": "int8"}, "has no table of floats"),
        ({"head": "fp8"}, "head must be one of same, int8, int4-g32, .*, not 'fp8'"),
        ({"embeddings": "int4-g32"}, "embeddings must be one of same, int8, not 'int4-g32'"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=told):
            build(module, {"x": Spec((2, 8), "float32")}, **words)
