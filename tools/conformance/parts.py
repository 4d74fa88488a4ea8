"""What the parts are: each runs alone, within 25 minutes on two processors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from ingot import _native
from ingot.errors import UserError
from tools.conformance.architectures import architectures
from tools.conformance.mutants import GROUPS, mutants
from tools.conformance.onnx_contrib import onnx_contrib
from tools.conformance.onnx_models import onnx_models
from tools.conformance.onnx_nodes import onnx_nodes
from tools.conformance.onnx_peers import all_peers
from tools.conformance.op_info import op_info
from tools.conformance.page import table
from tools.conformance.sanitizers import ADDRESS, THREAD, Sanitizer, reported, shown
from tools.conformance.site import site
from tools.conformance.suites import ROOT, Outcome, run_tests
from tools.conformance.torch_functions import torch_functions
from tools.conformance.vision_nets import vision_nets

ALL = ("-m", "slow or not slow", "--timeout=1200")
SAMPLE = ("--timeout=1200",)  # what `make test` runs: of tests that are marked so, some cases of each kind
THOUSAND = (*ALL, "--hypothesis-profile=conformance")
LEVELS = ("portable", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")
SANITIZED = tuple(level for level in LEVELS if not level.endswith("_vnni"))  # which have one kernel of their own
OTHER_LEVELS = "--ignore=tests/kernels/test_levels.py"
BORDERS = "--ignore=tests/kernels/test_borders.py"  # whose pages a sanitizer answers for in the system's place
CUDA = "tests/backends/cuda"
FUZZ_SECONDS = 1200


@dataclass(frozen=True)
class Part:
    """One part: what it does in a line, the minutes that it took on two processors, and its work."""

    name: str
    what: str
    minutes: int
    run: Callable[[], Outcome]


def check_level(level: str) -> None:
    """Raises UserError for a level that this machine lacks."""
    if level not in _native.levels():
        raise UserError(f"this machine has no {level}: it has {', '.join(_native.levels())}")


def at_level(level: str) -> Outcome:
    """The suites that reach kernels, forced to an instruction-set level."""
    check_level(level)
    names = ("kernels", "native", "passes", "engine", "builder", "models", "llm", "ops/test_conversion.py")
    folders = [f"tests/{name}" for name in names]
    return run_tests([*ALL, OTHER_LEVELS, *folders], {"INGOT_ISA": level})


def cuda() -> Outcome:
    """The kernels of target cuda without a GPU, all cases."""
    if find_spec("triton") is None:
        raise UserError("this machine has no Triton: pip install 'ingot[gpu-test]', which has it for Linux on x86-64")
    return run_tests([*ALL, CUDA])


def numbers(names: Sequence[str]) -> Outcome:
    """The benchmarks that compare numbers with Hugging Face transformers."""
    rows, failed = [], False
    words = {True: "met", False: "**missed**", None: ""}
    for name in names:
        command = [sys.executable, "-m", "benchmarks", name, "--json"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            rows.append([name, f"ended with status {done.returncode}", "**failed**"])
            failed = True
            continue
        for row in json.loads(done.stdout.splitlines()[-1])["rows"]:
            rows.append([f"{name}: {row['what']}", f"{row['value']:.6g} {row['unit']}", words[row["met"]]])
            failed = failed or row["met"] is False
    return Outcome(failed, table(["what", "measured", "goal"], rows), f"python -m benchmarks {' '.join(names)}")


def fuzz(only: str, seconds: int = FUZZ_SECONDS) -> Outcome:
    """One kind of the fuzzers."""
    words = ["-m", "fuzz", "--only", only, "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    said = [line.partition(":") for line in done.stdout.splitlines() if ":" in line]
    rows = [[name, text.strip()[:300]] for name, _, text in said]
    return Outcome(done.returncode != 0 or not rows, table(["target", "result"], rows), f"python {' '.join(words)}")


def sanitized(sanitizer: Sanitizer, arguments: Sequence[str], level: str) -> Outcome:
    """Tests with the native module built under a sanitizer, at a level. Any report is a failure, whatever they say."""
    check_level(level)
    sanitizer.build()
    if not sanitizer.is_awake():
        return Outcome(True, "The sanitizer does not report a fault that is there.", "")
    environment = sanitizer.environment() | {"INGOT_ISA": level}
    # A process that a report ends is not started again: xdist then waits for ever for some of its tests.
    outcome = run_tests(["--max-worker-restart=0", OTHER_LEVELS, BORDERS, *arguments], environment)
    found = reported(sanitizer.reports)
    outcome.failed = outcome.failed or bool(found)
    outcome.body += "\n\n" + shown(found)
    return outcome


def folders(*names: str) -> list[str]:
    return [f"tests/{name}" for name in names]


# All tests but the part `cuda`'s, a thousand examples for every property, slow ones too: name, what, minutes, and what
# lies in tests/.
SUITES = (
    ("ops", "every op", 2, folders("ops")),
    ("kernels", "every kernel at this machine's level, samples at the others; the native core", 4,
     folders("kernels", "native")),
    ("engine", "building, quantising and running, the compiler's passes, the network", 3,
     folders("engine", "builder", "backends", "passes", "ir", "quantization")),
    ("torch", "layers, functions, programs of torch and of the retired API", 3,
     folders("compat", "frontends", "functional", "nn")),
    ("llm", "language models of every family", 3, folders("models", "llm", "text")),
    ("outside", "command line, server, attacks, failures", 5,
     folders("cli", "serve", *sorted(path.name for path in (ROOT / "tests").glob("test_*.py")))),
)  # fmt: skip
PARTS = (
    *(
        Part(f"tests-{name}", what, minutes, partial(run_tests, [*THOUSAND, f"--ignore={CUDA}", *found]))
        for name, what, minutes, found in SUITES
    ),
    Part("cuda", "kernels for NVIDIA GPUs, interpreted beside torch and compiled for sm_90", 12, cuda),
    *(
        Part(f"level-{level}", f"the suites that reach kernels, all at {level}", 15, partial(at_level, level))
        for level in LEVELS
    ),
    Part("functions", "every plain function of the retired API, by element type and sizes, in engines", 2,
         partial(run_tests, [*ALL, "tests/functional/test_every_function.py"])),
    Part("op-info", "torch's own samples of the ops that are imported; names of the retired API; what runs natively", 8,
         op_info),
    Part("torch-functions", "functions and layers of torch's documentation, and what people write with them", 4,
         torch_functions),
    Part("architectures", "model types of transformers with random weights, exported and compared with torch", 15,
         architectures),
    Part("onnx-nodes", "ONNX's own tests of single ops, each built into an engine; others beside it", 3,
         partial(onnx_nodes, all_peers)),
    Part("onnx-contrib", "ops of com.microsoft, and trees, in models of one node beside ONNX Runtime", 1, onnx_contrib),
    Part("onnx-models", "trained ONNX models out of packages, compared with ONNX Runtime", 1, onnx_models),
    Part("vision-nets", "nets of timm and torchvision through torch.export, compared with torch", 10, vision_nets),
    Part("docs", "the site, its links, and every sample of code in the pages", 2, site),
    Part("numbers", "greedy tokens and held-out text against transformers", 3, partial(numbers, ("greedy", "heldout"))),
    *(
        Part(f"mutants-{name}", f"faults that tests have to notice: {group.what}", 25, partial(mutants, name))
        for name, group in GROUPS.items()
    ),
    Part("fuzz-python", "the Python readers under atheris", 20, partial(fuzz, "python")),
    Part("fuzz-onnx", "the importer of ONNX files under atheris", 10, partial(fuzz, "onnx", 600)),
    Part("fuzz-native", "the C++ reader, planner and executor under ASan and UBSan", 20, partial(fuzz, "native")),
    *(
        Part(
            f"asan-{level}", f"kernels and the native core under ASan and UBSan, at {level}", 10,
            # The test of failed allocations has a malloc of its own, and so does the sanitizer. docs/cpp.md is about
            # what was installed, which this build is not.
            partial(
                sanitized, ADDRESS,
                [
                    *ALL, *folders("kernels", "native"), "--ignore=tests/native/test_cpp_page.py",
                    "-k", "not failed_allocation",
                ],
                level,
            ),
        )
        for level in SANITIZED
    ),
    *(
        Part(
            f"tsan-{level}",
            f"kernels with several threads, sessions and the loop of language models under TSan, at {level}", 20,
            partial(
                sanitized, THREAD,
                [
                    *SAMPLE, *folders("kernels", "native/test_session.py", "native/test_micro_batches.py"),
                    *folders("engine/test_session.py"),
                    *folders("llm/test_loop.py", "llm/test_llm.py", "llm/test_embed.py"),
                    # All kernels but three, which no worker shares, run with several threads in a sample too. What
                    # compares long texts with transformers would take most of the time, and races no more.
                    "-k", "not transformers and not heldout",
                ],
                level,
            ),
        )
        for level in SANITIZED
    ),
)  # fmt: skip
