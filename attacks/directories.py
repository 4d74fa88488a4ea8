"""Attacks by a Hugging Face directory: config.json, index and weights (classes 41 to 49; 1 to 22 for safetensors)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks.image import add

HIDDEN, HEAD, MLP, VOCABULARY = 32, 16, 48, 64
Tensors = dict[str, list[int]]


def config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def tensors() -> Tensors:
    layer = "model.layers.0."
    return {
        "lm_head.weight": [VOCABULARY, HIDDEN],
        "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
        f"{layer}input_layernorm.weight": [HIDDEN],
        f"{layer}mlp.down_proj.weight": [HIDDEN, MLP],
        f"{layer}mlp.gate_proj.weight": [MLP, HIDDEN],
        f"{layer}mlp.up_proj.weight": [MLP, HIDDEN],
        f"{layer}post_attention_layernorm.weight": [HIDDEN],
        f"{layer}self_attn.k_proj.weight": [HEAD, HIDDEN],
        f"{layer}self_attn.o_proj.weight": [HIDDEN, 2 * HEAD],
        f"{layer}self_attn.q_proj.weight": [2 * HEAD, HIDDEN],
        f"{layer}self_attn.v_proj.weight": [HEAD, HIDDEN],
        "model.norm.weight": [HIDDEN],
    }


def safetensors(shapes: Tensors) -> bytes:
    """A float32 safetensors file of zeros."""
    entries, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for dim in shape:
            size *= dim
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + bytes(at)


@dataclass
class Directory:
    """A model directory before it is written; `files` holds what is beside config.json."""

    config: Any = field(default_factory=config)
    tensors: Tensors = field(default_factory=tensors)
    files: dict[str, bytes | str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.mkdir()
        text = self.config if isinstance(self.config, str) else json.dumps(self.config)
        files: dict[str, bytes | str] = {"config.json": text}
        if not any(name.endswith((".safetensors", "index.json", ".bin")) for name in self.files):
            files["model.safetensors"] = safetensors(self.tensors)
        for name, content in (files | self.files).items():
            (path / name).write_bytes(content.encode() if isinstance(content, str) else content)


def directory(number: int, name: str, change: Callable[[Directory], object], why: str) -> None:
    """An attack that alters a good directory in place."""

    def make(path: Path) -> None:
        made = Directory()
        change(made)
        made.write(path)

    add(number, f"directory: {name}", make, {"directory": ("checkpoint", why)})


def _config(**values: Any) -> Callable[[Directory], None]:
    return lambda made: made.config.update(values)


for _key, _values in {
    "num_attention_heads": (0, -1, 2.5, "2", None, [2], 3, 10**9),
    "num_key_value_heads": (0, 3, 4),
    "hidden_size": (0, 33, 10**12),
    "num_hidden_layers": (0, -1, 10**9),
    "vocab_size": (0, 63, 65, 10**12),
    "intermediate_size": (0, 47),
    "max_position_embeddings": (0, -1, 2**40),
    "rope_theta": (0, -1.0, "x"),
    "rms_norm_eps": (-1.0, "x"),
    "head_dim": (0, 15, 10**6),
    "hidden_act": ("os.system", 3),
    "dtype": ("float8_e4m3fn", "object"),
    "tie_word_embeddings": ("yes",),
    "eos_token_id": ("0", -1, [0, "x"]),
}.items():
    for _value in _values:
        _why = "embed_tokens" if (_key, _value) in (("vocab_size", 63), ("vocab_size", 65)) else _key
        _why = "hidden_size|layernorm|embed" if (_key, _value) == ("hidden_size", 33) else _why
        _why = "mlp" if (_key, _value) == ("intermediate_size", 47) else _why
        directory(41, f"{_key} = {_value!r}", _config(**{_key: _value}), _why)
directory(
    41,
    "rope_theta NaN",
    lambda made: setattr(made, "config", json.dumps(config() | {"rope_theta": float("nan")})),
    "NaN",
)
directory(
    41,
    "rope_theta 1e999",
    lambda made: setattr(made, "config", json.dumps(config()).replace("10000.0", "1e999")),
    "too large",
)
directory(41, "an unknown rope type", _config(rope_scaling={"rope_type": "evil", "factor": 2.0}), "rope_type")
directory(41, "a rope factor of 0", _config(rope_scaling={"rope_type": "linear", "factor": 0}), "factor")
directory(
    41, "an unknown architecture", _config(architectures=["EvilForCausalLM"], model_type="evil"), "EvilForCausalLM"
)
directory(
    41,
    "no architecture",
    lambda made: made.config.pop("architectures") and made.config.pop("model_type"),
    "architecture",
)
directory(41, "architectures that is a number", _config(architectures=3), "architecture")
directory(
    9,
    "a key twice",
    lambda made: setattr(made, "config", json.dumps(config()).replace("{", '{"vocab_size": 1, ', 1)),
    "twice",
)
directory(
    8,
    "config.json 100,000 deep",
    lambda made: setattr(made, "config", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "deep",
)
directory(7, "config.json is not UTF-8", lambda made: made.files.update({"config.json": b'{"a": "\xff"}'}), "UTF-8")
directory(1, "config.json is empty", lambda made: made.files.update({"config.json": b""}), "config.json")
directory(10, "config.json is a list", lambda made: made.files.update({"config.json": b"[]"}), "object")
directory(6, "config.json of 5 MB", lambda made: made.files.update({"config.json": b" " * 5_000_000 + b"{}"}), "bytes")


def _index(made: Directory, weight_map: Any, **files: bytes) -> None:
    made.files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map})
    made.files.update(files)


def _spread(file: str) -> dict[str, str]:
    return dict.fromkeys(tensors(), file)


for _file in (
    "../weights.safetensors",
    "/etc/passwd.safetensors",
    "a/../../b.safetensors",
    "sub/w.safetensors",
    "w.safetensors\0",
    "..",
    "",
    "\\\\host\\share.safetensors",
):
    directory(
        42,
        f"an index that names {_file!r}",
        lambda made, f=_file: _index(made, _spread(f)),
        "not the name of a file|no .safetensors file",
    )
directory(
    42, "an index that names a missing shard", lambda made: _index(made, _spread("model-00001.safetensors")), "lacks 1"
)
directory(
    42, "an index that names a pickle", lambda made: _index(made, _spread("pytorch_model.bin")), "no .safetensors"
)
directory(42, "an index of numbers", lambda made: _index(made, {"a": 3}), "safetensors")
directory(42, "an index without weight_map", lambda made: _index(made, None), "weight_map")
directory(
    42,
    "an index that names tensors its shard lacks",
    lambda made: _index(
        made, _spread("w.safetensors") | {"extra": "w.safetensors"}, **{"w.safetensors": safetensors(tensors())}
    ),
    "lack: extra",
)
directory(
    42,
    "a tensor in two shards",
    lambda made: _index(
        made,
        {"lm_head.weight": "a.safetensors", "model.norm.weight": "b.safetensors"},
        **{f"{n}.safetensors": safetensors(tensors()) for n in "ab"},
    ),
    "twice",
)


def _linked(target: Callable[[Path], Path]) -> Callable[[Path], None]:
    """A directory whose weights are a link out of it."""

    def make(path: Path) -> None:
        Directory(files={"x.safetensors": b""}).write(path)
        (path / "x.safetensors").unlink()
        (path / "model.safetensors").symlink_to(target(path))

    return make


def _outside(path: Path) -> Path:
    outside = path.with_suffix(".outside")
    outside.write_bytes(safetensors(tensors()))
    return outside


_DIRECTORY = {"directory": ("checkpoint|io", "outside|cannot be opened|regular|link")}
add(39, "directory: weights that link to a file outside", _linked(_outside), _DIRECTORY)
add(39, "directory: weights that link to /dev/zero", _linked(lambda path: Path("/dev/zero")), _DIRECTORY)
add(39, "directory: weights that link to themselves", _linked(lambda path: path / "model.safetensors"), _DIRECTORY)
add(39, "directory: weights that link to nothing", _linked(lambda path: path / "gone"), _DIRECTORY)


def _fifo(path: Path) -> None:
    Directory(files={"x.safetensors": b""}).write(path)
    os.mkfifo(path / "model.safetensors")


add(13, "directory: weights that are a FIFO", _fifo, _DIRECTORY)

PICKLE = b"\x80\x04cos\nsystem\n(X\x0a\x00\x00\x00touch owneRed\x85R."
directory(44, "only a pickle", lambda made: made.files.update({"pytorch_model.bin": PICKLE}), "pickle")
directory(
    43,
    "auto_map and code for an unknown architecture",
    lambda made: (
        made.config.update(
            architectures=["EvilForCausalLM"],
            model_type="evil",
            trust_remote_code=True,
            auto_map={"AutoModelForCausalLM": "evil.EvilForCausalLM"},
        ),
        made.files.update({"evil.py": b"raise SystemExit('executed')", "model.safetensors": safetensors(tensors())}),
    ),
    "EvilForCausalLM",
)
directory(48, "a missing weight", lambda made: made.tensors.pop("model.norm.weight"), "model.norm.weight")
directory(48, "an unexpected weight", lambda made: made.tensors.update({"model.evil": [4]}), "model.evil")
directory(
    48, "a weight of another shape", lambda made: made.tensors.update({"model.norm.weight": [31]}), "model.norm.weight"
)
directory(48, "no head, and it is not tied", lambda made: made.tensors.pop("lm_head.weight"), "lm_head.weight")
directory(
    48,
    "tied, and no embedding",
    lambda made: (
        made.config.update(tie_word_embeddings=True),
        made.tensors.pop("lm_head.weight"),
        made.tensors.pop("model.embed_tokens.weight"),
    ),
    "embed_tokens",
)
directory(49, "an unknown quantisation", _config(quantization_config={"quant_method": "evil"}), "evil")
directory(
    49,
    "a quantisation of absent layers",
    _config(quantization_config={"quant_method": "gptq", "bits": 4, "modules": ["model.layers.9"]}),
    "gptq",
)
directory(49, "a quantisation without method", _config(quantization_config=[]), "quant")

_Q = "model.layers.0.self_attn.q_proj"
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16}


def _quantised(method: dict[str, Any], **stored: tuple[str, list[int]]) -> Callable[[Directory], None]:
    """The layer's weight in other tensors: what each ends in → code and shape."""

    def change(made: Directory) -> None:
        made.config["quantization_config"] = method
        del made.tensors[f"{_Q}.weight"]
        body = safetensors(made.tensors)
        count = int.from_bytes(body[:8], "little")
        header, at = json.loads(body[8 : 8 + count]), len(body) - 8 - count
        for role, (code, shape) in stored.items():
            size = math.prod(shape) * int(code[1:]) // 8
            header[f"{_Q}.{role}"] = {"dtype": code, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        made.files["model.safetensors"] = len(text).to_bytes(8, "little") + text + bytes(at)

    return change


directory(49, "groups of no inputs", _config(quantization_config=_AWQ | {"group_size": 0}), "group_size")
directory(49, "groups of more inputs than there are", _quantised(
    _AWQ | {"group_size": 1 << 24}, qweight=("I32", [32, 4]), qzeros=("I32", [2, 4]), scales=("F16", [2, 32])),
    "do not divide")  # fmt: skip
directory(49, "integers without zero points", _quantised(_AWQ, qweight=("I32", [32, 4]), scales=("F16", [2, 32])),
          "qzeros is missing")  # fmt: skip
directory(49, "scales of another shape", _quantised(
    _AWQ, qweight=("I32", [32, 4]), qzeros=("I32", [2, 4]), scales=("F16", [2, 64])), "scales has shape")
directory(49, "integers of another model", _quantised(
    _AWQ, qweight=("I32", [64, 4]), qzeros=("I32", [4, 4]), scales=("F16", [4, 32])), "mismatched")
directory(49, "a shape of zeros that are packed", _quantised(
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 4}}}},
    weight_packed=("I32", [32, 4]), weight_shape=("I64", [2]), weight_scale=("F32", [1])), "weight_shape says")


def _weights(change: Callable[[bytes], bytes]) -> Callable[[Directory], None]:
    return lambda made: made.files.update({"model.safetensors": change(safetensors(tensors()))})


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Directory], None]:
    """Changes the header of the safetensors file."""

    def whole(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return _weights(whole)


directory(1, "empty weights", _weights(lambda raw: b""), "empty")
for _at in (1, 7, 8, 9, 500, 2000, 10_000):
    directory(2, f"weights cut off after {_at} bytes", _weights(lambda raw, at=_at: raw[:at]), "safetensors")
for _n in (0, 1, 2**31, 2**63, 2**64 - 1):
    directory(
        5,
        f"weights with a header length of {_n}",
        _weights(lambda raw, n=_n: n.to_bytes(8, "little") + raw[8:]),
        "safetensors",
    )
directory(12, "weights with trailing garbage", _weights(lambda raw: raw + b"x"), "follow")
directory(
    8,
    "weights with a header 100,000 deep",
    _weights(lambda raw: (200_000).to_bytes(8, "little") + b'{"a":' + b"[" * 199_995),
    "header",
)
directory(
    15, "a shape that overflows", _header(lambda h: h["lm_head.weight"].update(shape=[2**32, 2**32])), "lm_head.weight"
)
directory(16, "a negative shape", _header(lambda h: h["lm_head.weight"].update(shape=[-64, -32])), "lm_head.weight")
directory(
    18,
    "overlapping weights",
    _header(lambda h: h["model.norm.weight"].update(h["model.layers.0.input_layernorm.weight"])),
    "overlap|hole",
)
directory(20, "an unknown dtype", _header(lambda h: h["model.norm.weight"].update(dtype="X1")), "X1")
directory(
    22,
    "a name that leads out of a folder",
    _header(lambda h: h.update({"../x": h.pop("model.norm.weight")})),
    r"\.\./x",
)
directory(22, "metadata that is no object of strings", _header(lambda h: h.update(__metadata__={"a": 1})), "metadata")


def _baited(path: Path) -> None:
    """Good weights, and beside them everything that wants to be executed: it loads, and nothing of the bait runs."""
    bait = {"pytorch_model.bin": PICKLE, "modeling_evil.py": b"raise SystemExit('executed')"}
    made = Directory(files=dict(bait))
    made.files["model.safetensors"] = safetensors(made.tensors)
    made.config.update(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}, trust_remote_code=True)
    made.write(path)


add(43, "directory: bait beside good weights", _baited, {})
