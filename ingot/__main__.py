"""`python -m ingot` and the `ingot` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ingot import _lazy


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, as `ingot.cli.main` does; Ctrl-C while that is loaded, for half a second, ends it as later."""
    try:
        run = _lazy.load("ingot.cli.main:main")
    except KeyboardInterrupt:
        return 130
    return int(run(argv))


if __name__ == "__main__":
    sys.exit(main())
