"""Ops of a user's own: declared in Python or C, built into engines, refused where they are not what was built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import functional as fn
from ingot import nn
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.engine import file
from ingot.errors import EngineFileError, ExternalOpError, IngotError, OpError, ProgramError, UserError
from ingot.ir import F, Network, Op, Spec
from ingot.ir.interpret import interpret
from ingot.ops.library import parse

HERE = Path(__file__).parent
INCLUDE = HERE.parent.parent / "native" / "include"
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def clip_rows(version: int = 1, **body: Any) -> Callable[..., Any]:
    """An op of one's own: rows clipped, and how often that was."""

    class Clip(Op):
        limit: float = 1.0
        names: tuple[int, ...] = ()

        def infer(self, x: Spec) -> tuple[Spec, Spec]:
            return x, Spec((x.shape[0],), "int64")

        def reference(self, x: Any) -> Any:
            return np.clip(x, -self.limit, self.limit), (np.abs(x) > self.limit).sum(1)

    return ingot.external_op("acme.clip_rows", version)(type("Clip", (Clip,), body))


CLIP = clip_rows()


class Net(nn.Module):
    """A product, the op, and more behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Any) -> Any:
        clipped, count = CLIP(self.layer(x), limit=2.0)
        return {"y": fn.relu(clipped), "count": count}


@pytest.fixture
def engine() -> Any:
    net = Net()
    net.layer.weight.value = np.eye(4, dtype=np.float32)
    return ingot.build(net, {"x": Spec((Dim("N", 1, 4, 64), 4), "float32")})


def check(engine: Any, x: Any = X) -> None:
    found = engine.run({"x": x})
    np.testing.assert_array_equal(found["y"], np.clip(x, 0, 2))
    np.testing.assert_array_equal(found["count"], (np.abs(x) > 2).sum(1))


def test_an_engine_calls_it_and_says_so(engine: Any, tmp_path: Path) -> None:
    check(engine)
    check(engine, X[:1])
    assert engine.header["external_ops"] == [
        {"name": "acme.clip_rows", "version": 1,
         "signature": "(x, limit=1.0, names=()) {limit: float, names: tuple[int, ...]}"}
    ]  # fmt: skip
    engine.save(tmp_path / "net.ingot")
    loaded = ingot.load(tmp_path / "net.ingot", ops=[CLIP])
    check(loaded)
    assert file.read(tmp_path / "net.ingot", verify=True).header == loaded.header
    check(loaded.on("cpu"))
    check(loaded.refit({"layer.weight": np.eye(4, dtype=np.float32)}))
    loaded.save(tmp_path / "again.ingot")
    assert (tmp_path / "again.ingot").read_bytes() == (tmp_path / "net.ingot").read_bytes()


def test_eager_and_interpreted() -> None:
    clipped, count = CLIP(X, limit=2.0)
    np.testing.assert_array_equal(clipped, np.clip(X, -2, 2))
    np.testing.assert_array_equal(count, (np.abs(X) > 2).sum(1))
    net = Network("own")
    net.outputs["y"] = CLIP(net.input("x", Spec(("N", 4), "float32")))[0]
    np.testing.assert_array_equal(interpret(net, {"x": X}, {})["y"], np.clip(X, -1, 1))


def test_on_a_torch_device(engine: Any) -> None:
    pytest.importorskip("torch")
    check(engine.on("torch"))


def test_it_becomes_simpler_ops_where_it_says_so(tmp_path: Path) -> None:
    """With `decompose` an engine runs natively, and still lists the op that its network has."""

    class Twice(Op):
        def infer(self, x: Spec) -> Spec:
            return x

        def reference(self, x: Any) -> Any:
            return x + x

        def decompose(self, x: Any) -> Any:
            return F.add(x, x)

    twice = ingot.external_op("acme.twice")(Twice)
    net = Network("own")
    net.outputs["y"] = twice(net.input("x", Spec((3, 4), "float32")))
    built = build_network(net, {})
    assert not built._native.host_calls("main") and built.header["external_ops"][0]["name"] == "acme.twice"
    np.testing.assert_array_equal(built.run({"x": X})["y"], 2 * X)
    built.save(tmp_path / "net.ingot")
    with pytest.raises(ExternalOpError, match="acme.twice version 1"):
        ingot.load(tmp_path / "net.ingot")


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ([], r"acme.clip_rows version 1\(x, limit=1.0, names=\(\)\) .* is not given.*ingot.load\(path, ops=\[…\]\)"),
        ([clip_rows(2)], "is given as version 2"),
        ([clip_rows(1, limit=3.0)], r"is given as version 1\(x, limit=3.0"),
        ([CLIP, clip_rows()], "two of the given ops are called acme.clip_rows"),
        ([fn.relu], "is no op of your own"),
        (["acme.clip_rows"], "is no op of your own"),
        ([None], "is no op"),
        ("acme", "ops is a list of ops of your own, not 'acme'"),
        (7, "not 7"),
    ],
)
def test_an_op_that_is_missing_or_another(engine: Any, tmp_path: Path, ops: Any, error: str) -> None:
    engine.save(tmp_path / "net.ingot")
    with pytest.raises(ExternalOpError, match=error):
        ingot.load(tmp_path / "net.ingot", ops=ops)


def test_ops_that_an_engine_does_not_need_are_no_fault(tmp_path: Path) -> None:
    net = Network("plain")
    net.outputs["y"] = F.relu(net.input("x", Spec((3, 4), "float32")))
    plain = build_network(net, {})
    assert "external_ops" not in plain.header
    plain.save(tmp_path / "net.ingot")
    assert ingot.load(tmp_path / "net.ingot", ops=[CLIP]).external == {}


def test_the_command_line_and_the_c_interface_refuse(engine: Any, tmp_path: Path) -> None:
    engine.save(tmp_path / "net.ingot")
    command = [sys.executable, "-m", "ingot", "inspect", str(tmp_path / "net.ingot")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "acme.clip_rows version 1" in done.stderr and "Traceback" not in done.stderr
    assert engine._native.host_calls("main") == ["acme.clip_rows"]  # what ingot_session_create refuses


# ------------------------------------------------------------------------------------------- what the op itself does


def wrong(**body: Any) -> Callable[..., Any]:
    class Wrong(Op):
        def infer(self, x: Spec) -> Spec:
            return x

        def reference(self, x: Any) -> Any:
            return x

    return ingot.external_op("acme.wrong")(type("Wrong", (Wrong,), body))


def raising(error: Exception) -> Callable[..., Any]:
    def method(self: Any, *operands: Any) -> Any:
        raise error

    return method


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"reference": lambda self, x: x[:1]}, r"result 0 is float32\[1, 4\], its infer says f32\[3, 4\]"),
        ({"reference": lambda self, x: x.astype(np.float64)}, "result 0 is float64"),
        ({"reference": lambda self, x: (x, x)}, "gave 2 results, its infer says 1"),
        ({"reference": lambda self, x: None}, "result 0 is a NoneType, no NumPy array"),
        ({"reference": lambda self, x: x.tolist()}, "result 0 is a list"),
        ({"reference": lambda self, x: np.full(x.shape, object())}, "result 0 is object"),
        ({"reference": lambda self, x: x.__iadd__(1)}, "its reference failed: ValueError: output array is read-only"),
        ({"reference": raising(RuntimeError("boom"))}, "acme.wrong: its reference failed: RuntimeError: boom"),
        ({"reference": raising(KeyError("boom"))}, "its reference failed: KeyError"),
    ],
)
def test_results_are_checked(body: dict[str, Any], error: str) -> None:
    op = wrong(**body)
    net = Network("own")
    net.outputs["y"] = F.add(op(net.input("x", Spec((3, 4), "float32"))), 1.0)
    built = build_network(net, {})
    with pytest.raises(ExternalOpError, match=error):
        built.run({"x": X})
    with pytest.raises(ExternalOpError, match=error):
        op(X)


def test_bools_are_bools() -> None:
    twos = np.full(X.shape, 2, np.uint8).view(bool)
    op = wrong(infer=lambda self, x: Spec(x.shape, "bool"), reference=lambda self, x: twos)
    with pytest.raises(ExternalOpError, match="neither 0 nor 1"):
        op(X)


@pytest.mark.parametrize(
    ("infer", "error"),
    [
        (raising(RuntimeError("boom")), r"its infer failed on f32\[3, 4\]: RuntimeError: boom"),
        (lambda self, x: x.shape, "must give a Spec or a tuple of them"),
        (lambda self, x: (), "must give a Spec"),
    ],
)
def test_rules_are_checked(infer: Any, error: str) -> None:
    net = Network("own")
    with pytest.raises(ExternalOpError, match=error):
        wrong(infer=infer)(net.input("x", Spec((3, 4), "float32")))


def test_a_rule_refuses_like_ours() -> None:
    def infer(self: Op, x: Spec) -> Spec:
        raise OpError("x must be square")

    with pytest.raises(OpError, match=r"acme.wrong\(x=f32\[3, 4\]\) in eager mode: x must be square"):
        wrong(infer=infer)(X)


@pytest.mark.parametrize("name", ["clip", "Acme.clip", "acme.", "acme..clip", "acme.clip-rows", "a.b" * 50, 7, None])
def test_bad_names(name: Any) -> None:
    with pytest.raises(OpError, match="a name in a namespace of yours"):
        ingot.external_op(name)


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "1", 2**31])
def test_bad_versions(version: Any) -> None:
    with pytest.raises(OpError, match="a version is a number"):
        ingot.external_op("acme.x", version)


@pytest.mark.parametrize(
    ("cls", "error"),
    [
        (int, "derives from ingot.Op"), (Op, "derives from ingot.Op"),
        (type("A", (Op,), {"infer": lambda self, x: x}), "A has no reference"),
        (type("B", (Op,), {"reference": lambda self, x: x}), "B has no infer"),
        (type("C", (Op,), {"infer": lambda self, x: x, "reference": lambda self, x: x,
                           "__annotations__": {"body": "Network"}}), "field body is a Network"),
        (type("D", (Op,), {"infer": lambda self, x: x, "reference": lambda self, x: x,
                           "__annotations__": {"table": dict}}), "field table is a dict"),
        (type("E", (Op,), {"infer": lambda self, x: x, "reference": lambda self, x: x, "binds": True}), "binds no dim"),
    ],
)  # fmt: skip
def test_classes_that_are_no_ops(cls: Any, error: str) -> None:
    with pytest.raises(OpError, match=error):
        ingot.external_op("acme.x")(cls)


def test_annotations_that_are_types() -> None:
    """A module without `from __future__ import annotations`."""
    types = {"limit": float, "sizes": tuple[int, ...], "kind": ingot.dtypes.DType, "name": str | None}
    body = {"__annotations__": types,
            "limit": 1.0, "sizes": (), "kind": ingot.dtypes.float32, "name": None}  # fmt: skip

    def infer(self: Any, x: Any) -> Any:
        return x, x

    infer.__annotations__ = {"x": Spec, "return": tuple[Spec, Spec]}
    op = wrong(infer=infer, reference=lambda self, x: (x, x), **body).op  # type: ignore[attr-defined]
    assert {n: kind.name for n, kind in op.attributes.items()} == {
        "limit": "float", "sizes": "tuple[int, ...]", "kind": "DType", "name": "str | None"}  # fmt: skip
    assert op.outputs == 2


# --------------------------------------------------------------------------------------------------- files that lie


def changed(engine: Any, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """An engine file with another header."""
    header = json.loads(json.dumps(engine.header))
    change(header)
    path = folder / "changed.ingot"
    file.write(path, header, {name: engine.tensor(name) for name in header["weights"]})
    return path


def first_call(header: dict[str, Any]) -> dict[str, Any]:
    calls = header["programs"]["cpu"]["entries"]["main"]["calls"]
    return next(call for call in calls if "host" in call)  # type: ignore[no-any-return]


def test_a_file_gets_no_op_that_it_does_not_list(engine: Any, tmp_path: Path) -> None:
    path = changed(engine, tmp_path, lambda header: header.pop("external_ops"))
    with pytest.raises(ProgramError, match="there is no op 'acme.clip_rows'"):
        ingot.load(path, ops=[CLIP]).session()


@pytest.mark.parametrize(
    ("name", "error"),
    [("os.system", "there is no op 'os.system'"), ("acme.other", "there is no op"), ("../evil.so", "there is no op")],
)
def test_a_file_calls_no_op_of_another_name(engine: Any, tmp_path: Path, name: str, error: str) -> None:
    path = changed(engine, tmp_path, lambda header: first_call(header).update(host=name))
    with pytest.raises(ProgramError, match=error):
        ingot.load(path, ops=[CLIP]).session()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, "is of version 2; this ingot knows versions up to 1"),
        ({"params": {"limit": "x", "names": []}}, "attribute limit must be a float"),
        ({"params": {"limit": 1.0, "names": [], "more": 1}}, "unknown"),
        ({"in": []}, "takes 1 operands, got 0"),
    ],
)
def test_a_file_cannot_call_it_otherwise(engine: Any, tmp_path: Path, change: dict[str, Any], error: str) -> None:
    path = changed(engine, tmp_path, lambda header: first_call(header).update(change))
    with pytest.raises((ProgramError, EngineFileError), match=error):
        ingot.load(path, ops=[CLIP]).session()


def test_a_file_cannot_declare_other_results(engine: Any, tmp_path: Path) -> None:
    """Buffers of another type than the op's rule gives."""

    def change(header: dict[str, Any]) -> None:
        body = header["programs"]["cpu"]["entries"]["main"]
        body["buffers"][first_call(header)["out"][1]]["dtype"] = "int32"

    with pytest.raises(IngotError, match="the program declares"):
        ingot.load(changed(engine, tmp_path, change), ops=[CLIP]).session()


@pytest.mark.parametrize(
    "listed",
    [7, {}, [7], [{}], [{"name": "acme.x"}], [{"name": 1, "version": 1, "signature": ""}],
     [{"name": "a.b", "version": True, "signature": ""}],
     [{"name": "a.b", "version": 1, "signature": "", "path": "/x.so"}],
     [{"name": "a.b", "version": 1, "signature": ""}] * 2],
)  # fmt: skip
def test_lists_that_are_none(engine: Any, tmp_path: Path, listed: Any) -> None:
    path = changed(engine, tmp_path, lambda header: header.update(external_ops=listed))
    for read in (ingot.load, file.read):
        with pytest.raises(EngineFileError, match="external_ops"):
            read(path)


def test_loading_imports_nothing(engine: Any, tmp_path: Path) -> None:
    """A file that lists a module that is there, beside it."""
    (tmp_path / "acme.py").write_text("open('executed', 'w')\n")
    engine.save(tmp_path / "net.ingot")
    code = (
        "import ingot, sys\ntry: ingot.load('net.ingot')\n"
        "except ingot.errors.ExternalOpError: print('acme' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    assert done.stdout == "False\n" and not (tmp_path / "executed").exists()


# --------------------------------------------------------------------------------------------------- shared libraries


def compiled(folder: Path, source: str, name: str = "ops") -> Path:
    (folder / f"{name}.c").write_text(source)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(INCLUDE)]
    files = [str(folder / f"{name}.c"), "-o", str(folder / f"{name}.so")]
    subprocess.run([os.environ.get("CC", "cc"), *flags, *files], check=True)
    return folder / f"{name}.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("ops"), (HERE / "scale.c").read_text())


def test_a_library_of_ops(library: Path, tmp_path: Path) -> None:
    scale, failing = ingot.op_library(library)
    by = np.array([1, 2, 3, 4], np.float32)
    y, count = scale(X, by, factor=3.0, more=5)
    np.testing.assert_array_equal(y, X * by * 3)
    assert count.tolist() == [8]
    net = Network("own")
    x = net.input("x", Spec(("N", 4), "float32"))
    y, count = scale(x, by)
    assert str(y.spec) == "f32[N, 4]" and str(count.spec) == "i64[1]"
    net.outputs |= {"y": F.relu(y), "count": count}
    built = build_network(net, {})
    built.save(tmp_path / "net.ingot")
    with pytest.raises(ExternalOpError, match="acme.scale version 3"):
        ingot.load(tmp_path / "net.ingot")
    for engine in (built, ingot.load(tmp_path / "net.ingot", ops=ingot.op_library(library))):
        found = engine.run({"x": X[:, ::-1]})  # any strides
        np.testing.assert_array_equal(found["y"], np.maximum(X[:, ::-1] * by * 2, 0))
        assert found["count"].tolist() == [3]
    with pytest.raises(ExternalOpError, match="acme.failing failed: 4 rows are too many"):
        failing(by)


@pytest.mark.parametrize(
    ("operands", "error"),
    [
        ((X, X[0, :3]), r"by must be f32\[C\], where N = 3, C = 4"),
        ((X[0], X[0]), r"x must be f32\[N, C\]"),
        ((X.astype(np.float64), X[0].astype(np.float64)), "x must be"),
    ],
)
def test_operands_of_a_library_op_are_checked(library: Path, operands: Any, error: str) -> None:
    with pytest.raises(OpError, match=error):
        ingot.op_library(library)[0](*operands)


HEAD = '#include "ingot_op.h"\nstatic int f(const ingot_op_call* c) { (void)c; return 1; }\n'
TABLE = (
    HEAD
    + """static const ingot_op ops[] = {{%s, 1, f}};
INGOT_API const ingot_op_table* ingot_ops(void) { static const ingot_op_table t = {%s, %s, ops}; return &t; }
"""
)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("int other;\n", "is no library of ops"),
        (TABLE % ('"acme.x(x: float32[N]) -> float32[N]"', "2", "1"), "is of ABI 2; this ingot knows 1"),
        (TABLE % ('"acme.x(x: float32[N]) -> float32[N]"', "1", "0"), "it says that it has 0 ops"),
        (TABLE % ('"acme.x(x: float32[N]) -> float32[N]"', "1", "99999"), "it says that it has 99999 ops"),
        (TABLE % ("0", "1", "1"), "it has no signature, or no run"),
        (TABLE % ('"nonsense"', "1", "1"), "'nonsense' is no signature"),
        (TABLE % ('"relu(x: float32[N]) -> float32[N]"', "1", "1"), "a name in a namespace"),
        (HEAD + "INGOT_API const ingot_op_table* ingot_ops(void) { (void)f; return 0; }\n", "gives no table"),
    ],
)
def test_libraries_that_are_none(tmp_path: Path, source: str, error: str) -> None:
    with pytest.raises((ExternalOpError, OpError), match=error):
        ingot.op_library(compiled(tmp_path, source))


def test_paths_that_are_no_library(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    for name, error in (("none.so", "is no file"), (".", "is no file"), ("text.so", "is no library")):
        path = tmp_path / name
        with pytest.raises(ExternalOpError, match=error):
            ingot.op_library(path)


@pytest.mark.parametrize(
    ("signature", "error"),
    [
        ("acme.x() -> float32[1]", "it takes no operand"),
        ("acme.x(eps: float) -> float32[1]", "it takes no operand"),
        ("acme.x(x: float32[N]) -> float32[M]", "the size M, which no operand has"),
        ("acme.x(x: float33[N]) -> float32[N]", "is no tensor"),
        ("acme.x(x: float32[N/2]) -> float32[N]", "is no tensor"),
        ("acme.x(x: float32[N], x: float32[N]) -> float32[N]", "stands twice"),
        ("acme.x(eps: float, x: float32[N]) -> float32[N]", "an attribute behind them"),
        ("acme.x(x: float32[N], eps: str) -> float32[N]", "neither an operand nor an attribute"),
        ("acme.x(x: float32[N], n: int = 1.5) -> float32[N]", "'1.5' is no int"),
        ("acme.x(x: float32[N]) -> ", "is no signature"),
        ("x" * 5000, "is no signature"),
        ("\xff", "is no"),
        ("acme.x(x: float32[A, A, A, A, A, A, A, A, A]) -> float32[A]", "more than 8 dimensions"),
        ("acme.x(x: float32[" + "9" * 18 + ", " + "9" * 18 + "]) -> float32[1]", "too large"),
    ],
)
def test_signatures_that_are_none(signature: str, error: str) -> None:
    with pytest.raises(OpError, match=error):
        parse(signature.encode("latin-1"), "here")


def test_build_takes_what_it_is_given() -> None:
    """Two ops of one name in a network are an error: an engine could not tell them apart."""
    net = Network("own")
    x = net.input("x", Spec((3, 4), "float32"))
    net.outputs |= {"a": wrong()(x), "b": wrong()(x)}
    with pytest.raises(UserError, match="two ops are called acme.wrong"):
        build_network(net, {})
