"""The settings of well-known models give the parameters that transformers makes of them, by name and shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingot import dtypes
from ingot.llm import models
from ingot.llm.models.load import FAMILIES
from ingot.llm.models.weights import parameter_specs
from tests.llm.published import PUBLISHED

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

HEADS = ("cls.", "lm_head.", "pooler.")  # of encoders: embeddings do without
CONTEXT = {"bert-base-uncased": 512, "roberta-base": 512, "mpt-7b": 2048, "opt-350m": 2048, "bloom-560m": 2048,
           "falcon-7b": 2048, "starcoder": 8192}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", PUBLISHED)
def test_same_parameters_as_transformers(name: str) -> None:
    values = PUBLISHED[name]
    config = models.parse_config(values, Path(name))
    ours = {n: tuple(s.shape) for n, s in parameter_specs(_module(config)).items()}
    kind = getattr(transformers, values["architectures"][0].replace("MPT", "Mpt"))
    with torch.device("meta"):
        theirs = kind(kind.config_class.from_dict(values)).named_parameters()
    renamed = "embed_out." if values["model_type"] == "gpt_neox" else "lm_head."  # in memory its name is another
    want = {n.replace("lm_head.", renamed): tuple(p.shape) for n, p in theirs}
    if name in ("bert-base-uncased", "all-MiniLM-L6-v2", "roberta-base"):
        base = "roberta." if name.startswith("roberta") else "bert."
        want = {base + n.removeprefix(base): shape for n, shape in want.items() if not n.startswith(HEADS)}
    assert ours == want
    assert config.context_length == CONTEXT.get(name, config.context_length)


def _module(config: Any) -> Any:
    return FAMILIES[config.architecture].model(config, dtypes.float32, config.tied)
