"""The fuzz targets on their seeds and on random changes of them: `make fuzz` goes on from here."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import targets
from fuzz.programs import templates
from fuzz.template import calc, evaluate, first_choices
from ingot import _native, dtypes


def changed(seed: bytes, rng: random.Random) -> bytes:
    """A few bytes replaced, removed, or put in."""
    data = bytearray(seed)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(3)
        if what == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            del data[at : at + rng.randrange(1, 20)]
        else:
            data[at:at] = rng.choice([b'"', b"[", b"}", b"-1", b"9" * 30, b"\\u0000", b"NaN", b"\xff", b",", b": {"])
    return bytes(data)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_target(name: str) -> None:
    rng = random.Random(0)
    seeds = targets.TARGETS[name][1]
    for seed in seeds:
        targets.run(name, seed)
    for _ in range(10 if name in (*targets.ONNX, "adapter") else 100):  # what is built each time
        random_bytes = rng.randbytes(4 * rng.randrange(1, 5))
        targets.run(name, random_bytes)
        targets.run(name, changed(rng.choice(seeds), rng))


@pytest.mark.parametrize("name", [
    "container", "sealed", "safetensors", "pt2", "json_text", "config", "network_text", "adapter", "gguf",
])  # fmt: skip
def test_seeds_are_accepted(name: str) -> None:
    for seed in targets.TARGETS[name][1]:
        targets.TARGETS[name][0](seed)


# ---- the native fuzzer ----

CONTROL = {"cond", "while", "scan"}
ROOT = Path(__file__).parent.parent
FUZZER = ROOT / "build" / "fuzz" / "fuzz_reader"
needs_fuzzer = pytest.mark.skipif(not FUZZER.exists(), reason="needs the sanitizer build (make fuzz makes it)")


def test_the_templates_reach_every_kernel() -> None:
    table = {kernel["name"] for kernel in _native.kernels()} | CONTROL
    calls = [call for template in templates() for call in template.program["calls"]]
    assert {call.get("kernel") or call["control"] for call in calls} == table
    assert {template.name.split(".")[0] for template in templates()} == table


def test_the_native_fuzzer_has_room_for_all_templates() -> None:
    room = re.search(r"kMostTemplates = (\d+);", (ROOT / "native" / "fuzz" / "coverage.h").read_text())
    assert room is not None and sum(1 for _ in templates()) <= int(room[1])


def test_templates_nest_programs() -> None:
    """One in the other, in either order, and bodies that bind sizes as they run."""

    def inside(program: Any) -> Any:
        for call in program["calls"]:
            if "control" in call:
                for body in call["bodies"]:
                    yield call["control"], body["program"]
                    yield from inside(body["program"])

    found = [pair for template in templates() for pair in inside(template.program)]
    assert {way for way, _ in found} == CONTROL
    within = {(way, call["control"]) for way, body in found for call in body["calls"] if "control" in call}
    assert within == {("cond", "scan"), ("while", "cond"), ("scan", "while")}
    binders = {call.get("kernel") or call["control"] for _, body in found for call in body["calls"] if "binds" in call}
    assert binders == {"read_sizes", "count_nonzero", "while"}


def test_every_template_is_an_engine_that_runs(tmp_path: Path) -> None:
    """With its first choices; inputs of zeros."""
    path = tmp_path / "template.ingot"
    names = set()
    for template in templates():
        assert template.name not in names
        names.add(template.name)
        path.write_bytes(template.encode())
        cache = evaluate(template.cache, first_choices(template.vars)) if template.cache else {}
        engine = _native.Engine.open(str(path))
        session = _native.Session(engine, "main", 1, cache.get("blocks", 0), cache.get("block_size", 16))
        feeds: dict[str, Any] = {}
        for name, dtype, dims in session.inputs:
            shape: Any = tuple(dims)
            feeds[name] = np.zeros(shape, dtypes.get(dtype).numpy)
            if name == "condition":  # which an assertion wants to hold
                feeds[name] |= True
        results = session.run(feeds)
        assert results.keys() == {output["name"] for output in template.program["outputs"]}, template.name


def test_arithmetic_of_templates() -> None:
    values = first_choices([
        {"name": "n", "sizes": [0, 40]}, {"name": "k", "choices": [7, 8]},
        {"name": "v", "value": calc("+", calc("*", "$n", "$k"), calc("//", calc("-", 0, 1), 2))},
    ])  # fmt: skip
    assert values == {"n": 3, "k": 7, "v": 20}
    shape = {"shape": ["$n", calc("max", "$k", 1, 9), calc("min", 3, 2), calc("at", [4, 5], 1)]}
    assert evaluate(shape, values) == {"shape": [3, 9, 2, 5]}


@needs_fuzzer
def test_red_zones_find_strays() -> None:
    done = subprocess.run([FUZZER, "--self-check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@needs_fuzzer
def test_native_fuzzer_for_a_few_seconds(tmp_path: Path) -> None:
    """No fault, no mutation that breaks a rule, and nearly all of them run: 97% of 7,000 did."""
    for template in templates():
        (tmp_path / f"{template.name}.ingot").write_bytes(template.encode())
    faults = str(tmp_path / "faults")
    command = [str(FUZZER), "--seconds", "10", "--seed", "1", "--faults", faults, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stdout + done.stderr  # 3: too few cases for every kernel at every level
    assert " 0 faults, 0 invalid" in done.stdout
    table = {kernel["name"] for kernel in _native.kernels()} | CONTROL
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] and line.split()[0] in table]
    agreed, declined = (sum(int(row[column]) for row in rows) for column in (-5, -3))
    assert agreed > 0
    assert agreed / (agreed + declined) > 0.85, done.stdout
