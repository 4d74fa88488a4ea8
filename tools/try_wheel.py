"""Tries a wheel in a fresh environment that has no compiler on PATH: `python -m tools.try_wheel build/wheel/*.whl`."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
# None in sys.modules makes an import fail: nothing may need these at run time.
GENERATE = """
import sys
sys.modules["huggingface_hub"] = sys.modules["torch"] = None
from ingot.__main__ import main
sys.exit(main())
"""
VERSIONS = """
import ctypes
import pathlib
import ingot
library = ctypes.CDLL(str(pathlib.Path(ingot.__file__).parent / "libingot.so"))
library.ingot_version.restype = ctypes.c_char_p
print(ingot.__version__, library.ingot_version().decode())
"""


def fresh(folder: Path, *packages: str) -> Path:
    """A new virtual environment with the packages from wheels alone; returns its bin folder."""
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "install", "-q", "--only-binary", ":all:"]
    subprocess.run([*pip, *packages], check=True)
    return folder / "bin"


def python(folder: Path, code: str, *arguments: str) -> str:
    """What a piece of Python prints in that environment, with a PATH that holds nothing else."""
    done = subprocess.run(
        [str(folder / "python"), "-I", "-c", code, *arguments],
        cwd="/",
        env={"PATH": str(folder), "LANG": "C.UTF-8"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def generate(folder: Path) -> str:
    """What pico-python writes in that environment."""
    model = str(ROOT / "models" / "pico-python")
    return python(folder, GENERATE, "generate", model, "--prompt", "import os", "--max-tokens", "16")


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    folder = fresh(ROOT / "build" / "fresh", str(wheel))
    text = generate(folder)
    ours, library = python(folder, VERSIONS).split()
    if not wheel.name.startswith(f"ingot-{ours}-") or library != ours:
        sys.exit(f"{wheel.name} has ingot {ours}, and a C library that calls itself {library!r}")
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) runs without a compiler: {text!r}")


if __name__ == "__main__":
    main()
