"""The inputs of an engine's program: the sizes of its dims, seeded arrays, and all that is wrong with given arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot import dims, dims_parsing, dtypes
from ingot.backends.device import program_of
from ingot.engine.session import Engine, Port
from ingot.errors import ONE_OF_A_BATCH, ArgumentError, InputError, UserError, other_sizes
from ingot.seeded import bools

Array = np.ndarray[Any, Any]

LARGER = (8, 32, 64, 256)  # sizes to try where the smallest cannot be
OTHER_SIZES = ": give other sizes with --size"
MAX_DRAWN = 1 << 32  # elements of one seeded array


def sizes_of(engine: Engine, given: Sequence[str] = (), entry: str = "main", usual: int = 1) -> dict[str, int]:
    """The size of every dim that inputs have: as `given` ("N=8"), else the one to tune for, else `usual` or next to it.

    Raises UserError for what is no size of this engine.
    """
    network = engine.header["networks"].get("main")
    declared = network.get("dims", ()) if isinstance(network, dict) else ()
    best = {d["name"]: d["opt"] for d in declared if isinstance(d, dict) and isinstance(d.get("opt"), int)}
    symbols = {s["name"]: s for s in program_of(engine.header, entry)["symbols"] if not s.get("unbacked")}
    sizes = {name: best.get(name) or _near(usual, s["min"], s["max"]) for name, s in symbols.items()}
    for text in given:
        name, _, value = text.partition("=")
        if not sizes:
            raise UserError(f"--size {text}: no size of this engine can change, for all are fixed since it was built")
        is_size = value.isascii() and value.isdecimal()
        if name not in sizes or not is_size:
            fault = f"{name} is none of its dims" if is_size else "write DIM=N"
            raise UserError(f"--size {text}: {fault}; the dims are {', '.join(map(_bounds, symbols.values()))}")
        low, high = symbols[name]["min"], symbols[name]["max"]
        if not low <= int(value) <= (2**31 if high is None else high):
            raise UserError(f"--size {text} is out of bounds: {_bounds(symbols[name])}")
        sizes[name] = int(value)
    return sizes


def sizes_that_run(engine: Engine, given: Sequence[str] = (), usual: int = 1) -> dict[str, int]:
    """`sizes_of`, larger than `usual` where the program cannot run at that: a convolution needs an image of its size.

    Raises UserError, InputError when none of the sizes tried can be.
    """
    session, fault = engine.session(), None
    for size in (usual, *(s for s in LARGER if s > usual)):
        sizes = sizes_of(engine, given, usual=size)
        try:
            session.planned(sizes)
            return sizes
        except ArgumentError:  # only a run can tell
            return sizes
        except InputError as e:
            fault = fault or e
    raise InputError(f"{fault}{OTHER_SIZES}")


def _near(size: int, low: int, high: int | None) -> int:
    """The size within the bounds that is next to this one."""
    return max(low, size if high is None else min(size, high))


def _bounds(symbol: Mapping[str, Any]) -> str:
    high = symbol["max"]
    return (
        f"{symbol['name']} ({symbol['min']} … {high})"
        if high is not None
        else f"{symbol['name']} ({symbol['min']} or more)"
    )


def shape_of(port: Port, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a port at given sizes."""
    return tuple(d if isinstance(d, int) else d.evaluate(sizes) for d in map(dims_parsing.from_json, port.dims))


def seeded(port: Port, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """An array for an input: normal numbers, bytes from their whole range, and 0 or 1 for other integers.

    0 and 1 are indices that nearly every table has. Bools make masks that hide something, but no row whole.
    """
    dtype = dtypes.get(port.dtype)
    shape = shape_of(port, sizes)
    if math.prod(shape) > MAX_DRAWN:
        raise UserError(
            f"{port.name} would have the shape {list(shape)}: more than {MAX_DRAWN:,} elements are not drawn"
        )
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype.numpy)
    if dtype is dtypes.bool_:
        return bools(rng, shape)
    if dtype in (dtypes.int8, dtypes.uint8):
        return rng.integers(*((0, 256) if dtype is dtypes.uint8 else (-128, 128)), shape).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def problems(engine: Engine, arrays: Mapping[str, Array]) -> list[str]:
    """Everything that keeps these arrays from being the inputs, a line each; empty when they fit."""
    found: list[str] = []
    symbols = {s["name"]: s for s in program_of(engine.header)["symbols"]}
    ports = {port.name: port for port in engine.inputs}
    bare = {dim for port in engine.inputs for dim in port.dims if isinstance(dim, str)}
    bound: dict[str, tuple[int, str]] = {}
    for name, port in ports.items():
        if name not in arrays:
            found.append(f"{port} is missing")
        elif fault := _misfit(port, arrays[name]):
            found.append(fault)
        else:
            found += _bind(port, arrays[name], symbols, bound, bare)
    sizes = {name: size for name, (size, _) in bound.items()}
    for name, port in ports.items():
        if name in arrays and not found and (shape := shape_of(port, sizes)) != arrays[name].shape:
            at = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
            found.append(f"{_shown(name, arrays[name])}: at {at} it must be {list(shape)}")
    known = f"the inputs are {', '.join(ports)}" if ports else "there are no inputs"
    return found + [f"{name} is no input: {known}" for name in arrays if name not in ports]


def _shown(name: str, array: Array) -> str:
    return f"{name} is {array.dtype}{list(array.shape)}"


def _misfit(port: Port, array: Array) -> str:
    wanted, typed = dtypes.get(port.dtype), array.dtype == dtypes.get(port.dtype).numpy
    ranked = array.ndim == len(port.dims)
    sizes = list(zip(port.dims, array.shape, strict=False) if ranked else zip(port.dims[1:], array.shape, strict=False))
    fixed = [axis for axis, (dim, size) in enumerate(sizes) if isinstance(dim, int) and dim != size]
    if ranked and typed and not fixed:
        return ""
    way = ""
    if ranked and not fixed:
        way = f": convert it with .astype({wanted.name!r})"  # a conversion alone mends no shape
    elif ranked and typed:
        way = other_sizes(port.name, fixed[0], port.dims[fixed[0]])
    elif array.ndim + 1 == len(port.dims) and typed and not fixed:
        way = ONE_OF_A_BATCH
    return f"{_shown(port.name, array)}; wanted {port}{way}"


def _bind(
    port: Port, array: Array, symbols: Mapping[str, Any], bound: dict[str, tuple[int, str]], bare: set[str]
) -> list[str]:
    """Takes the sizes of dims from an array; says which are out of bounds or not the size in another array.

    bare: dims that are some input's size themselves; multiples of them give them no value.
    """
    found = []
    for axis, (dim, size) in enumerate(zip(port.dims, array.shape, strict=True)):
        affine = dims.affine(dims_parsing.from_json(dim))
        if affine is None or (affine.dim.name in bare and not isinstance(dim, str)):
            continue
        name, value = affine.dim.name, affine.value(size)
        if value is None:
            found.append(f"{_shown(port.name, array)}: dimension {axis} must be {affine.rule()}")
            continue
        before, where = bound.setdefault(name, (value, port.name))
        symbol = symbols[name]
        if before != value:
            found.append(f"{_shown(port.name, array)}: {name}={value} here, and {name}={before} in {where}")
        elif where == port.name and not symbol["min"] <= value <= (value if symbol["max"] is None else symbol["max"]):
            found.append(f"{_shown(port.name, array)}: {name}={value}, and the bounds are {_bounds(symbol)}")
    return found
