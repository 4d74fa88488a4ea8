"""A model of TinyLlama-1.1B's shape with random bfloat16 weights: share of bandwidth, prefill, loading."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import torch

import ingot
from benchmarks.harness import CACHE, PICO, ROOT, Options, Result, paired, repeated, seconds
from benchmarks.machine import roofs
from benchmarks.pico import peer, peer_tokens, rate

DIRECTORY = CACHE / "tinyllama"
LAYERS = 22
LAYER_WEIGHTS = LAYERS * (2048 * (2048 + 256 + 256 + 2048) + 3 * 2048 * 5632)  # a token of a prompt meets each once
ENGINE = CACHE / "tinyllama-bfloat16.ingot"


def directory() -> Path:
    """The model as a Hugging Face directory, made once (2.2 GB). Its tokenizer is pico's: only ids matter here."""
    if not (DIRECTORY / "tokenizer.json").exists():
        import transformers

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=LAYERS,
            num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)
        transformers.LlamaForCausalLM(config).save_pretrained(DIRECTORY)
        torch.set_default_dtype(torch.float32)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (DIRECTORY / name).write_bytes((PICO / name).read_bytes())
    return DIRECTORY


def engine() -> Path:
    """Its engine, built once per version of the package's sources."""
    sources = max(p.stat().st_mtime for p in (ROOT / "ingot").rglob("*.py"))
    if not ENGINE.exists() or ENGINE.stat().st_mtime < sources:
        ingot.build(directory(), precision="bfloat16", report=False).save(ENGINE)
    return ENGINE


def weight_bytes(path: Path) -> int:
    """The bytes of weights that one decoding step reads: all but the rows of the embedding that it does not look up."""
    built = ingot.load(path)
    read = {name: built.tensor(name).nbytes for name in built.header["weights"] if not name.startswith("file.")}
    table = sum(size for name, size in read.items() if ".embed_tokens." in name)  # input and output are not tied here
    return int(sum(read.values()) - table * 31_999 // 32_000)


def tinyllama(options: Options) -> Result:
    """Decoding as a share of read bandwidth; prefill of 512 tokens against transformers in bfloat16."""
    bandwidth = roofs(options.threads)["read_bandwidth"]
    path, model = engine(), peer(directory(), torch.bfloat16, options.threads)
    random.seed(0)
    short, long = ([random.randrange(5, 4000) for _ in range(n)] for n in (32, 512))
    with ingot.LLM(path, threads=options.threads, prefix_cache=False) as llm:
        decode = paired(
            lambda: rate(lambda n: llm.generate(short, max_tokens=n, ignore_end=True), 33),
            lambda: rate(lambda n: peer_tokens(model, short, n, past_end=True), 9),
            options.pairs,
        )
        prefill = paired(
            lambda: 512 / seconds(lambda: llm.generate(long, max_tokens=1, ignore_end=True)),
            lambda: 512 / seconds(lambda: peer_tokens(model, long, 1, past_end=True)),
            options.pairs,
        )
    result = Result("tinyllama")
    share, read = decode.ours, weight_bytes(path) / 1e9
    result.add("read bandwidth", bandwidth, "GB/s")
    result.add("weights that a step reads", read, "GB")
    result.add("decode, ingot bfloat16", share.median, "tok/s", quartiles=share.quartiles)
    result.add("decode, transformers bfloat16", decode.peer.median, "tok/s", quartiles=decode.peer.quartiles)
    result.add(
        "decode, share of read bandwidth",
        share.median * read / bandwidth,
        "",
        at_least=0.85,
        quartiles=(share.quartiles[0] * read / bandwidth, share.quartiles[1] * read / bandwidth),
    )
    result.add("prefill 512, ingot bfloat16", prefill.ours.median, "tok/s", quartiles=prefill.ours.quartiles)
    result.add("prefill 512, transformers bfloat16", prefill.peer.median, "tok/s", quartiles=prefill.peer.quartiles)
    result.add("prefill 512, ratio", prefill.ratio.median, "×", at_least=2.5, quartiles=prefill.ratio.quartiles)
    return result


LOAD = """
import json, re, sys, time
import ingot
from ingot.engine.session import load
start = time.perf_counter()
session = load(sys.argv[1]).session(kv_blocks=8)
ready = time.perf_counter() - start
import numpy as np
one = lambda *values: np.array(values, np.int32)
session.run({"token_ids": one(5), "positions": one(0), "query_start": one(0, 1), "context_len": one(1),
             "block_table": one(0).reshape(1, 1), "slot": one(0), "logit_rows": one(0), "hidden_rows": one()})
resident = int(re.search(r"Rss: +([0-9]+) kB", open("/proc/self/smaps_rollup").read())[1]) * 1024
print(json.dumps({"ready": ready, "resident": resident, "weights": session.memory().weights}))
"""


def load(options: Options) -> Result:
    """A 2 GB engine in a warm page cache: time until the first run can start, and resident memory after one run."""
    path = engine()
    path.read_bytes()  # into the page cache
    seen = []

    def measure() -> float:
        done = subprocess.run([sys.executable, "-c", LOAD, str(path)], cwd=ROOT, check=True, capture_output=True)
        seen.append(json.loads(done.stdout))
        return float(seen[-1]["ready"])

    ready = repeated(measure, options.pairs)
    result = Result("load")
    result.add("engine file", path.stat().st_size / 1e9, "GB")
    result.add("open and session, until a run can start", ready.median, "s", at_most=0.2, quartiles=ready.quartiles)
    worst = max(one["resident"] / one["weights"] for one in seen)
    result.add("resident after a run (private + mapped) / weights", worst, "×", at_most=1.1)
    return result
