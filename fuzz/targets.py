"""The readers under test. A target takes any bytes; it may accept them or raise an IngotError, nothing else."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ingot.ops  # noqa: F401  (registers every op)
from attacks import directories, exported, networks, onnx_files, onnx_graphs
from attacks import host_calls as host_programs
from attacks.image import MAGIC, good, seal
from fuzz import adapters, gguf_files, onnx_models
from fuzz.mutate import mutated
from ingot import strict_json
from ingot.builder.network import build_network as build_engine
from ingot.engine import file, session
from ingot.errors import IngotError
from ingot.frontends import onnx
from ingot.frontends.gguf.file import GgufFile
from ingot.frontends.gguf.model import GgufModel
from ingot.frontends.torch_export import build_network, open_archive
from ingot.ir import text
from ingot.ir.recipe import Recipe
from ingot.models import parse_config
from ingot.safetensors_file import SafetensorsFile

MAX_SECONDS = 10  # of the processor, for a small ONNX file; the slowest take one, and several times that instrumented
MAX_GROWTH = 400 << 10  # KiB


def in_memory(data: bytes, use: Callable[[Path], object]) -> None:
    """Calls `use` with a path that holds the data, without a disk."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        use(Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def _engine(path: Path) -> None:
    engine = file.read(path, verify=True)
    for network in engine.header["networks"].values():
        text.from_json(network)


def container(data: bytes) -> None:
    """An engine file, as it is."""
    in_memory(data, _engine)


def sealed(data: bytes) -> None:
    """An engine file whose header gets a right length, padding and checksum, so that mutations reach what is behind."""
    split = data.find(b"\0")
    header, tensors = (data, b"") if split < 0 else (data[:split], data[split + 1 :])
    in_memory(seal(MAGIC + b"0" * 64 + header, tensors), _engine)


def description(data: bytes) -> None:
    """An engine whose own JSON is a mutation of a good one."""
    image = good()
    image.ours["networks"] = {"main": networks.network()}
    image.text = json.dumps(mutated(image.ours, data)).encode()
    in_memory(image.encode(), _engine)


def host_calls(data: bytes) -> None:
    """An engine with host calls that are mutations of good ones; a session of it asks the ops."""
    image = good()
    image.ours["programs"]["cpu"]["entries"]["main"] = mutated(host_programs.program(), data)
    in_memory(image.encode(), lambda path: session.load(path).session(1))


def safetensors(data: bytes) -> None:
    """A safetensors file, all of whose tensors are read."""

    def use(path: Path) -> None:
        opened = SafetensorsFile(path)
        try:
            for name in opened:
                assert isinstance(opened[name], np.ndarray)
        finally:
            opened.close()

    in_memory(data, use)


def gguf(data: bytes) -> None:
    """A GGUF file, all of whose tensors are read, and as the model that it says it is, if it says so."""

    def use(path: Path) -> None:
        opened = GgufFile(path)
        for name in opened:
            assert isinstance(opened[name], np.ndarray)
        if "general.architecture" in opened.metadata:
            GgufModel(path)

    in_memory(data, use)


def _exported(path: Path) -> None:
    program, source = open_archive(path)
    imported = build_network(program, source, "fuzz")
    for name in imported.weights:
        assert isinstance(imported.weights[name], np.ndarray)


def pt2(data: bytes) -> None:
    """A .pt2 file as it is, imported."""
    in_memory(data, _exported)


def pt2_values(data: bytes) -> None:
    """A .pt2 file with some values of its program and of its weights' description changed."""
    package = exported.Package()
    package.program = mutated(package.program, data[: len(data) // 2])
    package.weights = mutated(package.weights, data[len(data) // 2 :])
    in_memory(package.encode(), _exported)


@contextmanager
def _bounded() -> Iterator[None]:
    """Within the memory and the time that any small file may take."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        yield
    finally:
        assert time.process_time() - begin < MAX_SECONDS, "a small file takes no time to speak of"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH, "nor much memory"


def _onnx(path: Path) -> None:
    with _bounded():
        imported = onnx.build_network(onnx.open_model(path)).imported
        build_engine(imported.network, imported.weights)


def adapter(data: bytes) -> None:
    """A LoRA adapter with some of it changed: an error, or the weights that NumPy merges."""
    adapters.base()  # made once
    with _bounded():
        adapters.meet(data)


def onnx_file(data: bytes) -> None:
    """An ONNX file as it is, built."""
    in_memory(data, _onnx)


def onnx_values(data: bytes) -> None:
    """An ONNX file with some of its values, fields and messages changed."""
    in_memory(onnx_models.changed(data), _onnx)


def json_text(data: bytes) -> None:
    """Whatever our JSON reader accepts, Python's own reads the same."""
    try:
        value = strict_json.parse(data)
    except strict_json.JsonError:
        return
    assert json.loads(data) == value


def config(data: bytes) -> None:
    """config.json as bytes."""
    in_memory(data, lambda path: parse_config(strict_object(path.read_bytes()), Path("model")))


def config_values(data: bytes) -> None:
    """config.json with some values changed."""
    parse_config(mutated(directories.config(), data), Path("model"))


def network_text(data: bytes) -> None:
    """The text form; what is accepted prints and parses back to the same text."""
    printed = str(text.parse(data.decode(errors="replace")))
    assert str(text.parse(printed)) == printed


def network_values(data: bytes) -> None:
    """The JSON form with some values changed; what is accepted makes the same JSON again after a round trip."""
    plain = text.to_json(text.from_json(mutated(networks.network(), data)))
    assert text.to_json(text.from_json(plain)) == plain


def recipe(data: bytes) -> None:
    """A recipe with some values changed."""
    Recipe.from_json(mutated(RECIPE, data))


def strict_object(data: bytes) -> dict[str, Any]:
    """The JSON object; a reader's JsonError becomes what its callers raise."""
    try:
        return strict_json.parse_object(data)
    except strict_json.JsonError as error:
        raise IngotError(str(error)) from None


RECIPE = {
    "sources": ["a", "b"],
    "steps": [["cast", 1, {"dtype": "bfloat16", "in": [0]}], ["pack_panels", 1, {"in": [2, 1]}],
              ["slice", 1, {"starts": [0, 0], "sizes": [4, 4], "in": [0]}], ["concat", 1, {"axis": 0, "in": [0, 1]}]],
}  # fmt: skip
_HEADER = good().encode()[8 + len(MAGIC) + 64 :].split(b"  ")[0]

# Each target with inputs to start from.
TARGETS: dict[str, tuple[Callable[[bytes], None], list[bytes]]] = {
    "container": (container, [good().encode()]),
    "sealed": (sealed, [_HEADER + b"\0" + good().data]),
    "description": (description, [b"", bytes(range(64))]),
    "host_calls": (host_calls, [b"", bytes(range(64))]),
    "safetensors": (safetensors, [directories.safetensors({"a": [2, 3], "b": [4]})]),
    "gguf": (gguf, gguf_files.SEEDS),
    "pt2": (pt2, [exported.Package().encode()]),
    "pt2_values": (pt2_values, [b"", bytes(range(64))]),
    "onnx_file": (onnx_file, [onnx_files.good(), *onnx_graphs.NETS[::30]]),
    "onnx_values": (onnx_values, [bytes([i >> 8, i & 255, *range(20)]) for i in range(0, 360, 30)]),
    "json_text": (json_text, [b'{"a": [1, -2.5e3, "x\\u0041", true, null, {}]}']),
    "config": (config, [json.dumps(directories.config()).encode()]),
    "config_values": (config_values, [b"", bytes(range(64))]),
    "network_text": (network_text, [str(text.from_json(networks.network())).encode()]),
    "network_values": (network_values, [b"", bytes(range(64))]),
    "recipe": (recipe, [b"", bytes(range(64))]),
    "adapter": (adapter, [b"", *adapters.SEEDS]),
}
ONNX = ("onnx_file", "onnx_values")


def run(name: str, data: bytes) -> None:
    """One case; raises what is a fault of the reader."""
    message = ""
    try:
        TARGETS[name][0](data)
    except IngotError as error:
        message = str(error)
    assert len(message) < 10_000, "a message stays readable whatever the input holds"
