"""Attacks by a LoRA adapter (class 47; others where an adapter's files are met by the same classes of attack)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks.directories import HEAD, HIDDEN, PICKLE, Tensors, safetensors
from attacks.image import add

RANK = 4
LAYER = "base_model.model.model.layers.0.self_attn."
Q_A, Q_B = f"{LAYER}q_proj.lora_A.weight", f"{LAYER}q_proj.lora_B.weight"


def config() -> dict[str, Any]:
    return {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}


def tensors() -> Tensors:
    return {Q_A: [RANK, HIDDEN], Q_B: [2 * HEAD, RANK]}


@dataclass
class Adapter:
    """An adapter before it is written; `weights` replaces the file of its tensors, and `config` may be text."""

    config: Any = field(default_factory=config)
    tensors: Tensors = field(default_factory=tensors)
    weights: bytes | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    whole: bool = True  # whether adapter_model.safetensors is there

    def write(self, path: Path) -> None:
        path.mkdir()
        text = self.config if isinstance(self.config, str) else json.dumps(self.config)
        (path / "adapter_config.json").write_text(text)
        if self.whole:
            raw = safetensors(self.tensors) if self.weights is None else self.weights
            (path / "adapter_model.safetensors").write_bytes(raw)
        for name, content in self.files.items():
            (path / name).write_bytes(content)


def adapter(number: int, name: str, change: Callable[[Adapter], object], why: str) -> None:
    """An attack that alters a good adapter in place."""

    def make(path: Path) -> None:
        made = Adapter()
        change(made)
        made.write(path)

    add(number, f"adapter: {name}", make, {"adapter": ("checkpoint", why)})


def _config(**values: Any) -> Callable[[Adapter], None]:
    return lambda made: made.config.update(values)


def _text(old: str, new: str) -> Callable[[Adapter], None]:
    return lambda made: setattr(made, "config", json.dumps(config()).replace(old, new))


def _tensors(**values: list[int]) -> Callable[[Adapter], None]:
    return lambda made: made.tensors.update({Q_A if k == "a" else Q_B: v for k, v in values.items()})


for _key, _values in {
    "r": (0, -1, 10**6, 2**63, "4", [4], 3.5),
    "lora_alpha": ("8", [8], True, 1e300),
    "rank_pattern": ([], "q_proj", {"q_proj": 0}, {"q_proj": 10**6}, {"(a+)+$": "x"}, {"(": 4}),
    "alpha_pattern": ({"q_proj": "8"}, {"q_proj": 1e300}, 7),
    "target_modules": ([], None, 3, ["evil"], ["norm"], [""], [["q_proj"]], "evil", "(", {"q_proj": 1}),
    "exclude_modules": ([1], "(((("),
    "layers_to_transform": (["0"], "0", [None]),
    "peft_type": ("PROMPT_TUNING", "ADALORA", 3, None, ["LORA"]),
    "bias": ("all", "lora_only", 1),
    "use_dora": (True, "yes"),
    "use_rslora": ("yes",),
    "fan_in_fan_out": ("yes",),
    "modules_to_save": (["lm_head"],),
    "loftq_config": ({"loftq_bits": 4},),
    "init_lora_weights": ("pissa", "olora"),
    "target_parameters": (["model.embed_tokens.weight"],),
    "layer_replication": ([[0, 10**9]],),
    "use_evil": (True,),
}.items():
    for _value in _values:
        adapter(47, f"{_key} = {_value!r}", _config(**{_key: _value}), rf"\b{_key}[:.]")
adapter(47, "layer 10^15 only", _config(layers_to_transform=[10**15]), "left over")
adapter(47, "layer 10^30 only", _config(layers_to_transform=[10**30]), "64 bits")
adapter(47, "rank 2^64", _config(r=2**64), "64 bits")
adapter(47, "alpha NaN", _text('"lora_alpha": 8', '"lora_alpha": NaN'), "NaN")
adapter(47, "alpha 1e999", _text('"lora_alpha": 8', '"lora_alpha": 1e999'), "too large")
adapter(47, "A of another base", _tensors(a=[RANK, HIDDEN + 1]), "q_proj: lora_A: shape")
adapter(47, "B of another base", _tensors(b=[99, RANK]), "q_proj: lora_B: shape")
adapter(47, "A and B of different ranks", _tensors(b=[2 * HEAD, RANK + 1]), "q_proj: lora_B: shape")
adapter(47, "A and B the other way round", _tensors(a=[HIDDEN, RANK], b=[RANK, 2 * HEAD]), "q_proj: lora_A: shape")
adapter(47, "A of 8 dims", _tensors(a=[RANK, HIDDEN, 1, 1, 1, 1, 1, 1]), "q_proj: lora_A: shape")
adapter(47, "no A", lambda made: made.tensors.pop(Q_A), "lora_A.weight missing")
adapter(47, "no B", lambda made: made.tensors.pop(Q_B), "lora_B.weight missing")
adapter(47, "nothing", lambda made: made.tensors.clear(), "missing|header")
adapter(
    47, "a layer that the base has not",
    lambda made: made.tensors.update({Q_A.replace("s.0", "s.9"): [RANK, HIDDEN]}), "layers.9.self_attn.q_proj",
)  # fmt: skip
adapter(47, "a whole weight beside it", lambda made: made.tensors.update({"lm_head.weight": [2, 2]}), "left over")
adapter(
    47, "10,000 tensors that nobody knows",
    lambda made: made.tensors.update({f"base_model.model.{'x' * 150}.{i}.lora_A.weight": [1] for i in range(10_000)}),
    "and 9,98. more",
)  # fmt: skip
for _pattern in (
    "(a+)+$",
    r"(.*)*x",
    r"((((.*)*)*)*)*x",
    r"(.?){900}y",
    "(" * 400 + ")" * 400,
    r"(q)\1",
    "(?i)q",
    "." * 5000,
):
    adapter(
        47, f"target_modules that is the pattern {_pattern[:20]!r}", _config(target_modules=_pattern),
        "target_modules",
    )  # fmt: skip
adapter(47, "ranks by a thousand patterns", _config(rank_pattern={f"(.*)*{i}": 4 for i in range(1000)}), "64 patterns")
for _name, _pattern in (("lookaheads", "(?=(.*)*)" * 100), ("repetitions", "(?:.*.*)*" * 100)):
    adapter(
        47, f"ranks by 64 patterns of {_name}",
        _config(rank_pattern={_pattern + "(?:x)" * i: 4 for i in range(20)}), "too long to match|at most",
    )  # fmt: skip
adapter(47, "ranks by a hundred thousand names", _config(rank_pattern={f"q{i}": 4 for i in range(100_000)}), "10,000")
adapter(
    47, "a hundred thousand names of layers", _config(target_modules=[f"q{i}" for i in range(100_000)]), "99,9.. more",
)  # fmt: skip
adapter(
    44,
    "only a pickle",
    lambda made: (setattr(made, "whole", False), made.files.update({"adapter_model.bin": PICKLE})),
    "pickle",
)
adapter(44, "no tensors", lambda made: setattr(made, "whole", False), "no adapter_model.safetensors")
adapter(1, "an empty description", lambda made: setattr(made, "config", ""), "adapter_config.json")
adapter(1, "an empty file of tensors", lambda made: setattr(made, "weights", b""), "empty")
adapter(2, "tensors cut off", lambda made: setattr(made, "weights", safetensors(tensors())[:-9]), "behind the end")
adapter(
    8, "a description 100,000 deep", lambda made: setattr(made, "config", '{"a":' + "[" * 100_000), "deep|bracket|JSON"
)
adapter(9, "a key twice", _text("{", '{"r": 2, '), "twice")


def _linked(path: Path) -> None:
    outside = path.with_suffix(".outside")
    outside.write_bytes(safetensors(tensors()))
    Adapter(whole=False).write(path)
    (path / "adapter_model.safetensors").symlink_to(outside)


def _fifo(path: Path) -> None:
    Adapter(whole=False).write(path)
    os.mkfifo(path / "adapter_model.safetensors")


add(39, "adapter: tensors that link to a file outside", _linked, {"adapter": ("checkpoint", "outside")})
add(13, "adapter: tensors that are a FIFO", _fifo, {"adapter": ("checkpoint", "regular")})
