"""Layers that are no faster in int8 stay float where that is measured, and a file of measurements decides alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import ingot
from ingot.backends.device import Device
from ingot.builder import measurements
from ingot.engine.session import Engine, Session
from ingot.errors import FileError, UserError
from ingot.passes.calibrated import Plan
from ingot.quantization import places, tuning
from tests.quantization.test_quantize import batches, net


class Clockwork:
    """Time that only runs of its sessions take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pretended:
    """An engine and its session: so many milliseconds by layer."""

    def __init__(self, clock: Clockwork, layers: dict[str, float]) -> None:
        self.clock, self.layers = clock, layers

    def session(self, device: Any = None) -> Pretended:
        return self

    def run(self, feeds: Any) -> dict[str, Any]:
        self.clock.now += sum(self.layers.values()) / 1e3
        return {}

    def profile(self, feeds: Any) -> list[dict[str, Any]]:
        return [{"where": name, "ns": ms * 1e6} for name, ms in self.layers.items()]


FLOAT = {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0}
INT8 = {"a": 1.0, "b": 3.0, "c": 2.01, "d": 5.0}


def _tuned(monkeypatch: pytest.MonkeyPatch, seconds: float, cost: Callable[[frozenset[str]], float]) -> tuning.Tuning:
    """What is tuned of four layers; `cost`: milliseconds that a choice takes beside its layers."""
    clock = Clockwork()
    monkeypatch.setattr(measurements, "perf_counter", clock)
    monkeypatch.setattr(places, "perf_counter", clock)

    def make(floats: frozenset[str]) -> Engine:
        layers = {name: (FLOAT if name in floats else INT8)[name] for name in FLOAT}
        return cast(Engine, Pretended(clock, {**layers, "": cost(floats)}))

    plain = cast(Engine, Pretended(clock, FLOAT))
    bar = measurements.Clock(seconds, lambda done, total: None, begin=0.0)
    return tuning.tuned("key", make(frozenset()), plain, {}, list(FLOAT), make, bar, Device())


def test_layers_stay_float_that_make_a_run_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _tuned(monkeypatch, 100.0, lambda floats: 0.0)
    assert found.floats == ["b", "d"], "c saves less than is worth it"
    assert [name for name, *_ in found.layers] == list(FLOAT)
    assert (found.before_ms, found.after_ms) == (pytest.approx(11.01), pytest.approx(7.01))


def test_what_a_choice_costs_elsewhere_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tuned(monkeypatch, 100.0, lambda floats: 2.0 * ("b" in floats)).floats == ["d"]
    everything = _tuned(monkeypatch, 100.0, lambda floats: 0.0 if len(floats) == 4 else 6.0)
    assert everything.floats == list(FLOAT) and everything.after_ms == pytest.approx(8.0)


def test_no_measurement_begins_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tuned(monkeypatch, 1e-6, lambda floats: 0.0).floats == []
    assert _tuned(monkeypatch, 0.1, lambda floats: 0.0).floats == ["d"]


def _built(tune_file: Path, **words: Any) -> Engine:
    network, weights = net()
    data = words.pop("data", batches())
    return cast(Engine, ingot.quantize(network, data, weights=weights, tune=20.0, tune_file=tune_file, **words))


def test_on_another_device_all_layers_are_int8_or_none(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plan = Plan.of(_built(tmp_path / "tune.json", device="torch:cpu").config)
    found = json.loads((tmp_path / "tune.json").read_text())
    assert plan is not None and found["int8"]["isa"] == "torch:cpu" and not found["int8"]["layers"]
    able = [choice.name for choice in plan.layers if choice.why in ("", tuning.WHY)]
    assert found["int8"]["floats"] in ([], able) and "algorithms" not in found, "which are this processor's kernels"


def test_a_build_for_a_gpu_elsewhere_says_that_nothing_is_timed_there() -> None:
    network, weights = net()
    engine = ingot.quantize(network, batches(), weights=weights, device="cuda:sm_90")
    assert str(engine.device) == "cuda:sm_90"
    with pytest.raises(UserError, match="tune measures runs, and cuda:sm_90 has no GPU to run on"):
        ingot.quantize(network, batches(), weights=weights, device="cuda:sm_90", tune=1)
    assert [line for line in engine.log if "whether it pays on cuda:sm_90 is not timed" in line]


def test_a_run_on_any_gpu_is_timed_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results on cuda:1 are waited for there, and not on the GPU that torch is at."""
    waited: list[str] = []
    cuda = SimpleNamespace(synchronize=lambda device=None: waited.append(str(device)))
    monkeypatch.setattr(places._lazy, "load", lambda name: SimpleNamespace(cuda=cuda))
    tensors = {name: SimpleNamespace(device="cuda:1") for name in ("y", "z")}
    places.seconds_of(cast(Session, SimpleNamespace(run=lambda feeds: tensors)), {})
    assert waited == ["cuda:1"]


def test_a_file_of_measurements_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "net.tune.json"
    first = _built(file)
    kept = json.loads(file.read_text())
    plan = Plan.of(first.config)
    assert plan is not None
    assert kept["int8"]["floats"] == [c.name for c in plan.layers if c.scale is None]
    file.write_text(json.dumps({**kept, "int8": {**kept["int8"], "floats": ["block"], "isa": "another"}}))

    def never(*_: Any) -> None:
        raise AssertionError("measured although there is a file")

    monkeypatch.setattr(tuning, "profiled", never)
    report = tmp_path / "report.json"
    engine = _built(file, report_file=str(report))
    plan = Plan.of(engine.config)
    assert plan is not None
    assert {c.name: c.why for c in plan.layers if c.scale is None} == {"block": tuning.WHY}
    assert [line for line in engine.log if "measured at another" in line]
    assert json.loads(report.read_text())["tuning"]["floats"] == ["block"]
    engine.save(tmp_path / "one.ingot")
    _built(file).save(tmp_path / "two.ingot")
    assert (tmp_path / "one.ingot").read_bytes() == (tmp_path / "two.ingot").read_bytes()


def test_a_file_of_another_network_is_measured_anew(tmp_path: Path) -> None:
    file = tmp_path / "net.tune.json"
    _built(file)
    key = json.loads(file.read_text())["int8"]["key"]
    engine = _built(file, data=batches(size=2))
    assert [line for line in engine.log if "measured for another network" in line]
    assert json.loads(file.read_text())["int8"]["key"] != key


GOOD: dict[str, Any] = {"key": "k", "isa": "avx2", "layers": [["stem", 1.0, 2]], "floats": ["stem"],
                        "before_ms": 1, "after_ms": 0.5}  # fmt: skip


def _file(part: dict[str, Any]) -> str:
    return json.dumps({"schema": 2, "int8": part})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1"),
        ("[]", "JSON object"),
        (json.dumps({"schema": 1, "int8": GOOD}), "schema 2"),
        (json.dumps({"schema": 2, "int8": GOOD, "more": {}}), "'more' beside int8 and algorithms"),
        (json.dumps({"schema": 2, "int8": []}), "must have the keys"),
        (_file({**GOOD, "more": 1}), "must have the keys"),
        (_file({**GOOD, "layers": [["stem", 1.0]]}), "layers is damaged"),
        (_file({**GOOD, "layers": [["stem", -1.0, 1.0]]}), "layers is damaged"),
        (_file({**GOOD, "floats": [1]}), "floats is damaged"),
        (_file({**GOOD, "before_ms": True}), "before_ms is damaged"),
        (_file({**GOOD, "floats": ["other"]}), "'other', which the network has not"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "net.tune.json"
    file.write_text(text)
    with pytest.raises(FileError, match=words):
        tuning.read(file, "k", ["stem"])


def test_words_that_do_not_go_together() -> None:
    network, weights = net()
    for words, why in (({"tune": 0}, "above 0"), ({"tune": True}, "above 0"), ({"tune_file": "x"}, "give tune")):
        with pytest.raises(UserError, match=why):
            ingot.quantize(network, batches(), weights=weights, **words)
