"""Models of Hugging Face directories: `load(directory)` gives a module to trace, its weights and its settings."""

from __future__ import annotations

from ingot.models.load import FAMILIES, LoadedModel, load, load_config_only, parse_config

__all__ = ["FAMILIES", "LoadedModel", "load", "load_config_only", "parse_config"]
