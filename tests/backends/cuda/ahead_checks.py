"""Builds engines with their kernels for sm_90, takes kernels from such a folder, and prints what came of it, as JSON.

Run by test_ahead.py in a process of its own, for the interpreter changes what Triton's decorator makes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import triton
from triton import knobs

import ingot
from ingot import _lazy
from ingot.backends.cuda import ahead
from ingot.backends.cuda.choice import Kind
from ingot.backends.cuda.driver import ARCHITECTURES
from ingot.backends.cuda.kernel_files import Folder, Source, prepare, read
from ingot.backends.cuda.steps import Size
from ingot.backends.cuda.steps_ahead import Compiling, StepsAhead
from ingot.backends.device import Opening
from ingot.backends.torch_executor import lowered
from ingot.backends.torch_target import TORCH
from ingot.builder import kernels
from ingot.ir import F

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
    "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
}  # fmt: skip

GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 1, "n_inner": 128,
    "n_positions": 256, "vocab_size": 96, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
}  # fmt: skip


class Net(ingot.nn.Module):
    """A product, its bias and an activation, a layer norm, and a convolution with its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = ingot.nn.Linear(24, 24)
        self.norm = ingot.nn.LayerNorm(24)
        self.conv = ingot.nn.Conv2d(24, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        rows = self.norm(F.add(F.silu(self.linear(x)), x))
        return F.relu(self.conv(F.reshape(F.permute(rows, (0, 2, 1)), (x.shape[0], 24, 4, 4))))


def net() -> Any:
    """Its engine, in float16."""
    inputs = {"x": ingot.Spec((ingot.Dim("N", 1, None, 64), 16, 24), "float32")}
    return ingot.build(Net(), inputs, precision="float16", weights_from="random", report=False, progress=False)


def model(folder: Path, weights: str = "same", config: dict[str, Any] = CONFIG) -> Any:
    """The engine of a small language model."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return ingot.build(folder, weights_from="random", report=False, progress=False, weights=weights)


class Compilations:
    """What Triton was asked to compile: names, and how many of them it had."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.had = 0
        knobs.compilation.listener = self

    def __call__(self, *, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        self.had += cache_hit
        if not cache_hit:
            self.names.append(src.name)


def fresh(folder: Path) -> None:
    """Triton's cache, empty."""
    knobs.cache.dir = str(folder)


def launched(engine: Any) -> list[Source]:
    """The kernels that an engine launches on sm_90."""
    built = ahead.Built(Path())
    sizes = partial(kernels._sizes, engine, ())
    found = list(ahead._launched(engine, ARCHITECTURES["sm_90"], built, sizes).values())
    assert not built.left_out, built.left_out
    return found


def taken(folder: Folder, sources: list[Source]) -> dict[str, Any]:
    """What is compiled of these, where they may come from a folder."""
    counted = Compilations()
    folder.taken = folder.missed = 0
    for source in sources:
        folder.install(source)
        triton.compile(source.source, target=source.target, options=source.options.__dict__)
    return {"compiled": len(counted.names), "had": counted.had, "taken": folder.taken, "missed": folder.missed}


def broken(sources: list[Source], place: Path) -> str:
    """What is said of a kernel that does not compile."""
    real = triton.compile

    def fails(*words: Any, **more: Any) -> Any:
        raise RuntimeError("PTXAS error: \nunknown instruction")

    triton.compile = fails
    try:
        return said_of(lambda: ahead._made("0" * 64, sources[0], place))
    finally:
        triton.compile = real


def said_of(work: Any) -> str:
    """The error of something."""
    try:
        work()
    except ingot.IngotError as e:
        return f"{type(e).__name__}: {e}"
    return ""


def ahead_of(engine: Any, made: Any) -> Any:
    """A StepsAhead, or what has one, for a session of an engine on sm_90."""
    (entry,) = engine.entries
    _, network = lowered(engine.header, engine.external, entry, TORCH)
    opening = Opening(engine.header, engine.tensor, None, entry, None, 64, 64, "cuda:0", {}, engine.external)
    return made(_lazy.load("torch"), ARCHITECTURES["sm_90"], network, opening)


def steps_ahead(place: Path) -> dict[str, Any]:
    """What is compiled before steps of a language model launch it: how many kernels are said, and how many are."""
    fresh(place / "steps")
    there: StepsAhead = ahead_of(model(place / "model"), StepsAhead)
    found: dict[str, Any] = {}

    def note(what: str, *step: Any) -> None:
        counted = Compilations()
        found[what] = there.compile(there.missing(*step)), len(counted.names)

    greedy, shapes = (Kind.GREEDY,), {v.name: (2048,) for v in there._network.inputs}
    shapes |= {"query_start": (3,), "context_len": (2,), "block_table": (2, 32), "logit_rows": (2,)}
    shapes["hidden_rows"] = (0,)
    note("four rows", Size(4, 4, 4, 64, True), greedy)
    note("again", Size(4, 4, 4, 64, True), greedy)
    note("eight rows", Size(8, 8, 8, 64, True), greedy)
    note("prompts", shapes, greedy)
    note("prompts, drawn", shapes, (Kind.DRAWN,))
    return {"compiled": found, "imported": [name for name in ("torch._dynamo", "sympy") if name in sys.modules]}


def beside(place: Path) -> dict[str, Any]:
    """What another process compiles beside a step: `left` of what is likely next, and how many came of it."""
    greedy, found = (Kind.GREEDY,), {}
    here, next_ = Size(4, 4, 4, 64, True), (Size(8, 8, 8, 64, True), Size(16, 1, 1, 64, False))
    engines = {"Llama": ("same", CONFIG), "int4-g32": ("int4-g32", CONFIG), "GPT-2": ("same", GPT2)}
    for name, (weights, config) in engines.items():
        fresh(place / f"cache {name}")
        there: Compiling = ahead_of(model(place / "model", weights, config), Compiling)
        lacked = {source.key for size in (here, *next_) for source in there._ahead.missing(size, greedy)}
        counted = Compilations()
        there.compile(here, greedy, (here, *next_))
        own = len(counted.names)
        there.beside.wait()
        left = [source.name for size in (here, *next_) for source in there._ahead.missing(size, greedy)]
        found[name] = {"lacked": len(lacked), "own": own, "beside": there.beside.compiled, "left": left,
                       "files": sorted({path.suffix for path in Path(knobs.cache.dir).rglob("tmp.*")})}  # fmt: skip
    (place / "file").write_text("")
    fresh(place / "file" / "cache")
    there.beside.ask(next_, (Kind.TOP,), [])
    there.beside.wait()
    found["closed"] = there.beside._closed
    return found


def checks(place: Path) -> dict[str, Any]:
    """Everything, in a folder."""
    found: dict[str, Any] = {}
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ingot.cuda").addHandler(handler)
    fresh(place / "one")
    engine = net()
    engine.save(place / "plain.ingot")
    engine.on("cuda:sm_90").save(place / "net.ingot")
    found["same file"] = (place / "plain.ingot").read_bytes() == (place / "net.ingot").read_bytes()
    folder = place / "net.ingot.cuda"
    found["files"] = sorted({path.suffix for path in folder.iterdir()})
    found["again"] = kernels.beside(engine.on("cuda:sm_90"), place / "net.ingot").json()

    fresh(place / "two")
    sources = launched(engine)
    opened = Folder.opened(folder, 90)
    found["launched"] = len(sources)
    found["names"] = sorted({source.name for source in sources})
    found["from the folder"] = taken(opened, sources)
    found["from the cache"] = taken(opened, sources)
    made = triton.compile(sources[0].source, target=sources[0].target, options=sources[0].options.__dict__)
    found["binary"] = made.asm["cubin"] == read(folder / f"{sources[0].key}.kernel").binary

    fresh(place / "three")
    first, second, third = (folder / f"{source.key}.kernel" for source in sources[:3])
    good = [path.read_bytes() for path in (first, second, third)]
    first.write_bytes(good[0][:-1] + bytes([good[0][-1] ^ 1]))
    second.write_bytes(good[2])  # another kernel under its name
    third.write_bytes(b"\x80" * 5000)
    found["damaged"] = taken(opened, sources)
    found["told"] = [text.replace(str(place), "") for text in told]
    found["mended"] = kernels.beside(engine.on("cuda:sm_90"), place / "net.ingot").json()["compiled"]
    found["as before"] = [path.read_bytes() for path in (first, second, third)] == good

    empty = place / "empty"
    empty.mkdir()
    found["other GPU"] = said_of(lambda: Folder.opened(folder, 80))
    found["empty"] = said_of(lambda: Folder.opened(empty, 90))
    found["no folder"] = said_of(lambda: Folder.opened(place / "none", 90))
    compilers = os.environ.pop("CC", None), os.environ["PATH"]
    os.environ["PATH"] = str(empty)
    found["no compiler"] = said_of(lambda: prepare(90))
    os.environ["PATH"] = compilers[1]
    os.environ["INGOT_KERNELS"] = str(folder)
    named = prepare(90)
    found["named"] = named.json() if named is not None else {}
    del os.environ["INGOT_KERNELS"]
    found["not named"] = prepare(90) is None
    (place / "file").write_text("")
    fresh(place / "file" / "cache")
    found["no cache"] = said_of(lambda: prepare(90))
    found["session"] = said_of(lambda: engine.session(device="cuda:sm_90"))
    found["cache"] = said_of(lambda: ingot.LLM(model(place / "model"), device="cuda:sm_90"))
    found["architecture"] = said_of(lambda: engine.on("cuda:sm_70"))
    found["no kernels' folder"] = said_of(lambda: kernels.beside(engine.on("cuda:sm_90"), place / "file" / "x.ingot"))

    found["broken"] = broken(sources, empty)
    for weights in ("same", "int4-g32"):
        found[f"model, {weights}"] = sorted({source.name for source in launched(model(place / "model", weights))})
    found["GPT-2"] = sorted({source.name for source in launched(model(place / "gpt2", config=GPT2))})
    found["driver"] = triton.runtime.driver._active is None
    return found


def on_gpu(place: Path) -> dict[str, Any]:
    """What a process compiles on the GPU that is here: by itself, and with kernels that were built for it."""
    counted = Compilations()
    if not (place / "model.ingot").exists():
        model(place / "model").save(place / "model.ingot")
        net().save(place / "net.ingot")
        fresh(place / "building")
        for name in ("model", "net"):
            engine = ingot.load(place / f"{name}.ingot").on("cuda")
            kernels.beside(engine, place / "all")  # one folder for both
        return {"built": len(list((place / "all.cuda").iterdir()))}
    import torch

    built: list[str] = []  # by a C compiler
    build = triton.runtime.build._build
    triton.runtime.build._build = lambda name, *more: [built.append(name), build(name, *more)][1]
    with ingot.LLM(place / "model.ingot", device="cuda") as llm:
        for count in (1, 3, 40):
            llm.generate([[5, 6, 7, 8 + i] for i in range(count)], max_tokens=4, ignore_end=True)
        llm.generate([3] * 100, max_tokens=4, temperature=0.7, ignore_end=True)
    session = ingot.load(place / "net.ingot").session(device="cuda")
    for rows in (1, 2, 32):
        for _ in range(2):
            session.run({"x": torch.zeros(rows, 16, 24, device="cuda")})
    return {"compiled": counted.names, "had": counted.had, "on the host": built}


def keys(place: Path) -> dict[str, Any]:
    """What travels has the same keys on every machine, in every Python: theirs, for a look at two of them."""
    found = [source.key for engine in (net(), model(place / "model")) for source in launched(engine)]
    return {"keys": len(found), "all": sha256("".join(sorted(found)).encode()).hexdigest(), "python": sys.version}


if __name__ == "__main__":
    what = {"checks": checks, "steps": steps_ahead, "beside": beside, "gpu": on_gpu, "keys": keys}[sys.argv[1]]
    json.dump(what(Path(sys.argv[2])), sys.stdout)
