"""`python -m benchmarks NAME… [options]`: measures, with peers in the same run where there are some.

Each result is shown, and kept, as its benchmark ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console

from benchmarks import chart
from benchmarks.harness import THREADS, Options, Result
from ingot import _lazy
from ingot.cli.parser import Parser
from ingot.errors import UserError


class Benchmark(NamedTuple):
    """Where it is, as the module in this package and its function, and what it measures, in a line.

    BENCHMARKS of a module has several by name. The module is imported when the benchmark is asked for: each needs
    other packages.
    """

    where: str
    about: str

    def function(self, name: str) -> Callable[[Options], Result]:
        """What measures it."""
        found = _lazy.load(f"benchmarks.{self.where}")
        function: Callable[[Options], Result] = found[name] if self.where.endswith(":BENCHMARKS") else found
        return function


TABLE = {
    "machine": Benchmark("machine:machine", "read bandwidth and arithmetic of this machine: the roofs"),
    "greedy": Benchmark("pico:greedy", "tokens of pico-python that are transformers' too"),
    "heldout": Benchmark("pico:heldout", "its loss on a held-out text, in each format"),
    "coldstart": Benchmark("pico:coldstart", "from a process's start to its first token"),
    "decode-pico": Benchmark("pico:decode", "decoding one request of pico-python in bfloat16"),
    "tinyllama": Benchmark("tinyllama:tinyllama", "decoding and a prompt at TinyLlama-1.1B's shape in bfloat16"),
    **{
        f"llm-{name}": Benchmark("llm_formats:BENCHMARKS", f"that shape with weights of {about}")
        for name, about in (
            ("bfloat16", "bfloat16"), ("int8", "int8"), ("int8-int8", "int8, rows of int8"),
            ("int4-g32", "int4 in groups of 32"), ("int4-g32-int8", "int4 in groups of 32, rows of int8"),
            ("int4-g128", "int4 in groups of 128"), ("int4-g128-int8", "int4 in groups of 128, rows of int8"),
        )
    },
    "load": Benchmark("tinyllama:load", "time and memory until a 2 GB engine can run"),
    "invariance": Benchmark("invariance:invariance", "what it costs that a row does not depend on its company"),
    "batching": Benchmark("batching:batching", "16 requests at once"),
    "prefix": Benchmark("batching:prefix", "first token of a prompt whose beginning is shared"),
    "scheduler": Benchmark("scheduler:scheduler", "planning a step while 64 requests run"),
    "order": Benchmark("order:order", "sorting, the largest few, running sums, places of non-zero elements"),
    "fourier": Benchmark("fourier:fourier", "Fourier transforms, and the spectra of 10 s of sound"),
    "einsum": Benchmark("einsum:einsum", "four equations: time and memory"),
    "gpu-decode": Benchmark("gpu_decode:gpu_decode", "kernels of one row, and a step, on an NVIDIA GPU"),
    "gpu-generate": Benchmark("gpu_generate:gpu_generate", "language models there, random weights"),
    "gpu-generate-fp8": Benchmark("gpu_generate:gpu_generate_fp8", "the same with weights, rows and cache of fp8"),
    "gpu-rows": Benchmark("gpu_rows:gpu_rows", "products of several rows there, attention, experts"),
    "gpu-shapes": Benchmark("gpu_shapes:gpu_shapes", "launch shapes of products of fp8 there"),
    "gpu-start": Benchmark("gpu_start:gpu_start", "from a process's start to its first tokens there"),
    "gpu-nets": Benchmark("gpu_nets:gpu_nets", "the four nets there in float16"),
    "gpu-nets-int8": Benchmark("gpu_nets:gpu_nets_int8", "and in calibrated int8"),
    "gpu-onnx": Benchmark("gpu_onnx:gpu_onnx", "trained ONNX models there"),
    "gpu-serve": Benchmark("gpu_serve:gpu_serve", "ingot serve there, 128 clients, five minutes"),
    **{
        f"gpu-peers-{name}": Benchmark("gpu_peers:BENCHMARKS", f"a peer there, to be kept: {about}")
        for name, about in (
            ("transformers", "transformers"), ("gpt-fast-8b-bfloat16", "gpt-fast, 8B in bfloat16"),
            ("gpt-fast-8b-int8", "gpt-fast, 8B in int8"), ("gpt-fast-1b-bfloat16", "gpt-fast, 1B in bfloat16"),
            *((net, f"torch.compile of {net}") for net in ("stgcn", "unet", "resnet50", "bert")),
        )
    },
    "recurrent": Benchmark("recurrent:recurrent", "LSTM, GRU and RNN layers of 100 steps"),
    "onnx-models": Benchmark("onnx_models:onnx_models", "trained ONNX models beside ONNX Runtime"),
    "onnx-road": Benchmark("onnx_road:onnx_road", "the four nets by way of ONNX"),
    "int8": Benchmark("int8:int8", "calibrated int8 of trained weights: accuracy and time"),
    "serve": Benchmark("serve:serve", "ingot serve on pico-python with 64 clients"),
    "serve-tinyllama": Benchmark("serve:serve_tinyllama", "and at TinyLlama's shape with 16"),
    "serve-load": Benchmark("serve:serve_load", "random arrivals at 70 % of capacity"),
    "serve-overload": Benchmark("overload:serve_overload", "pico-python at 1, 2 and 5 times capacity"),
    "serve-overload-middle": Benchmark("overload:serve_overload_middle", "and a model of 110 million parameters"),
    "serve-floods": Benchmark("floods:serve_floods", "a normal request beside clients that mean no good"),
    **{
        name: Benchmark("nets:BENCHMARKS", f"{about}: build, accuracy, time")
        for name, about in (
            ("stgcn", "ST-GCN"), ("unet", "U-Net"), ("resnet50", "ResNet-50"), ("bert", "BERT-base, 128 tokens"),
            ("bert-384", "BERT-base, 384 tokens"),
        )
    },
}  # fmt: skip
GROUPS = {
    "llm-formats": [name for name, one in TABLE.items() if one.where == "llm_formats:BENCHMARKS"],
    "all": list(TABLE),
}
GPU = "gpu-"  # how names begin that need one


def names() -> str:
    """The table, a line for each name."""
    rows = [(name, one.about) for name, one in TABLE.items()]
    rows += [("llm-formats", "all llm-…"), ("all", "every one; those of GPUs where there is one"),
             ("chart", "stands alone: draws what was kept")]  # fmt: skip
    return "names:\n" + "\n".join(f"  {name:31} {about}" for name, about in rows)


def gpu_fault() -> str:
    """Why target cuda runs nothing here; nothing where it does."""
    try:
        _lazy.load("ingot.backends.device:device_of")("cuda")
    except UserError as e:
        return str(e)
    return ""


def chosen(given: Sequence[str], console: Console) -> list[str]:
    """The benchmarks that are asked for. Raises UserError for one that needs a GPU, where there is none."""
    found = [one for name in given for one in GROUPS.get(name, [name])]
    if any(name.startswith(GPU) for name in found) and (fault := gpu_fault()):
        if wanted := [name for name in given if name.startswith(GPU)]:
            raise UserError(f"{wanted[0]} needs an NVIDIA GPU: {fault}")
        console.print(f"without {GPU}…: {fault}", style="dim", markup=False, highlight=False)
        found = [name for name in found if not name.startswith(GPU)]
    return found


def run(name: str, options: Options) -> Result:
    """Measures one. Raises UserError where a package is missing."""
    try:
        return TABLE[name].function(name)(options)
    except ModuleNotFoundError as e:
        if e.name is None or e.name.split(".")[0] in ("benchmarks", "ingot", "tools"):
            raise
        raise UserError(f"{name} needs the package {e.name.split('.')[0]!r}: pip install 'ingot[bench]'") from e


def cpus(text: str) -> tuple[int, ...]:
    """Processors by number: `0,2,4-7`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what the command line names; a mistake of the user's ends with 2 and one line."""
    parser = Parser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=names(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*TABLE, *GROUPS, "chart"]
    parser.add_argument("names", nargs="+", choices=known, metavar="NAME", help="of the list below")
    parser.add_argument("--json", action="store_true", help="one JSON object per benchmark on standard output")
    parser.add_argument("--keep", action="store_true", help="add the result to benchmarks/measured/, for the chart")
    parser.add_argument("--pairs", type=int, default=9, help="measurements after warm-up (default 9)")
    parser.add_argument("--threads", type=int, help="default: one a processor, or one for each of --server-cpus")
    parser.add_argument("--server-cpus", type=cpus, default=(), metavar="LIST", help="as 0,2,4-7: where servers run")
    parser.add_argument("--client-cpus", type=cpus, default=(), metavar="LIST", help="where their clients run")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    given = parser.parse_args(argv)
    if given.names == ["chart"]:
        chart.draw()
        return
    if "chart" in given.names:
        parser.error("chart stands alone: it draws what was kept")
    threads = given.threads or len(given.server_cpus) or THREADS
    options = Options(given.pairs, threads, given.server_cpus, given.client_cpus)
    console = Console(stderr=given.json, width=None if sys.stdout.isatty() else 120)
    try:
        for name in chosen(given.names, console):
            result = run(name, options)
            result.show(console)
            if given.keep:
                chart.keep(result)
            if given.json:
                print(json.dumps(result.json()), flush=True)
    except UserError as e:
        if given.debug:
            raise
        parser.exit(e.exit_code, f"{parser.prog}: error: {e}\n")


if __name__ == "__main__":
    main()
