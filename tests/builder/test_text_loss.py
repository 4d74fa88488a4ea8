"""What formats cost on a text: the numbers of `ingot score`, by a build's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import ingot
from ingot import nn
from ingot.builder import text_loss
from ingot.builder.text_loss import TextLoss
from ingot.cli.main import main
from ingot.engine.session import Engine
from ingot.errors import FileError, UserError
from tests.kept import PICO

TEXT = (PICO / "heldout.txt").read_text()[:4000]


def found(engine: Engine) -> TextLoss:
    assert engine.report is not None and engine.report.text is not None
    loss: TextLoss = engine.report.text
    return loss


def scored(source: Any, text: str, window: int, **words: Any) -> Any:
    with ingot.LLM(source, threads=1, **words) as llm:
        return llm.score(text, window)


@pytest.mark.parametrize("words", [
    {"weights": "int4-g128", "precision": "float32"}, {"weights": "int8", "activations": "int8", "kv": "int8"},
])  # fmt: skip
def test_the_numbers_are_those_of_score(words: dict[str, str]) -> None:
    """In windows of 512, by chunks: == to the last bit. The source is bfloat16, whatever the engine computes in."""
    engine = ingot.build(PICO, text=[TEXT], **words)
    loss, ours, theirs = found(engine), scored(engine, TEXT, 512), scored(PICO, TEXT, 512)
    assert (loss.tokens, loss.windows) == (theirs.tokens, theirs.windows) == (1024, 2)
    assert (loss.nats_per_token, loss.source_nats_per_token) == (ours.nats_per_token, theirs.nats_per_token)
    assert loss.source_precision == "bfloat16" and not loss.calibrated and loss.change != 0
    assert loss.tokens_per_s > 0 < loss.source_tokens_per_s
    assert f"{loss.change:+.4f} beside the source in bfloat16" in str(engine.report)


def test_the_beginning_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most WINDOWS windows; of many texts those that come first, and a window is no longer than they are."""
    monkeypatch.setattr(text_loss, "WINDOWS", 3)
    monkeypatch.setattr(text_loss, "WINDOW", 48)
    monkeypatch.setattr(text_loss, "ROWS", 20)
    monkeypatch.setattr(text_loss, "CHARACTERS", 100)
    given = [TEXT], [TEXT[:90], TEXT[90:]]
    whole, several = (found(ingot.build(PICO, weights="int8", text=texts)) for texts in given)
    assert (whole.tokens, several.tokens) == (144, 144)
    with ingot.LLM(PICO, threads=1) as llm:
        ids = llm.tokenizer.encode_plain(TEXT)[:145]
        assert whole.source_nats_per_token == llm.score(ids, 48).nats_per_token
    short = found(ingot.build(PICO, weights="int8", text=["def f(x):"]))
    assert short.windows == 1 and 1 <= short.tokens < 48


def test_a_calibration_sees_its_own_text_alone() -> None:
    """The data's text is what is scored, unless there is another: that changes nothing of the engine."""
    words: dict[str, Any] = {"precision": "float32", "smooth": 0.5}
    own, other = ingot.quantize(PICO, [TEXT[:1500]], **words), ingot.quantize(PICO, [TEXT[:1500]], text=[TEXT], **words)
    assert found(own).calibrated and not found(other).calibrated
    assert found(own).nats_per_token == scored(own, TEXT[:1500], found(own).tokens).nats_per_token
    assert found(other).nats_per_token == scored(own, TEXT, 512).nats_per_token
    assert "the one of the calibration" in str(own.report) and "calibration" not in str(other.report)
    names = own.header["weights"].keys()
    assert all(own.tensor(name).tobytes() == other.tensor(name).tobytes() for name in names)
    silent = ingot.quantize(PICO, [TEXT[:1500]], report=False, **words)
    assert silent.report is None


def test_without_memory_for_the_source(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("ingot.quantization.smooth.available_memory", lambda: 1000)
    engine = ingot.quantize(PICO, [TEXT[:1500]], smooth=0.5)
    assert engine.report is not None and engine.report.text is None
    assert "the text is not scored: the source takes 0.0 GB" in caplog.text


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, to, picture = tmp_path / "text.txt", str(tmp_path / "out.ingot"), tmp_path / "r.svg"
    text.write_text(TEXT)
    words = ["build", str(PICO), "-o", to, "--weights", "int4-g32"]
    assert main([*words, "--text", str(text), "--report", str(picture), "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["accuracy"]["text"]
    assert loss["change"] == loss["nats_per_token"] - loss["source_nats_per_token"] and loss["tokens"] == 1024
    told = [t.text or "" for t in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert any(f"{loss['change']:+.4f} nats per token on a text" in line for line in told)
    assert main([*words, "--text", str(text), "--no-report"]) == 2
    assert "said in the report" in capsys.readouterr().err
    assert main([*words, "--text", str(tmp_path / "none.txt")]) == 2
    assert main(["build", to, "-o", str(tmp_path / "other.ingot"), "--text", str(text)]) == 2
    assert "scored by a language model, from its folder" in capsys.readouterr().err


def test_what_is_refused() -> None:
    for text, error, told in (
        ("none.txt", FileError, r"cannot be opened.*A text itself is given in a list, \[text\]"),
        (["x"], UserError, "fewer than two tokens"),
        ([], UserError, "fewer than two tokens"), ([b"x"], UserError, "scored with texts: number 0 of data is a bytes"),
    ):  # fmt: skip
        with pytest.raises(error, match=told):
            ingot.build(PICO, weights="int8", text=text)
    module = nn.Linear(8, 8)
    for parameter in module.parameters():
        parameter.value = np.ones(parameter.spec.evaluate({}), np.float32)
    spec = {"x": ingot.Spec((2, 8), "float32")}
    with pytest.raises(UserError, match="a text is scored by a language model"):
        ingot.build(module, spec, text=[TEXT])
    with pytest.raises(UserError, match="a text is scored by a language model"):
        ingot.quantize(ingot.build(module, spec), [np.ones((2, 8), np.float32)], text=[TEXT])
