"""The README's chart and table are made of kept measurements alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import chart
from benchmarks.harness import Result, Share
from benchmarks.llm_formats import BENCHMARKS
from benchmarks.machine import LOOSE
from ingot import _native


def _kept(folder: Path) -> Path:
    result = Result("resnet50")
    for who, value in (("ingot", 7.4), ("OpenVINO", 8.1), ("somebody", 20.0)):
        result.shares.append(Share("ResNet-50, bfloat16, batch 1", who, 4.0 / value, "arithmetic", value, "ms"))
    return chart.keep(result, folder)


def test_a_measurement_is_kept_in_the_place_of_the_older_one(tmp_path: Path) -> None:
    path = _kept(tmp_path)
    other = Result("machine")
    other.add("read bandwidth", 40.0, "GB/s")
    assert chart.keep(other, tmp_path) == _kept(tmp_path) == path
    found = json.loads(path.read_text())
    assert sorted(found["results"]) == ["machine", "resnet50"]
    assert re.fullmatch(r"[a-z0-9-]+", path.stem) and "family" in path.stem


def test_the_table_says_value_and_share_of_everybody(tmp_path: Path) -> None:
    text = chart.table({"here": json.loads(_kept(tmp_path).read_text())}, Path("docs/measured.svg"))
    assert "| what | limit | ingot | OpenVINO | somebody |" in text
    assert "| ResNet-50, bfloat16, batch 1 | arithmetic | 7.4 ms, 54% | 8.1 ms, 49% | 20 ms, 20% |" in text


def test_the_chart_is_the_same_bytes_twice_and_goes_into_the_readme(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, readme, picture = tmp_path / "measured", tmp_path / "README.md", tmp_path / "measured.svg"
    _kept(folder)
    readme.write_text(f"before\n{chart.BEGIN}old\n{chart.END}after\n")
    chart.draw(folder, readme, picture)
    first = picture.read_bytes()
    chart.draw(folder, readme, picture)
    assert picture.read_bytes() == first
    assert b"ResNet-50, bfloat16, batch 1" in first and b"OpenVINO" in first
    text = readme.read_text()
    assert text.startswith(f"before\n{chart.BEGIN}![") and text.endswith(f"{chart.END}after\n") and "old" not in text
    assert "](measured.svg)" in text


def test_a_forced_level_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = _kept(tmp_path)
    monkeypatch.setattr(_native, "level", lambda: "portable")
    forced = _kept(tmp_path)
    assert forced.stem == f"{best.stem}-portable" and best.exists()
    assert json.loads(forced.read_text())["machine"].endswith(", INGOT_ISA=portable")


def test_levels_of_a_machine_share_a_table_and_have_no_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [_kept(tmp_path)]
    for level in ("avx2", "portable"):
        monkeypatch.setattr(_native, "level", lambda level=level: level)
        files.append(_kept(tmp_path))
    held = json.loads(files[1].read_text())
    loose = [f"float32, batch {n}: OpenVINO holds 2 × mlas {LOOSE}" for n in (1, 8)]
    held["results"]["resnet50"]["notes"] = ["no peer", *loose, f"int8, batch 1: OpenVINO holds 1 × jit {LOOSE}"]
    files[1].write_text(json.dumps(held))
    machines = {path.stem: json.loads(path.read_text()) for path in files}
    text = chart.table(machines, Path("docs/measured.svg"))
    assert "| what | limit | ingot | OpenVINO | somebody |" in text
    people = ("ingot", "OpenVINO", "somebody")
    head = [f"{level}: {who}" for level in ("avx2", "portable") for who in people]
    assert f"| what | {' | '.join(head)} |" in text and text.count("| ResNet-50, bfloat16, batch 1 |") == 2
    assert "7.4 ms, 54% | 8.1 ms, 49% | 20 ms, 20% | 7.4 ms, 54% | 8.1 ms, 49% | 20 ms, 20% |" in text
    said = [line for line in text.splitlines() if "does not hold" in line]
    assert said == ["- avx2, resnet50: OpenVINO's kernels that the level does not hold: 2 × mlas; 1 × jit"]
    assert list(chart.at_best(machines)) == [files[0].stem]


def test_formats_are_benchmarks_of_their_own() -> None:
    names = ["llm-bfloat16", "llm-int8", "llm-int8-int8", "llm-int4-g32", "llm-int4-g32-int8",
             "llm-int4-g128", "llm-int4-g128-int8"]  # fmt: skip
    assert list(BENCHMARKS) == names


def test_nothing_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--keep"):
        chart.draw(tmp_path, tmp_path / "README.md", tmp_path / "measured.svg")


def test_the_committed_table_is_what_the_measurements_say() -> None:
    text = chart.README.read_text()
    assert text.count(chart.BEGIN) == text.count(chart.END) == 1
    machines = {path.stem: json.loads(path.read_text()) for path in sorted(chart.MEASURED.glob("*.json"))}
    machines = {name: found for name, found in machines.items() if chart.works(found)}
    between = text[text.index(chart.BEGIN) + len(chart.BEGIN) : text.index(chart.END)]
    want = chart.table(machines, Path("docs/measured.svg")) if machines else ""
    assert between == want, "run python -m benchmarks chart"
