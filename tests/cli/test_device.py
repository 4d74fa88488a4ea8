"""--device: the same words for every command, and what they run there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import as_json
from tests.cli.command import ingot as command
from tests.cli.test_run import build


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "net.ingot"
    build().save(path)
    return path


def test_run(net: Path, tmp_path: Path) -> None:
    arrays = {}
    for device in ("cpu", "torch"):
        words = ("--device", device, "-o", str(tmp_path / f"{device}.npz"))
        as_json("run", net, "--random", "--size", "N=5", *words)
        arrays[device] = np.load(tmp_path / f"{device}.npz")
    for name in ("y", "p", "t"):
        a, b = arrays["torch"][name], arrays["cpu"][name]
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_generate_and_score(pico_engine: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("import os\n" * 12)
    found = []
    for device in ("cpu", "torch:cpu"):
        prompt = ("--prompt", "def fib(n):", "--max-tokens", "8")
        text = as_json("generate", pico_engine, *prompt, "--device", device)
        score = ("--text", str(tmp_path / "text.txt"), "--window", "16", "--device", device)
        found.append((text["token_ids"], as_json("score", pico_engine, *score)))
    (tokens, score), (theirs, their_score) = found
    assert tokens == theirs
    assert their_score["nats_per_token"] == pytest.approx(score["nats_per_token"], rel=0.01)  # both in bfloat16


def test_bench(net: Path) -> None:
    words = ("bench", str(net), "--repeat", "2", "--device", "torch:cpu")
    assert as_json(*words)["share_of_bandwidth"] is None
    assert as_json(*words, "--bandwidth", "10")["share_of_bandwidth"] > 0


def test_profile(net: Path, pico_engine: Path, tmp_path: Path) -> None:
    """What the CPU's profile says of a call, by op; of roofs what is known. A cache counts as far as it is seen."""
    trace = tmp_path / "trace.json"
    words = ("bench", net, "--repeat", 3, "--bandwidth", 10, "--profile")
    here, there = (as_json(*words, *more) for more in ((), (trace, "--device", "torch:cpu")))
    assert set(here) == set(there) and there["profiled_runs"] == 3 and there["roofs"] == {"bandwidth": 10e9}
    for kind in ("kernels", "calls"):
        assert {frozenset(row) for row in here[kind]} == {frozenset(row) for row in there[kind]}
    assert [row["call"] for row in there["calls"]] == list(range(len(there["calls"])))
    for row in there["calls"]:
        assert row["ms"] > 0 and (row["bytes"] > 0 or row["kernel"] == "reshape")
        assert row["flops"] is row["gflop_per_s"] is None
        assert row["share_of_roof"] == pytest.approx(row["bytes"] / 10e9 / row["ms"] * 1e3)
        assert row["bound_by"] == "memory"
    assert sum(row["calls"] for row in there["kernels"]) == len(there["calls"])
    assert json.loads(trace.read_text())["traceEvents"][0]["name"] == there["calls"][0]["kernel"]
    words = ("bench", pico_engine, "--repeat", 1, "--length", 16, "--device", "torch:cpu")
    plain = command(*words, "--profile")
    assert "roofs: none is known" in plain.stdout and "paged_attention" in plain.stdout
    found = as_json(*words, "--profile")
    rows = {row["kernel"]: row for row in found["kernels"]}
    assert rows["paged_attention"]["share_of_roof"] is None and rows["paged_attention"]["bound_by"] is None
    layers, heads, kv, width = 8, 4, 2, 64
    seen = layers * (17 * 2 * kv * width * 2 + 2 * heads * width * 2)
    assert seen <= rows["paged_attention"]["bytes"] <= seen + layers * 100  # and the tables
    assert rows["kv_write"]["bytes"] == layers * 2 * 2 * kv * width * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "{net}", "--random", "--device", "gpu"), "--device gpu is not available"),
        (("run", "{net}", "--random", "--device", "torch:cuda:99"), "torch:cpu"),
        (("build", "{net}", "--device", "torch", "-o", "never.ingot"), "engines are built for the CPU"),
        (("plan", "{net}", "--device", "torch"), "plans are made for cpu"),
    ],
)
def test_what_is_no_device(net: Path, arguments: tuple[str, ...], message: str) -> None:
    done = command(*(word.format(net=net) for word in arguments), code=2)
    assert message in done.stderr
