"""Gemma 3 with a vision part, on text alone: against transformers, under every spelling of its tensors' names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ingot
from ingot import models
from ingot.builder.outline import outline
from ingot.cli.main import main
from ingot.errors import CheckpointError, EngineFileError
from tests.models.model_zoo import GEMMA, SMALL
from tests.models.test_models import compare, expected, prompt
from tests.serve.harness import start

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

TEXT = SMALL | GEMMA | {"num_hidden_layers": 7, "sliding_window": 6}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = {"mm_tokens_per_image": 4, "image_token_index": 62, "boi_token_index": 63, "eoi_token_index": 64}


def make(folder: Path, **text: Any) -> Any:
    config = transformers.Gemma3Config(
        text_config=TEXT | text,
        vision_config=VISION | {"image_size": 28, "patch_size": 14},
        **IMAGES,
        attn_implementation="eager",
    )
    torch.manual_seed(7)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.0, 0.2)
            else:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("gemma") / "gemma3"
    make(found)
    return found


def spelled(folder: Path, to: Path, name: Callable[[str], str], change: dict[str, Any] | None = None) -> Path:
    """The same model with its tensors called otherwise."""
    to.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file({name(key): array for key, array in tensors.items()}, to / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | (change or {})))
    return to


@pytest.mark.parametrize("scaled", [False, True])
def test_text_alone_is_as_in_transformers(scaled: bool, tmp_path: Path) -> None:
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6} if scaled else {"rope_type": "default"}
    rope = {"full_attention": full | {"rope_theta": 1e6}, "sliding_attention": {"rope_type": "default"}}
    rope["sliding_attention"]["rope_theta"] = 1e4
    model = make(tmp_path, rope_parameters=rope)
    compare(tmp_path, expected(model, prompt()))


NEW = {"language_model.model.": "model.language_model.", "vision_tower.": "model.vision_tower.",
       "multi_modal_projector.": "model.multi_modal_projector."}  # fmt: skip


def newer(name: str) -> str:
    return next((other + name.removeprefix(own) for own, other in NEW.items() if name.startswith(own)), name)


def test_every_spelling_gives_the_same_weights(folder: Path, tmp_path: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    assert any(name.startswith("language_model.model.layers.") for name in stored)
    one = models.load(folder)
    other = models.load(spelled(folder, tmp_path / "newer", newer))
    assert set(one.weights) == set(other.weights) and "lm_head.weight" not in one.weights
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], other.weights[name])
        np.testing.assert_array_equal(one.weights[name], stored[f"language_model.{name}"])
    own = {"language_model.lm_head.weight": stored["language_model.model.embed_tokens.weight"] + 1}
    folder = spelled(folder, tmp_path / "head", lambda name: name)
    save_file(stored | own, folder / "model.safetensors")
    apart = models.load(folder)  # a head of its own numbers is not the table, whatever config.json says
    np.testing.assert_array_equal(apart.weights["lm_head.weight"], apart.weights["model.embed_tokens.weight"] + 1)


def test_what_is_left_out_is_said(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "left out: the vision part: this model is used for text alone, and images are not read"
    path = tmp_path / "gemma.ingot"
    assert main(["build", str(folder), "-o", str(path)]) == 0
    assert capsys.readouterr().err.count(said) == 1
    (tmp_path / "text").write_text("x")
    with ingot.LLM(path) as llm:
        assert llm.left_out == ("the vision part: this model is used for text alone, and images are not read",)
        assert len(llm.generate([3, 4, 5], max_tokens=4, ignore_end=True).token_ids) == 4
    running = start(source=path)
    try:
        assert any(said in line for line in running.lines)
        assert running.end() == 0
    finally:
        running.close()
    assert main(["inspect", str(path)]) == 0
    assert "images are not read" in capsys.readouterr().out


def test_a_part_that_nobody_knows_is_refused(folder: Path, tmp_path: Path) -> None:
    odd = spelled(folder, tmp_path / "odd", lambda name: name.replace("vision_tower", "audio_tower"))
    with pytest.raises(CheckpointError, match=r"unexpected:\n  audio_tower\."):
        models.load(odd)
    with pytest.raises(CheckpointError, match="text_config: is missing"):
        models.load(spelled(folder, tmp_path / "none", lambda name: name, {"text_config": None}))
    with pytest.raises(CheckpointError, match="text_config.num_attention_heads: must lie in"):
        models.load(spelled(folder, tmp_path / "bad", lambda name: name, {"text_config": {"num_attention_heads": 0}}))


def test_its_memory_is_planned_from_the_headers(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.pop("dtype")
    engine, granted = outline(spelled(folder, tmp_path / "plan", newer, {"dtype": None}))
    assert engine.config["precision"] == "float32" and "config.json names no dtype: the weights are float32" in granted


def test_words_of_an_engine_from_elsewhere_are_checked(folder: Path) -> None:
    engine = ingot.build(folder, report=False)
    for words in ("all", ["\x1b[31m"], [3], ["x" * 200]):
        engine.header["config"]["left_out"] = words
        with pytest.raises(EngineFileError, match="left_out must be a list of short printable texts"):
            ingot.LLM(engine)
