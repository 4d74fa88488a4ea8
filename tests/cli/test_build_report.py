"""`ingot build --report` without a calibration: the accuracy report as a chart and as data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from ingot.builder.layers import Row
from ingot.builder.report import Report
from ingot.cli.main import main
from ingot.errors import UserError
from ingot.quantization.report import write_accuracy
from tests.kept import PICO


def test_the_chart_of_a_language_model_has_a_bar_by_layer(tmp_path: Path) -> None:
    picture = tmp_path / "pico.svg"
    words = ["--weights", "int4-g32", "--precision", "bfloat16", "--report", str(picture)]
    assert main(["build", str(PICO), "-o", str(tmp_path / "pico.ingot"), *words]) == 0
    texts = [t.text for t in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {f"model.layers.{i}" for i in range(8)} | {"logits"} <= {*texts}


def test_the_data_have_null_for_what_is_no_number(tmp_path: Path) -> None:
    rows = (Row("a", 0.5, 1.0), Row("b", float("inf"), float("inf"), "NaN here"))
    write_accuracy(Report("seeded", rows, ()), str(tmp_path / "r.json"))
    data = json.loads((tmp_path / "r.json").read_text())
    assert [one["relative"] for one in data["layers"]] == [0.5, None] and data["reference"] == "float32"
    write_accuracy(Report("seeded", rows, ()), str(tmp_path / "r.svg"))
    ElementTree.parse(tmp_path / "r.svg")


def test_words_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["build", str(PICO), "-o", str(tmp_path / "pico.ingot"), "--report"]
    assert main([*words, "x.png"]) == 2 and "written as .svg" in capsys.readouterr().err
    assert main([*words, "x.svg", "--no-report"]) == 2 and "--no-report" in capsys.readouterr().err
    empty = SimpleNamespace(layers=(), outputs=(), note="")
    with pytest.raises(UserError, match="nothing to draw"):
        write_accuracy(empty, str(tmp_path / "x.svg"))
