"""What `pip install` of a wheel resolves to, against its budget: `python -m tools.size build/wheel/*.whl`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

MOST_DISTRIBUTIONS = 28
MOST_BYTES = 50_000_000
FORBIDDEN = ("torch", "nvidia", "transformers", "triton")


def resolved(wheel: Path) -> dict[str, int]:
    """Name of each distribution file and its compressed size."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", folder, str(wheel)], check=True)
        return {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}


def main() -> None:
    files = resolved(Path(sys.argv[1]))
    for name, size in sorted(files.items(), key=lambda item: -item[1]):
        print(f"{size / 1000:9,.0f} kB  {name}")
    total = sum(files.values())
    print(f"{len(files)} distributions, at most {MOST_DISTRIBUTIONS}")
    print(f"{total / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f}")
    bad = [name for name in files if name.lower().startswith(FORBIDDEN)]
    if bad or len(files) > MOST_DISTRIBUTIONS or total > MOST_BYTES:
        sys.exit(f"over budget{': ' + ', '.join(bad) if bad else ''}")


if __name__ == "__main__":
    main()
