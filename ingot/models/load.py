"""From a Hugging Face directory to a model that can be traced: registry, configuration, weights, files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import CheckpointError, UserError
from ingot.frontends.checkpoint import Checkpoint, read_config, read_file, resolve_directory
from ingot.frontends.fields import Fields
from ingot.frontends.gguf.model import GgufModel, is_gguf
from ingot.frontends.quantized import config as quantization
from ingot.frontends.quantized.checkpoint import QuantizedCheckpoint
from ingot.frontends.quantized.model import AS_FLOATS, IntegerWeights, with_integers
from ingot.frontends.recording import Remark
from ingot.ir import Network, Spec
from ingot.models import (
    baichuan,
    bert,
    bloom,
    chatglm,
    encoder,
    falcon,
    gemma,
    gemma2,
    gemma3,
    gemma3_multimodal,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    gptj,
    internlm,
    internlm2,
    llama,
    mistral,
    mixtral,
    mpt,
    opt,
    phi,
    phi3,
    qwen,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    roberta,
    starcoder2,
)
from ingot.models.blocks import Conv1D
from ingot.models.config import LanguageConfig, token_ids
from ingot.models.decoder import MAX_STEP_TOKENS, input_specs
from ingot.models.tokens import beginning, parse_file
from ingot.models.weights import RandomWeights, is_tied, match, parameter_specs
from ingot.nn import Module, trace
from ingot.text import tokenizer_file
from ingot.words import PRECISIONS

# A family is a file with ARCHITECTURE (as config.json names it; ALSO: other names of it), MODEL_TYPE, NAMING of its
# tensors, config(fields) and model(config, dtype, tied); BODY: of a model without a head, where it may lack one.
_ALL = (
    llama, mistral, mixtral, qwen, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, gemma3,
    gemma3_multimodal, phi3, internlm, internlm2, baichuan, chatglm, gpt2, gpt_bigcode, gptj, gpt_neox, opt, phi,
    starcoder2, bloom, mpt, falcon, bert, roberta,
)  # fmt: skip


def _body(family: ModuleType) -> tuple[str, ...]:
    return (family.BODY,) if hasattr(family, "BODY") else ()


FAMILIES: dict[str, ModuleType] = {
    name: family for family in _ALL for name in (family.ARCHITECTURE, *getattr(family, "ALSO", ()), *_body(family))
}
CARRIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be traced and built.

    Attributes:
        module: the network; its Parameters hold no numbers.
        input_specs: the step's inputs, by the names of module.forward.
        config: what the engine header carries and the runtime reads; plain JSON values.
        weights: parameter name → array, read or made at each access; of IntegerWeights also what stands for parameters.
        files: tokenizer and generation settings, byte for byte.
        kind: of the engine: "llm", or "encoder" for embeddings.
        example: seeded inputs, where the numbers of a report need sound ones.
        remarks: what is said of its weights.
    """

    module: Module
    input_specs: dict[str, Spec]
    config: dict[str, Any]
    weights: Mapping[str, np.ndarray]
    files: dict[str, bytes]
    kind: str = "llm"
    example: Mapping[str, np.ndarray] | None = None
    remarks: tuple[Remark, ...] = ()

    def network(self) -> tuple[Network, list[Remark]]:
        """The traced network, with integers where the checkpoint holds them, and what is said of its weights."""
        network = trace(self.module, self.input_specs)
        if not isinstance(self.weights, IntegerWeights):
            return network, [*self.remarks]
        return network, [*self.remarks, *self.weights.remarks, *with_integers(network, self.weights)]


def load(directory: str | os.PathLike[str], precision: str | None = None, integers: bool = True) -> LoadedModel:
    """The model of a Hugging Face directory, or of a GGUF file.

    Args:
        directory: config.json, safetensors weights and tokenizer files; or a file ending in .gguf. Nothing is executed.
        precision: float32, bfloat16 or float16; default what the checkpoint is stored in.
        integers: whether matrices that a GGUF file holds as integers of 4 bits stay so; else they become floats.

    Raises:
        CheckpointError: anything wrong with the directory, one message with all faults of its kind.
        UserError: an unknown precision.
    """
    if is_gguf(directory):
        return _load_gguf(GgufModel(directory), precision, integers)
    path = resolve_directory(directory)
    values = read_config(path)
    config = parse_config(values, path)
    family = FAMILIES[config.architecture]
    found = quantization.parse(values, f"{path / 'config.json'}")
    checkpoint = Checkpoint(path) if found is None else QuantizedCheckpoint(path, found)
    embedding = family.NAMING.find(family.NAMING.embedding, checkpoint)
    stored = checkpoint.info(embedding).dtype if embedding in checkpoint else None
    dtype = _precision(precision, config.dtype or stored)
    tied = is_tied(checkpoint, config.tied, family.NAMING)
    # Models made for embedding are saved under either name, and often without the head that nobody trained.
    for_vectors = config.headless or (bool(_body(family)) and read_file(path, "modules.json") is not None)
    stores_head = family.NAMING.find(family.NAMING.head, checkpoint) in checkpoint
    config = replace(config, headless=for_vectors and not tied and not stores_head)
    module = family.model(config, dtype, tied)
    if not isinstance(checkpoint, QuantizedCheckpoint):
        weights = match(checkpoint, module, tied, family.NAMING, config.unit_rows)
        return _loaded(path, config, module, dtype, weights, _files(path))
    turned = (f"{name}.weight" for name, layer in module.named_modules() if isinstance(layer, Conv1D))
    checkpoint.turned = {family.NAMING.find(name, checkpoint) for name in turned}
    floats = match(checkpoint, module, tied, family.NAMING, config.unit_rows)
    whole = IntegerWeights(floats, floats.sources, checkpoint)
    loaded = _loaded(path, config, module, dtype, whole, _files(path))
    return replace(loaded, config={**loaded.config, "quantized": checkpoint.method})


def _load_gguf(checkpoint: GgufModel, precision: str | None, integers: bool) -> LoadedModel:
    """Its matrices of Q4_0 stay integers. Other blocks become floats of the precision; the words of `build` say what
    they are stored as then."""
    if not integers:
        checkpoint.quantized = {}
    path = checkpoint.directory
    config = parse_config(checkpoint.config, path)
    family = FAMILIES[config.architecture]
    dtype = _precision(precision, config.dtype)
    module = family.model(config, dtype, config.tied)
    weights: Mapping[str, np.ndarray] = (floats := match(checkpoint, module, config.tied, family.NAMING))
    if checkpoint.quantized:
        weights = IntegerWeights(floats, floats.sources, checkpoint)
    loaded = _loaded(path, config, module, dtype, weights, checkpoint.files)
    blocks = checkpoint.blocks
    if checkpoint.quantized or blocks:
        loaded = replace(loaded, config={**loaded.config, "quantized": "gguf"})
    if not blocks:
        return loaded
    stored = ", ".join(f"{count} tensors of {kind}" for kind, count in blocks.items())
    remark = Remark("quantised weights as floats", "matmul", (), sum(blocks.values()),
                    f"{path.name} has {stored}, read as {dtype.name}", AS_FLOATS)  # fmt: skip
    return replace(loaded, remarks=(remark,))


def load_config_only(directory: str | os.PathLike[str], seed: int = 0, precision: str | None = None) -> LoadedModel:
    """The model of a directory's config.json with seeded random weights: true shapes for benchmarks.

    Raises:
        CheckpointError: a bad config.json.
        UserError: an unknown precision, a seed that is negative or no int.
    """
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise UserError(f"seed must be an int from 0 to 2^64-1, not {seed!r}")
    path = resolve_directory(directory)
    values = read_config(path)
    config = parse_config(values, path)
    if quantization.is_quantized(values):
        raise CheckpointError(
            f"{path / 'config.json'}: the weights are quantised, and only the files say how: a model of config.json "
            "alone is one of floats. Take quantization_config out of a copy, and give --weights"
        )
    dtype = _precision(precision, config.dtype)
    config = replace(config, headless=config.headless and not config.tied)
    module = FAMILIES[config.architecture].model(config, dtype, config.tied)
    return _loaded(path, config, module, dtype, RandomWeights(parameter_specs(module), seed), _files(path))


def parse_config(values: Mapping[str, Any], directory: Path) -> LanguageConfig:
    """The checked configuration of a supported architecture.

    Raises:
        CheckpointError: an unknown architecture, a quantisation that is not read, or all bad values at once.
    """
    where = f"{directory if is_gguf(directory) else directory / 'config.json'}"
    family = _family(values, where)
    quantization.parse(values, where)
    fields = Fields(values)
    config: LanguageConfig = family.config(fields)
    if not isinstance(config, encoder.EncoderConfig) and not fields.flag("is_causal", True):
        fields.fault("is_causal", "is false, but only causal attention is supported")
    fields.finish(where)
    body = _body(family)
    return replace(config, headless=bool(body) and values.get("architectures") == [*body])


def _family(values: Mapping[str, Any], where: str) -> ModuleType:
    named = values.get("architectures")
    if named is None:
        found = [family for family in _ALL if values.get("model_type") == family.MODEL_TYPE]
        named = [family.ARCHITECTURE for family in found]
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str) or named[0] not in FAMILIES:
        shown = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
        remote = "; its own code (auto_map) is never run" if "auto_map" in values else ""
        raise CheckpointError(
            f"{where}: architecture {shown[:100] or values.get('model_type')!r} is not supported{remote}; "
            f"supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[named[0]]


def _precision(precision: str | None, stored: DType | None) -> DType:
    if precision is None:
        return stored if stored is not None and stored.name in PRECISIONS else dtypes.float32
    if precision not in PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    return dtypes.get(precision)


def _files(path: Path) -> dict[str, bytes]:
    return {name: data for name in CARRIED if (data := read_file(path, name)) is not None}


def _loaded(
    path: Path, config: LanguageConfig, module: Module, dtype: DType, weights: Mapping[str, np.ndarray],
    files: dict[str, bytes],
) -> LoadedModel:  # fmt: skip
    if isinstance(config, encoder.EncoderConfig):
        facts = encoder.engine_config(config, dtype, encoder.pooling_of(path))
        specs, example = encoder.input_specs(config), encoder.example(config)
        return LoadedModel(module, specs, facts, weights, files, "encoder", example)
    tokenizer, settings = parse_file(path, files, "tokenizer.json"), parse_file(path, files, "tokenizer_config.json")
    if "tokenizer.json" in files:
        tokenizer_file.check(tokenizer, config.vocab_size)
    add_bos, bos = beginning(tokenizer, settings, config.bos_token_id)
    config = _known_marks(path, replace(config, bos_token_id=bos, eos_token_ids=_ends(path, files, config)), add_bos)
    facts = _engine_config(config, dtype, add_bos, encoder.pooling_of(path, "last"))
    return LoadedModel(module, input_specs(config), facts, weights, files)


def _ends(path: Path, files: Mapping[str, bytes], config: LanguageConfig) -> tuple[int, ...]:
    """generation_config.json knows best: chat models end their turn with a token that config.json need not name."""
    fields = Fields(parse_file(path, files, "generation_config.json"))
    ends = token_ids(fields, "eos_token_id")
    fields.finish(f"{path / 'generation_config.json'}")
    return ends or config.eos_token_ids


def _known_marks(path: Path, config: LanguageConfig, add_bos: bool) -> LanguageConfig:
    """Without ids outside of the vocabulary: transformers writes its defaults into the config.json of small models, and
    no text has such a token. Raises CheckpointError where every text is to begin with it."""
    bos, ends, words = config.bos_token_id, config.eos_token_ids, config.left_out
    outside = f"outside of its vocabulary of {config.vocab_size:,}"
    if bos is not None and bos >= config.vocab_size:
        if add_bos:
            raise CheckpointError(f"{path / 'config.json'}: bos_token_id: {bos} is {outside}, and every text gets it")
        bos, words = None, (*words, f"bos_token_id {bos}, {outside}")
    known = tuple(end for end in ends if end < config.vocab_size)
    if unknown := [str(end) for end in ends if end >= config.vocab_size]:
        words = (*words, f"eos_token_id {', '.join(unknown[:4])}, {outside}")
    return replace(config, bos_token_id=bos, eos_token_ids=known, left_out=words)


def _engine_config(
    config: LanguageConfig, dtype: DType, add_bos: bool, pooling: encoder.Pooling
) -> dict[str, Any]:  # fmt: skip
    """What a running engine has to know about its model."""
    cache = {"heads": config.num_kv_heads, "head_dim": config.cache_width}
    rare: dict[str, Any] = {} if config.short_length is None else {"short_length": config.short_length}
    if config.left_out:
        rare["left_out"] = list(config.left_out)
    if config.unit_rows:
        rare["unit_rows"] = list(config.unit_rows)
    return {
        "model_type": config.model_type,
        "architecture": config.architecture,
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "precision": dtype.name,
        "weights": "same",
        "kv": [{"state": f"kv.{i}", "window": window} | cache for i, window in enumerate(config.windows)],
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": list(config.eos_token_ids),
        "add_bos": add_bos,
        "embedding": {
            "pooling": pooling.how,
            "normalize": pooling.normalize,
            "prompt": pooling.prompt,
            "max_tokens": pooling.max_tokens,
        },
        "limits": {"max_step_tokens": MAX_STEP_TOKENS},
        **rare,
    }
