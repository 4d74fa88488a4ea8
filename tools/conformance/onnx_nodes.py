"""ONNX's own tests of single nodes, each built into an engine and compared with what the standard says it gives.

    python -m tools.conformance.onnx_nodes [WORD …]     those whose name has one of the words; all misses in full
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingot import _lazy
from ingot.cli.inspect import kernel_counts
from ingot.errors import IngotError
from tools.conformance.page import table
from tools.conformance.suites import Outcome

GOAL = 0.97  # of all tests
NOTE = """What the bfloat16 tests of attention want is rounded to bfloat16 after every step, and has to be met within a
quarter of that type's unit. The sums of the softmax are rounded after every addition, which the standard does not ask
for: its steps with one rounding each meet 1 of these 5. Ours rounds once, at the end, which is nearer to exact numbers.
Random numbers are those of NumPy's generator. ImageDecoder needs Pillow, here as in the reference evaluator."""


class Case(NamedTuple):
    """A test as onnx's own are: a model, pairs of inputs and outputs, and how near these have to be."""

    name: str
    model: Any
    data_sets: list[Any]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Result:
    """One test. `why` is empty when it passed. `host`: ops that ran by a reference on the host. `kernels`: how many
    kernels beside copies its program calls. `fixed`: inputs for whose elements the network was built.
    """

    name: str
    op: str
    why: str
    host: tuple[str, ...] = ()
    kernels: int = 0
    fixed: tuple[str, ...] = ()

    @property
    def expanded(self) -> bool:
        return "expanded" in self.name


def cases(modules: Sequence[str] = ()) -> list[Any]:
    """The node tests that the installed package onnx brings; those of some of its modules, or all."""
    home = "onnx.backend.test.case.node"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not modules:
            return sorted(_lazy.load("onnx.backend.test.loader:load_model_tests")(kind="node"), key=lambda c: c.name)
        for name in modules:
            _lazy.load(f"{home}.{name}")
        return sorted(_lazy.load(f"{home}:_NodeTestCases"), key=lambda c: c.name)


def models() -> list[Any]:
    """The small models with data that the package brings: exports of old torch, simple ones, and light ones of nets."""
    onnx, base = _lazy.load("onnx"), _lazy.load("onnx.backend.test.loader:DATA_DIR")
    found = []
    for path in sorted(Path(base).glob("*/*/model.onnx")):
        sets = [[_protos(onnx, folder, word) for word in ("input", "output")]
                for folder in sorted(path.parent.glob("test_data_set_*"))]  # fmt: skip
        found.append(Case(f"{path.parts[-3]}/{path.parts[-2]}", onnx.load(path), sets, 1e-3, 1e-7))
    for path in sorted(Path(base, "light").glob("*.onnx")):
        model = onnx.load(path)
        given = {tensor.name for tensor in model.graph.initializer}
        (port,) = [p for p in model.graph.input if p.name not in given]
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        count = int(np.prod(shape))
        inputs = [(np.arange(count).reshape(shape) / count).astype(np.float32)]
        output = onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb"))
        found.append(Case(f"light/{path.stem}", model, [[inputs, [output]]], 2e-3, 1e-7))
    return found


def _protos(onnx: Any, folder: Path, word: str) -> list[Any]:
    """The tensors input_0.pb, input_1.pb, … of a folder."""
    count = len(list(folder.glob(f"{word}_*.pb")))
    return [onnx.load_tensor(folder / f"{word}_{i}.pb") for i in range(count)]


def op_of(case: Any) -> str:
    """The op that a test is about."""
    nodes = case.model.graph.node
    if "/" in case.name:
        return str(case.name)
    return str(nodes[0].op_type) if len(nodes) == 1 else case.name.removeprefix("test_").split("_")[0]


def tried(case: Any) -> Result:
    """Builds, runs and compares one test."""
    op = op_of(case)
    host: tuple[str, ...] = ()
    try:
        rep = _lazy.load("ingot.onnx_backend:prepare")(case.model)
        for inputs, outputs in case.data_sets:
            found = rep.run([array(x) for x in inputs])
            host = host_calls(rep.engine)
            for i, (mine, wanted) in enumerate(zip(found, outputs, strict=True)):
                compare(f"output {i}", mine, array(wanted), case.rtol, case.atol)
    except (IngotError, AssertionError) as e:
        return Result(case.name, op, f"{type(e).__name__}: {e}", host)
    except Exception as e:  # a fault of ours: shown as one
        at = traceback.extract_tb(e.__traceback__)[-1]
        place = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        return Result(case.name, op, f"{type(e).__name__} (unexpected, {place}): {e}", host)
    return Result(case.name, op, "", host, kernels_of(rep.engine), tuple(sorted(rep.fixed)))


def array(value: Any) -> Any:
    """A test's value: some are protos."""
    return _lazy.load("onnx.numpy_helper:to_array")(value) if hasattr(value, "data_type") else value


def host_calls(engine: Any) -> tuple[str, ...]:
    """The ops that an engine's program leaves to references on the host."""
    found: list[str] = []
    for program in engine.header["programs"].values():
        found += kernel_counts(program)[1]
    return tuple(found)


def kernels_of(engine: Any) -> int:
    """How many kernels beside copies an engine's program calls. None: all was computed while importing, or only moves.
    """
    found: Counter[str] = Counter()
    for program in engine.header["programs"].values():
        found += kernel_counts(program)[0]
    return found.total() - found["copy"]


def compare(what: str, mine: Any, wanted: Any, rtol: float, atol: float) -> None:
    """As ONNX's own runner compares: types, shapes, and numbers within its tolerances."""
    if isinstance(wanted, list | tuple):
        assert isinstance(mine, list) and len(mine) == len(wanted), f"{what} is no sequence of {len(wanted)}"
        for i, (a, b) in enumerate(zip(mine, wanted, strict=True)):
            compare(f"{what}, element {i}", a, b, rtol, atol)
        return
    if wanted is None:
        assert mine is None, f"{what} is given, and should be absent"
        return
    wanted = np.asarray(wanted)
    assert mine is not None, f"{what} is absent"
    assert mine.dtype == wanted.dtype, f"{what} is {mine.dtype}, should be {wanted.dtype}"
    assert mine.shape == wanted.shape, f"{what} has the shape {mine.shape}, should have {wanted.shape}"
    if wanted.dtype.kind in "biu" and wanted.dtype.itemsize and wanted.dtype.type.__module__ == "numpy":
        assert np.array_equal(mine, wanted), f"{what} is {mine.reshape(-1)[:6]}, should be {wanted.reshape(-1)[:6]}"
        return
    if wanted.dtype.kind == "O" or wanted.dtype.kind in "US":
        assert np.array_equal(mine, wanted), f"{what} differs"
        return
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (mine, wanted))
    near = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    assert near.all(), f"{what} is {a[~near][:4]}, should be {b[~near][:4]} ({(~near).sum()} of {near.size})"


def results(chosen: Iterable[Any]) -> list[Result]:
    """What comes of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [tried(case) for case in chosen]


def score(found: Sequence[Result]) -> list[list[str]]:
    """How many tests passed, of single nodes and of their expansions. Of those: how many without a host call, how many
    whose program only copies (all was computed while importing, or only moves), for how many the network was built
    for elements of inputs, and how many are left: computed by kernels, of an engine for all inputs.
    """
    rows = []
    for word, part in _parts(found, lambda r: r.expanded):
        good = [r for r in part if not r.why]
        native, none = sum(not r.host for r in good), sum(not r.kernels and not r.host for r in good)
        left = sum(not r.host and r.kernels > 0 and not r.fixed for r in good)
        rows.append([word, f"{len(part):,}", f"{len(good):,}", _share(len(good), len(part)),
                     _share(native, len(good)), f"{none:,}", f"{sum(bool(r.fixed) for r in good):,}",
                     f"{left:,} ({_share(left, len(good))})"])  # fmt: skip
    return rows


def _share(count: int, whole: int) -> str:
    return f"{100 * count / max(whole, 1):.1f} %"


def _parts(found: Iterable[Any], expanded: Callable[[Any], bool]) -> list[tuple[str, list[Any]]]:
    """All of them, those of single nodes, and their expansions."""
    every = list(found)
    plain = [x for x in every if not expanded(x)]
    return [("all", every), ("plain", plain), ("expanded", [x for x in every if expanded(x)])]


def peer_rows(found: Sequence[Result], peers: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    """What each passes of all tests, of the plain ones and of the expansions."""
    whys: dict[str, Mapping[str, str]] = {"ingot": {one.name: one.why for one in found}, **peers}
    rows = []
    for who, said in whys.items():
        cells = []
        for _, names in _parts([one.name for one in found], lambda name: "expanded" in name):
            good = sum(not said[name] for name in names)
            cells.append(f"{good:,} of {len(names):,} ({_share(good, len(names))})")
        rows.append([who, *cells])
    return rows


def misses(found: Sequence[Result], peers: Mapping[str, Mapping[str, str]], width: int = 200) -> list[list[str]]:
    """A row for every op with misses: how many, of how many, how many of those each peer passes, and the reasons."""
    by_op: dict[str, list[Result]] = {}
    for one in found:
        by_op.setdefault(one.op, []).append(one)
    rows = []
    for op, several in sorted(by_op.items()):
        missed = [r for r in several if r.why]
        whys = Counter(" ".join(r.why.replace(r.name, "…").split()) for r in missed)
        shown = "; ".join(f"{why[:width]}" for why, _ in whys.most_common(2))
        theirs = [str(sum(not said.get(r.name, "absent") for r in missed)) for said in peers.values()]
        if missed:
            rows.append([op, str(len(missed)), str(len(several)), *theirs, shown.replace("|", "\\|")])
    return rows


def onnx_nodes(peers: Callable[[], Mapping[str, Mapping[str, str]]]) -> Outcome:
    """All node tests: the score, what others pass of them, and every miss with its reason.

    Args:
        peers: runs the others: by their names, why they miss a test, by its name; nothing where they pass.
    """
    found, theirs = results(cases()), peers()
    good = sum(not r.why for r in found)
    small = results(models())
    rows = [*score(found), ["models with data", *score(small)[0][1:]]]
    titles = ["tests", "number", "passed", "", "without a host call", "only copies", "built for elements of inputs",
              "by kernels, for all inputs"]  # fmt: skip
    heads = table(titles, rows)
    compared = table(["passed by", "all", "plain", "expanded"], peer_rows(found, theirs))
    titles = ["op, or model", "missed", "of", *(f"passed by {who}" for who in theirs), "why"]
    body = "\n\n".join([heads, compared, NOTE, table(titles, misses([*found, *small], theirs))])
    counts = Counter({"passed": good, "failed": 0, "skipped": len(found) - good})
    return Outcome(good < GOAL * len(found), body, "python -m tools.conformance onnx-nodes", counts)


def main(words: list[str]) -> None:
    """Prints every miss, and the score."""
    chosen = [*cases(), *models()]
    found = results(c for c in chosen if not words or any(w in c.name for w in words))
    for one in found:
        if one.why:
            print(f"{one.op} {one.name}: {' '.join(one.why.split())[:400]}")
    for row in score(found):
        print(*row)
    print("host calls:", dict(Counter(op for r in found for op in set(r.host))))


if __name__ == "__main__":
    main(sys.argv[1:])
