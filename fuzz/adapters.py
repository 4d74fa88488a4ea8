"""LoRA adapters that are changes of a good one: each ends in a typed error, or in the weights that NumPy merges.

The bytes of a case say what is changed: values of the description, of the table of tensors, numbers, and how the files
lie in their folder. The oracle knows nothing of patterns: the tensors of an adapter that is accepted are all used, so
their names say which layers it changes.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attacks.directories import HEAD, HIDDEN, MLP, VOCABULARY, Directory
from fuzz.mutate import VALUES, mutated
from ingot.builder.adapter import merge
from ingot.builder.build import build
from ingot.builder.layers import network_of
from ingot.builder.stored import Recovered, shown_by
from ingot.engine.session import Engine

Array = np.ndarray[Any, Any]

PREFIX = "base_model.model."
LAYERS = {
    "model.layers.0.self_attn.q_proj": (2 * HEAD, HIDDEN),
    "model.layers.1.self_attn.q_proj": (2 * HEAD, HIDDEN),
    "model.layers.0.self_attn.v_proj": (HEAD, HIDDEN),
    "model.layers.1.self_attn.v_proj": (HEAD, HIDDEN),
    "model.layers.0.mlp.down_proj": (HIDDEN, MLP),
    "model.layers.1.mlp.down_proj": (HIDDEN, MLP),
    "model.embed_tokens": (VOCABULARY, HIDDEN),
    "lm_head": (VOCABULARY, HIDDEN),
}
RANKS = (1, 2, 3, 4, 8)
DTYPES = ("F32", "F16", "BF16", "F64")
# What descriptions hold: among them patterns over which Python's own matcher takes years.
OWN = (
    "q_proj", "v_proj", "down_proj", "embed_tokens", "lm_head", "all-linear", "model.layers.0.self_attn.q_proj",
    "layers.1.self_attn.q_proj", r".*\.(q|v)_proj", r"^(?!.*mlp).*(q|v)_proj$", "(a+)+$", r"(.*)*x", "(.*)*" * 190,
    "((((.?){99}){99}){99}){99}z", r"(\w*_?)*\d", "(.?){900}y", "(" * 15 + ".*" + ")*" * 15, "[^x]*" * 200, r"(q)\1",
    "(?i)Q_PROJ", "(?<=q)_proj", "\\", "[", "(?:", "", ["q_proj"], ["q_proj", "v_proj"], ["down_proj", "lm_head"],
    {"q_proj": 2}, {"v_proj": 4, "q_proj": 1}, {r".*0.*": 3}, {"(a+)+$": 4}, {"q_proj": 0.5},
    {f"(.*)*{i}": 4 for i in range(70)},
    16_384, 16_385, 1e6, 1e7, -3, 3.5, "layers", "h", [0], [1], 0, [0, 1, 10**15], "gaussian", "pissa", "LORA", "none",
    {"loftq_bits": 4}, "F16", "BF16", "F64", "I32", "F8_E4M3", [2, HIDDEN], [HIDDEN, 2], [2**32, 2**32], [0, HIDDEN],
)  # fmt: skip
KEYS = (
    "alpha_pattern", "rank_pattern", "exclude_modules", "layers_to_transform", "layers_pattern", "use_rslora",
    "use_dora", "modules_to_save", "init_lora_weights", "fan_in_fan_out", "target_parameters", "loftq_config",
    "use_evil", "lora_bias",
)  # fmt: skip
NUMBERS = (0.0, -0.0, 1e-40, 1e30, -1e38, 65504.0, 1e5, math.inf, -math.inf, math.nan)
# How the files lie: whether that alone must end in an error.
PLACES = {
    "plain": False, "beside": False, "config outside": True, "tensors outside": True, "tensors a FIFO": True,
    "tensors a folder": True, "tensors gone": True, "dangling": True, "config a FIFO": True, "only a pickle": True,
}  # fmt: skip


class Draws:
    """Choices out of a string of bytes; behind its end they are all 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def below(self, count: int) -> int:
        return int.from_bytes(self.take(1), "big") % count


def _numbers(shape: tuple[int, ...], seed: int, size: float) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


@cache
def base() -> tuple[Path, Engine, dict[str, Array]]:
    """A model of two layers with numbers in it: its folder, its engine, its parameters."""
    made = Directory()
    made.config["num_hidden_layers"] = 2
    made.tensors |= {n.replace("layers.0", "layers.1"): s for n, s in made.tensors.items() if "layers.0" in n}
    numbers = {n: _numbers(tuple(s), i, 0.3) for i, (n, s) in enumerate(made.tensors.items())}
    made.files["model.safetensors"] = encoded({n: ("F32", list(a.shape), a.tobytes()) for n, a in numbers.items()})
    path = Path(tempfile.mkdtemp()) / "base"
    made.write(path)
    return path, build(path, precision="float32", report=False), numbers


def encoded(tensors: Mapping[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file."""
    rows, at = [], 0
    for name, (dtype, shape, data) in tensors.items():
        rows.append([name, {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}])
        at += len(data)
    return framed(rows, b"".join(data for *_, data in tensors.values()))


def framed(rows: list[Any], data: bytes) -> bytes:
    """A safetensors file of these names and what the header says of each, repeated names and all."""
    pairs = (row if isinstance(row, list) and len(row) == 2 else [row, row] for row in rows)
    header = ("{" + ",".join(f"{json.dumps(str(name))}:{json.dumps(entry)}" for name, entry in pairs) + "}").encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


def _stored(array: Array, dtype: str) -> bytes:
    """Numbers as a file holds them."""
    if dtype == "BF16":
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with np.errstate(over="ignore"):
        return array.astype({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype]).tobytes()


class Case:
    """An adapter that the bytes make: a good one, and changes of it."""

    def __init__(self, data: bytes) -> None:
        draws = Draws(data)
        rank, dtype = RANKS[draws.below(len(RANKS))], DTYPES[draws.below(len(DTYPES))]
        chosen = draws.below(1 << len(LAYERS)) or 1
        modules = [module for i, module in enumerate(LAYERS) if chosen >> i & 1]
        names = sorted(modules) if draws.below(2) else sorted({module.rpartition(".")[2] for module in modules})
        self.config: Any = {
            "peft_type": "LORA", "r": rank, "lora_alpha": 6, "target_modules": names, "bias": "none",
        }  # fmt: skip
        if draws.below(16) < 15:  # what the names reach, no less
            modules = [m for m in LAYERS if m in names or m.rpartition(".")[2] in names]
        for _ in range(max(0, draws.below(6) - 3)):
            self.config[KEYS[draws.below(len(KEYS))]] = OWN[draws.below(len(OWN))]
        self.config = mutated(self.config, draws.take(4 * max(0, draws.below(6) - 3)), VALUES + OWN)
        tensors = {}
        for i, module in enumerate(modules):
            a, b = _pair(module, rank, i)
            if draws.below(16) == 15:
                (a if draws.below(2) else b).flat[draws.below(rank)] = NUMBERS[draws.below(len(NUMBERS))]
            keys = ("lora_embedding_A", "lora_embedding_B") if module == "model.embed_tokens" else (
                "lora_A.weight", "lora_B.weight")  # fmt: skip
            for key, array in zip(keys, (a, b), strict=True):
                tensors[f"{PREFIX}{module}.{key}"] = (dtype, list(array.shape), _stored(array, dtype))
        raw = encoded(tensors)
        size = 8 + int.from_bytes(raw[:8], "little")
        rows = [[name, entry] for name, entry in json.loads(raw[8:size]).items()]
        rows = mutated(rows, draws.take(4 * max(0, draws.below(6) - 4)), VALUES + OWN)
        self.weights = framed(rows, raw[size:])
        self.place = list(PLACES)[max(0, draws.below(64) - 54)]
        self.text = json.dumps(self.config)
        if draws.below(16) == 15 and self.text.startswith("{") and self.text != "{}":  # a key twice
            self.text = self.text[:-1] + "," + self.text[1:]
        self.scale = (1.0, 0.5, -2.0, 0.0, 1e6, 1e7, math.nan)[max(0, draws.below(16) - 9)]
        self.builds = draws.below(8) == 7

    def write(self, folder: Path) -> None:
        """Into a folder that is not there yet; some put files beside it."""
        folder.mkdir()
        config, tensors = folder / "adapter_config.json", folder / "adapter_model.safetensors"
        config.write_text(self.text)
        tensors.write_bytes(self.weights)
        moved = {"config outside": config, "tensors outside": tensors, "beside": tensors}.get(self.place)
        if moved is not None:
            there = (folder if self.place == "beside" else folder.parent) / "elsewhere"
            moved.rename(there)
            moved.symlink_to(there)
        elif self.place == "only a pickle":
            tensors.rename(folder / "adapter_model.bin")
        elif self.place != "plain":
            gone = config if self.place == "config a FIFO" else tensors
            gone.unlink()
            if "FIFO" in self.place:
                os.mkfifo(gone)
            elif self.place == "dangling":
                gone.symlink_to(folder / "nowhere")
            elif self.place == "tensors a folder":
                gone.mkdir()


def _pair(module: str, rank: int, seed: int) -> tuple[Array, Array]:
    outputs, inputs = LAYERS[module]
    if module == "model.embed_tokens":  # PEFT's A has a column for each token
        outputs, inputs = inputs, outputs
    return _numbers((rank, inputs), 50 + seed, 1.0), _numbers((outputs, rank), 90 + seed, 0.1)


# ------------------------------------------------------------------------------------------------------ the oracle


def decoded(raw: bytes) -> dict[str, Array]:
    """The tensors of a safetensors file, in float64."""
    size = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for name, entry in json.loads(raw[8:size]).items():
        if name == "__metadata__":
            continue
        data = raw[size + entry["data_offsets"][0] : size + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, {"F32": np.float32, "F16": np.float16, "F64": np.float64}[entry["dtype"]])
        found[name] = array.astype(np.float64).reshape(entry["shape"])
    return found


def _alphas(config: Mapping[str, Any], module: str) -> list[float]:
    """Which alpha a layer has: one, or those that are possible where patterns decide that are more than names."""
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    if not all(re.fullmatch(r"[\w.-]+", name) for name in patterns):
        return [config["lora_alpha"], *patterns.values()]
    by_name = (alpha for name, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({name})", module))
    return [next(by_name, config["lora_alpha"])]


def wanted(config: Mapping[str, Any], tensors: Mapping[str, Array], base: Mapping[str, Array], scale: float) -> dict[
    str, tuple[list[Array], Array]
]:  # fmt: skip
    """Of each parameter that is changed: what it may become, in float64, and the size of the numbers added up."""
    found = {}
    for name, a in tensors.items():
        module, _, role = name.removeprefix(PREFIX).rpartition(".lora_")
        if role not in ("A.weight", "embedding_A"):
            continue
        b = tensors[f"{PREFIX}{module}.lora_{role.replace('A', 'B')}"]
        product, size = b @ a, np.abs(b) @ np.abs(a)
        if role == "embedding_A":
            product, size = product.T, size.T
        rank = math.sqrt(len(a)) if config.get("use_rslora") else len(a)
        before = base[f"{module}.weight"].astype(np.float64)
        scales = [alpha / rank * scale for alpha in _alphas(config, module)]
        most = max(map(abs, scales))
        found[f"{module}.weight"] = ([before + product * s for s in scales], np.abs(before) + size * most)
    return found


def check(engine: Engine, wanted: Mapping[str, tuple[list[Array], Array]], base: Mapping[str, Array]) -> None:
    """The engine's weights are those: float64 rounded once to float32, up to the order of summation in float64."""
    recovered = Recovered(shown_by(engine, network_of(engine)))
    for name, before in base.items():
        now = recovered[name]
        if name not in wanted:
            assert np.array_equal(now, before), f"{name} has changed, and the adapter does not name it"
            continue
        several, size = wanted[name]
        bounds = [np.abs(one) * 2.0**-24 + size * 1e-13 + 1e-45 for one in several]
        right = [(np.abs(now - one) <= bound).all() for one, bound in zip(several, bounds, strict=True)]
        assert any(right), f"{name} is not the merge"


@contextmanager
def folder() -> Iterator[Path]:
    """One in memory, for files of a moment."""
    place = tempfile.mkdtemp(dir="/dev/shm")
    try:
        yield Path(place) / "adapter"
    finally:
        shutil.rmtree(place)


def meet(data: bytes) -> bool:
    """One case; whether it was accepted. Raises IngotError for one that is refused, AssertionError for a fault."""
    case = Case(data)
    directory, plain, numbers = base()
    with folder() as path:
        case.write(path)
        merged = merge(plain, path, case.scale)
        assert not PLACES[case.place], f"files that lie so are not read: {case.place}"
        tensors = decoded(case.weights)
        found = wanted(case.config, tensors, numbers, case.scale)
        check(merged, found, numbers)
        if case.builds:
            check(build(directory, precision="float32", report=False, lora=path, lora_scale=case.scale), found, numbers)
        _refitted(merged, case, tensors, numbers)
    return True


def _refitted(merged: Engine, case: Case, tensors: dict[str, Array], numbers: dict[str, Array]) -> None:
    """Other numbers for a base and an adapter that are one weight."""
    other = {name: array * 0.5 for name, array in numbers.items()}
    given: dict[str, Any] = {}
    for name, array in tensors.items():
        module, found, role = name.removeprefix(PREFIX).rpartition(".lora_")
        if found:
            given[f"lora.adapter.{module}.{'A' if 'A' in role else 'B'}"] = array
            given[f"{module}.weight"] = other[f"{module}.weight"]
    new = numbers | {name: array for name, array in given.items() if name in numbers}
    check(merged.refit(given), wanted(case.config, tensors, new, case.scale), new)


SEEDS = tuple(bytes([i % 5, i % 4, 1 + 37 * i % 255, i % 2]) + bytes(60) for i in range(12))
