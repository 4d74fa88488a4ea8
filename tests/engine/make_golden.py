"""Makes the golden engines and what they give: `python -m tests.engine.make_golden [FOLDER]`.

A golden engine is a small one of each family of ops, kept in the repository. Every later release reads it, runs it,
and gives the results that are kept beside it: the same bits with INGOT_ISA=portable, within a tolerance at other
levels. ops.json holds attributes of every op as files have them: they stay readable, too. Until the first release all
are made again when the format or the programs change, with a line in CHANGELOG.md; from then on never.

`python -m tests.engine.make_golden --ops` brings ops.json alone up to date, which a new op or version needs;
`python -m tests.engine.make_golden --run FOLDER` runs those of a folder instead and prints the digest of each result.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from ingot import Spec, _native, functional, models, nn
from ingot.builder.adapter import Merged, WithAdapter
from ingot.builder.network import build_network
from ingot.engine.session import Engine, load
from ingot.frontends.lora.adapter import read_adapter
from ingot.ir import OPS, Network
from ingot.ir.text import attrs_json
from ingot.ir.weight_format import AS_IS, FORMATS, WeightFormat
from ingot.nn import trace
from tests import nets

Array = np.ndarray[Any, Any]
Run = dict[str, Array]
Record = dict[str, dict[str, list[dict[str, Any]]]]

GOLDEN = Path(__file__).parent / "golden"
KV_BLOCKS = 8
VOCABULARY = 48
WORDS = [f"w{i}" for i in range(VOCABULARY)]
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "w0"},
}  # fmt: skip

DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LLAMA = DECODER | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
GEMMA = DECODER | {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16, "sliding_window": 4,
    "tie_word_embeddings": True,
}  # fmt: skip
MIXTRAL = DECODER | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 1, "num_local_experts": 4,
    "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
BERT = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": VOCABULARY, "hidden_size": 32,
    "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32, "max_position_embeddings": 32,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "bias": "none"}


class Made(NamedTuple):
    """An engine, and the inputs of its runs, one after another in a session.

    sources: what its recipes name. weights: the values of its network's parameters, with an adapter merged in; format:
    how they are stored.
    """

    engine: Engine
    sources: Mapping[str, Array]
    weights: Mapping[str, Array]
    feeds: list[Run]
    format: WeightFormat = AS_IS


def numbers(name: str, *shape: int) -> Array:
    """Seeded by the name. RandomState, because its numbers are frozen, those of newer generators are not."""
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


def weights_of(network: Network) -> dict[str, Array]:
    """A value of every parameter: factors of norms near 1, variances positive, others small."""

    def one(name: str, shape: tuple[int, ...]) -> Array:
        x = numbers(name, *shape)
        if name.endswith("running_var"):
            return 1 + 0.2 * np.abs(x)
        if len(shape) == 1:
            return 0.2 * x + ("norm" in name.lower() and name.endswith("weight"))
        return x * (1.5 / np.sqrt(shape[-1] if len(shape) == 2 else np.prod(shape[1:]))).astype(np.float32)

    return {v.name: one(v.name, v.spec.evaluate({})).astype(v.dtype.numpy) for v in network.parameters}


# ------------------------------------------------------------------------------------------------------ language models


@contextlib.contextmanager
def folder_of(files: Mapping[str, Any]) -> Iterator[Path]:
    """A folder with these JSON files, and `tensors` as the weights of an adapter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "golden"
        folder.mkdir()
        for file, content in files.items():
            if file == "adapter_model.safetensors":
                save_file(content, folder / file)
            else:
                (folder / file).write_text(json.dumps(content))
        yield folder


def of_config(
    config: Mapping[str, Any], precision: str, feeds: list[Run], lora: bool = False, format: WeightFormat = AS_IS
) -> Made:
    """A model of a directory, with weights of ours stored in a format, or an adapter merged into them."""
    with folder_of({"config.json": config, "tokenizer.json": TOKENIZER}) as folder:
        loaded = models.load_config_only(folder, precision=precision)
    network = trace(loaded.module, loaded.input_specs)
    weights, facts = weights_of(network), {"config": loaded.config, "kind": loaded.kind, "files": loaded.files}
    if not lora:
        return Made(build_network(network, weights, **facts, format=format), weights, weights, feeds, format)
    tensors = lora_tensors(config["num_hidden_layers"])
    with folder_of({"adapter_config.json": LORA, "adapter_model.safetensors": tensors}) as folder:
        adapter = read_adapter(folder, network)
    engine = build_network(network, weights, **facts, adapter=adapter)
    return Made(engine, WithAdapter(weights, adapter), Merged(weights, adapter), feeds)


def lora_tensors(layers: int) -> dict[str, Array]:
    """A and B for every module that LORA names."""
    found = {}
    for layer in range(layers):
        for module in ("self_attn.q_proj", "mlp.down_proj"):
            name = f"base_model.model.model.layers.{layer}.{module}.lora_"
            for half, shape in (("A", (4, 32)), ("B", (32, 4))):
                found[f"{name}{half}.weight"] = 0.2 * numbers(f"{name}{half}", *shape)
    return found


def steps() -> list[Run]:
    """A prompt of seven tokens, then one token more; a padding row in each."""
    hidden = np.array([0, -1], np.int32)
    prompt, answer = (nets.step(context=n, rows=rows, vocabulary=VOCABULARY) for n, rows in ((7, 7), (8, 1)))
    return [prompt | {"hidden_rows": hidden}, answer | {"hidden_rows": hidden}]


def texts() -> list[Run]:
    """Two texts of unequal length."""
    positions = np.tile(np.arange(5, dtype=np.int32), (2, 1))
    ids = (np.arange(10, dtype=np.int32).reshape(2, 5) * 7) % VOCABULARY
    return [{"token_ids": ids, "positions": positions, "mask": positions < np.array([[5], [3]])}]


# ----------------------------------------------------------------------------------------------------- other networks


class ConvNet(nn.Module):
    """Every kernel of convolutional nets: x [N, 3, H, W] → [N, 5, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.depth, self.point = nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.Conv2d(8, 12, 1)
        self.groups, self.grouped = nn.GroupNorm(3, 12), nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=2)
        self.up, self.head = nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1), nn.Conv2d(16, 5, 1)

    def forward(self, x: Any) -> Any:
        x = functional.relu(self.norm(self.stem(x)))
        y = functional.silu(self.groups(self.point(self.depth(x))))
        y = functional.add(self.grouped(y), functional.max_pool2d(y, 3, 1, 1))
        y = functional.concat([self.up(y), x], 1)
        return functional.mul(self.head(y), functional.sigmoid(self.head(functional.avg_pool2d(y, 3, 1, 1))))


class Mixed(nn.Module):
    """Ops that a model may have beside these: other dtypes, indices, sorting, branches and sizes known when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(shape=(16, 8))

    def forward(self, x: Any, index: Any, flag: Any) -> Any:
        rows = functional.index_select(self.table, 0, index)
        wide = functional.cast(functional.cumsum(functional.add(x, rows), 1), "float64")
        ranks = functional.argsort(x, 1)
        best, _ = functional.topk(x, 3, 1)
        branch = functional.cond(flag, lambda a: functional.mul(a, 2.0), lambda a: functional.neg(a), (x,))
        small = functional.cast(functional.clip(functional.mul(x, 50.0), -100.0, 100.0), "int8")
        where = functional.nonzero(functional.gt(x, 0.5))
        product = functional.einsum("ab,cb->ac", x, rows)
        summed = functional.sum(functional.where(functional.gt(branch, 0.0), branch, x), 1)
        return wide, ranks, best, branch, small, where, product, summed


def of_module(module: nn.Module, specs: Mapping[str, Spec], feeds: list[Run]) -> Made:
    network = trace(module, specs)
    weights = weights_of(network)
    engine = build_network(network, weights, config={"made": "golden"}, files={"note.txt": b"golden"})
    return Made(engine, weights, weights, feeds)


def conv_net() -> Made:
    shape = (1, 3, 12, 16)
    return of_module(ConvNet(), {"x": Spec(("N", *shape[1:]), "float32")}, [{"x": numbers("x", *shape)}])


def mixed() -> Made:
    specs = {"x": Spec(("N", 8), "float32"), "index": Spec(("N",), "int32"), "flag": Spec((), "bool")}
    feeds = {"x": numbers("mixed x", 3, 8), "index": np.array([15, 0, 7], np.int32)}
    return of_module(Mixed(), specs, [feeds | {"flag": np.array(flag)} for flag in (True, False)])


# How far results may be from the portable ones at other levels, in shares of the largest. Measured: 1.6e-6 in float32
# and 8.5e-8 in bfloat16, where a rounding that falls to the other side costs 2^-8.
FAMILIES: dict[str, tuple[Callable[[], Made], float]] = {
    "llama-float32": (lambda: of_config(LLAMA, "float32", steps()), 1e-5),
    # With dot products of bfloat16 attention rounds its weights to it: 0.018; torch in bfloat16 is as far (0.014).
    "llama-bfloat16": (lambda: of_config(LLAMA, "bfloat16", steps()), 0.02),
    "gemma2-float32": (lambda: of_config(GEMMA, "float32", steps()), 1e-5),
    "mixtral-bfloat16": (lambda: of_config(MIXTRAL, "bfloat16", steps()), 0.01),
    "lora-float32": (lambda: of_config(LLAMA | {"num_hidden_layers": 1}, "float32", steps(), lora=True), 1e-5),
    "int8-float32": (lambda: of_config(LLAMA, "float32", steps(), format=FORMATS["int8"]), 1e-5),
    "int4-bfloat16": (lambda: of_config(LLAMA, "bfloat16", steps(), format=FORMATS["int4-g32"]), 0.01),
    "bert-float32": (lambda: of_config(BERT, "float32", texts()), 1e-5),
    "convnet-float32": (conv_net, 1e-5),
    "mixed-float32": (mixed, 1e-5),
}


def run(engine: Engine, feeds: list[Run]) -> list[Run]:
    """The results of runs one after another in one session."""
    blocks = KV_BLOCKS if engine.kind == "llm" else 0
    session = engine.session(kv_blocks=blocks)
    return [session.run(one) for one in feeds]


def stored(path: Path) -> tuple[list[Run], list[Run]]:
    """Inputs and results of an engine's runs, as they are kept beside it."""
    feeds: dict[int, Run] = {}
    results: dict[int, Run] = {}
    with np.load(path.with_suffix(".npz")) as arrays:
        for key in arrays.files:
            number, kind, name = key.split("/", 2)
            (feeds if kind == "in" else results).setdefault(int(number), {})[name] = arrays[key]
    return [feeds[i] for i in sorted(feeds)], [results[i] for i in sorted(results)]


def make(folder: Path) -> None:
    """Writes an engine and its runs for every family, and the record of all ops."""
    if _native.level() != "portable":
        raise SystemExit("golden results are those of INGOT_ISA=portable")
    folder.mkdir(exist_ok=True)
    for name, (family, _) in FAMILIES.items():
        made = family()
        made.engine.save(folder / f"{name}.ingot")
        arrays = {}
        for i, (feeds, results) in enumerate(zip(made.feeds, run(made.engine, made.feeds), strict=True)):
            arrays |= {f"{i}/in/{n}": a for n, a in feeds.items()} | {f"{i}/out/{n}": a for n, a in results.items()}
        np.savez_compressed(folder / f"{name}.npz", **arrays)
    write_record(folder / "ops.json")


def record(before: Path) -> Record:
    """Of every op that a portable network may have, by version, the attributes of its cases as files have them.

    Those of older versions are what was on record `before`.
    """
    old: Record = json.loads(before.read_text()) if before.exists() else {}
    found: Record = {}
    for name, cls in sorted(OPS.items()):
        if not cls.__module__.startswith(("ingot.ops.fused", "ingot.ops.lowering")):
            attrs = [json.dumps(attrs_json(cls(**case.attrs))) for case in cls.cases if case.error is None]
            now = {str(cls.version): [json.loads(a) for a in dict.fromkeys(attrs)]}
            found[name] = {v: a for v, a in old.get(name, {}).items() if int(v) < cls.version} | now
    return found


def write_record(path: Path) -> None:
    """Brings the record up to date."""
    ops = record(path)
    path.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(op)}" for name, op in ops.items()) + "\n}\n")


def digests(folder: Path) -> dict[str, list[str]]:
    """Of every engine in a folder, the digest of each result of each of its runs."""
    found = {}
    for path in sorted(folder.glob("*.ingot")):
        results = run(load(path), stored(path)[0])
        found[path.stem] = [digest(a) for one in results for _, a in sorted(one.items())]
    return found


def digest(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


if __name__ == "__main__":
    os.environ["INGOT_ISA"] = "portable"
    parser = argparse.ArgumentParser(prog="python -m tests.engine.make_golden", allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, default=GOLDEN, metavar="FOLDER", help="where they go")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run its engines, print digests of the results")
    parser.add_argument("--ops", action="store_true", help="bring ops.json alone up to date")
    asked = parser.parse_args()
    if asked.run is not None:
        print(json.dumps(digests(asked.run)))
    elif asked.ops:
        write_record(GOLDEN / "ops.json")
    else:
        make(asked.folder)
