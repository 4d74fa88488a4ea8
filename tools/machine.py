"""The name of the machine that a figure was measured on."""

from __future__ import annotations

import os
from pathlib import Path


def machine_name() -> str:
    """The processor's model, and how many of its CPUs this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{name}, {len(os.sched_getaffinity(0))} CPUs"
