"""Says what a machine lacks to compile ingot, before anything is installed: `python tools/prerequisites.py`.

Any Python 3 can run it, those too that are too old or too new for ingot. `--python` asks for the interpreter alone,
`--prebuilt` for what an install takes that compiles nothing (tools/prebuilt.py). The exit code is 1 when something is
missing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
OLDEST_GCC = 12
SOURCE = f"""
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < {OLDEST_GCC}
#error g++ {OLDEST_GCC} or newer is needed
#endif
#include <span>
int main() {{ return static_cast<int>(std::span<int>().size()); }}
"""


def python_fault(version: tuple[int, int] = sys.version_info[:2], project: str | None = None) -> str | None:
    """What is wrong with the interpreter, by requires-python of pyproject.toml."""
    text = PROJECT.read_text(encoding="utf-8") if project is None else project
    found = re.search(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', text, re.MULTILINE)
    if found is None:
        return 'pyproject.toml has no line requires-python = ">=3.A,<3.B"'
    low, end = int(found[1]), int(found[2])
    if (3, low) <= version < (3, end):
        return None
    return f"ingot needs Python 3.{low} to 3.{end - 1}, and {sys.executable} is {version[0]}.{version[1]}"


def header_fault(folder: str | None = None) -> str | None:
    """Whether the interpreter's C headers are there."""
    include = Path(folder or sysconfig.get_path("include"))
    if (include / "Python.h").exists():
        return None
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"
    return f"{include} has no Python.h: install the headers of {sys.executable} (Debian and Ubuntu: apt install {name})"


def venv_fault() -> str | None:
    """Whether the interpreter can make virtual environments; some systems take that out."""
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return None
    return f"{sys.executable} cannot make virtual environments (Debian and Ubuntu: apt install python3-venv)"


def compiler_fault() -> str | None:
    """Whether the compiler that CMake will take, $CXX or else the first on PATH, compiles C++20 and is new enough."""
    named = os.environ.get("CXX", "").split()
    compiler = named or [name for name in ("c++", "g++", "clang++") if shutil.which(name)][:1]
    install = f"install g++ {OLDEST_GCC} or newer (Debian and Ubuntu: apt install g++), or name one as CXX"
    if not compiler or not shutil.which(compiler[0]):
        return f"there is no C++ compiler{f' {named[0]}' if named else ' on PATH'}: {install}"
    command = [*compiler, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
    done = subprocess.run(command, input=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return f"{' '.join(compiler)} does not compile C++20: {install}\n{done.stderr.strip()}"


def main(arguments: list[str]) -> int:
    """Prints all that is missing."""
    checks = [python_fault, venv_fault, header_fault, compiler_fault]
    if arguments:
        checks = checks[: {"--python": 1, "--prebuilt": 2}[arguments[0]]]
    faults = [fault for check in checks if (fault := check()) is not None]
    for fault in faults:
        print(f"ingot cannot be built here: {fault}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
