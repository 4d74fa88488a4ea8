"""Networks whose sizes are data, run by the C program, which takes no host calls: it prints what NumPy computes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.ir import Network, Spec
from tests.native.test_c_api import compiled

Array = np.ndarray[Any, Any]
SHOWN = 8  # elements that the program prints

# Of x [T, 3], where the program puts 0, 1, 2, …; n is 0, 1, 2 and m their sum.
NETS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a range whose length is data": (
        lambda x, n, m: F.cast(F.arange(0, m * 2 + 1, "int32"), "float32"),
        lambda x, n, m: np.arange(2 * m + 1, dtype=np.float32),
    ),
    "reshape by data": (
        lambda x, n, m: F.view(F.cast(F.arange(0, m * 2, "int32"), "float32"), [2, m]) * 2.0,
        lambda x, n, m: np.arange(2 * m, dtype=np.float32).reshape(2, m) * 2,
    ),
    "reshape to a concat of shapes": (
        lambda x, n, m: F.view(F.transpose(x, 0, 1), F.concat([F.shape(x, 0), F.shape(x, 1)])) + 1.0,
        lambda x, n, m: x.T.reshape(x.shape) + 1,
    ),
    "reshape by data that only the run shows to fit": (
        lambda x, n, m: F.view(F.transpose(x, 0, 1), [F.cast(F.shape(x, 0), "int32"), m]) + 1.0,
        lambda x, n, m: x.T.reshape(x.shape) + 1,
    ),
    "slice by data": (
        lambda x, n, m: F.slice(x, [F.select(n, 0, 0), F.select(n, 0, 1)], [F.select(n, 0, 2), m - 1]) + 1.0,
        lambda x, n, m: x[:2, 1:3] + 1,
    ),
    "expand by data": (
        lambda x, n, m: F.expand(F.unsqueeze(x, 0), [F.select(n, 0, 2), F.cast(F.shape(x, 0), "int32"), 3]) * 1.0,
        lambda x, n, m: np.broadcast_to(x, (2, *x.shape)),
    ),
    "pad by data": (
        lambda x, n, m: F.pad(x, [F.select(n, 0, 1), F.select(n, 0, 2), F.select(n, 0, 0), m], value=7.0),
        lambda x, n, m: np.pad(x, [(0, 3), (1, 2)], constant_values=7),
    ),
    "no elements": (
        lambda x, n, m: F.expand(F.sum(x), [F.select(n, 0, 0), m]) * 1.0,
        lambda x, n, m: np.zeros((0, 3), np.float32),
    ),
}  # fmt: skip


def network_of(net: Callable[..., Any]) -> Network:
    network = Network()
    x = network.input("x", Spec((Dim("T", 0, None, 64), 3), "float32"))
    n = network.input("n", Spec((3,), "int32"))
    network.output("y", net(x, n, F.cast(F.sum(F.cast(n, "float32"), 0), "int32")))
    return network


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("run_engine", tmp_path_factory.mktemp("c"))


@pytest.mark.parametrize("name", NETS)
def test_the_c_program_runs_it(program: Path, tmp_path: Path, name: str) -> None:
    net, numpy = NETS[name]
    path = tmp_path / "net.ingot"
    build_network(network_of(net), {}).save(path)
    for rows in (2, 5):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) % 3
        want = numpy(x, np.arange(3, dtype=np.int32), 3)
        done = subprocess.run([program, path, str(rows)], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1].split() == ["y", "=", *(f"{v:g}" for v in want.ravel()[:SHOWN])]


@pytest.mark.parametrize(("net", "code", "message"), [
    (lambda x, n, m: F.expand(F.sum(x), [F.cast(F.cast(m, "float32") * -2.0, "int32"), 2]) * 1.0,
     "value", r"the size size0 would be out of range; it is cast\(mul\(.*\)\) \(-6, limit 70368744177664\)"),
    (lambda x, n, m: F.expand(F.sum(x), [2 - m, 2]) * 1.0,
     "input", r"its dimension 0 would be -1 \(with T=2, size\w*=3\)"),
    (lambda x, n, m: F.expand(F.sum(x), [m * 600_000_000, 600_000_000]) * 1.0,
     "memory", r"float32\[.*size.*\]: it would need more than 64 TiB \(with T=2, size\w*=3\)"),
    (lambda x, n, m: F.expand(x, [m, 3]) + 1.0,
     "value", r"expand of \[T, 3\] to \[size0, 3\]: dimension 0 is T and must be size0 or 1; here 2 and 3 "
     r"\(with T=2, size0=3\)"),
])  # fmt: skip
def test_a_size_that_cannot_be_names_the_dim_and_the_expression(
    program: Path, tmp_path: Path, net: Callable[..., Any], code: str, message: str
) -> None:
    path = tmp_path / "net.ingot"
    build_network(network_of(net), {}).save(path)
    done = subprocess.run([program, path, "2"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and re.match(f"{code}: .*{message}", done.stderr), done.stderr
