"""ONNX Runtime and onnx's reference evaluator on ONNX's own tests of nodes, each in a process of its own.

    python -m tools.conformance.onnx_peers onnxruntime|reference [FIRST]     a line of JSON for each test
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from ingot import _lazy, dtypes
from tools.conformance.onnx_nodes import array, cases, compare
from tools.conformance.suites import ROOT

START, PATIENCE = 600.0, 60.0  # seconds that a peer may take until it has all tests, and for one of them
Run = Callable[[list[Any], list[Any]], list[Any]]  # inputs, and arrays like the outputs that are wanted


def onnx_runtime(model: Any) -> Run:
    """ONNX Runtime on its CPU provider. What NumPy has no type of goes in and comes out by its bits, as it has no other
    way to Python."""
    runtime = _lazy.load("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    code = _lazy.load("onnx.helper:np_dtype_to_tensor_dtype")

    def value(x: Any, bits: Any) -> Any:
        if _is_plain(x):
            return runtime.OrtValue.ortvalue_from_numpy(x)
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, code(x.dtype))

    def run(given: list[Any], wanted: list[Any]) -> list[Any]:
        feeds = {port.name: x for port, x in zip(session.get_inputs(), given, strict=False) if x is not None}
        if all(map(_is_plain, (*feeds.values(), *wanted))):
            return list(session.run(None, feeds))
        binding = session.io_binding()
        for name, x in feeds.items():
            binding.bind_ortvalue_input(name, value(x, _packed(x)))
        found = [np.zeros_like(x) if _is_plain(x) else np.zeros_like(_packed(x)) for x in wanted]
        for port, x, made in zip(session.get_outputs(), wanted, found, strict=True):
            binding.bind_ortvalue_output(port.name, value(made if _is_plain(x) else x, made))
        session.run_with_iobinding(binding)
        return [made if _is_plain(x) else _restored(made, x.dtype) for x, made in zip(wanted, found, strict=True)]

    return run


def _is_plain(x: Any) -> bool:
    """Whether ONNX Runtime takes a value as it is: all but arrays of types that NumPy does not have."""
    return not isinstance(x, np.ndarray) or x.dtype.type.__module__ == "numpy"


def _packed(x: Any) -> Any:
    """The bits of an array; those narrower than a byte share one, the first in the lowest bits: bytes are left over."""
    if _is_plain(x):
        return x
    whole = x.view(f"u{x.dtype.itemsize}")
    bits = dtypes.get(x.dtype).bits
    if bits >= 8:
        return whole
    flat, each = whole.reshape(-1) & np.uint8((1 << bits) - 1), 8 // bits
    rows = np.pad(flat, (0, -flat.size % each)).reshape(-1, each)
    joined = np.bitwise_or.reduce(rows << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
    return np.pad(joined, (0, flat.size - joined.size)).reshape(x.shape)


def _restored(bits: Any, dtype: Any) -> Any:
    """What `_packed` was made of."""
    narrow = dtypes.get(dtype)
    if narrow.bits >= 8:
        return bits.view(dtype)
    shifts = np.arange(0, 8, narrow.bits, dtype=np.uint8)
    whole = (bits.reshape(-1, 1) >> shifts & np.uint8((1 << narrow.bits) - 1)).reshape(-1)[: bits.size]
    if narrow.is_float:
        return whole.view(dtype).reshape(bits.shape)
    signed = whole.astype(np.int16) - ((whole >> (narrow.bits - 1)).astype(np.int16) << narrow.bits)
    return (signed if narrow.kind == "int" else whole).astype(dtype).reshape(bits.shape)


def reference(model: Any) -> Run:
    """The reference evaluator of the package onnx."""
    evaluator = _lazy.load("onnx.reference:ReferenceEvaluator")(model)

    def run(given: list[Any], wanted: list[Any]) -> list[Any]:
        return list(evaluator.run(None, dict(zip(evaluator.input_names, given, strict=False))))

    return run


PEERS: dict[str, tuple[str, Callable[[Any], Run]]] = {
    "onnxruntime": ("ONNX Runtime", onnx_runtime), "reference": ("onnx's reference evaluator", reference),
}  # fmt: skip


def why(case: Any, peer: Callable[[Any], Run]) -> str:
    """Why a peer misses a test; nothing where it passes."""
    try:
        run = peer(case.model)
        for inputs, outputs in case.data_sets:
            wanted = [_tensor(x) for x in outputs]
            found = run([_tensor(x) for x in inputs], wanted)
            for i, (mine, one) in enumerate(zip(found, wanted, strict=True)):
                compare(f"output {i}", mine, one, case.rtol, case.atol)
    except Exception as e:  # its errors have no common type
        return " ".join(f"{type(e).__name__}: {e}".split())[:300]
    return ""


def _tensor(value: Any) -> Any:
    """A test's value; a number is an array, as the standard has it."""
    found = array(value)
    return np.asarray(found) if isinstance(found, np.generic) else found


def results(names: list[str], command: Callable[[int], list[str]]) -> dict[str, str]:
    """What a peer makes of every test, by the test's name: nothing where it passes, or why not. A test at which its
    process dies, or hangs, is missed, and another process goes on behind it.

    Args:
        names: of all tests, in order.
        command: the words of the process that runs those from one on; it says "{}" when it has them.
    """
    found: dict[str, str] = {}
    while len(found) < len(names):
        before = len(found)
        ended = _process(command(before), found)
        if len(found) < len(names):
            if not before and not found:
                raise RuntimeError(f"{command(0)} does not run at all: {ended}")
            found[names[len(found)]] = ended
    return found


def _process(words: list[str], found: dict[str, str]) -> str:
    """Adds what one process says; how it ended."""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            for line in _lines(process.stdout):
                found |= json.loads(line)
        except TimeoutError:
            process.kill()
            return f"it takes {PATIENCE:g} seconds or more"
    return f"its process ends with status {process.returncode}"


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines until the end. Raises TimeoutError when none comes for a while."""
    with selectors.DefaultSelector() as ready:
        ready.register(stream, selectors.EVENT_READ)
        rest, wait = b"", START
        while ready.select(wait):
            wait = PATIENCE
            if not (more := stream.read1(1 << 16)):  # type: ignore[attr-defined]
                return
            *whole, rest = (rest + more).split(b"\n")
            yield from whole
    raise TimeoutError


def version(name: str) -> str:
    """A peer as a row calls it."""
    module = _lazy.load("onnx" if name == "reference" else name)
    return f"{PEERS[name][0]} {module.__version__}"


def all_peers() -> dict[str, dict[str, str]]:
    """Every peer by its name and version, and what it makes of every test."""
    names, found = [case.name for case in cases()], {}
    for name in PEERS:
        words = [sys.executable, "-m", "tools.conformance.onnx_peers", name]
        found[version(name)] = results(names, lambda first, words=words: [*words, str(first)])  # type: ignore[misc]
    return found


def main(name: str, first: int) -> None:
    """Says of every test from one on what comes of it."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what a peer prints is no answer
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        chosen = cases()[first:]
        print("{}", file=out, flush=True)
        for case in chosen:
            print(json.dumps({case.name: why(case, PEERS[name][1])}), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
