"""Importing what torch.export made: a .pt2 file, or a torch module in this process."""

from __future__ import annotations

from ingot.frontends.recording import Imported
from ingot.frontends.torch_export.compare import Origin, TorchPeer, examples
from ingot.frontends.torch_export.export import Exported, Ran, export, read_program_of, torch_package
from ingot.frontends.torch_export.importer import Source, build_network
from ingot.frontends.torch_export.load import open_archive
from ingot.frontends.torch_export.sources import is_module, is_program, refusal

__all__ = [
    "Exported", "Imported", "Origin", "Ran", "Source", "TorchPeer", "build_network", "examples", "export",
    "is_module", "is_program", "open_archive", "read_program_of", "refusal", "torch_package",
]  # fmt: skip
