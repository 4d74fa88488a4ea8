"""Fuzzes one target with atheris: `python -m fuzz.one NAME [libFuzzer options]`; ends at the first fault."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["ingot", "fuzz"]):
    from fuzz import targets


def main() -> None:
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: targets.run(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
