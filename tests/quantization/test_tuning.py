"""Layers that are no faster in int8 stay float where that is measured, and a file of measurements decides alike."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import ingot
from ingot.backends.device import Device
from ingot.builder import measurements
from ingot.builder.network import build_network
from ingot.cli.main import main
from ingot.engine.session import Engine, Session
from ingot.errors import FileError, UserError
from ingot.passes.calibrated import Plan
from ingot.quantization import places, report, tuning
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


def _tuned(
    monkeypatch: pytest.MonkeyPatch, seconds: float, cost: Callable[[frozenset[str]], float], compared: float = 0.0
) -> tuple[tuning.Tuning, list[str]]:
    """What is tuned of four layers; `cost`: milliseconds that a choice takes beside its layers; `compared`: seconds of
    a comparison with the whole in float."""
    clock = Clockwork()
    for module in (measurements, places, tuning):
        monkeypatch.setattr(module, "perf_counter", clock)

    def make(floats: frozenset[str]) -> Engine:
        layers = {name: (FLOAT if name in floats else INT8)[name] for name in FLOAT}
        return cast(Engine, Pretended(clock, {**layers, "": cost(floats)}))

    plain = cast(Engine, Pretended(clock, FLOAT))
    bar = measurements.Clock(seconds, lambda done, total: None, begin=0.0)

    def compare(engine: Engine) -> float:
        clock.now += compared
        whole = sum(FLOAT.values()) + cost(frozenset(FLOAT))
        return whole / sum(cast(Pretended, engine).layers.values())

    return tuning.tuned("key", make(frozenset()), plain, {}, list(FLOAT), make, bar, Device(), compare)


def test_layers_stay_float_that_make_a_run_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    found, untried = _tuned(monkeypatch, 100.0, lambda floats: 0.0)
    assert found.floats == ["b", "d"], "c saves less than is worth it"
    assert [name for name, *_ in found.layers] == list(FLOAT) and not untried
    assert (found.before_ms, found.after_ms) == (pytest.approx(11.01), pytest.approx(7.01))


def test_what_a_choice_costs_elsewhere_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _tuned(monkeypatch, 100.0, lambda floats: 2.0 * ("b" in floats))[0].floats == ["d"]
    everything, _ = _tuned(monkeypatch, 100.0, lambda floats: 0.0 if len(floats) == 4 else 6.0)
    assert everything.floats == list(FLOAT) and everything.after_ms == pytest.approx(8.0)


def test_no_measurement_begins_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those of the whole in float, for which time is kept."""
    faster = lambda floats: 0.0 if len(floats) == 4 else -4.0  # noqa: E731
    found, untried = _tuned(monkeypatch, 1e-6, faster)
    assert found.floats == [] and untried == ["d", "b", "c"]
    found, untried = _tuned(monkeypatch, 0.1, faster)
    assert found.floats == ["d"] and untried == ["b", "c"]
    assert _tuned(monkeypatch, 0.1, faster, compared=0.09)[0].floats == []
    found, untried = _tuned(monkeypatch, 1e-6, lambda floats: 0.0)
    assert found.floats == list(FLOAT) and not untried, "the whole is faster in float than with d in int8 as well"


def test_a_layer_is_no_slower_for_single_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which many are delayed on a busy machine: the least of seven or more in turn is the layer's time."""
    runs = {"plain": 0, "int8": 0}

    def session(name: str, quick: float) -> Session:
        def profile(_: Any) -> list[dict[str, Any]]:
            runs[name] += 1
            return [{"where": "a", "ns": (quick if runs[name] in (5, 6) else 7.3) * 1e6}]

        return cast(Session, SimpleNamespace(profile=profile))

    found = tuning.profiled(session("plain", 1.4), session("int8", 1.6), {}, ["a"], tuning.MANY)
    assert found.layers == [("a", 1.4, 1.6)]
    more = tuning.profiled(session("plain", 1.4), session("int8", 1.6), {}, ["a"], tuning.MANY, lambda: True)
    assert len(more.runs) == tuning.MOST


def test_only_layers_that_are_clearly_slower_are_named() -> None:
    """Not those that are so in some runs, or by little, or too short to tell."""
    in_int8 = {"slower": [6, 6, 6, 6], "once": [6, 5, 5, 6], "little": [5.2] * 4, "short": [0.9] * 4, "faster": [4] * 4}
    runs = Counter[str]()

    def session(name: str) -> Session:
        def profile(_: Any) -> list[dict[str, Any]]:
            runs[name] += 1
            plain = {layer: 0.5 if layer == "short" else 5 for layer in in_int8}
            now = plain if name == "plain" else {layer: some[runs[name] % 4] for layer, some in in_int8.items()}
            return [{"where": layer, "ns": int(1e3 * us)} for layer, us in now.items()]

        return cast(Session, SimpleNamespace(profile=profile))

    found = tuning.profiled(session("plain"), session("int8"), {}, list(in_int8), more=lambda: True)
    assert found.slower == ("slower",) and len(found.runs) == tuning.MOST
    assert {name: int8 for name, _, int8 in found.layers}["once"] == pytest.approx(5e-3)


def test_runs_too_short_for_threads_are_told_by_layer_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wake take longer than a layer."""
    network, weights = net()

    def told(seconds: float) -> list[tuple[int, int]]:
        """The threads of both sessions, whenever layers were measured; what was measured last counts."""
        threads: list[tuple[int, int]] = []

        def profiled(plain: Session, int8: Session, *_: Any, **__: Any) -> tuning.Profiled:
            threads.append((plain.threads, int8.threads))
            return tuning.Profiled([], [(seconds, seconds)] * 3, (str(len(threads)),))

        monkeypatch.setattr(report, "profiled", profiled)
        speed = ingot.quantize(network, batches(), weights=weights, always_int8=True).calibrated.speed
        assert speed is not None and speed.slower == (str(len(threads)),)
        return threads

    assert len(told(2e-3)) == 1
    assert told(5e-4)[1:] == [(1, 1)]


@pytest.mark.parametrize("pairs", [[(0.010, 0.012)] * 5, [(0.010, 0.008)] * 5])
def test_tuning_ends_where_a_build_without_it_does_if_there_is_no_time(monkeypatch: pytest.MonkeyPatch, pairs: Any,
                                                                       tmp_path: Path) -> None:  # fmt: skip
    """The net stays float that is clearly slower in int8; and it is said which layers were not tried."""
    monkeypatch.setattr(report, "run_in_turn", lambda *_, **__: pairs)
    monkeypatch.setattr(report, "profiled", lambda *_, **__: tuning.Profiled([], pairs))
    slow = [("stem", 1.0, 2.0), ("block", 2.0, 1.0)]
    monkeypatch.setattr(tuning, "profiled", lambda *_: tuning.Profiled(slow, pairs))
    network, weights = net()
    engine = ingot.quantize(network, batches(), weights=weights, tune=1e-6, tune_file=tmp_path / "t.json")
    plan = Plan.of(engine.config)
    assert plan is not None
    types = {c.type for c in plan.layers if c.why in ("", tuning.WHY)}
    said = " ".join(line for line in engine.log if line.startswith("tune: "))
    if pairs[0][1] > pairs[0][0]:
        assert types == {"float"} and "a run of 4 sample(s) takes 12 ms, and 10 ms in float" in said
        assert "so that the net stays float" in said and "int8: relative error 0.0" in engine.calibrated.headline
    else:
        assert types == {"int8"} and "s for layers were over before whole runs were tried with stem in float" in said
        assert "takes 8 ms, and 10 ms in float" in said


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
    written = tmp_path / "report.json"
    engine = _built(file, report_file=str(written))
    plan = Plan.of(engine.config)
    assert plan is not None
    assert {c.name: c.why for c in plan.layers if c.scale is None} == {"block": tuning.WHY}
    assert [line for line in engine.log if "measured at another" in line]
    assert json.loads(written.read_text())["tuning"]["floats"] == ["block"]
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


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """A pipe would never end, nor would a device; a folder is none either, and of a large file little is read."""
    pipe, large = tmp_path / "pipe.json", tmp_path / "large.json"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(1 << 40)
    for path, words in (
        (pipe, "not a regular file"), (Path("/dev/zero"), "not a regular file"), (tmp_path, "not a regular file"),
        (large, "larger than 16 MiB"),
    ):  # fmt: skip
        with pytest.raises(FileError, match=words):
            tuning.read(path, "k", ["stem"])


def test_a_folder_that_is_missing_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    network, weights = net()
    with pytest.raises(FileError, match="cannot be written: there is no folder"):
        ingot.quantize(network, iter(()), weights=weights, tune=300, tune_file=tmp_path / "none" / "net.tune.json")


def test_words_that_do_not_go_together() -> None:
    network, weights = net()
    for words, why in (
        ({"tune": 0}, "above 0"), ({"tune": True}, "above 0"), ({"tune_file": "x"}, "give tune"),
        ({"tune": 1, "tune_file": 5}, "tune_file must be the path of a file, not 5"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=why):
            ingot.quantize(network, batches(), weights=weights, **cast(dict[str, Any], words))


def test_what_a_file_says_is_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, weights = net()
    source, data, target = (str(tmp_path / name) for name in ("float.ingot", "calib.npz", "int8.ingot"))
    build_network(network, weights).save(source)
    np.savez(data, x=np.concatenate([b["x"] for b in batches()]))
    words = ["build", source, "-o", target, "--data", data, "--activations", "int8", "--tune", "0.1"]
    assert main(words) == 0
    file = Path(f"{target}.tune.json")
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "int8": {**kept["int8"], "isa": "\x1b[31mred"}}))
    capsys.readouterr()
    assert main(words) == 0
    said = capsys.readouterr().err
    assert r"measured at \x1b[31mred" in said and "\x1b" not in said
