"""A net whose runs are clearly slower in int8 stays float, unless int8 is asked for; what is nearer decides nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import ingot
from ingot.builder import kernels
from ingot.builder.network import build_network
from ingot.cli.main import main
from ingot.engine.self_test import check
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.passes.calibrated import Plan
from ingot.quantization import pays, report
from ingot.quantization.pays import MOST, is_slower, run_in_turn
from ingot.quantization.tuning import Profiled
from tests.quantization.test_quantize import batches, net

SLOWER = [(0.010, 0.012)] * 5
LAYERS = [("stem", 1.0, 2.0), ("block", 2.0, 1.0)]


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        (SLOWER, True),
        ([(0.010, 0.0104)] * 15, False),  # nearly as fast
        ([(0.010, 0.008)] * 5, False),
        ([(0.0009, 0.0018)] * 15, False),  # too short to tell
        ([(0.010, 0.020)] * 14 + [(0.010, 0.010)], False),  # something else delayed int8: its fastest run is as fast
        ([(0.010, 0.012)] * 3 + [(0.030, 0.012)] * 3, False),  # it delayed both
        ([(0.010, 0.012)] * 12 + [(0.030, 0.012)] * 3, True),
    ],
)
def test_only_what_is_clearly_slower_is(pairs: Any, wanted: bool) -> None:
    assert is_slower(pairs) is wanted


def _taking(*seconds: float) -> Callable[[], float]:
    left = iter(seconds)
    return lambda: next(left)


def test_runs_go_on_as_long_as_they_do_not_say_that_int8_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_in_turn(_taking(*[1.0] * 3), _taking(*[0.9] * 3), 3)) == 3
    monkeypatch.setattr(pays, "perf_counter", lambda: 0.0)
    assert len(run_in_turn(_taking(*[1.0] * MOST), _taking(0.9, 1.2, *[0.9] * (MOST - 2)), 3)) == MOST
    clock = iter(range(100))
    monkeypatch.setattr(pays, "perf_counter", lambda: float(next(clock)))
    assert len(run_in_turn(_taking(*[1.0] * 3), _taking(*[1.0] * 3), 3)) == 3, "the time is gone"


def test_a_first_run_of_each_does_not_count_where_they_are_cold() -> None:
    assert run_in_turn(_taking(9.0, *[1.0] * 3), _taking(9.0, *[0.5] * 3), 3, warm=True) == [(1.0, 0.5)] * 3


def _pretend(monkeypatch: pytest.MonkeyPatch, pairs: Any) -> None:
    """Whatever is measured is this."""
    monkeypatch.setattr(report, "run_in_turn", lambda *_, **__: pairs)
    monkeypatch.setattr(report, "profiled", lambda *_, **__: Profiled(LAYERS, pairs, ("stem",)))


def _built(monkeypatch: pytest.MonkeyPatch, pairs: Any, **words: Any) -> Engine:
    _pretend(monkeypatch, pairs)
    network, weights = net()
    return cast(Engine, ingot.quantize(network, batches(), weights=weights, **words))


def test_a_net_that_is_slower_in_int8_stays_float(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    engine = _built(monkeypatch, SLOWER, report_file=str(file))
    plan = Plan.of(engine.config)
    assert plan is not None and {c.type for c in plan.layers} == {"float"}
    assert {c.why.partition(",")[0] for c in plan.layers} == {"a run of the net is faster in float"}
    assert "weights" not in engine.config and "activations" not in engine.config
    (said,) = (line for line in engine.log if "it does not pay" in line)
    assert "a run of 4 sample(s) takes 12 ms, and 10 ms in float (" in said
    assert "one thread), so that the net stays float; always_int8" in said
    found = json.loads(file.read_text())
    assert found["speed"] is None and found["not_taken"]["ratio"] == pytest.approx(1 / 1.2)
    said = engine.calibrated.headline
    assert re.match(r"0 of 4 layers in int8 \(\w+\), float for its speed; int8: relative error 0.0\d+ on 12 samp", said)
    assert "0.83 times as fast at batch 4" in said and 0 < found["not_taken"]["error"] < 0.1 and found["error"] == 0
    network, weights = net()
    feeds = batches(1)[0]
    wanted = ingot.interpret(network, feeds, weights)["y"]
    assert np.allclose(engine.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-6) and check(engine).difference == 0
    assert np.allclose(engine.refit(weights).run(feeds)["y"], wanted, rtol=1e-5, atol=1e-6)


def test_equal_decisions_give_equal_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the times were that led to them."""
    for name, pairs in (("one", SLOWER), ("two", [(0.020, 0.030)] * 7)):
        _built(monkeypatch, pairs).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_int8_that_was_asked_for_is_taken_and_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _built(monkeypatch, SLOWER, always_int8=True)
    plan = Plan.of(engine.config)
    assert plan is not None and {c.type for c in plan.layers} == {"int8"}
    said = [line for line in engine.log if "it does not pay" in line or "int8: slower" in line]
    assert "a run of 4 sample(s) takes 12 ms, and 10 ms in float (" in said[0]
    assert "; in its place tune (--tune SECONDS) keeps the faster type" in said[0]
    assert "on this machine: stem; keep (--keep NAME) leaves layers float, in its place tune (--tune" in said[1]
    faster = _built(monkeypatch, [(0.010, 0.005)] * 3)
    assert not [line for line in faster.log if "it does not pay" in line] and faster.config["weights"] == "int8"
    with pytest.raises(UserError, match="tune leaves layers float, and always_int8 none"):
        _built(monkeypatch, SLOWER, always_int8=True, tune=1.0)


def test_no_time_of_this_machine_tells_of_a_gpu_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = _built(monkeypatch, SLOWER, device="cuda:sm_90")
    assert not [line for line in engine.log if "on this machine" in line] and engine.calibrated.speed is None
    engine.on(None).save(tmp_path / "gpu")
    _built(monkeypatch, SLOWER, always_int8=True).save(tmp_path / "cpu")
    assert (tmp_path / "gpu").read_bytes() == (tmp_path / "cpu").read_bytes()


def test_kernels_of_a_calibrated_net_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the phase of that name, for the sizes that were given."""
    compiled: list[Any] = []

    def beside(engine: Engine, path: str, device: Any = None, sizes: Any = (), progress: Any = None) -> Any:
        compiled.append((str(device), *sizes))
        return SimpleNamespace(folder=path, kernels=8, compiled=8, bytes=1, seconds=0.1, left_out={}, json=dict)

    monkeypatch.setattr(kernels, "beside", beside)
    monkeypatch.setattr(kernels, "check", lambda *_: None)
    float32, data, out = _float_and_data(tmp_path)
    command = ["build", float32, "--activations", "int8", "--data", data, "-o", out, "--device", "cuda:sm_90"]
    assert main([*command, "--size", "N=8"]) == 0
    assert compiled == [("cuda:sm_90", "N=8")]
    assert "were there" not in capsys.readouterr().out


def _float_and_data(folder: Path) -> tuple[str, str, str]:
    """An engine in float, data to calibrate it by, and where another one goes."""
    float32, data, out = (str(folder / name) for name in ("f.ingot", "d.npz", "o.ingot"))
    network, weights = net()
    build_network(network, weights, config={"precision": "float32"}).save(float32)
    np.savez(data, x=np.concatenate([feeds["x"] for feeds in batches()]))
    return float32, data, out


def test_the_command_line_says_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    float32, data, out = _float_and_data(tmp_path)
    _pretend(monkeypatch, [(0.017, 0.010)] * 3)
    assert main(["build", float32, "--activations", "int8", "--data", data, "-o", out]) == 0
    shown = capsys.readouterr()
    assert "1.70 times as fast at batch" in shown.out and shown.err.count("on this machine: stem; keep (--keep") == 1
    assert "on this machine" not in shown.out
    _pretend(monkeypatch, SLOWER)
    command = ["build", float32, "--activations", "int8", "--data", data, "-o", out]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "so that the net stays float" in shown.err and "float for its speed; int8: relative error" in shown.out
    assert main(["inspect", out, "--why"]) == 0
    assert "stays float: a run of the net is faster in float" in capsys.readouterr().out
    assert main([*command, "--always-int8"]) == 0
    assert main(["inspect", out, "--why"]) == 0
    assert "stays float" not in capsys.readouterr().out
    assert main(["build", float32, "--always-int8", "-o", out]) == 2
    assert "--always-int8 is for a calibration" in capsys.readouterr().err
