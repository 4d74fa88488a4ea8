"""The roofs of this machine: read bandwidth and arithmetic, from a small C++ program compiled at first use."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.compiler import compile_program
from benchmarks.harness import ROOT, THREADS, Options, Result
from ingot import _native

SOURCE, READ = ROOT / "benchmarks" / "machine.cpp", (ROOT / "benchmarks" / "native" / "reads.h",)
# What a processor has at each level that INGOT_ISA can force; portable code is compared with what AVX2 can do.
PROCESSORS = {
    "portable": "x86-64-v3", "avx2": "x86-64-v3", "avx_vnni": "alderlake", "avx512": "x86-64-v4",
    "avx512_vnni": "cascadelake", "avx512_bf16": "cooperlake",
}  # fmt: skip
# What keeps oneDNN, in OpenVINO and torch, and torch's own kernels to the level that INGOT_ISA forces.
HELD = {
    "portable": ("SSE41", "default"), "avx2": ("AVX2", "avx2"), "avx_vnni": ("AVX2_VNNI", "avx2"),
    "avx512": ("AVX512_CORE", "avx512"), "avx512_vnni": ("AVX512_CORE_VNNI", "avx512"),
    "avx512_bf16": ("AVX512_CORE_BF16", "avx512"),
}  # fmt: skip
HOLDS, LOOSE = "OpenVINO holds", "not to that level"  # around the kernels, in a note, that ask the processor themselves
RATES = "_gflops"  # what the names of arithmetic end with: its rate in every pass
SHOWN = 3  # ways to read: the best, which all of the memory was read by


def forced_level() -> str | None:
    """The level below this machine's best one that INGOT_ISA asks for; None: it runs at its best."""
    return None if _native.level() == _native.levels()[-1] else _native.level()


def hold_peers() -> str | None:
    """Keeps peers that start after this, or have multiplied nothing yet, to the forced level; how, if there is one."""
    level = forced_level()
    if level is None:
        return None
    variables = dict(zip(("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"), HELD[level], strict=True))
    os.environ.update(variables)
    return f"peers are kept to {level} ({', '.join(f'{name}={value}' for name, value in variables.items())})"


def below_avx512() -> bool:
    """Whether a level without AVX-512 is forced."""
    level = forced_level()
    return level is not None and HELD[level][1] != "avx512"


def has_bfloat16() -> bool:
    """Whether the level has instructions for it. Peers refuse it, or compute it as float32, on processors without."""
    return _native.level() in ("avx512_bf16", "amx")


def _program() -> Path:
    level = forced_level()
    name, target = (f"machine-{level}", PROCESSORS[level]) if level else ("machine", "native")
    return compile_program(name, target, SOURCE, READ)


@functools.cache
def roofs(threads: int = THREADS) -> dict[str, Any]:
    """What machine.cpp prints. Needs 4 GiB of memory and g++, or raises UserError; takes about ten seconds."""
    return _said(_program(), threads)


def _said(program: Path, *words: int) -> dict[str, Any]:
    done = subprocess.run([str(program), *map(str, words)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_now(threads: int) -> float:
    """The read bandwidth of this minute in GB/s, in the way that was the best when the roofs were measured: neighbours
    change it, so what is a share of it takes turns with it. Takes some four seconds.
    """
    best = roofs(threads)["reads"][0]
    return float(_said(_program(), threads, best["streams"], best["ahead"], best["near"])["read_bandwidth"])


def _passes(dtype: str, threads: int) -> list[float]:
    """Operations a second in each pass, with the widest instructions for this type; none where it has none.

    bfloat16 without instructions of its own is computed as float32.
    """
    kinds = {key: rates for key, rates in roofs(threads).items() if key.endswith(RATES)}
    if dtype == "bfloat16" and not any(key.startswith(dtype) for key in kinds):
        dtype = "float32"
    found = [rates for key, rates in kinds.items() if key.startswith(dtype)]
    return [rate * 1e9 for rate in max(found, key=max, default=[])]


def peak(dtype: str, threads: int) -> float:
    """Operations a second from registers, or 0: the fastest pass, for a limit is not what a disturbed one reaches."""
    return max(_passes(dtype, threads), default=0.0)


def times_as_fast(dtype: str, wide: str, threads: int) -> float:
    """How many times the arithmetic of `wide` that of `dtype` is: the median of passes, which took turns."""
    pairs = zip(_passes(dtype, threads), _passes(wide, threads), strict=True)
    return statistics.median(narrow / other for narrow, other in pairs)


def machine(options: Options) -> Result:
    """Read bandwidth (4 GiB of huge pages, the fastest way of 32, median of 5), and arithmetic from registers (the
    fastest of 20)."""
    found = roofs(options.threads)
    result = Result("machine")
    result.add(f"read bandwidth, {options.threads} threads", found["read_bandwidth"], "GB/s")
    result.add("read bandwidth, 1 thread", found["read_one_thread"], "GB/s")
    result.add(f"reading 1 MiB for each of {options.threads} threads", found["cache_bandwidth"], "GB/s")
    for way in found["reads"][:SHOWN]:
        streams = "one stream" if way["streams"] == 1 else f"{way['streams']} streams"
        cache = "" if way["near"] else " into the second cache"
        fetched = f"fetched {way['ahead']} bytes ahead{cache}" if way["ahead"] else "nothing fetched by software"
        result.add(f"… {streams} a thread, {fetched}", way["rate"], "GB/s")
    for key, value in found.items():
        if key.endswith(RATES):
            result.add(key.removesuffix(RATES).replace("_", " "), max(value), "GFLOP/s")
    return result
