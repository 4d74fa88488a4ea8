"""--device: the same words for every command, and what they run there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import as_json
from tests.cli.test_cli import ingot as command
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "{net}", "--random", "--device", "gpu"), "device 'gpu' is not available"),
        (("run", "{net}", "--random", "--device", "torch:cuda:99"), "torch:cpu"),
        (("bench", "{net}", "--profile", "--device", "torch:cpu"), "leave --device torch:cpu out"),
        (("build", "{net}", "--device", "torch", "-o", "never.ingot"), "engines are built for cpu"),
        (("plan", "{net}", "--device", "torch"), "plans are made for cpu"),
    ],
)
def test_what_is_no_device(net: Path, arguments: tuple[str, ...], message: str) -> None:
    done = command(*(word.format(net=net) for word in arguments), code=2)
    assert message in done.stderr
