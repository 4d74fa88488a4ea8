"""`python -m benchmarks NAME [--json] [--pairs N] [--threads N]`; NAME is one of the table below, or all."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from benchmarks import batching, einsum, fourier, machine, nets, order, pico, recurrent, scheduler, serve, tinyllama
from benchmarks.harness import THREADS, Options
from benchmarks.onnx_models import onnx_models
from benchmarks.torch_nets import NETS

TABLE = {
    "machine": machine.machine,
    "greedy": pico.greedy,
    "heldout": pico.heldout,
    "coldstart": pico.coldstart,
    "decode-pico": pico.decode,
    "tinyllama": tinyllama.tinyllama,
    "load": tinyllama.load,
    "batching": batching.batching,
    "prefix": batching.prefix,
    "scheduler": scheduler.scheduler,
    "order": order.order,
    "fourier": fourier.fourier,
    "einsum": einsum.einsum,
    "recurrent": recurrent.recurrent,
    "onnx-models": onnx_models,
    "serve": serve.serve,
    "serve-tinyllama": serve.serve_tinyllama,
    "serve-load": serve.serve_load,
    "serve-overload": serve.serve_overload,
    **{name: nets.benchmark(name) for name in NETS},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*TABLE, "all"])
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark on standard output")
    parser.add_argument("--pairs", type=int, default=9, help="measurements after warm-up (default 9)")
    parser.add_argument("--threads", type=int, default=THREADS)
    given = parser.parse_args()
    console = Console(stderr=given.json, width=None if sys.stdout.isatty() else 120)
    for name in TABLE if given.name == "all" else [given.name]:
        result = TABLE[name](Options(given.pairs, given.threads))
        result.show(console)
        if given.json:
            print(json.dumps(result.json()), flush=True)


if __name__ == "__main__":
    main()
