"""What peers reached on a GPU of this kind, kept by gpu_peers.py."""

from __future__ import annotations

import json

import torch

from benchmarks.chart import file_of


def kept(what: str) -> float | None:
    """What a peer reached on a GPU of this kind, if that has been measured: the row of that name of kept results."""
    path = file_of(torch.cuda.get_device_name())
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    rows = [row for of, found in results.items() if of.startswith("gpu-peers-") for row in found["rows"]]
    return next((float(row["value"]) for row in rows if row["what"] == what), None)
