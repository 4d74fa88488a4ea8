"""Importing what torch.export made: a .pt2 file, or a torch module in this process."""

from __future__ import annotations

from ingot.frontends.comparing import Comparison
from ingot.frontends.recording import Imported
from ingot.frontends.torch_export.compare import Origin, compare, first_inputs
from ingot.frontends.torch_export.export import Exported, export
from ingot.frontends.torch_export.importer import Source, build_network
from ingot.frontends.torch_export.load import open_archive

__all__ = [
    "Comparison", "Exported", "Imported", "Origin", "Source", "build_network", "compare", "export",
    "first_inputs", "open_archive",
]  # fmt: skip
