"""A wheel and what `pip install` of it resolves to, against their budgets: `python -m tools.size build/wheel/*.whl`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

MOST_DISTRIBUTIONS = 28
MOST_BYTES = 50_000_000
MOST_WHEEL_BYTES = 12_000_000
FORBIDDEN = ("torch", "nvidia", "transformers", "triton")


def resolved(wheel: Path) -> dict[str, int]:
    """Name of each distribution file and its compressed size."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", folder, str(wheel)], check=True)
        return {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}


def faults(wheel: int, files: dict[str, int]) -> list[str]:
    """What is over its budget: `wheel` is the size of ours, `files` are those of resolved()."""
    total = sum(files.values())
    over = [f"{name} is not to be needed" for name in files if name.lower().startswith(FORBIDDEN)]
    if len(files) > MOST_DISTRIBUTIONS:
        over.append(f"{len(files)} distributions, at most {MOST_DISTRIBUTIONS}")
    if total > MOST_BYTES:
        over.append(f"{total:,} bytes together, at most {MOST_BYTES:,}")
    if wheel > MOST_WHEEL_BYTES:
        over.append(f"{wheel:,} bytes of the wheel, at most {MOST_WHEEL_BYTES:,}")
    return over


def main() -> None:
    wheel = Path(sys.argv[1])
    files, size_of_wheel = resolved(wheel), wheel.stat().st_size
    for name, size in sorted(files.items(), key=lambda item: -item[1]):
        print(f"{size / 1000:9,.0f} kB  {name}")
    print(f"{len(files)} distributions, at most {MOST_DISTRIBUTIONS}")
    print(f"{sum(files.values()) / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f}")
    print(f"{size_of_wheel / 1e6:.1f} MB of the wheel, at most {MOST_WHEEL_BYTES / 1e6:.0f}")
    if over := faults(size_of_wheel, files):
        sys.exit(f"over budget: {'; '.join(over)}")


if __name__ == "__main__":
    main()
