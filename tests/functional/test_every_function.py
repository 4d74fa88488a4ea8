"""Every plain function of the retired API × element types × {fixed, unknown sizes} × {usual, empty, 0-d} against NumPy
and torch, in compiled engines without a host call. `make test` takes one case of each function; all are `slow`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.ir import Network, Spec
from tests.functional.function_rows import ROWS, Array
from tests.functional.test_retired import NAMES, TABLES

# Of a result that was rounded once: relative, and absolute in units of 1.
TOLERANCE = {"float32": (2e-5, 1e-5), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 8e-3)}

# Functions that give no tensor computed of tensors; tests/functional/test_retired.py and test_sizes.py have them.
ELSEWHERE = {
    "rand",
    "constant",
    "constant_to_tensor_",
    "constants_to_tensors_",
    "assertion",
    "generate_alibi_slopes",
    "generate_logn_scaling",
    "is_gated_activation",
    "non_gated_version",
    *TABLES,
}


def cases() -> Iterator[tuple[str, str, int, bool]]:
    """Name, element type, which sizes, and whether these are unknown."""
    for name, row in ROWS.items():
        for kind in row.kinds:
            for i in range(len(row.sizes)):
                yield from ((name, kind, i, unknown) for unknown in (False, True))


CASES = list(cases())
ONE_EACH = [min((c for c in CASES if c[0] == name), key=lambda c: zlib.crc32(repr(c).encode())) for name in ROWS]


def drawn(rng: np.random.Generator, shape: Any, kind: str, between: tuple[float, float]) -> Array:
    if isinstance(shape, np.ndarray):
        return shape
    low, high = between
    if kind == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    if kind.startswith("int"):
        return np.asarray(rng.integers(int(np.ceil(low)), int(high) + 1, shape)).astype(kind)
    return np.asarray(rng.uniform(low, high, shape)).astype(np.dtype(getattr(ml_dtypes, kind, kind)))


def wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind not in "biu" else x


def several(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def check(case: tuple[str, str, int, bool]) -> None:
    name, kind, which, unknown = case
    row = ROWS[name]
    rng = np.random.default_rng(zlib.crc32(repr(case).encode()))
    arrays = [drawn(rng, shape, kind, row.between) for shape in row.sizes[which]]
    if name == "arange by data":
        arrays = [a.astype(kind) for a in arrays]
    want = several(row.want(*map(wide, arrays)))
    gives = row.gives or kind
    network = Network()
    values = []
    for i, a in enumerate(arrays):
        known = {axis % a.ndim for axis in row.fixed if a.ndim and -a.ndim <= axis < a.ndim}
        named = unknown and i not in row.weights
        shape = [Dim(f"D{n}") if named and n != 1 and axis not in known else n for axis, n in enumerate(a.shape)]
        values.append(network.input(f"x{i}", Spec.of(a).like(shape=tuple(shape))))
    for i, y in enumerate(several(row.call(*values))):
        network.output(f"y{i}", y)
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    made = list(engine.run({f"x{i}": a for i, a in enumerate(arrays)}).values())
    at_once = several(row.call(*arrays))
    assert len(made) == len(at_once) == len(want)
    relative, absolute = (t * row.looser for t in TOLERANCE.get(gives, (0, 0)))
    for found, once, right in zip(made, at_once, want, strict=True):
        for y in (found, np.asarray(once)):
            assert (y.dtype.name, y.shape) == (gives, np.shape(right))
            np.testing.assert_allclose(wide(y), wide(np.asarray(right)), relative, absolute)


def test_every_function_has_a_row() -> None:
    assert {name.partition(" ")[0] for name in ROWS} == set(NAMES) - ELSEWHERE


@pytest.mark.parametrize("case", ONE_EACH, ids=lambda c: "-".join(map(str, c)))
def test_one_case_of_each(case: tuple[str, str, int, bool]) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_all_cases(name: str) -> None:
    for case in CASES:
        if case[0] == name:
            check(case)
