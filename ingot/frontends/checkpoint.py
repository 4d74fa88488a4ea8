"""A Hugging Face model directory: config.json and safetensors weights, read as data.

Nothing in the directory is ever imported or executed: `auto_map` and `trust_remote_code` have no effect, and pickle
files (`.bin`, `.pt`) are not opened at all. Every file is read from inside the directory only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot import foreign, strict_json
from ingot.errors import CheckpointError
from ingot.safetensors_file import MAX_NAME, SafetensorsFile, read_small
from ingot.tensor_table import TensorInfo, name_fault

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_CONFIG = 4 << 20
MAX_INDEX = 64 << 20
MAX_FILE = 256 << 20  # tokenizer.json of the largest vocabularies has some 30 MB
MAX_SHARDS = 2_000
MODELOPT = "hf_quant_config.json"
MAX_LISTED = 30
_PICKLE = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")


def listing(names: list[str], limit: int = MAX_LISTED) -> str:
    """Names for an error message: all of them, up to a limit that keeps a message readable."""
    rest = f", … and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def resolve_directory(source: str | os.PathLike[str]) -> Path:
    """The real path of a model directory.

    Raises:
        CheckpointError: no such folder (with the download command when `source` looks like a Hub id), or not a folder.
    """
    text = os.fspath(source)
    if "\0" in text:
        raise CheckpointError(f"{text!r} is not a path")
    path = Path(text)
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise CheckpointError(f"{text} is a file; give the folder that holds config.json and the safetensors files")
    if (near := foreign.near_folder(path)) is not None:
        raise CheckpointError(f"{text}: there is no such folder: did you mean {near}?")
    if _HUB_ID.match(text) and not text.startswith("."):
        folder = text.rsplit("/", 1)[-1]
        raise CheckpointError(
            f"{text} is not a folder here, and ingot downloads nothing itself. If it is on the Hugging Face Hub, run\n"
            f"    hf download {text} --local-dir {folder}\nand give {folder} instead"
        )
    raise CheckpointError(f"{text}: there is no such folder")


def contained(directory: Path, name: str) -> Path:
    """The real path of a file directly inside `directory`.

    A symbolic link may stay inside the directory, or lead from a Hub cache's `models--…/snapshots/<revision>` to the
    `blobs` beside it, as that cache is laid out. Any other way out is an error.

    Raises:
        CheckpointError: `name` is not a plain file name, or the file lies elsewhere.
    """
    if not name or name in (".", "..") or any(bad in name for bad in ("/", "\\", "\0")) or not name.isprintable():
        raise CheckpointError(f"{directory}: {name[:120]!r} is not the name of a file in this folder")
    real = Path(os.path.realpath(directory / name))
    allowed = [directory]
    if directory.parent.name == "snapshots" and directory.parent.parent.name.startswith("models--"):
        allowed.append(directory.parent.parent / "blobs")
    if not any(real.is_relative_to(folder) for folder in allowed):
        raise CheckpointError(f"{directory / name} is a link to {real}, outside its folder; put a copy there")
    return real


class Checkpoint(Mapping[str, np.ndarray]):
    """name → weight of a Hugging Face directory, over all its shards.

    Indexing reads the tensor from the file; `info(name)` gives dtype and shape without reading. `config` is the parsed
    config.json, `directory` the real path.

    Raises:
        CheckpointError: whatever is wrong with the directory, its config.json, its index or its safetensors files.
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self.directory = resolve_directory(source)
        self.config = read_config(self.directory)
        self._shards = _open_shards(self.directory)
        self._where: dict[str, SafetensorsFile] = {}
        twice: list[str] = []
        for shard in self._shards:
            for name in shard:
                if self._where.setdefault(name, shard) is not shard:
                    twice.append(f"{name} ({self._where[name].path.name}, {shard.path.name})")
        if twice:
            raise CheckpointError(f"{self.directory}: tensors stored twice: {listing(twice)}")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._where[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self._where  # a Mapping's own reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def info(self, name: str) -> TensorInfo:
        """dtype and shape of a tensor (KeyError if there is none of that name)."""
        return self._where[name].info(name)

    def close(self) -> None:
        """Close the files; they also close when the checkpoint is no longer used."""
        for shard in self._shards:
            shard.close()


def read_file(directory: Path, name: str, limit: int = MAX_FILE) -> bytes | None:
    """The bytes of a file of the directory, or None if it has none of that name."""
    if not os.path.lexists(directory / name):
        return None
    return read_small(contained(directory, name), limit)


def read_json(directory: Path, name: str, limit: int = MAX_CONFIG) -> dict[str, Any] | None:
    """The object in a JSON file of the directory, or None if it has none of that name."""
    data = read_file(directory, name, limit)
    if data is None:
        return None
    try:
        return strict_json.parse_object(data)
    except strict_json.JsonError as error:
        raise CheckpointError(f"{directory / name}: {error}") from None


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, which every model directory has; with what modelopt says of quantised weights in a file beside it.
    """
    config = read_json(directory, "config.json")
    if config is None:
        hint = ""
        if any(path.suffix == ".gguf" for path in directory.iterdir()):
            hint = "; of a GGUF file, give the file itself"
        raise CheckpointError(f"{foreign.folder(directory)}{hint}")
    if config.get("quantization_config") is None and (beside := read_json(directory, MODELOPT)) is not None:
        if not isinstance(said := beside.get("quantization"), dict):
            raise CheckpointError(f"{directory / MODELOPT}: quantization must be an object: how weights are quantised")
        if said.get("quant_algo") is not None:  # null where the cache alone is quantised
            config["quantization_config"] = {**said, "quant_method": "modelopt"}
    return config


def _open_shards(directory: Path) -> list[SafetensorsFile]:
    """The weight files, in the order transformers looks for them: one file, else an index and its shards."""
    if os.path.lexists(directory / WEIGHTS):
        return [SafetensorsFile(contained(directory, WEIGHTS))]
    index = read_json(directory, INDEX, MAX_INDEX)
    if index is None:
        raise CheckpointError(_no_weights(directory))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{directory / INDEX}: weight_map must be an object of tensor name → file name")
    expected = _check_weight_map(directory, weight_map)
    shards = [SafetensorsFile(contained(directory, name)) for name in expected]
    absent = [
        f"{name} ({shard.path.name})"
        for shard, names in zip(shards, expected.values(), strict=True)
        for name in names
        if name not in shard
    ]
    if absent:
        raise CheckpointError(f"{directory / INDEX} names tensors that their files lack: {listing(absent)}")
    return shards


def _check_weight_map(directory: Path, weight_map: dict[str, Any]) -> dict[str, list[str]]:
    """File name → tensor names, after every file name has been checked and found."""
    expected: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{directory / INDEX}: {name[:80]!r} should be in {str(file)[:80]!r}, which is no .safetensors file"
            )
        if (fault := name_fault(name, MAX_NAME)) is not None:
            raise CheckpointError(f"{directory / INDEX}: {name[:80]!r}: {fault}")
        expected.setdefault(file, []).append(name)
    if len(expected) > MAX_SHARDS:
        raise CheckpointError(f"{directory / INDEX} names {len(expected):,} files; at most {MAX_SHARDS:,} are read")
    missing = [file for file in sorted(expected) if not contained(directory, file).exists()]
    if missing:
        raise CheckpointError(
            f"{directory} lacks {len(missing)} of the {len(expected)} files that {INDEX} names: {listing(missing)}. "
            "Download the rest"
        )
    return dict(sorted(expected.items()))


def _no_weights(directory: Path) -> str:
    names = sorted(os.listdir(directory))
    pickles = [name for name in names if name.endswith(_PICKLE)]
    others = [name for name in names if name.endswith(".safetensors")]
    if others:
        return (
            f"{directory} has neither {WEIGHTS} nor {INDEX}; rename the right file, or add the index: {listing(others)}"
        )
    if pickles:
        return (
            f"{directory} holds its weights only as pickle ({listing(pickles)}). Reading a pickle can run any code, "
            "so ingot never does. Convert where you trust the files:\n"
            f"    python -c \"import transformers as t; t.AutoModelForCausalLM.from_pretrained('{directory}')"
            f".save_pretrained('{directory}-safetensors')\"\n"
            "and copy tokenizer.json and tokenizer_config.json beside the result"
        )
    return f"{directory} holds no weights: neither {WEIGHTS} nor {INDEX}"
