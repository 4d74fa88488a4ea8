"""What `coverage` says of all ops and its usual element types, written down by `python -m tools.ops`: it compiles some
thousands of networks, and the outcome is a fact of each version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


def covered() -> dict[str, Any]:
    """`dtypes`, the names of the element types, and `ops`, the rows of `coverage()`."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
