"""Writes every attack into a folder: `python -m attacks.make FOLDER`, with the table of what each has to end in."""

from __future__ import annotations

import sys
from pathlib import Path

from attacks import (
    adapters,
    containers,
    control,
    directories,
    exported,
    host_calls,
    models,
    networks,
    onnx_files,
    onnx_graphs,
    programs,
    quantized,
    tokenizers,
)
from attacks.image import TABLE, Attack

# Importing them fills the table.
MODULES = (
    containers, programs, control, host_calls, networks, quantized, models, directories, exported, adapters, tokenizers,
    onnx_files, onnx_graphs,
)  # fmt: skip


def paths(folder: Path) -> dict[str, Path]:
    """The path of each attack; the names of attacks are prose, those of files are not."""
    return {name: folder / f"{attack.number:02}-{i:03}.ingot" for i, (name, attack) in enumerate(TABLE.items())}


def make(folder: Path) -> list[tuple[Path, Attack]]:
    """Creates all attacks in an existing folder."""
    made = []
    for name, path in paths(folder).items():
        TABLE[name].make(path)
        made.append((path, TABLE[name]))
    return made


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for path, attack in make(folder):
        wanted = "; ".join(f"{reader}: {code} /{why}/" for reader, (code, why) in attack.expect.items())
        print(f"{path.name}\t{attack.number}\t{attack.name}\t{wanted}")


if __name__ == "__main__":
    main()
