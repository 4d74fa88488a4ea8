"""Say what this machine is and what will run on it; with a SOURCE, which of its ops run natively.

examples:
  ingot doctor
  ingot doctor pico.ingot
  ingot doctor pico.ingot --device cuda the GPU, a self-test of some 3 s, and which ops are kernels there
  INGOT_ISA=avx2 ingot doctor           INGOT_ISA forces an instruction set level

The exit code is 2 when a package is missing, or a kernel that SOURCE needs; all is printed first."""

from __future__ import annotations

import argparse
import os
import platform
from collections import Counter
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.inspect import all_calls, kernel_counts, open_source
from ingot.cli.output import Output, size, table
from ingot.errors import IngotError, UserError
from ingot.version import __version__

PACKAGES = ("numpy", "ml_dtypes", "safetensors", "tokenizers", "jinja2", "rich")
EXTRAS = {  # what brings more than these, and by which packages: `pip install 'ingot[serve]'`
    "serve": ("httptools", "msgspec", "starlette", "uvicorn"),
    "onnx": ("onnx", "protobuf"),
    "onnxruntime": ("onnxruntime",),
    "images": ("pillow",),
    "torch": ("torch",),
    "cuda": ("torch", "triton"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot doctor`."""
    parser.add_argument("source", nargs="?", metavar="SOURCE", help=options.SOURCE)
    parser.add_argument("--device", metavar="DEVICE", help="look at another device too: cuda, cuda:1, torch, …")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot doctor`. Raises UserError, after all has been shown, when something is missing."""
    native = _lazy.load("ingot._native")
    machine = {
        "processor": _processor(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "usable_processors": len(os.sched_getaffinity(0)),
        "threads": native.default_threads(),
        "memory_available": _lazy.load("ingot.llm.memory:available_memory")(),
        "level": native.level(),
        "levels": list(native.levels()),
    }
    versions = {
        "ingot": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }
    missing = [name for name, version in versions.items() if version is None]
    extras = {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()}
    out.text(f"processor    {machine['processor']}, {machine['usable_processors']} of {machine['processors']} usable")
    out.text(f"system       {machine['system']}")
    out.text(f"memory       {size(machine['memory_available'])} available")
    out.text(f"threads      {machine['threads']}")
    out.text(f"level        {machine['level']} (this machine runs {', '.join(machine['levels'])})")
    out.text("versions     " + ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    if missing:
        out.text(f"missing      {', '.join(missing)}")
    there, not_there = ([e for e, found in extras.items() if all(found.values()) is whole] for whole in (True, False))
    out.text(f"extras       {', '.join(there) or 'none'} (not installed: {', '.join(not_there) or 'none'})")
    device, fault = _device(args.device, out)
    on_gpu = args.device is not None and args.device.partition(":")[0] == "cuda"
    engine = None if args.source is None else open_source(args.source)
    rows = _gpu_calls if on_gpu else _ops
    ops = None if engine is None else rows(engine, native, out)
    out.result({"machine": machine, "versions": versions, "extras": extras, "device": device, "ops": ops})
    faults = [f"packages are missing: pip install {' '.join(missing)}"] if missing else []
    if fault:
        faults.append(fault)
    if kernels := [row["op"] for row in ops or () if row["runs"] == "missing"]:
        faults.append(
            f"{args.source} needs kernels, or versions of them, that ingot {__version__} lacks: {', '.join(kernels)}; "
            "build it again with this version, or run it with the one that built it"
        )
    if faults:
        raise UserError("; ".join(faults))


def _device(word: str | None, out: Output) -> tuple[dict[str, Any] | None, str]:
    """What is known of the device that was asked for, and what is wrong with it."""
    if word is None:
        return None, ""
    try:
        device = _lazy.load("ingot.backends.device:device_of")(word)
    except UserError as e:
        out.text(f"device       {word} cannot be used")
        return {"name": word, "why": str(e)}, str(e)
    found: dict[str, Any] = {"name": str(device)}
    if device.is_architecture:
        out.text(f"device       {device} is what kernels are compiled for: `ingot build --device {device}`")
        return found, ""
    if device.runtime.name != "cuda":
        out.text(f"device       {device} is there")
        return found, ""
    try:
        found |= _lazy.load("ingot.backends.cuda.examine:gpu")(device.name)
    except IngotError as e:
        out.text(f"device       {device} cannot be used")
        return {"name": word, "why": str(e)}, str(e)
    test = found["self_test"]
    out.text(f"gpu          {device}: {found['name']}, compute capability {found['capability']}")
    out.text(f"             {size(found['free'])} of {size(found['memory'])} free")
    out.text(f"driver       {found['driver']} (CUDA {found['driver_cuda']}), torch {found['torch']} for CUDA "
             f"{found['torch_cuda']}, Triton {_version('triton')}")  # fmt: skip
    if found["kernels"]:
        out.text(f"kernels      {found['kernels']['compiled']} compiled ones in {found['kernels']['folder']}, for "
                 f"{found['kernels']['for']}")  # fmt: skip
    verdict = "works" if test["works"] else "FAILS"
    out.text(f"self-test    {verdict} in {test['seconds']:.1f} s: kernels differ from torch by {test['product']:.1e} "
             f"and {test['chain']:.1e}, copies at {test['bytes_per_second'] / 1e12:.2f} TB/s")  # fmt: skip
    return found, "" if test["works"] else f"{device}: its kernels give wrong numbers; do not use it"


def _gpu_calls(engine: Any, native: Any, out: Output) -> list[dict[str, Any]]:
    """One row per call of the networks on device cuda: how it runs there."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in engine.entries:
        for call in _lazy.load("ingot.backends.cuda.examine:calls_of")(engine.header, engine.external, entry):
            counts[call["call"], call["runs"]] += 1
    rows = [{"op": name, "calls": count, "runs": runs} for (name, runs), count in counts.most_common()]
    out.text("\n" + table([(r["op"], r["calls"], r["runs"]) for r in rows], ("op", "calls", "runs")))
    return rows


def _ops(engine: Any, native: Any, out: Output) -> list[dict[str, Any]]:
    """One row per kernel or op of the programs: how it runs here."""
    have = {(kernel["name"], kernel["version"]): kernel for kernel in native.kernels()}
    versions = {
        (call["kernel"], call["version"])
        for program in engine.header["programs"].values()
        for body in program["entries"].values()
        for call in all_calls(body)
        if "kernel" in call
    }
    rows: list[dict[str, Any]] = []
    for program in engine.header["programs"].values():
        kernels, host = kernel_counts(program)
        for name, count in kernels.most_common():
            known = all((n, v) in have for n, v in versions if n == name)
            rows.append({"op": name, "calls": count, "runs": "native" if known else "missing"})
        rows += [{"op": name, "calls": count, "runs": "host call (slow)"} for name, count in host.most_common()]
    out.text("\n" + table([(r["op"], r["calls"], r["runs"]) for r in rows], ("op", "calls", "runs")))
    return rows


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    metadata = _lazy.load("importlib.metadata")
    try:
        return str(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None
