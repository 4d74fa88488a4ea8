"""Every attack ends in its typed error, in bounded time and memory, in every reader that meets it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from attacks import adapters, control, exported, host_calls, onnx_files, quantized, worker
from attacks.image import good
from attacks.make import TABLE, paths
from ingot import nn, ops

ROOT = Path(__file__).parent.parent
EVERY = {"onnx": 8, "llm": 4, "chat": 4}  # one of so many that take long is among the quick tests
CASES = [(reader, name) for name, attack in TABLE.items() for reader in attack.expect]
NUMBERS = {(reader, name): i for reader in EVERY for i, (_, name) in enumerate(c for c in CASES if c[0] == reader)}


def meet_all(reader: str, files: list[Path]) -> list[dict[str, Any]]:
    """What `reader` says to each file. A process that died is started again behind the file that killed it."""
    results: list[dict[str, Any]] = []
    while len(results) < len(files):
        rest = files[len(results) :]
        text = "".join(f"{json.dumps(str(file))}\n" for file in rest)
        done = subprocess.run(
            [sys.executable, "-m", "attacks.worker", reader],
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        lines = done.stdout.splitlines()
        results += [json.loads(line) for line in lines]
        if len(lines) < len(rest):
            results.append({"code": "death", "message": f"status {done.returncode}: {done.stderr[-2000:]}"})
    return results


def is_slow(reader: str, name: str) -> bool:
    """Whether an attack is left to the slow tests."""
    return reader in EVERY and NUMBERS[reader, name] % EVERY[reader] != 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """An attack's file, made when it is first asked for."""
    where = paths(tmp_path_factory.mktemp("attacks"))

    @functools.cache
    def make(name: str) -> Path:
        TABLE[name].make(where[name])
        return where[name]

    return make


READERS = list(dict.fromkeys(reader for reader, _ in CASES))


@pytest.mark.parametrize(
    ("reader", "slow"),
    [
        *((reader, False) for reader in READERS),
        *(pytest.param(reader, True, marks=pytest.mark.slow) for reader in EVERY),
    ],
)
def test_attack(reader: str, slow: bool, made: Callable[[str], Path]) -> None:
    """All that a reader meets; what it said to those that went wrong."""
    names = [name for r, name in CASES if r == reader and is_slow(r, name) == slow]
    wrong = {}
    for name, answer in zip(names, meet_all(reader, [made(name) for name in names]), strict=True):
        try:
            check(reader, name, answer)
        except AssertionError as e:
            wrong[f"{TABLE[name].number}: {name}"] = str(e)
    assert not wrong, "\n\n".join(f"{name}\n{why}" for name, why in wrong.items())


def check(reader: str, name: str, answer: dict[str, Any]) -> None:
    code, why = TABLE[name].expect[reader]
    assert re.fullmatch(code, answer["code"] or "accepted"), answer
    assert re.search(why, answer["message"], re.DOTALL), answer
    assert len(answer["message"]) < 4000, "a message stays readable whatever the file holds"
    if reader == "onnx":
        assert answer["seconds"] < 2, answer
        assert answer["grown"] < 200 << 20, answer
        assert answer["message"].replace("\n", "").isprintable(), "a message changes no terminal"


class Bomb(nn.Module):
    """A constant of four bytes that wants to become one of four terabytes."""

    def forward(self, x: ingot.Tensor) -> ingot.Tensor:
        one = x.network.constant(np.ones((1, 1), np.float32))
        return ops.add(ops.reduce_sum(ops.expand(ops.neg(one), (10**6, 10**6)), (0, 1)), x)


def test_a_large_constant_is_not_computed_while_building() -> None:
    engine = ingot.build(Bomb(), {"x": ingot.Spec((4,), "float32")}, report=False)
    assert all(engine.tensor(name).nbytes < 1000 for name in engine.header["weights"])


def test_the_exported_file_that_attacks_start_from_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.pt2"
    path.write_bytes(exported.Package().encode())
    assert worker.meet("exported", path) == {"code": None, "message": "accepted"}
    assert not Path("/tmp/ingot-attack-pickle").exists(), "no attack has run code"


def test_the_onnx_file_that_attacks_start_from_is_good(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "good").write_bytes(onnx_files.good())
    assert worker.meet("onnx", tmp_path / "good") == {"code": None, "message": "accepted"}


def test_the_adapter_that_attacks_start_from_is_good(tmp_path: Path) -> None:
    adapters.Adapter().write(tmp_path / "good")
    assert worker.meet("adapter", tmp_path / "good") == {"code": None, "message": "accepted"}


def test_the_file_that_attacks_start_from_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.ingot"
    path.write_bytes(good().encode())
    for reader in ("python", "verify", "native", "run"):
        assert worker.meet(reader, path) == {"code": None, "message": "accepted"}


def test_the_weights_of_4_bits_that_attacks_start_from_are_good(tmp_path: Path) -> None:
    image = good()
    quantized.good(image)
    (tmp_path / "good.ingot").write_bytes(image.encode())
    y = ingot.load(tmp_path / "good.ingot").session().run({"x": np.ones((5, 40), np.float32)})["y"]
    assert y.shape == (5, 32) and not y.any(), "all scales are 0"


def test_the_loop_that_attacks_start_from_is_good(tmp_path: Path) -> None:
    image = good()
    control.add_loop(image)
    path = tmp_path / "good.ingot"
    path.write_bytes(image.encode())
    feeds = {"x": np.ones((3, 8), np.float32), "ids": np.zeros(3, np.int32)}
    assert ingot.load(path).run(feeds)["loop"] >= np.float32(1e30)


def test_the_host_calls_that_attacks_start_from_are_good(tmp_path: Path) -> None:
    image = good()
    image.ours["programs"]["cpu"]["entries"]["main"] = host_calls.program()
    (tmp_path / "good.ingot").write_bytes(image.encode())
    x = np.random.default_rng(0).integers(-2, 3, (4, 8)).astype(np.float32)
    results = list(ingot.load(tmp_path / "good.ingot").run({"x": x, "one": np.array(7, np.int32)}).values())
    np.testing.assert_array_equal(results[0], np.cumsum(x, 1))
    np.testing.assert_array_equal(results[1], -np.sort(-x, 1))
    np.testing.assert_array_equal(results[3], np.pad(x, ((1, 0), (0, 2)), constant_values=1.5))
    np.testing.assert_array_equal(results[4], x[-1:, ::-1])
    np.testing.assert_array_equal(results[5], x.T @ x)
    np.testing.assert_array_equal(results[8], np.nonzero(x))
