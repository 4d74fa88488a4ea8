"""Say what this machine is and what will run on it; with a SOURCE, which of its ops run natively.

examples:
  ingot doctor
  ingot doctor pico.ingot
  INGOT_ISA=avx2 ingot doctor           INGOT_ISA forces an instruction set level

The exit code is 2 when a package is missing, or a kernel that SOURCE needs; all is printed first."""

from __future__ import annotations

import argparse
import os
import platform
from typing import Any

from ingot import _lazy
from ingot.cli.inspect import all_calls, kernel_counts, open_source
from ingot.cli.output import Output, size, table
from ingot.errors import UserError
from ingot.version import __version__

PACKAGES = ("numpy", "ml_dtypes", "safetensors", "tokenizers", "jinja2", "rich")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot doctor`."""
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="an .ingot engine, or what one can be built from")


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
    out.text(f"processor    {machine['processor']}, {machine['usable_processors']} of {machine['processors']} usable")
    out.text(f"system       {machine['system']}")
    out.text(f"memory       {size(machine['memory_available'])} available")
    out.text(f"threads      {machine['threads']}")
    out.text(f"level        {machine['level']} (this machine runs {', '.join(machine['levels'])})")
    out.text("versions     " + ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    if missing:
        out.text(f"missing      {', '.join(missing)}")
    ops = None if args.source is None else _ops(open_source(args.source), native, out)
    out.result({"machine": machine, "versions": versions, "ops": ops})
    faults = [f"packages are missing: pip install {' '.join(missing)}"] if missing else []
    if kernels := [row["op"] for row in ops or () if row["runs"] == "missing"]:
        faults.append(
            f"{args.source} needs kernels, or versions of them, that ingot {__version__} lacks: {', '.join(kernels)}; "
            "build it again with this version, or run it with the one that built it"
        )
    if faults:
        raise UserError("; ".join(faults))


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
