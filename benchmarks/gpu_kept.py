"""What peers reached on a GPU of this kind, kept by gpu_peers.py."""

from __future__ import annotations

import json

import torch

from benchmarks.chart import file_of


def kept(name: str, what: str) -> float | None:
    """What a peer reached on a GPU of this kind, if that has been measured: a row of a kept result."""
    path = file_of(torch.cuda.get_device_name())
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    rows = results.get(name, {}).get("rows", ())
    return next((float(row["value"]) for row in rows if row["what"] == what), None)
