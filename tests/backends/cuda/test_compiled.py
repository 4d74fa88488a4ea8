"""The kernels of target cuda as they are compiled for sm_90: no spills, and weights under way before the wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.cuda.interpreted import LONG, WITHOUT

pytest.importorskip("triton", reason=WITHOUT)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "names", [("rows of float16", "expanded int8", "written int8"), pytest.param((), id="all", marks=LONG)]
)
def test_for_sm_90(names: tuple[str, ...]) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, Path(__file__).with_name("compiled.py"), *names]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found) == (len(names) or 77)
    rows = {"64 rows of int8", "16 rows of int4", "64 rows of int4"}
    prompts = {"prompt", "prompt of int8", "prompt of float8", "prompt of 96 wide", "prompt of int8, 80 wide"}
    rows |= {"16 rows of float8 each", "64 rows of float8"}
    rows |= {"16 rows of int8 gelu", "64 rows of int4 geglu", "64 rows of float8 gelu"}
    experts = {"16 rows of experts", "64 rows of experts geglu", "many rows of experts"}
    experts |= {f"many rows of {kind} experts" for kind in ("int8", "int4", "float8")}
    rows |= {"64 rows of int4 as float16"}
    few = {f"16 rows of {kind} experts" for kind in ("int8", "int4", "float8")}  # products of a warp, of 2
    few |= {"16 rows of int4 as float16", "32 rows of int4 as float16"}
    many = {"many rows of int8", "many rows of int4", "many rows of int4 gelu"}
    matrix = rows | prompts | experts | many | {"attention of 48 heads on one"}  # one program of 8 warps at a time
    decodes = {"attention", "attention of 64 rows", "attention of int8", "attention of float8"}
    decodes |= {"attention of 96 wide", "attention of 64 rows, 96 wide", "attention of 64 rows, 256 wide",
                "attention of int8, 80 wide", "attention of float8, 80 wide"}  # fmt: skip
    aside = {"attention of int8, 80 wide": 8, "attention of 48 heads on one": 24}  # bytes
    aside |= {"prompt of int8": 32, "prompt of int8, 80 wide": 48, "prompt of float8": 40}
    aside |= {"int8 pair": 56, "int8 geglu": 56}  # four programs of 128 registers: three without took longer
    aside |= {"64 rows of int4": 16, "64 rows of int4 geglu": 16}
    for name, said in found.items():  # shapes with nothing aside took longer
        assert said["STACK"] <= aside.get(name, 0) and said["LOCAL"] == 0, f"{name} spills: {said}"
        alone = matrix | decodes | few | {"int4 of four rows", "float8 long"}
        most = 255 if name in alone else 168  # of 4 or 8 warps: several programs have to fit
        assert said["REG"] <= most, f"{name} takes {said['REG']} registers"
        assert name in rows or said["converted"] <= 32, f"{name} converts its weights one by one"
        assert (said["units"] > 0) == (name in matrix), f"{name} has {said['units']} products of the matrix units"
        without = matrix | decodes | few | {
            "choice", "expanded int8", "expanded int4", "expanded float8", "five rows and more",
            "rows of float8", "rows of float16", "written int8", "written 80 wide", "experts of a row",
            "a row of experts", "float8 experts of a row", "int8 experts of a row", "int4 experts of a row",
            "a row of int4 experts", "layer norm", "layer norm in five rows", "finished rows", "gated rows",
        }  # fmt: skip
        assert said["before the wait"] > 0 or name in without, f"{name} loads no weights before it waits"
        assert said["launched"], f"{name} takes other parameters than it is launched with"
