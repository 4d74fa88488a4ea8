"""`python -m ingot` and the `ingot` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ingot import _interrupt, _lazy

INTERRUPTED = 130  # as shells say of what SIGINT ends


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, as `ingot.cli.main` does; Ctrl-C while that is loaded, for half a second, ends it as later.

    A process that was interrupted ends at once: a second Ctrl-C may have cut short the wait for a thread inside native
    code, which Python would end in a way that aborts the process.
    """
    if argv is None:
        _interrupt.watch()
    try:
        code = int(_lazy.load("ingot.cli.main:main")(argv))
    except (KeyboardInterrupt, ImportError) as e:
        if not _interrupt.became(e):
            raise
        code = INTERRUPTED
    if code == INTERRUPTED and argv is None:
        os._exit(code)  # the command has flushed what it wrote
    return code


if __name__ == "__main__":
    sys.exit(main())
