"""The self-test of an engine: a small run of its build, which another machine repeats in under a second.

Inputs follow from a seed, by numbers that no version of NumPy changes: arrays for a net, and for a language model a
few tokens at once and one more behind them. Of the outputs the file keeps some elements, a language model's largest
logits among them, and the root mean square of all. Another level of instructions rounds elsewhere, and what is near a
border of two integers falls to the other side, so that numbers agree up to a tolerance.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ingot import dims, dtypes
from ingot.engine.inputs import shape_of, sizes_that_run
from ingot.engine.session import Engine, Port
from ingot.errors import DimError, EngineFileError, IngotError, InputError, MismatchError, UserError
from ingot.words import KV_KEY, SAME

Array = np.ndarray[Any, Any]

KEY = "self_test"  # of it in an engine's config
KEPT = 64  # elements of each output
TOP = 8  # of a language model's logits, the largest, beside them
TOKENS = 8  # of a language model's run: all but one at once, and then that one
LEAST = 0.01  # of the root mean square of an output, that its elements may differ by, in the root mean square of them
# The same of language models, by their precision, and what rounding in each run adds: that of rows, and that of keys
# and values in 8 bits. A rounded number that falls to the other side of a border differs by a whole step, of float8 by
# an eighth of itself. Measured of levels against each other, in float32, float16 and bfloat16: of floats 1e-6, 0.0012,
# 0.024; with such a cache 0.0013, 0.003, 0.009; with rows of int8 too 0.024, 0.029, 0.033, and alone in bfloat16 0.07;
# with rows of fp8 and the cache 0.058, 0.051, 0.064.
OF_FLOATS = {"float32": 0.001, "float16": 0.01, "bfloat16": 0.05}
OF_ROWS = {SAME: 0.0, "int8": 0.05, "fp8": 0.08}
OF_CACHE = {SAME: 0.0, "int8": 0.02, "fp8": 0.02}
MAX_ELEMENTS = 1 << 26  # of the inputs


@dataclass(frozen=True)
class Checked:
    """What a repeated self-test found: the largest difference, of each output's root mean square, and seconds."""

    difference: float
    tolerance: float
    seconds: float


def made(engine: Engine, error: float | None) -> dict[str, Any] | None:
    """What the config of a net's engine keeps of a run; None where no size was found that runs.

    error: how far its outputs are from those in float. Numbers may differ as far on another machine.
    """
    try:
        sizes = sizes_that_run(engine)
        if sum(math.prod(shape_of(port, sizes)) for port in engine.inputs) > MAX_ELEMENTS:
            return None
        found = engine.run(_feeds(engine, sizes))
    except (InputError, UserError):
        return None
    tolerance = LEAST if error is None or not math.isfinite(error) else max(LEAST, error)
    return _kept({"sizes": sizes}, tolerance, {name: _outline(array) for name, array in found.items()})


def made_of_tokens(engine: Engine) -> dict[str, Any] | None:
    """The same of a language model's engine; None where its steps take what a run of tokens alone does not give."""
    vocabulary = engine.config.get("vocab_size")
    if type(vocabulary) is not int or vocabulary < 1:
        return None
    tokens = [int(raw) % vocabulary for raw in np.random.PCG64(0).random_raw(TOKENS) >> np.uint64(8)]
    try:
        found = _run_of_tokens(engine, tokens)
    except IngotError:
        return None
    return _kept({"tokens": tokens}, _apart_at_most(engine), {name: _outline(a, TOP) for name, a in found.items()})


def _kept(run: dict[str, Any], tolerance: float, outputs: dict[str, Any]) -> dict[str, Any] | None:
    if not all(math.isfinite(one["rms"]) for one in outputs.values()):
        return None
    return {**run, "tolerance": float(np.float32(tolerance)), "outputs": outputs}


def _apart_at_most(engine: Engine) -> float:
    """How far a language model's results may be apart, by what it is computed in and what is rounded in its runs."""
    config = engine.config
    found = OF_FLOATS.get(str(config.get("precision")), max(OF_FLOATS.values()))
    rows = config.get("activations", SAME)
    if rows == SAME and any(node["op"] == "quantize_rows" for node in engine.header["networks"]["main"]["nodes"]):
        rows = "int8"  # as a checkpoint itself rounds them, which its network says alone
    return found + OF_ROWS[rows] + OF_CACHE[config.get(KV_KEY, SAME)]


def check(engine: Engine) -> Checked:
    """Repeats an engine's self-test on this machine.

    Raises UserError for an engine without one, EngineFileError for a damaged one, MismatchError where numbers differ.
    """
    found = engine.config.get(KEY)
    if found is None:
        raise UserError(
            "this engine has no self-test: language models have one where the build made a report, and nets that "
            "ingot.quantize, or ingot build with --data, made"
        )
    run, tolerance, outputs = _read(found)
    begin = perf_counter()
    results = engine.run(_feeds(engine, run)) if isinstance(run, dict) else _run_of_tokens(engine, run)
    seconds = perf_counter() - begin
    if results.keys() != outputs.keys():
        raise EngineFileError(f"config {KEY} is of the outputs {', '.join(outputs)[:80]}: the file is damaged")
    worst = max((_apart(results[name], outputs[name]), name) for name in outputs)
    if not worst[0] <= tolerance:
        raise MismatchError(
            f"output {worst[1]} differs by {worst[0]:.2g} of its root mean square from what the build computed; up to "
            f"{tolerance:.2g} is rounding. Weights are checked by --verify; if those agree, a kernel is at fault here: "
            "INGOT_ISA=portable runs without vector instructions"
        )
    return Checked(worst[0], tolerance, seconds)


def _run_of_tokens(engine: Engine, tokens: Sequence[int]) -> dict[str, Array]:
    """The results of two steps of one request: all tokens but the last, and that one."""
    session = engine.session(kv_blocks=1)
    found: dict[str, Array] = {}
    names = {port.name for port in session.inputs}
    for number, (begin, end) in enumerate(((0, len(tokens) - 1), (len(tokens) - 1, len(tokens)))):
        rows, last = np.arange(begin, end), np.array([end - begin - 1])
        step = {
            "token_ids": np.array(tokens[begin:end]), "positions": rows, "query_start": np.array([0, end - begin]),
            "context_len": np.array([end]), "block_table": np.zeros((1, 1)), "slot": rows, "logit_rows": last,
            "hidden_rows": last, "long_rope": np.zeros(end - begin),
        }  # fmt: skip
        results = session.run({name: array.astype(np.int32) for name, array in step.items() if name in names})
        found |= {f"{name} of step {number}": array for name, array in results.items()}
    return found


def _feeds(engine: Engine, sizes: Mapping[str, int]) -> dict[str, Array]:
    return {port.name: _drawn(port, sizes, seed) for seed, port in enumerate(engine.inputs)}


def _drawn(port: Port, sizes: Mapping[str, int], seed: int) -> Array:
    """Floats from −2 to 2, whole numbers 0 and 1. The raw stream of a generator is the same in every version."""
    dtype = dtypes.get(port.dtype)
    try:
        shape = shape_of(port, sizes)
    except DimError as e:
        raise EngineFileError(f"config {KEY}: {e}: the file is damaged") from None
    if math.prod(shape) > MAX_ELEMENTS or min(shape, default=0) < 0:
        raise EngineFileError(f"config {KEY} makes {port.name} of the shape {list(shape)}: the file is damaged")
    raw = np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(40)  # 24 bits: float32 holds them
    wide = (raw.astype(np.float32) / np.float32(1 << 22) - np.float32(2)).reshape(shape)
    return wide.astype(dtype.numpy) if dtype.is_float else (wide > 0).astype(dtype.numpy)


def _at(array: Array, top: Sequence[int] = ()) -> Array:
    """At most KEPT elements, evenly spread, and those with these numbers, in float32."""
    flat = array.reshape(-1)
    even = np.linspace(0, flat.size - 1, min(KEPT, flat.size)).astype(np.int64)
    return np.asarray(flat[np.concatenate([even, np.array(top, np.int64)])], np.float32)


def _outline(array: Array, top: int = 0) -> dict[str, Any]:
    """What is kept of an output. top: of how many of its largest elements the numbers are too."""
    largest = np.argsort(-array.reshape(-1).astype(np.float32), kind="stable")[:top].tolist()
    packed = base64.b64encode(_at(array, largest).astype("<f4").tobytes()).decode()
    return {"rms": _rms(array), "sample": packed, **({"top": largest} if top else {})}


def _rms(array: Array) -> float:
    wide = array.astype(np.float64)
    return float(np.sqrt(np.mean(wide * wide))) if array.size else 0.0


class _Kept(NamedTuple):
    """What a file has of an output: its root mean square, elements, and the numbers of the largest of them."""

    rms: float
    sample: Array
    top: list[int]


def _apart(array: Array, kept: _Kept) -> float:
    if max(kept.top, default=-1) >= array.size:
        return math.inf
    ours = _at(array, kept.top)
    if ours.shape != kept.sample.shape:
        return math.inf
    if not np.isfinite(ours).all():
        return math.inf
    apart = float(np.sqrt(np.mean((ours.astype(np.float64) - kept.sample) ** 2))) if ours.size else 0.0
    worst = max(apart, abs(_rms(array) - kept.rms))
    return 0.0 if not worst else worst / kept.rms if kept.rms else math.inf


def _read(found: Any) -> tuple[dict[str, int] | list[int], float, dict[str, _Kept]]:
    """What is run, sizes of dims or tokens, the tolerance, and the outputs. Raises EngineFileError."""
    try:
        run = found["tokens"] if "tokens" in found else found["sizes"]
        tolerance, outputs = found["tolerance"], found["outputs"]
        whole = isinstance(run, list) and 2 <= len(run) <= TOKENS
        if not (whole or "sizes" in found) or not all(map(_is_count, run if whole else run.values())):
            raise ValueError
        read = {}
        for name, one in outputs.items():
            array, top = np.frombuffer(base64.b64decode(one["sample"], validate=True), "<f4"), one.get("top", [])
            if len(array) > KEPT + TOP or not (0 <= float(one["rms"]) < math.inf):
                raise ValueError
            if not isinstance(top, list) or len(top) > TOP or not all(map(_is_count, top)):
                raise ValueError
            read[name] = _Kept(float(one["rms"]), array, top)
        if not read or not 0 <= float(tolerance) < math.inf:
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error):
        raise EngineFileError(f"config {KEY} is no self-test: the file is damaged") from None
    return run, float(tolerance), read


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < dims.MAX_VALUE
