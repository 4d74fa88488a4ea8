"""LoRA adapters as PEFT saves them: read strictly, and turned into steps of the recipes of the weights they change.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. For a layer with weight W it holds A
[r, inputs] and B [outputs, r], and stands for W + alpha / r · (B · A). Which base model it was made for it says only by
a name that means nothing here; so the shapes decide. Everything wrong with an adapter is said in one error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import CheckpointError, UserError
from ingot.frontends.checkpoint import contained, read_json, resolve_directory
from ingot.frontends.lora.config import MAX_ALPHA, AdapterConfig, Layer, layers_of
from ingot.frontends.lora.patterns import BoundedPatternError
from ingot.ir import Network
from ingot.ir.evaluation import evaluate
from ingot.ir.recipe import ADAPTER, Recipe, combine, source
from ingot.safetensors_file import SafetensorsFile

Array = np.ndarray[Any, Any]

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."  # PEFT puts it before a layer's path in the base model
MAX_LISTED = 20
MAX_FAULT = 300  # characters of one
MAX_NAMED = 3  # layers with one fault
FLOATS = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Update:
    """What an adapter does to one weight. a, b: names of sources."""

    layer: Layer
    a: str
    b: str
    scale: float


class Adapter(Mapping[str, Array]):
    """An adapter that fits its base: source name (`lora.<adapter>.<module>.A`) → array.

    Attributes:
        name: its folder's.
        updates: parameter → what becomes of it.
        scale: by how much its own scales were multiplied.
    """

    def __init__(
        self, name: str, scale: float, file: SafetensorsFile, updates: Mapping[str, Update],
        tensors: Mapping[str, str], copies: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.name, self.scale, self.updates = name, scale, updates
        self._file, self._tensors, self._copies = file, tensors, copies

    def __getitem__(self, name: str) -> Array:
        return self._file[self._tensors[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def recipe(self, parameter: str, base: Recipe) -> Recipe:
        """The recipe of a parameter with this adapter, from the one without it. Rounds once to the weight's dtype."""
        update = self.updates.get(parameter)
        if update is None:
            return base
        layer, scale = update.layer, update.scale * self.scale
        merged = combine(
            "lora_merge", [base, source(update.a), source(update.b)], scale=scale, transposed=bool(layer.transposed)
        )
        return merged.then("cast", dtype=layer.dtype.name)

    def merged(self, parameter: str, base: Array, dtype: DType) -> Array:
        """A parameter's numbers with this adapter, in `dtype`."""
        if parameter not in self.updates:
            return base
        recipe = self.recipe(parameter, source(parameter))
        wide = Recipe(recipe.sources, recipe.steps[:-1])
        return evaluate(wide.then("cast", dtype=dtype.name), {**self._pair(parameter), parameter: base})

    def check_base(self, base: Mapping[str, Array]) -> None:
        """PEFT stores adapted embeddings beside their adapter. Raises CheckpointError where those differ from the
        base's."""
        differing = []
        for parameter, tensor in self._copies.items():
            with np.errstate(over="ignore"):
                stored = self._file[tensor].astype(self.updates[parameter].layer.dtype.numpy)
            there = base.get(parameter)  # None: the model has it and does not use it
            if there is not None and not np.array_equal(stored.view(np.uint8), there.view(np.uint8)):
                differing.append(parameter)
        if differing:
            raise CheckpointError(
                f"{self._file.path}: holds its own {', '.join(differing)}, with other numbers than this base model: "
                "it was made for another base, or changed it in training"
            )

    def _pair(self, parameter: str) -> dict[str, Array]:
        update = self.updates[parameter]
        return {update.a: self[update.a], update.b: self[update.b]}


def check_scale(scale: Any) -> float:
    """The number by which an adapter's scales are multiplied; default 1. Raises UserError."""
    if scale is None:
        return 1.0
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) <= MAX_ALPHA:
        raise UserError(f"lora_scale must be a number from -{MAX_ALPHA:g} to {MAX_ALPHA:g}, not {scale!r}")
    return float(scale)


def read_adapter(
    directory: str | os.PathLike[str], network: Network, scale: float = 1.0, unit_rows: Collection[str] = ()
) -> Adapter:
    """The adapter of a folder, for the base model that a portable network is.

    Args:
        unit_rows: parameters whose rows were brought to length 1 when they were read (an engine's config has them).

    Raises:
        CheckpointError: whatever is wrong with the adapter, or does not fit the base, in one error.
    """
    path = _folder(directory)
    values = read_json(path, CONFIG)
    if values is None:
        raise CheckpointError(_no_adapter(path))
    if not os.path.lexists(path / TENSORS):
        raise CheckpointError(_no_tensors(path))
    layers = {m: replace(x, kind="normed") if x.parameter in unit_rows else x for m, x in layers_of(network).items()}
    name = re.sub(r"[^\w-]", "_", path.name)[:64]
    try:
        config = AdapterConfig(values, layers)
        file = SafetensorsFile(contained(path, TENSORS))
        read = _Tensors(file, config, layers, f"{ADAPTER}{name}.")
    except BoundedPatternError as error:
        raise CheckpointError(f"{path / CONFIG}: {error}") from None
    faults = [*config.faults, *read.faults]
    if faults:
        shown = [fault if len(fault) <= MAX_FAULT else fault[: MAX_FAULT - 1] + "…" for fault in faults[:MAX_LISTED]]
        rest = [f"… and {len(faults) - MAX_LISTED:,} more"] if len(faults) > MAX_LISTED else []
        base = values.get("base_model_name_or_path")
        made_for = f" (it says that it was made for {base[:80]!r})" if isinstance(base, str) and base else ""
        raise CheckpointError(
            "\n  ".join([f"{path}: the adapter cannot be merged into this model{made_for}:", *shown, *rest])
        )
    return Adapter(name, scale, file, read.updates, read.tensors, read.copies)


def _folder(directory: str | os.PathLike[str]) -> Path:
    text = os.fspath(directory)
    if "\0" not in text and Path(text).is_file():
        raise CheckpointError(f"{text} is a file; give the folder that holds {CONFIG} and {TENSORS}")
    return resolve_directory(directory)


def _no_adapter(path: Path) -> str:
    if (path / "config.json").exists():
        return f"{path} is a model and no adapter: it has no {CONFIG}"
    return f"{path} has no {CONFIG}, so it is no adapter of PEFT"


def _no_tensors(path: Path) -> str:
    if os.path.lexists(path / PICKLE):
        return (
            f"{path} holds its numbers only as pickle ({PICKLE}). Reading a pickle can run any code, so ingot never "
            f"does. Where you trust the file, load the adapter with PEFT and save it again: it then writes {TENSORS}"
        )
    return f"{path} has no {TENSORS}"


# ------------------------------------------------------------------------------------------------------ the tensors


_ROLE = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B|base_layer\.weight)")


class _Tensors:
    """The tensors of an adapter, each brought to its layer and checked."""

    def __init__(self, file: SafetensorsFile, config: AdapterConfig, layers: Mapping[str, Layer], prefix: str) -> None:
        self.file, self.config, self.prefix = file, config, prefix
        self.faults: list[str] = []
        self.updates: dict[str, Update] = {}
        self.tensors: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        roles = self._sort(layers)
        integers = []
        for module in sorted(config.targets):
            given = roles.pop(module, {})
            if layers[module].kind == "integers":
                integers.append(module)
            else:
                self._update(module, layers[module], given)
        if integers:
            named = ", ".join([*integers[:MAX_NAMED], *(["…"] if len(integers) > MAX_NAMED else [])])
            count = f"{len(integers):,} layers are" if len(integers) > 1 else "1 layer is"
            self.faults.append(f"{count} stored as integers in the base, and an adapter needs floats: take the float "
                               f"checkpoint that the base was quantised from ({named})")  # fmt: skip
        for module in roles:
            self.faults.append(
                f"{module}: left over: target_modules does not name it" if module in layers
                else f"{module}: this model has no such layer"
            )  # fmt: skip

    def _sort(self, layers: Mapping[str, Layer]) -> dict[str, dict[str, str]]:
        """Module → role → tensor; what has no role is a fault."""
        found: dict[str, dict[str, str]] = {}
        for name in self.file:
            role = _ROLE.fullmatch(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
            if role is None:
                self.faults.append(f"{name[:100]}: left over: no A or B of a layer")
            else:
                found.setdefault(role[1], {})[role[2]] = name
        return found

    def _update(self, module: str, layer: Layer, roles: dict[str, str]) -> None:
        if layer.kind == "tied":
            self.faults.append(f"{module}: embedding and head are one weight in this model, and an adapter of one "
                               "would change both")  # fmt: skip
            return
        if layer.kind == "normed":
            self.faults.append(
                f"{module}: this model's rows are brought to length 1 when they are read, and the adapter would be "
                "added behind that: add it to the checkpoint's weight"
            )
            return
        looked_up = layer.kind == "embedding"
        keys = ("lora_embedding_A", "lora_embedding_B") if looked_up else ("lora_A.weight", "lora_B.weight")
        missing = [key for key in keys if key not in roles]
        if missing:
            self.faults.append(f"{module}: {' and '.join(missing)} missing")
            return
        odd = set(roles) - {*keys, "base_layer.weight"}
        if odd:
            self.faults.append(f"{module}: left over: {', '.join(sorted(odd))}")
        if layer.transposed is None:
            layer = Layer(layer.parameter, layer.shape, layer.dtype, layer.kind, self.config.fan_in_fan_out)
        rank = self.config.rank_of(module)
        shapes: dict[str, tuple[int, ...]] = {keys[0]: (rank, layer.inputs), keys[1]: (layer.outputs, rank)}
        if "base_layer.weight" in roles:
            shapes["base_layer.weight"] = layer.shape
            self.copies[layer.parameter] = roles["base_layer.weight"]
        good = [self._good(module, key, roles[key], shape) for key, shape in shapes.items()]
        if not all(good):
            return
        a, b = f"{self.prefix}{module}.A", f"{self.prefix}{module}.B"
        self.tensors |= {a: roles[keys[0]], b: roles[keys[1]]}
        self.updates[layer.parameter] = Update(layer, a, b, self.config.scale_of(module))

    def _good(self, module: str, key: str, tensor: str, shape: tuple[int, ...]) -> bool:
        info = self.file.info(tensor)
        fault = ""
        if info.dtype.name not in FLOATS:
            fault = f"stored as {info.dtype.name}, which is no plain float"
        elif info.shape != shape:
            fault = f"shape {list(info.shape)} in the file, {list(shape)} by the base and the rank"
        elif key != "base_layer.weight" and not np.isfinite(self._numbers(tensor)).all():
            fault = "holds NaN or infinity"
        if fault:
            self.faults.append(f"{module}: {key.removesuffix('.weight')}: {fault}")
        return not fault

    def _numbers(self, tensor: str) -> Array:
        array = self.file[tensor]
        return array if dtypes.get(array.dtype).name in ("float32", "float64") else array.astype(np.float32)
