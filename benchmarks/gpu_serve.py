"""`ingot serve --device cuda` at Llama-3-8B's shape: 128 clients that are never idle, 512 tokens in and 128 out.

Beside it the kept figure of transformers' continuous batching of such requests, in one process (gpu_peers.py).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import ingot
from benchmarks.alike import alike
from benchmarks.clients import Clients
from benchmarks.gpu_decode import SHAPES, Shape, started
from benchmarks.gpu_eager import beside_eager
from benchmarks.gpu_generate import config
from benchmarks.gpu_kept import kept
from benchmarks.gpu_peers import CLIENTS, CONTINUOUS, SERVED_ANSWER, SERVED_PROMPT
from benchmarks.harness import PICO, Options, Result
from benchmarks.overload import latencies
from benchmarks.serve import served

SECONDS = float(os.environ.get("INGOT_BENCH_SERVE_SECONDS", "300"))  # that are counted
WARM_UP = 30.0  # before that: kernels are compiled, graphs recorded
PROCESSES = 4  # of clients
GOAL = 3.0  # times transformers


def gpu_serve(options: Options) -> Result:
    """Tokens a second over HTTP, streamed; times; and that no request failed."""
    result, _ = started("gpu-serve")
    beside_eager(result, SHAPES[0], CLIENTS, SERVED_PROMPT + SERVED_ANSWER // 2)
    with TemporaryDirectory() as folder:
        engine = _engine(SHAPES[0], Path(folder))
        words = ("--device", "cuda", "--max-running", str(CLIENTS), "--context", "1024")
        with served(engine, options, words) as server:
            begin = time.monotonic() + 2.0  # for the processes to start
            until = begin + WARM_UP + SECONDS
            each = {"kind": "steady", "port": server.port, "clients": CLIENTS // PROCESSES, "begin": begin,
                    "until": until, "prompt": SERVED_PROMPT, "answer": SERVED_ANSWER}  # fmt: skip
            jobs = [each | {"seed": 300 + i} for i in range(PROCESSES)]
            found = Clients(options.client_cpus, jobs).outcomes()
    ended = [one for one in found if begin + WARM_UP <= one.at + one.took < until]
    kinds = Counter(one.kind for one in found)
    rate = sum(one.tokens for one in ended) / SECONDS
    result.add(f"8B bfloat16, {CLIENTS} clients, {SERVED_PROMPT} + {SERVED_ANSWER}", rate, "tok/s",
               note=f"{SECONDS:.0f} s, {len(found):,} requests")  # fmt: skip
    result.add("requests that were not answered whole", len(found) - kinds["whole"], "", at_most=0)
    latencies("first token", [one.first for one in ended], 1e3, "ms", result)
    latencies("per token", [one.per_token for one in ended], 1e3, "ms", result)
    peer = kept(CONTINUOUS)
    if peer is not None:
        result.add("ingot serve / transformers", rate / peer, "×", at_least=GOAL, note=f"kept: {peer:,.0f} tok/s")
    return result


def _engine(shape: Shape, folder: Path) -> Path:
    """The engine as a file, with a tokenizer that has a word for every token of the model."""
    source = folder / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config(shape)))
    tokenizer = json.loads((PICO / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    vocabulary |= {f"Ġword{i}": i for i in range(shape.vocabulary) if i not in taken}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    (source / "tokenizer_config.json").write_bytes((PICO / "tokenizer_config.json").read_bytes())
    with alike():
        engine = ingot.build(source, weights_from="random", seed=0, report=False)
    path = folder / "8b.ingot"
    engine.save(path)
    return path
