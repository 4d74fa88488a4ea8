"""The settings of well-known models give the parameters that transformers makes of them, by name and shape, and as many
numbers as were published."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ingot import dtypes, models
from ingot.models.load import FAMILIES
from ingot.models.weights import parameter_specs
from tests.models.published import PARAMETERS, PUBLISHED, REMOTE

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

HEADS = ("cls.", "lm_head.", "pooler.")  # of encoders: embeddings do without
CONTEXT = {
    "bert-base-uncased": 512, "roberta-base": 512, "mpt-7b": 2048, "opt-350m": 2048, "bloom-560m": 2048,
    "falcon-7b": 2048, "starcoder": 8192, "llama-3.2-1b": 131072, "mixtral-8x7b": 32768, "qwen3-30b-a3b": 40960,
    "gemma-2b": 8192, "gemma-3-4b": 131072, "phi-3.5-mini": 131072, "glm-4-9b-chat": 131072, "chatglm3-6b": 8192,
    "baichuan2-7b": 4096, "baichuan2-13b": 4096, "internlm2-7b": 32768, "qwen-7b": 8192,
}  # fmt: skip


def shapes(name: str) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The configuration of a published model and its parameters."""
    config = models.parse_config((PUBLISHED | REMOTE)[name], Path(name))
    module = FAMILIES[config.architecture].model(config, dtypes.float32, config.tied)
    return config, {n: tuple(s.shape) for n, s in parameter_specs(module).items()}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", PUBLISHED)
def test_same_parameters_as_transformers(name: str) -> None:
    values = PUBLISHED[name]
    config, ours = shapes(name)
    kind = getattr(transformers, values["architectures"][0].replace("MPT", "Mpt"))
    with torch.device("meta"):
        theirs = {n: tuple(p.shape) for n, p in kind(kind.config_class.from_dict(deepcopy(values))).named_parameters()}
    if any(".experts." in n for n in theirs):  # in memory the experts of a layer are one tensor
        ours, theirs = ({"all": (count(x),)} for x in (ours, theirs))
    renamed = "embed_out." if values["model_type"] == "gpt_neox" else "lm_head."  # in memory its name is another
    want = {n.replace("lm_head.", renamed): shape for n, shape in theirs.items()}
    if name in ("bert-base-uncased", "all-MiniLM-L6-v2", "roberta-base"):
        base = "roberta." if name.startswith("roberta") else "bert."
        want = {base + n.removeprefix(base): shape for n, shape in want.items() if not n.startswith(HEADS)}
    if name == "gemma-3-4b":
        text = "model.language_model."
        want = {n.replace(text, "model."): shape for n, shape in want.items() if n.startswith(text)}
    assert ours == want
    assert config.context_length == CONTEXT.get(name, config.context_length)


def count(found: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in found.values())


@pytest.mark.parametrize("name", PARAMETERS)
def test_as_many_numbers_as_published(name: str) -> None:
    config, found = shapes(name)
    assert count(found) == PARAMETERS[name]
    assert config.context_length == CONTEXT.get(name, config.context_length)


def test_what_the_settings_say_beside_sizes() -> None:
    of = {name: shapes(name)[0] for name in ("gemma-3-1b", "gemma-2-9b", "phi-3.5-mini", "baichuan2-13b")}
    seeing = shapes("gemma-3-4b")[0]
    assert seeing.num_heads == 8 and seeing.rope.type == "linear" and seeing.tied
    assert seeing.eos_token_ids == (1, 106) and seeing.dtype is dtypes.bfloat16
    assert of["gemma-3-1b"].windows[4:6] == (512, None) and of["gemma-2-9b"].windows[:2] == (4096, None)
    assert of["phi-3.5-mini"].short_length == 4096
    assert of["phi-3.5-mini"].rope.scale == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    assert of["baichuan2-13b"].rope is None and of["baichuan2-13b"].unit_rows == ("lm_head.weight",)
    two, three, four = (shapes(name)[0].rope for name in ("chatglm2-6b-32k", "chatglm3-6b-32k", "glm-4-9b-chat"))
    assert two.inv_freq[0] == pytest.approx(1 / 16) and three.inv_freq[0] == four.inv_freq[0] == 1
    assert three.inv_freq[-1] == pytest.approx(500_000 ** (-62 / 64))
    assert four.inv_freq[-1] == pytest.approx(5_000_000 ** (-62 / 64))
