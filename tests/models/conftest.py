"""The models and the adapter that tests of LoRA share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.lora_adapters import FAMILIES, config, tensors, write
from tests.models.model_zoo import make


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each family, float32."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bases")
    for name, (family, settings) in FAMILIES.items():
        make(transformers, torch, family, settings, folder / name)
    make(transformers, torch, "Llama", {"tie_word_embeddings": True}, folder / "tied")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that fits each of them."""
    return write(tmp_path_factory.mktemp("adapters") / "good", config(), tensors())
