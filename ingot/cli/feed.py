"""The arrays that the command line gives a network, one run on them, and what the results look like."""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.cli.arrays import fitted, read_npy, read_npz
from ingot.engine.inputs import problems, seeded, shape_of, sizes_that_run
from ingot.engine.session import Engine, Port
from ingot.errors import ArgumentError, InputError, MemoryLimitError, UserError
from ingot.llm.memory import available_memory

Array = np.ndarray[Any, Any]


def feeds_of(
    engine: Engine, args: argparse.Namespace, source: str, note: Callable[[str], None], usual: int = 1
) -> dict[str, Array]:
    """The inputs that `options.add_inputs` has read. Raises InputError with all that is missing or does not fit.

    note: is told the sizes that nobody gave.
    """
    ports = {port.name: port for port in engine.inputs}
    given = _given(args, list(ports))
    feeds = {name: fitted(array, ports[name]) if name in ports else array for name, array in given.items()}
    if args.random:
        sizes = sizes_that_run(engine, args.size, usual)
        _check_memory(engine, sizes)
        known = {text.partition("=")[0] for text in args.size} | _shown_by(given, ports)
        if chosen := [name for name in sizes if name not in known]:
            at = ", ".join(f"{name}={sizes[name]}" for name in chosen)
            note(f"seeded inputs at {at}: --size {chosen[0]}=4 gives another size")
        rng = np.random.default_rng(args.seed)
        drawn = {name: seeded(port, sizes, rng) for name, port in ports.items()}
        feeds = drawn | feeds
    elif args.size:
        raise UserError("--size says how large the inputs of --random are; the arrays given have sizes of their own")
    if found := problems(engine, feeds):
        hint = (
            ""
            if given or args.random
            else "\nGive them with --input NAME=FILE.npy, --npz or --input-dir, or use --random."
        )
        raise InputError(f"{source} cannot run on these inputs:\n  " + "\n  ".join(found) + hint)
    return feeds


def _shown_by(given: dict[str, Array], ports: dict[str, Port]) -> set[str]:
    """The dims whose sizes the arrays given show."""
    return {dim for name in given if name in ports for dim in ports[name].dims if isinstance(dim, str)}


def _check_memory(engine: Engine, sizes: dict[str, int]) -> None:
    """Raises MemoryLimitError for sizes that this machine has no room for, before the system ends the process."""
    shapes = [(shape_of(port, sizes), dtypes.get(port.dtype).bits) for port in engine.inputs]
    wanted, limit = sum(math.prod(shape) * bits // 8 for shape, bits in shapes), available_memory()
    with suppress(ArgumentError):  # only a run can tell
        wanted += engine.session().planned(sizes).arena
    if wanted > limit:
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise MemoryLimitError(f"a run at {shown} takes {wanted:,} bytes, and {limit:,} are available")


def _given(args: argparse.Namespace, inputs: list[str]) -> dict[str, Array]:
    """The arrays of all files named, each input from one of them; the file of an only input needs no name."""
    files: list[tuple[str, Any]] = []
    for text in args.input:
        name, separator, path = text.partition("=")
        if not separator and len(inputs) == 1:
            name, path = inputs[0], text
        if not name or not path:
            raise UserError(f"--input {text}: write NAME=FILE.npy; the inputs are {', '.join(inputs)}")
        if path.endswith(".npz"):
            raise UserError(f"--input {text}: a .npz file has arrays by name: give it as --npz {path}")
        files.append((name, path))
    if args.input_dir:
        folder = Path(args.input_dir)
        found = sorted(folder.glob("*.npy"))
        if not found:
            raise UserError(
                f"--input-dir {folder}: " + ("there are no .npy files" if folder.is_dir() else "no such folder")
            )
        files += [(path.stem, path) for path in found]
    if args.npz:
        files += list(read_npz(args.npz).items())
    names = [name for name, _ in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"given more than once: {', '.join(twice)}")
    return {name: file if isinstance(file, np.ndarray) else read_npy(file) for name, file in files}


def run_once(
    engine: Engine, args: argparse.Namespace, note: Callable[[str], None]
) -> tuple[dict[str, Array], dict[str, float]]:
    """The outputs of one run, and the seconds for the inputs, for planning and for the run itself."""
    begin = perf_counter()
    feeds = feeds_of(engine, args, args.source, note)
    session = engine.session(args.threads)
    ready = perf_counter()
    outputs = session.run(feeds)
    return outputs, {"inputs": ready - begin, "run": perf_counter() - ready}


def figures(name: str, array: Array) -> dict[str, Any]:
    """What is worth knowing of an array in one line; min, max and mean are of its finite numbers."""
    shown = {"name": name, "dtype": dtypes.get(array.dtype).name, "shape": list(array.shape)}
    wide = array.astype(np.float32) if dtypes.get(array.dtype) in (dtypes.bfloat16, dtypes.float16) else array
    finite = wide
    nan = infinite = 0
    if dtypes.get(array.dtype).is_float:
        nan, infinite = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
        finite = wide[np.isfinite(wide)] if nan or infinite else wide
    number: Any = float if dtypes.get(array.dtype).is_float else int
    some = finite.size > 0 and array.dtype.kind != "c"
    with np.errstate(over="ignore"):  # the sum of float64 numbers may be infinite
        mean = float(finite.mean(dtype=np.float64)) if some else None
    return shown | {
        "min": number(finite.min()) if some else None,
        "max": number(finite.max()) if some else None,
        "mean": mean,
        "nan": nan,
        "inf": infinite,
        "checksum": hashlib.sha256(array.tobytes()).hexdigest()[:16],
    }
