"""Tries a wheel in a fresh environment that has no compiler on PATH: `python -m tools.try_wheel dist/*.whl`."""

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


def fresh(folder: Path, *packages: str) -> Path:
    """A new virtual environment with the packages from wheels alone; returns its bin folder."""
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "install", "-q", "--only-binary", ":all:"]
    subprocess.run([*pip, *packages], check=True)
    return folder / "bin"


def generate(folder: Path) -> str:
    """What pico-python writes in that environment, with a PATH that holds nothing else."""
    arguments = ["generate", str(ROOT / "models" / "pico-python"), "--prompt", "import os", "--max-tokens", "16"]
    done = subprocess.run(
        [str(folder / "python"), "-I", "-c", GENERATE, *arguments],
        cwd="/",
        env={"PATH": str(folder), "LANG": "C.UTF-8"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    text = generate(fresh(ROOT / "build" / "fresh", str(wheel)))
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) runs without a compiler: {text!r}")


if __name__ == "__main__":
    main()
