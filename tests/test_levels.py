"""Every instruction-set level is clean: no registers above its own, and the right numbers when it is forced.

A family without a half at a level runs that of the level which it extends.

The objects of the newest native build are disassembled; where there are none (an installed wheel), those tests are
skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingot import _native
from tools.conformance.parts import LEVELS

ROOT = Path(__file__).parent.parent
REGISTERS = {
    "ymm": r"%ymm\d",
    "zmm": r"%zmm\d",
    "mask": r"%k[0-7]",
    "tile": r"%tmm\d",
    "VEX": r":\tv[a-z]",
}
FORBIDDEN = {
    "core": ("VEX", "ymm", "zmm", "mask", "tile"),  # host halves and everything else: runs at every level
    "portable": ("VEX", "ymm", "zmm", "mask", "tile"),
    "avx2": ("zmm", "mask", "tile"),
    "avx_vnni": ("zmm", "mask", "tile"),
    "avx512": ("tile",),
    "avx512_vnni": ("tile",),
    "avx512_bf16": ("tile",),
    "amx": (),
}


def objects(level: str) -> list[Path]:
    """The level's objects in the newest build directory that has any."""
    sanitized = re.compile(r"SANITIZE\w*:BOOL=ON")
    folders = [f for f in ROOT.glob(f"build/*/native/CMakeFiles/ingot_{level}.dir") if not sanitized.search(cache(f))]
    found = [sorted(folder.rglob("*.o")) for folder in folders]
    return max(found, key=lambda files: max((f.stat().st_mtime for f in files), default=0.0), default=[])


def cache(folder: Path) -> str:
    path = folder.parents[2] / "CMakeCache.txt"
    return path.read_text() if path.exists() else ""


def disassembled(path: Path) -> str:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


needs_objects = pytest.mark.skipif(
    shutil.which("objdump") is None or not objects("portable"), reason="needs objdump and the objects of a native build"
)


@needs_objects
@pytest.mark.parametrize("level", FORBIDDEN)
def test_no_level_uses_wider_registers(level: str) -> None:
    if not objects(level):
        pytest.skip("this processor family has no such level")
    for path in objects(level):
        code = disassembled(path)
        for kind in FORBIDDEN[level]:
            bad = re.search(REGISTERS[kind], code)
            assert not bad, f"{path.name} of level {level} has {kind}: {code[bad.start() - 60 : bad.end() + 60]}"


@needs_objects
@pytest.mark.parametrize(("level", "kind"), [("avx2", "ymm"), ("avx2", "VEX"), ("avx512", "zmm")])
def test_the_disassembly_shows_registers_where_they_are(level: str, kind: str) -> None:
    if not objects(level):
        pytest.skip("this processor family has no such level")
    assert any(re.search(REGISTERS[kind], disassembled(path)) for path in objects(level))


@needs_objects
@pytest.mark.parametrize("level", [level for level in FORBIDDEN if level != "core"])
def test_no_level_shares_functions_with_the_others(level: str) -> None:
    """The linker keeps one copy of a weak function, from any object: a wide one must not be taken for a narrow one."""
    for path in objects(level):
        listing = subprocess.run(["nm", "--demangle", str(path)], check=True, capture_output=True, text=True).stdout
        shared = [
            line for line in listing.splitlines() if re.search(r" [WVu] ", line) and f"ingot::{level}::" not in line
        ]
        assert not [line for line in shared if not line.endswith(("__cxa_finalize", "_ITM_deregisterTMCloneTable"))]


@needs_objects
@pytest.mark.parametrize("level", LEVELS)
def test_a_half_shows_its_table_and_nothing_else(level: str) -> None:
    """So CMake says all: a half that it does not list cannot be reached, and none is compiled in vain."""
    for path in objects(level):
        family = path.name.removesuffix(".cpp.o").removesuffix(f"_{level}")
        command = ["nm", "--demangle", "--extern-only", "--defined-only", str(path)]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert [line.split()[-1] for line in listing.splitlines()] == [f"ingot::{level}::{family}_table"]


def test_the_levels_are_those_of_the_build() -> None:
    listed = re.findall(r"^ *ingot_level\((\w+) ", (ROOT / "native/CMakeLists.txt").read_text(), re.MULTILINE)
    assert listed == list(LEVELS) == [level for level in FORBIDDEN if level != "core"]
    assert [level for level in listed if level in _native.levels()] == _native.levels()


BRANCHES = """
#include "level/dispatch.h"

namespace ingot {
struct DotTable { int name; const char* wide = nullptr; };
INGOT_FAMILY(dot, DotTable)
namespace portable { const DotTable dot_table{0}; }
namespace avx2 { const DotTable dot_table{1, "wide"}; }
namespace avx_vnni { const DotTable dot_table{2}; }
namespace avx512_vnni { const DotTable dot_table{3}; }
}

int main() {
  using namespace ingot;
  const int expected[] = {0, 1, 2, 1, 3};  // avx512 does not extend avx_vnni: its processors need not have it
  for (int level = 0; level < kLevelCount; ++level)
    if (half_for(dot_halves, static_cast<Level>(level)).name != expected[level]) return 1 + level;
  for (int level = 0; level < kLevelCount; ++level)  // no level but avx2 has it: those that extend avx2 take its own
    if ((member_for(dot_halves, Level(level), &DotTable::wide) == nullptr) != (level == 0)) return 10 + level;
}
"""


def test_a_family_without_a_half_runs_that_of_the_level_below(tmp_path: Path) -> None:
    """Below is what a level extends, and not what stands before it in the list."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    below = {"portable": "portable", "avx2": "portable", "avx_vnni": "avx2", "avx512": "avx2", "avx512_vnni": "avx512"}
    template = (ROOT / "native/src/levels.h.in").read_text()
    levels = "".join(f" X({level}, {extended})" for level, extended in below.items())
    halves = "".join(f" X({level}, __VA_ARGS__)" for level in below if level != "avx512")
    header = template.replace("@INGOT_LEVELS@", levels)
    (tmp_path / "levels.h").write_text(
        header.replace("@INGOT_LEVELS_OF@", f"#define INGOT_LEVELS_OF_dot(X, ...){halves}\n")
    )
    (tmp_path / "branches.cpp").write_text(BRANCHES)
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", f"-I{ROOT / 'native/kernels'}"]
    subprocess.run([compiler, *flags, "branches.cpp", "-o", "branches"], cwd=tmp_path, check=True)
    subprocess.run([str(tmp_path / "branches")], check=True)


def test_every_level_scores_alike(pico_engine: Path, pico: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text((pico / "heldout.txt").read_text()[:2000])
    words = ("score", str(pico_engine), "--text", str(text), "--window", "256", "--json")
    losses = {}
    for level in _native.levels():
        environment = os.environ | {"INGOT_ISA": level}
        command = [sys.executable, "-m", "ingot", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=250)
        losses[level] = json.loads(done.stdout.splitlines()[-1])["nats_per_token"]
    assert losses == pytest.approx(dict.fromkeys(losses, losses[_native.levels()[-1]]), abs=2e-3)


def test_an_unknown_level_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ingot", "doctor"],
        capture_output=True,
        text=True,
        env=os.environ | {"INGOT_ISA": "avx1024"},
        timeout=300,
    )
    assert done.returncode == 2
    assert "avx1024" in done.stderr
