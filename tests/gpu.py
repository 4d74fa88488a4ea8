"""Whether an NVIDIA GPU is here: its driver says so, before torch is imported."""

from __future__ import annotations

from pathlib import Path

GPU = Path("/proc/driver/nvidia").exists()
