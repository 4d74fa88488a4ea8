"""adapter_config.json of a LoRA adapter: the layers it is for, as PEFT matches them, their ranks and scales."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.frontends.lora.patterns import MAX_STEPS, BoundedPattern, BoundedPatternError, Steps
from ingot.ir import Network, Node, Value
from ingot.ops.indexing import Embedding
from ingot.ops.product import Matmul

MAX_RANK = 16_384
MAX_ALPHA = 1e6
MAX_PATTERNS = 64  # with repetitions or alternatives
STEPS_OF_LAYER = 1000  # that all patterns together may take, where that is more than MAX_STEPS
MAX_NAMES = 10_000  # of ranks or scales of their own
# What says nothing of the numbers, or only how they were found.
HARMLESS = (
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying",
    "eva_config", "inference_mode", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
)  # fmt: skip
READ = (
    "alpha_pattern", "bias", "exclude_modules", "fan_in_fan_out", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules", "use_rslora",
)  # fmt: skip
REFUSED = {
    "use_dora": "DoRA scales every row of the merged weight, which ingot does not do",
    "loftq_config": "LoftQ adapters belong to the quantised base that they were made with",
    "modules_to_save": "whole weights beside the adapter are not supported: put them into the base checkpoint",
    "alora_invocation_tokens": "an adapter that only begins to act behind some tokens cannot be merged",
    "lora_bias": "biases of A and B are not supported",
    "layer_replication": "a base with repeated layers is another model",
    "target_parameters": "adapters of parameters that are no layer's weight are not supported",
    "trainable_token_indices": "replaced token embeddings are not supported: put them into the base checkpoint",
}
INITIAL = ("gaussian", "eva", "orthogonal")  # ways to begin that leave the base as it is


@dataclass(frozen=True)
class Layer:
    """A matrix of the base that an adapter may change. kind: "linear", "head", "embedding", "tied", "normed" where the
    base reads it with its rows brought to length 1, or "integers" where the base's checkpoint is quantised."""

    parameter: str
    shape: tuple[int, ...]
    dtype: DType
    kind: str
    transposed: bool | None  # stored as [inputs, outputs]; None: the network does not show it

    @property
    def outputs(self) -> int:
        return self.shape[1 if self.transposed else 0]

    @property
    def inputs(self) -> int:
        return self.shape[0 if self.transposed else 1]


def layers_of(network: Network) -> dict[str, Layer]:
    """Module path → matrix of a base model, as its portable network shows it."""
    head = _head(network)
    found: dict[str, Layer] = {}
    for value in network.parameters:
        shape: tuple[int, ...] = value.spec.evaluate({})
        if value.dtype.is_integer and value.name.endswith(f".weight.{value.dtype.name}"):
            module = value.name.removesuffix(f".weight.{value.dtype.name}")
            found[module] = Layer(value.name, shape, value.dtype, "integers", False)
        if len(shape) != 2 or not value.name.endswith(".weight"):
            continue
        module = value.name.removesuffix(".weight")
        products = [n for n in value.uses if isinstance(n.op, Matmul) and n.inputs[1] is value]
        looked_up = any(isinstance(n.op, Embedding) for n in value.uses)
        if looked_up and products:
            layer = Layer(value.name, shape, value.dtype, "tied", None)
            found |= dict.fromkeys([module, *(n.where for n in products)], layer)
        elif looked_up:
            found[module] = Layer(value.name, shape, value.dtype, "embedding", True)
        else:
            ways = {not n.op.transpose_b for n in products}
            transposed = ways.pop() if len(ways) == 1 else None
            kind = "head" if value is head else "linear"
            found[module] = Layer(value.name, shape, value.dtype, kind, transposed)
    return found


def _head(network: Network) -> Value | None:
    """The last weight before the outputs: what "all-linear" leaves out."""
    waiting: list[Node] = [v.node for v in network.outputs.values() if v.node is not None]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node.op, Matmul):
            weight: Value = node.inputs[1]
            return weight if weight.kind == "parameter" else None
        waiting += [v.node for v in node.inputs if v.node is not None]
    return None


class _Matcher:
    """Names as PEFT matches them: whole, or behind a dot; and patterns."""

    def __init__(self, text: str, steps: Steps) -> None:
        self.plain = re.fullmatch(r"[\w.-]+", text) is not None
        # In a plain name a dot stands for any character, as in PEFT.
        self._name = re.compile(text) if self.plain else None
        self._length = len(text)
        self._pattern = None if self.plain else BoundedPattern(rf"(.*\.)?({text})", steps)

    def ends(self, module: str) -> bool:
        """For rank_pattern and alpha_pattern: a pattern for the end of a module's path."""
        if self._name is None:
            return self._pattern is not None and self._pattern.matches(module)
        begin = len(module) - self._length
        fits = begin == 0 or (begin > 0 and module[begin - 1] == ".")
        return fits and self._name.fullmatch(module, begin) is not None


def _named(module: str, names: Collection[str]) -> list[str]:
    """The names among these that are a module's path or its end."""
    parts = module.split(".")
    return [end for i in range(len(parts)) if (end := ".".join(parts[i:])) in names]


class AdapterConfig:
    """What adapter_config.json says, checked: which layers are changed, with which rank and scale."""

    def __init__(self, values: Mapping[str, Any], layers: Mapping[str, Layer]) -> None:
        self.fields = Fields(values)
        self.faults = self.fields.faults
        fields = self.fields
        fields.choice("peft_type", ("LORA",))
        fields.choice("bias", ("none",), "none")
        self.fan_in_fan_out = fields.flag("fan_in_fan_out", False)
        self.rank = fields.integer("r", 1, MAX_RANK)
        self.alpha = self._alpha("lora_alpha", fields.values.get("lora_alpha"))
        self.root = fields.flag("use_rslora", False)
        self._refuse()
        self._patterns, self._steps = 0, Steps(max(MAX_STEPS, STEPS_OF_LAYER * len(layers)))
        self.ranks = self._by_pattern("rank_pattern", self._rank)
        self.alphas = self._by_pattern("alpha_pattern", self._alpha)
        excluded = self._exclusion()
        self.targets = {m for m in self._chosen(layers) if not excluded(m)}

    def rank_of(self, module: str) -> int:
        return next((rank for name, rank in self.ranks if name.ends(module)), self.rank)

    def scale_of(self, module: str) -> float:
        alpha = next((alpha for name, alpha in self.alphas if name.ends(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.root else rank)

    def _refuse(self) -> None:
        values, fields = self.fields.values, self.fields
        initial = values.get("init_lora_weights")
        if isinstance(initial, str) and initial not in INITIAL:
            fields.fault(
                "init_lora_weights",
                f"{initial[:40]!r} changes the base before training: convert the adapter with PEFT's "
                "path_initial_model_for_weight_conversion",
            )
        for key, value in values.items():
            if key in READ or key in HARMLESS or not value:
                continue
            why = REFUSED.get(key, "is not supported: this version of ingot does not know what it does to the numbers")
            fields.fault(key[:60], why)

    def _rank(self, key: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= MAX_RANK:
            self.fields.fault(key, f"must be an integer from 1 to {MAX_RANK:,}, not {str(value)[:40]}")
            return 1
        return value

    def _alpha(self, key: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= MAX_ALPHA:
            shown = "is missing" if value is None else f"not {str(value)[:40]}"
            self.fields.fault(key, f"must be a number from -{MAX_ALPHA:g} to {MAX_ALPHA:g}, {shown}")
            return 1.0
        return float(value)

    def _by_pattern(self, key: str, read: Callable[[str, Any], Any]) -> list[tuple[_Matcher, Any]]:
        given = self.fields.values.get(key)
        if given is None:
            return []
        if not isinstance(given, dict):
            self.fields.fault(key, f"must be an object, not {str(given)[:40]}")
            return []
        if len(given) > MAX_NAMES:
            self.fields.fault(key, f"has {len(given):,} entries; at most {MAX_NAMES:,} are read")
            return []
        found = []
        for name, value in given.items():
            matcher = self._compiled(key, _Matcher, name)
            if matcher is not None:
                found.append((matcher, read(f"{key}.{name[:60]}", value)))
        return found

    def _compiled(self, key: str, make: Callable[[str, Steps], Any], text: str) -> Any:
        """A pattern of the file, or None and a fault."""
        try:
            made = make(text, self._steps)
        except BoundedPatternError as error:
            self.fields.fault(key, str(error))
            return None
        self._patterns += not getattr(made, "plain", False)
        if self._patterns > MAX_PATTERNS:
            self.fields.fault(key, f"the file has more than {MAX_PATTERNS} patterns")
            return None
        return made

    def _chosen(self, layers: Mapping[str, Layer]) -> list[str]:
        """The modules that target_modules names."""
        given = self.fields.values.get("target_modules")
        if isinstance(given, str) and given.lower() == "all-linear":
            return [m for m, layer in layers.items() if layer.kind == "linear"]
        if isinstance(given, str) and given:
            pattern = self._compiled("target_modules", BoundedPattern, given)
            found = [m for m in layers if pattern is not None and pattern.matches(m)]
            if pattern is not None and not found:
                self.fields.fault("target_modules", f"{given[:80]!r} matches no layer of this model")
            return found
        names = self._names("target_modules")
        if not names:
            self.fields.fault("target_modules", 'must be a list of names, a pattern or "all-linear"')
            return []
        named = {m: found for m in layers if (found := _named(m, names))}
        used = {name for found in named.values() for name in found}
        for name in (name for name in names if name not in used):
            self.fields.fault("target_modules", f"{name[:80]!r} is no layer of this model")
        return [m for m in named if self._transformed(m)]

    def _names(self, key: str) -> dict[str, None]:
        """Names in their order."""
        given = self.fields.values.get(key)
        if given is None or given == []:
            return {}
        if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
            self.fields.fault(key, f"must be a list of names, not {str(given)[:40]}")
            return {}
        return dict.fromkeys(given)

    def _transformed(self, module: str) -> bool:
        """Whether layers_to_transform leaves a module in: by the first number in its path, or that behind a name."""
        given = self.fields.values.get("layers_to_transform")
        if given is None or given == []:
            return True
        indices = given if isinstance(given, list) else [given]
        containers = self.fields.values.get("layers_pattern") or []
        containers = [containers] if isinstance(containers, str) else containers
        legal = all(type(i) is int for i in indices) and isinstance(containers, list)
        if not legal or not all(isinstance(c, str) and re.fullmatch(r"\w+", c) for c in containers):
            fault = "layers_to_transform: must be numbers of layers, and layers_pattern names of their lists"
            if fault not in self.faults:
                self.faults.append(fault)
            return False
        parts = module.split(".")
        if containers:
            numbered = [p for before, p in zip(parts, parts[1:-1], strict=False) if before in containers]
        else:
            numbered = parts[2:-1]
        return next((int(p) for p in numbered if p.isdecimal()), None) in indices

    def _exclusion(self) -> Callable[[str], bool]:
        """Whether exclude_modules names a module."""
        given = self.fields.values.get("exclude_modules")
        if isinstance(given, str) and given:
            pattern = self._compiled("exclude_modules", BoundedPattern, given)
            return lambda module: pattern is not None and pattern.matches(module)
        names = self._names("exclude_modules")
        return lambda module: bool(_named(module, names))
