"""What every encoder for embeddings brings beside its network: how texts become one vector, inputs, engine facts.

How hidden states are pooled is read, as data, from the files that sentence-transformers writes (modules.json and
1_Pooling/config.json). An unknown module is refused, since without it the vectors would be others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot import strict_json
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.errors import CheckpointError
from ingot.frontends.checkpoint import contained, read_file, read_json
from ingot.frontends.fields import Fields
from ingot.ir import Spec
from ingot.models.blocks import GptConfig

POOLINGS = ("mean", "cls", "last", "max")
MAX_BATCH = 1024
_OLD_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
_NEW_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last", "max": "max"}
_MODULES_SHOWN = "Transformer, then Pooling, then perhaps Normalize"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(GptConfig):
    """`types`: rows of the table of token types. `first_position`: of a text's first token in the position table."""

    types: int
    first_position: int


@dataclass(frozen=True)
class Pooling:
    """How a text's hidden states become its vector: `how` of POOLINGS, then perhaps scaled to length 1.

    `prompt` stands before every text. `max_tokens`: of a text, where the files give less than the positions allow.
    """

    how: str
    normalize: bool = False
    prompt: str = ""
    max_tokens: int | None = None


def pooling_of(directory: Path, usual: str = "mean") -> Pooling:
    """What the files of sentence-transformers say; without any: `usual`, as it is.

    Raises:
        CheckpointError: modules that are not known, a kind of pooling that is not supported, files that are no such.
    """
    modules = _modules(directory)
    if modules is None:
        return Pooling(usual)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{directory / 'modules.json'}: the modules {', '.join(kinds)[:200]} are not supported; "
            f"supported are {_MODULES_SHOWN}"
        )
    if modules[0][1]:
        raise CheckpointError(
            f"{directory / 'modules.json'}: the Transformer's files must lie in the folder itself, "
            f"not in {modules[0][1][:80]!r}"
        )
    folder = contained(directory, modules[1][1])
    fields = Fields(read_json(folder, "config.json") or {}, f"{modules[1][1]}/config.json: ")
    how = _how(fields)
    name = "sentence_bert_config.json"
    whole = Fields(read_json(directory, name) or {}, f"{name}: ", fields.faults)
    limit = whole.integer("max_seq_length", 3, 1 << 24, None)
    name = "config_sentence_transformers.json"
    prompt = _prompt(Fields(read_json(directory, name) or {}, f"{name}: ", fields.faults))
    if prompt and not fields.flag("include_prompt", True):
        fields.fault("include_prompt", "false is not supported where there is a default prompt")
    fields.finish(str(directory))
    return Pooling(how, len(kinds) == 3, prompt, limit)


def _modules(directory: Path) -> list[tuple[str, str]] | None:
    """Kind and folder of each module, in order."""
    data = read_file(directory, "modules.json", 1 << 20)
    if data is None:
        return None
    where = directory / "modules.json"
    try:
        found = strict_json.parse(data)
    except strict_json.JsonError as error:
        raise CheckpointError(f"{where}: {error}") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise CheckpointError(f"{where}: must be a list of objects")
    modules = []
    for one in found:
        kind, path = one.get("type"), one.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise CheckpointError(f"{where}: every module has a type and a path, both texts")
        ours = kind.startswith("sentence_transformers.")
        modules.append((kind.rsplit(".", 1)[-1] if ours else kind, path))
    return modules


def _how(fields: Fields) -> str:
    """The one kind of pooling, by the name of today or by flags of which one is true."""
    if fields.has("pooling_mode"):
        return _NEW_NAMES[fields.choice("pooling_mode", _NEW_NAMES, "mean")]
    chosen = [name for name in fields.values if name.startswith("pooling_mode_") and fields.flag(name, False)]
    if len(chosen) != 1 or chosen[0] not in _OLD_FLAGS:
        shown = ", ".join(chosen)[:200] or "none"
        fields.fault("pooling_mode", f"exactly one of {', '.join(_OLD_FLAGS)} must be true, not {shown}")
        return "mean"
    return _OLD_FLAGS[chosen[0]]


def _prompt(fields: Fields) -> str:
    name, prompts = fields.values.get("default_prompt_name"), fields.values.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        fields.fault("default_prompt_name", "must be the name of one of the prompts")
        return ""
    return prompt


def input_specs(config: EncoderConfig) -> dict[str, Spec]:
    """A batch of B texts, T tokens each; `mask`: which are tokens, and not padding."""
    shape = (Dim("B", 1, 1, MAX_BATCH), Dim("T", 1, None, config.context_length))
    return {"token_ids": Spec(shape, "int32"), "positions": Spec(shape, "int32"), "mask": Spec(shape, "bool")}


def engine_config(config: EncoderConfig, dtype: DType, pooling: Pooling) -> dict[str, Any]:
    """What a running engine has to know about its model."""
    return {
        "model_type": config.model_type,
        "architecture": config.architecture,
        "vocab_size": config.vocab_size,
        "context_length": min(config.context_length, pooling.max_tokens or config.context_length),
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "precision": dtype.name,
        "weights": "same",
        "pooling": pooling.how,
        "normalize": pooling.normalize,
        "prompt": pooling.prompt,
        "limits": {"max_batch": MAX_BATCH},
    }


def example(config: EncoderConfig, seed: int = 0) -> Mapping[str, np.ndarray]:
    """Two texts of seeded tokens, the second one shorter."""
    count = min(16, config.context_length)
    rng = np.random.default_rng(seed)
    positions = np.broadcast_to(np.arange(count, dtype=np.int32), (2, count)).copy()
    mask = positions < np.array([[count], [max(count // 2, 1)]])
    ids = rng.integers(0, config.vocab_size, (2, count)).astype(np.int32)
    return {"token_ids": ids, "positions": positions, "mask": mask}
