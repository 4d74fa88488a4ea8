"""Modules made of a table of names, and what names that they lack are answered with."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ingot.compat.refusal import MissingImport, MissingName, here

ROOTS = ("tensorrt_llm", "tensorrt")
# Whole packages that are not here, and what there is instead.
PACKAGES: dict[str, str] = {
    "tensorrt_llm.models": "`ingot.build(folder)` builds a model of its Hugging Face folder (docs/families.md)",
    "tensorrt_llm.executor": "`ingot.LLM`",
    "tensorrt_llm.llmapi": "`ingot.LLM`",
    "tensorrt_llm.hlapi": "`ingot.LLM`",
    "tensorrt_llm.bindings": "`ingot.LLM`",
    "tensorrt_llm.serve": "`ingot serve` (docs/serving.md)",
    "tensorrt_llm.auto_parallel": "nothing: ingot's engines run on one device",
    "tensorrt_llm.graph_rewriting": "ingot's passes, which every build runs (docs/adding-an-op.md)",
    "tensorrt_llm.commands": "the command `ingot build`",
    "tensorrt_llm.tools": "`ingot inspect`, `ingot bench` and `ingot diff`",
    "tensorrt_llm.bench": "`ingot bench`",
}
INSTEAD: dict[str, str] = {
    "tensorrt_llm.LLM": "`ingot.LLM`",
    "tensorrt_llm.SamplingParams": "`ingot.SamplingParams`",
    "tensorrt_llm.build": "`ingot.build(folder)`",
    "tensorrt_llm.BuildConfig": "the arguments of `ingot.build`",
    "tensorrt_llm.runtime.GenerationSession": "`ingot.LLM(engine).generate(prompt)`",
    "tensorrt_llm.runtime.ModelRunner": "`ingot.LLM(engine).generate(prompt)`",
    "tensorrt_llm.runtime.ModelRunnerCpp": "`ingot.LLM(engine).generate(prompt)`",
    "tensorrt_llm.runtime.SamplingConfig": "`ingot.SamplingParams`",
    "tensorrt_llm.runtime.ModelConfig": "`ingot.load(path).config`",
    **dict.fromkeys(
        (f"tensorrt_llm.layers.{name}" for name in ("Lora", "LoraParams", "LoraRuntimeParams", "Dora")),
        "merge the adapter when the engine is built: `ingot.build(folder, lora=adapter)` (docs/lora.md)",
    ),
    **dict.fromkeys(
        (f"tensorrt_llm.layers.{name}" for name in ("MOE", "MoeConfig", "SharedMoE", "MixtureOfExperts", "MoeOOTB")),
        "`ingot.functional.moe`, or `ingot.build(folder)` for a whole model (docs/families.md)",
    ),
    **dict.fromkeys(
        (f"tensorrt_llm.layers.{name}" for name in ("Mamba", "Mamba2", "Recurrent", "RgLru", "FusedRgLru",
                                                    "GroupedLinear")),
        "plain functions; ingot has no kernel for selective scans yet",
    ),
    **dict.fromkeys(
        (f"tensorrt_llm.layers.{name}" for name in ("CogVLMAttention", "DeepseekV2Attention", "MropeParams",
                                                    "SpecDecodingParams", "BlockSparseAttnParams", "LanguageAdapter",
                                                    "LanguageAdapterConfig")),
        "`layers.Attention`, or `ingot.functional.scaled_dot_product_attention` with a mask",
    ),
    "tensorrt.OnnxParser": "`torch.export.save(…, 'net.pt2')` and `ingot.build('net.pt2')` (docs/importing.md)",
    "tensorrt.get_plugin_registry": "plain functions: every op has its kernel, so there are no plugins",
    "tensorrt.IPluginV2": "plain functions: every op has its kernel, so there are no plugins",
    "tensorrt.IInt8EntropyCalibrator2": '`ingot.build(…, weights="int8")`, which needs no calibration',
    "tensorrt.IInt8MinMaxCalibrator": '`ingot.build(…, weights="int8")`, which needs no calibration',
    "tensorrt.Refitter": "`engine.refit({name: array})` of ingot",
}


def answer(where: str, name: str) -> str:
    """Why there is no `where.name`, and what to write instead."""
    full = f"{where}.{name}"
    package = next((p for p in PACKAGES if full == p or full.startswith(f"{p}.")), None)
    instead = INSTEAD.get(full) or (PACKAGES[package] if package else None)
    if instead is None:
        known = getattr(sys.modules.get(where), "__all__", None)
        instead = f"one of {', '.join(known)}" if known else "a plain function of tensorrt_llm.functional"
    return f"{here()}ingot's {where} has no {name!r}; instead: {instead}"


class Registered(ModuleType):
    """A module that is registered by `install`. What it lacks is refused with what to write instead."""

    def __init__(self, name: str, names: Mapping[str, Any], doc: str) -> None:
        super().__init__(name, doc)
        self.__all__ = sorted(names)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__file__ = __file__
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise MissingName(answer(self.__name__, name))


class Finder(importlib.abc.MetaPathFinder):
    """Refuses imports of what the registered modules lack; what they have is in sys.modules already."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        where, _, name = fullname.rpartition(".")
        if where and fullname.partition(".")[0] in ROOTS:
            raise MissingImport(answer(where, name))


def assembled(table: Mapping[str, Mapping[str, Any]], docs: Mapping[str, str]) -> dict[str, ModuleType]:
    """A module for every entry of a table of names, each an attribute of the one that it lies in."""
    made: dict[str, ModuleType] = {
        name: Registered(name, names, docs.get(name, "Registered by ingot.compat.install."))
        for name, names in table.items()
    }
    for name, module in made.items():
        parent, _, last = name.rpartition(".")
        if parent and last not in made[parent].__dict__:
            setattr(made[parent], last, module)
    return made
