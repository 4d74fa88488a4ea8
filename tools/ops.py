"""docs/ops.md and what `ingot ops` shows: the table of all ops, made from their declarations: `python -m tools.ops`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ingot.builder import covered
from ingot.builder.coverage import DTYPES, coverage

PAGE = Path(__file__).parent.parent / "docs" / "ops.md"
HEAD = """# Ops

<!-- written by python -m tools.ops -->

Every op: what it takes and means, and how an engine runs it for each type of its elements. `ingot ops` prints the same
for what is installed (`--json` as data, `--dtype` and `--host` to filter).

- **CPU**: N natively, h as a host call (a NumPy reference; the C interface refuses such engines), ± one or the other by
  the case, empty: the op does not take this type. Found by compiling the op's cases.
- **device**: how a session on a torch device runs it: N by torch, s as simpler ops, h by the reference on the host.
- **torch**: how many ops of torch.export the importer makes of it, alone or with others.

{share}

## Meaning

| op | family | operands | attributes | |
|---|---|---|---|---|
"""
MARKS = {"native": "N", "host": "h", "native or host": "±", "simpler ops": "s"}


def _share(rows: list[dict[str, Any]]) -> str:
    lines = ["| CPU, element type | native | host | by the case |", "|---|---|---|---|"]
    for kind in DTYPES:
        found = [row["cpu"].get(kind) for row in rows if not row["internal"]]
        counts = [found.count(how) for how in ("native", "host", "native or host")]
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def _meaning(row: dict[str, Any]) -> str:
    doc = row["doc"].replace("|", "\\|").replace("*", "\\*")
    made = " (made by passes)" if row["internal"] else ""
    operands, attributes = (", ".join(row[key]).replace("*", "\\*") or "–" for key in ("operands", "attributes"))
    return f"| {row['op']} | {row['family']}{made} | {operands} | {attributes} | {doc} |"


def _coverage(row: dict[str, Any]) -> str:
    cells = [MARKS.get(row["cpu"].get(kind), "") for kind in DTYPES]
    count = len(row["importers"]["torch"])
    kernels = ", ".join(row["kernels"]) or "–"
    return f"| {row['op']} | {' | '.join(cells)} | {MARKS[row['torch']]} | {count or '–'} | {kernels} |"


def page(rows: list[dict[str, Any]]) -> str:
    """The page as it should be."""
    head = ("op", *DTYPES, "device", "torch", "CPU kernels")
    lines = [*map(_meaning, rows), "", "## Coverage", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return HEAD.format(share=_share(rows)) + "\n".join([*lines, *map(_coverage, rows)]) + "\n"


def data(rows: list[dict[str, Any]]) -> str:
    """The file that `ingot ops` reads, a line for each op."""
    listed = ",\n".join(map(json.dumps, rows))
    return f'{{"dtypes": {json.dumps(DTYPES)}, "ops": [\n{listed}\n]}}\n'


def pages() -> dict[Path, str]:
    """Every file that is written, as it should be."""
    rows = coverage()
    return {PAGE: page(rows), covered.FILE: data(rows)}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
