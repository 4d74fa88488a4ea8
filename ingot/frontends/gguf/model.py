"""A GGUF file as the model directory that it was converted from: config.json's fields, its tensors' names, its files.

llama.cpp's converter renames tensors, and for the architecture `llama` orders the rows of queries and keys by pairs
that turn together; both are taken back. A key of the architecture that this reader does not know may change what the
model computes, so it is refused by name.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.errors import CheckpointError
from ingot.frontends.gguf.blocks import KINDS, of_q4_0
from ingot.frontends.gguf.file import GgufFile, Value
from ingot.frontends.gguf.tokenizer import tokenizer_files
from ingot.frontends.quantized.weights import QuantizedWeight, finite, named
from ingot.tensor_table import TensorInfo


class Family(NamedTuple):
    """An architecture of GGUF: config.json's names of it, and whether rows of queries and keys are in pairs."""

    architecture: str
    model_type: str
    pairs: bool = False


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", pairs=True),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3"),
}
# The names of tensors, and config.json's of what they hold.
WHOLE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
OF_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
FACTORS = "rope_freqs.weight"  # what Llama 3.1 and later divide their frequencies by
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Keys of an architecture that are read, and those that say nothing about what is computed.
READ = (
    "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length",
)  # fmt: skip
SILENT = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
NONE = ("expert_count", "expert_used_count", "attention.sliding_window")  # which may stand there as 0
MAX_FACTORS = 1 << 16  # half of a head
SHOWN = 80
_INT4 = next(kind for kind in KINDS.values() if kind.name == "Q4_0")


def is_gguf(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a file of this kind, by its name."""
    return Path(source).suffix == ".gguf" and not Path(source).is_dir()


class GgufModel(Mapping[str, np.ndarray]):
    """Weights by their names in a model directory, read and dequantised at each access.

    `config`: the fields of config.json; `files`: the files beside it; `directory`: the file's path, for messages.
    `quantized`: the matrices of Q4_0, which an engine's int4 in groups of 32 holds as they are; `unused`: nothing.

    Raises:
        CheckpointError: an architecture, key or tokenizer that is not read; whatever is wrong with the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = GgufFile(path)
        self.directory, metadata = self._file.path, self._file.metadata
        named = metadata.get("general.architecture")
        if not isinstance(named, str) or named not in FAMILIES:
            raise CheckpointError(
                f"{path}: the architecture {str(named)[:SHOWN]!r} is not read from GGUF; {', '.join(FAMILIES)} are. "
                "Give the folder of the model that the file was converted from"
            )
        if type(parts := metadata.get("split.count", 1)) is not int or parts > 1:
            raise CheckpointError(
                f"{path}: split.count is {str(parts)[:SHOWN]}: it is a part of a model, and models are read whole; "
                "llama.cpp's `llama-gguf-split --merge FIRST_PART WHOLE.gguf` joins its parts"
            )
        self._family = FAMILIES[named]
        fields = _Fields(self.directory, metadata, f"{named}.")
        self._names = self._named()
        self.config = self._config(fields)
        self.files = tokenizer_files(self.directory, metadata)
        ends = [end for key in _ENDS if (end := self._token(key)) is not None]
        self.files["generation_config.json"] = json.dumps({"eos_token_id": list(dict.fromkeys(ends))}).encode()
        self.quantized = {name: self._matrix(name) for name in self._names if self._is_int4(name)}
        self.unused: tuple[str, ...] = ()

    def _named(self) -> dict[str, str]:
        """The file's tensors by their names in a model directory; blk.0 and blk.00 would have the same one."""
        found: dict[str, str] = {}
        for name in self._file:
            if name != FACTORS and (other := found.setdefault(_name(name), name)) != name:
                raise CheckpointError(f"{self.directory}: the tensors {other} and {name} are both {_name(name)}")
        return found

    @property
    def blocks(self) -> dict[str, int]:
        """How many tensors are stored in which kind of blocks, beside those that are `quantized`."""
        places = (self._file.places[own] for name, own in self._names.items() if name not in self.quantized)
        return dict(Counter(place.kind.name for place in places if place.kind.read is not None).most_common())

    def _is_int4(self, name: str) -> bool:
        place = self._file.places[self._names[name]]
        return place.kind.read is _INT4.read and len(place.shape) == 2 and 0 not in place.shape

    def _matrix(self, name: str) -> QuantizedWeight:
        own = self._names[name]
        rows, columns = self._file.places[own].shape
        group = _INT4.values

        def integers() -> np.ndarray:
            found = np.empty((rows * columns // group, group), np.int8)
            for first, blocks in self._file.blocks(own):
                found[first : first + len(blocks)], _ = of_q4_0(blocks)
            return self._unpaired(name, found.reshape(rows, columns))

        def scales() -> np.ndarray:
            found = np.concatenate([of_q4_0(blocks)[1] for _, blocks in self._file.blocks(own)])
            wide = named(own, self.directory, lambda: finite(found))
            return self._unpaired(name, wide.reshape(rows, columns // group))

        return QuantizedWeight(name, (rows, columns), (own,), 4, group, integers, scales, scale_type=dtypes.float16)

    def info(self, name: str) -> TensorInfo:
        """dtype, as it is given, and shape of a tensor (KeyError if there is none of that name)."""
        return self._file.info(self._names[name])

    def __getitem__(self, name: str) -> np.ndarray:
        own = self._names[name]
        with np.errstate(all="ignore"):  # what comes of a bad scale is told below
            found = self._file[own]
        if self._file.places[own].kind.read is not None and (none := int((~np.isfinite(found)).sum())):
            raise CheckpointError(
                f"{self.directory}: {own} holds blocks whose scales are no numbers: {none:,} of its values are NaN or "
                "infinite. The file is damaged: fetch it again"
            )
        return self._unpaired(name, found)

    def _token(self, key: str) -> int | None:
        """The id of a token that the metadata names; None where it names none."""
        found, count = self._file.metadata.get(key), self.config["vocab_size"]
        if found is not None and (type(found) is not int or not 0 <= found < count):
            raise CheckpointError(
                f"{self.directory}: {key} must be the id of one of {count:,} tokens, not {str(found)[:SHOWN]}"
            )
        return found

    def _unpaired(self, name: str, found: np.ndarray) -> np.ndarray:
        """Rows in the order that the model's directory has, of queries and keys too."""
        heads = self._paired.get(name.split(".")[-2] if "." in name else "")
        if heads is None or len(found) % (2 * heads):
            return found
        halves = found.reshape(heads, len(found) // heads // 2, 2, *found.shape[1:]).swapaxes(1, 2)
        return np.ascontiguousarray(halves.reshape(found.shape))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _config(self, fields: _Fields) -> dict[str, Any]:
        heads = fields.integer("attention.head_count")
        kv_heads = fields.integer("attention.head_count_kv", heads)
        width = fields.integer("embedding_length")
        head_dim = fields.integer("attention.key_length", width // max(heads, 1))
        self._paired = {"q_proj": heads, "k_proj": kv_heads} if self._family.pairs else {}
        for key in ("attention.value_length", "rope.dimension_count"):
            if (other := fields.integer(key, head_dim)) != head_dim:
                raise fields.fault(key, f"is {other}, and heads of {head_dim} are read")
        table = self._file.places.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise CheckpointError(f"{self.directory}: there is no token_embd.weight of two dimensions")
        quantised = self._file.places["token_embd.weight"].kind.read is not None
        config: dict[str, Any] = {
            "architectures": [self._family.architecture], "model_type": self._family.model_type,
            "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "num_hidden_layers": fields.integer("block_count"),
            "intermediate_size": fields.integer("feed_forward_length"),
            "max_position_embeddings": fields.integer("context_length"), "vocab_size": table.shape[0],
            "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
            "rope_theta": fields.number("rope.freq_base", 10000.0), "hidden_act": "silu",
            "tie_word_embeddings": "lm_head.weight" not in self._names,
            "dtype": "bfloat16" if quantised else table.kind.dtype.name,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._names,
            "bos_token_id": fields.token("bos"), "eos_token_id": fields.token("eos"),
        }  # fmt: skip
        scaling = self._scaling(fields, config)
        fields.finish()
        return config | ({} if scaling is None else {"rope_scaling": scaling})

    def _scaling(self, fields: _Fields, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The field rope_scaling of config.json, or None."""
        kind = fields.text("rope.scaling.type", "linear")  # which llama.cpp takes where a file names none
        if kind == "linear" and fields.number("rope.scaling.factor", 0.0) in (0, 1):  # 0 means 1 there
            kind = "none"
        if FACTORS in self._file:
            if kind != "none":
                raise fields.fault(
                    "rope.scaling.factor",
                    f"scales ({kind[:SHOWN]}) what {FACTORS} scales too, and only one of them is read. Give the folder "
                    "of the model that the file was converted from",
                )
            return self._llama3(fields, config)
        if kind == "none":
            return None
        found: dict[str, Any] = {"rope_type": kind, "factor": fields.number("rope.scaling.factor")}
        original = fields.integer("rope.scaling.original_context_length", 0)
        return found | ({"original_max_position_embeddings": original} if original else {})

    def _llama3(self, fields: _Fields, config: Mapping[str, Any]) -> dict[str, Any]:
        """By the factors of the file, which must be those that Llama 3.1 and its kin have for some `factor`."""
        count = math.prod(self._file.info(FACTORS).shape)
        if count * 2 != config["head_dim"] or count > MAX_FACTORS:
            raise fields.fault(FACTORS, f"holds {count:,} factors for heads of {config['head_dim']}", tensor=True)
        given = self._file[FACTORS].reshape(-1).astype(np.float64)
        factor = float(np.round(given.max(initial=1.0), 6))
        low, high, length = LLAMA3.values()
        with np.errstate(all="ignore"):  # a base of any size
            waves = 2 * np.pi * config["rope_theta"] ** (np.arange(count) * 2 / config["head_dim"])
            smooth = np.clip((length / waves - low) / (high - low), 0, 1)
            want = 1 / ((1 - smooth) / factor + smooth)
        if not np.allclose(given, want, rtol=1e-3):
            raise fields.fault(FACTORS, "holds factors that are none of Llama 3.1's", tensor=True)
        return {"rope_type": "llama3", "factor": factor, **LLAMA3}


_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def _name(name: str) -> str:
    """A tensor's name in a model directory; its own where it has none there, which nothing takes."""
    layer = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", name)
    if layer is not None and layer[2] in OF_LAYER:
        return f"model.layers.{int(layer[1])}.{OF_LAYER[layer[2]]}.{layer[3]}"
    whole, _, last = name.rpartition(".")
    return f"{WHOLE[whole]}.{last}" if whole in WHOLE and last in ("weight", "bias") else name


class _Fields:
    """The keys of an architecture, each of its type; what was not asked for is left over."""

    def __init__(self, path: Path, metadata: Mapping[str, Value], prefix: str) -> None:
        self.path, self.metadata, self.prefix = path, metadata, prefix

    def integer(self, key: str, default: int | None = None) -> int:
        return self._of(key, default, lambda v: type(v) is int and 0 <= v < 1 << 31, "a whole number")  # type: ignore[no-any-return]

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._of(key, default, lambda v: type(v) in (int, float), "a number"))

    def text(self, key: str, default: str) -> str:
        return self._of(key, default, lambda v: isinstance(v, str), "a text")  # type: ignore[no-any-return]

    def token(self, name: str) -> int | None:
        found = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return found if type(found) is int else None

    def _of(self, key: str, default: Any, fits: Callable[[Value], bool], what: str) -> Any:
        found = self.metadata.get(self.prefix + key, default)
        if found is None:
            raise self.fault(key, "is missing")
        if not fits(found):
            raise self.fault(key, f"must be {what}, not {str(found)[:SHOWN]}")
        return found

    def finish(self) -> None:
        """Refuses the keys that nobody knows."""
        own = {key.removeprefix(self.prefix): v for key, v in self.metadata.items() if key.startswith(self.prefix)}
        odd = [key for key, v in own.items() if key not in READ + SILENT and not (key in NONE and v == 0)]
        if odd:
            named = ", ".join(f"{self.prefix}{key} = {str(own[key])[:SHOWN]}" for key in odd[:8])
            raise CheckpointError(
                f"{self.path}: {named}: keys that may change what the model computes, and are not read. Give the "
                "folder of the model that the file was converted from"
            )

    def fault(self, key: str, what: str, tensor: bool = False) -> CheckpointError:
        return CheckpointError(f"{self.path}: {'' if tensor else self.prefix}{key} {what}")
