"""`python -m benchmarks NAME… [options]`; a NAME is one of the table below, llm-formats, all, or chart (see chart.py).

Each result is shown, and kept, as its benchmark ends.
"""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from benchmarks import (
    batching,
    chart,
    einsum,
    floods,
    fourier,
    gpu_decode,
    gpu_generate,
    gpu_nets,
    gpu_onnx,
    gpu_peers,
    gpu_rows,
    gpu_serve,
    gpu_shapes,
    gpu_start,
    int8,
    invariance,
    llm_formats,
    machine,
    nets,
    order,
    overload,
    pico,
    recurrent,
    scheduler,
    serve,
    tinyllama,
)  # fmt: skip
from benchmarks.harness import THREADS, Options
from benchmarks.onnx_models import onnx_models
from benchmarks.onnx_road import onnx_road
from benchmarks.torch_nets import ALL

TABLE = {
    "machine": machine.machine,
    "greedy": pico.greedy,
    "heldout": pico.heldout,
    "coldstart": pico.coldstart,
    "decode-pico": pico.decode,
    "tinyllama": tinyllama.tinyllama,
    **llm_formats.BENCHMARKS,
    "load": tinyllama.load,
    "invariance": invariance.invariance,
    "batching": batching.batching,
    "prefix": batching.prefix,
    "scheduler": scheduler.scheduler,
    "order": order.order,
    "fourier": fourier.fourier,
    "einsum": einsum.einsum,
    "gpu-decode": gpu_decode.gpu_decode,
    "gpu-generate": gpu_generate.gpu_generate,
    "gpu-generate-fp8": gpu_generate.gpu_generate_fp8,
    "gpu-rows": gpu_rows.gpu_rows,
    "gpu-shapes": gpu_shapes.gpu_shapes,
    "gpu-start": gpu_start.gpu_start,
    "gpu-nets": gpu_nets.gpu_nets,
    "gpu-nets-int8": gpu_nets.gpu_nets_int8,
    "gpu-onnx": gpu_onnx.gpu_onnx,
    "gpu-serve": gpu_serve.gpu_serve,
    **gpu_peers.peers(),
    "recurrent": recurrent.recurrent,
    "onnx-models": onnx_models,
    "onnx-road": onnx_road,
    "int8": int8.int8,
    "serve": serve.serve,
    "serve-tinyllama": serve.serve_tinyllama,
    "serve-load": serve.serve_load,
    "serve-overload": overload.serve_overload,
    "serve-overload-middle": overload.serve_overload_middle,
    "serve-floods": floods.serve_floods,
    **{name: nets.benchmark(name) for name in ALL},
}
GROUPS = {"llm-formats": list(llm_formats.BENCHMARKS), "all": list(TABLE)}


def cpus(text: str) -> tuple[int, ...]:
    """Processors by number: `0,2,4-7`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*TABLE, *GROUPS, "chart"], metavar="NAME", help=", ".join(TABLE))
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark on standard output")
    parser.add_argument("--keep", action="store_true", help="add the result to benchmarks/measured/, for the chart")
    parser.add_argument("--pairs", type=int, default=9, help="measurements after warm-up (default 9)")
    parser.add_argument("--threads", type=int, help="default: one a processor, or one for each of --server-cpus")
    parser.add_argument("--server-cpus", type=cpus, default=(), metavar="LIST", help="as 0,2,4-7: where servers run")
    parser.add_argument("--client-cpus", type=cpus, default=(), metavar="LIST", help="where their clients run")
    given = parser.parse_args()
    if given.names == ["chart"]:
        chart.draw()
        return
    if "chart" in given.names:
        parser.error("chart stands alone: it draws what was kept")
    threads = given.threads or len(given.server_cpus) or THREADS
    options = Options(given.pairs, threads, given.server_cpus, given.client_cpus)
    console = Console(stderr=given.json, width=None if sys.stdout.isatty() else 120)
    for name in (one for named in given.names for one in GROUPS.get(named, [named])):
        result = TABLE[name](options)
        result.show(console)
        if given.keep:
            chart.keep(result)
        if given.json:
            print(json.dumps(result.json()), flush=True)


if __name__ == "__main__":
    main()
