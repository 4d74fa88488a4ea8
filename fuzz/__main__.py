"""Fuzzes the Python readers with atheris and the C++ reader under sanitizers, each for its share of the time.

    python -m fuzz [--seconds N] [--only python|onnx|native] [--kernel NAME] [--level NAME]

N seconds go to the Python targets together and N to the C++ reader, side by side (with --only native: N on each of two
processors; --only onnx: the importer of ONNX files, which --only python leaves out). The Python corpora stay in
build/fuzz/corpus, so that a later run goes on where this one ended; the native one is written anew.
The exit code is 1 when any target found a fault, or the native run missed a kernel at some level.
The input that shows a fault lies in build/fuzz/faults, and `build/fuzz/fuzz_reader FILE` runs a native one again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attacks.make import make
from fuzz.programs import templates
from fuzz.targets import ONNX, TARGETS

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "fuzz"


def python(name: str, seconds: int) -> tuple[str, int, str]:
    """One target under atheris: its name, exit code, and how many inputs it ran or what it found."""
    corpus = BUILD / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(TARGETS[name][1]):
        (corpus / f"seed-{i}").write_bytes(seed)
    (BUILD / "faults").mkdir(exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        "-timeout=30",
        "-rss_limit_mb=4096",
        "-max_len=20000",
        "-print_final_stats=1",
    ]
    command = [
        sys.executable,
        "-m",
        "fuzz.one",
        name,
        *options,
        f"-artifact_prefix={BUILD}/faults/{name}-",
        str(corpus),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    said = f"{int(executed[1]):,} inputs" if executed else ""
    return name, done.returncode, said if done.returncode == 0 else done.stderr[-4000:]


def write_corpus(corpus: Path) -> None:
    """An engine for every template, and the attacks, whose files the driver changes."""
    shutil.rmtree(corpus, ignore_errors=True)
    (corpus / "templates").mkdir(parents=True)
    for template in templates():
        (corpus / "templates" / f"{template.name}.ingot").write_bytes(template.encode())
    (corpus / "attacks").mkdir()
    for path, _ in make(corpus / "attacks"):
        # The driver reads files; links, devices and very large files are the tests' business.
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 20:
            subprocess.run(["rm", "-rf", str(path)], check=True)


def native(seconds: int, jobs: int, options: list[str]) -> tuple[str, int, str]:
    """The C++ reader, planner, executor and kernels, starting from the templates and the attacks."""
    corpus, faults = BUILD / "corpus" / "native", BUILD / "faults"
    write_corpus(corpus)
    settings = ["--seconds", str(seconds), "--seed", str(os.getpid()), "--jobs", str(jobs), "--faults", str(faults)]
    command = [str(BUILD / "fuzz_reader"), *settings, *options, str(corpus)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "native", done.returncode, (done.stdout + done.stderr)[-12000:].strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--only", choices=("python", "onnx", "native"))
    parser.add_argument("--kernel", help="native: only the templates of this kernel")
    parser.add_argument("--level", help="native: only this level")
    given = parser.parse_args()
    chosen = ONNX if given.only == "onnx" else [name for name in TARGETS if name not in ONNX or given.only is None]
    share = max(given.seconds // len(chosen), 1)
    failed = False
    options = [part for name in ("kernel", "level") if (value := getattr(given, name)) for part in (f"--{name}", value)]
    jobs_of_native = 2 if given.only == "native" else 1
    with ThreadPoolExecutor(2) as pool:
        # The native run has one of the two workers, the Python targets the other, one after the other.
        jobs = [] if given.only in ("python", "onnx") else [pool.submit(native, given.seconds, jobs_of_native, options)]
        jobs += [] if given.only == "native" else [pool.submit(python, name, share) for name in chosen]
        for job in jobs:
            name, code, said = job.result()
            print(f"{name}: {'ok' if code == 0 else f'FAULT (status {code})'} {said}", flush=True)
            failed = failed or code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
