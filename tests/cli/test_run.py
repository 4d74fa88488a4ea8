"""`ingot run` and `ingot bench --profile` on plain networks: arrays in and out of files, and how they can be bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import dtypes
from ingot.backends.cost import Attended, Call
from ingot.builder.network import build_network
from ingot.cli import arrays, cost
from ingot.cli.feed import figures
from ingot.cli.output import Output
from ingot.engine.inputs import problems, sizes_of
from ingot.engine.session import Engine, Port
from ingot.errors import ONE_OF_A_BATCH, ArgumentError, FileError, MemoryLimitError, UserError, other_sizes
from ingot.ir import Network, Spec
from tests.cli.command import as_json
from tests.cli.command import ingot as command

Array = np.ndarray[Any, Any]


class Net(ingot.nn.Module):
    """Two layers, a shift and a count of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.up = ingot.nn.Linear(8, 64)
        self.down = ingot.nn.Linear(64, 4)

    def forward(self, x: Any, shift: Any, tokens: Any) -> Any:
        y = self.down(ingot.functional.relu(self.up(x))) + shift
        return {"y": y, "p": ingot.functional.softmax(y, dim=-1), "t": tokens + 1}


def build() -> Engine:
    n = ingot.Dim("N", 1, 3, 16)
    specs = {"x": Spec((n, 8), "float32"), "shift": Spec((4,), "float32"), "tokens": Spec((n + 1,), "int64")}
    return ingot.build(Net(), specs, weights_from="random", report=False)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "net.ingot"
    build().save(path)
    return path


def feeds(rows: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((rows, 8)).astype(np.float32),
        "shift": np.arange(4, dtype=np.float32),
        "tokens": np.arange(rows + 1),
    }


# ----------------------------------------------------------------------------------------------------------------- run


def test_what_json_has_no_word_for_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    large = np.finfo(np.float64).max
    row = figures("y", np.array([large, large, np.nan]))  # the sum overflows
    Output(True, False, False).result({"outputs": [row], "seconds": {"run": -np.inf}, "shape": (1, np.float64("nan"))})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (shown["outputs"][0]["max"], shown["outputs"][0]["mean"], shown["outputs"][0]["nan"]) == (large, None, 1)
    assert (shown["seconds"], shown["shape"]) == ({"run": None}, [1, None])


def test_arrays_come_from_files_and_results_go_to_files(engine: Path, tmp_path: Path) -> None:
    given = feeds()
    want = ingot.load(engine).run(given)
    np.savez_compressed(tmp_path / "in.npz", **given)
    folder = tmp_path / "in"
    folder.mkdir()
    for name, array in given.items():
        np.save(folder / f"{name}.npy", np.asfortranarray(array))
    np.save(tmp_path / "x.npy", given["x"].astype(">f4"))
    (folder / "rest").mkdir()
    np.save(folder / "rest" / "tokens.npy", given["tokens"])
    ways = [
        ("--npz", tmp_path / "in.npz"),
        ("--input-dir", folder),
        ("--input-dir", folder / "rest", "--input", f"x={tmp_path / 'x.npy'}", "--input", f"shift={folder}/shift.npy"),
    ]  # fmt: skip
    for i, way in enumerate(ways):
        found = as_json("run", engine, *way, "-o", tmp_path / f"out{i}.npz", "--threads", 1)
        assert [o["name"] for o in found["outputs"]] == ["y", "p", "t"]
        assert set(found["seconds"]) == {"load", "inputs", "run"}
        with np.load(tmp_path / f"out{i}.npz", allow_pickle=False) as out:
            for name, array in want.items():
                assert out[name].dtype == array.dtype
                np.testing.assert_array_equal(out[name], array)
    assert (tmp_path / "out0.npz").read_bytes() == (tmp_path / "out1.npz").read_bytes()
    shown = command("run", engine, *ways[0], "-o", tmp_path / "results").stdout
    assert "2×4" in shown and "checksum" in shown
    np.testing.assert_array_equal(np.load(tmp_path / "results" / "t.npy"), want["t"])


def test_random_inputs_are_seeded_and_sized(engine: Path) -> None:
    words = ("run", engine, "--random")
    first, again, other = as_json(*words), as_json(*words), as_json(*words, "--seed", 1)
    assert first["outputs"] == again["outputs"]
    assert first["outputs"][0]["checksum"] != other["outputs"][0]["checksum"]
    assert first["outputs"][0]["shape"] == [3, 4]  # the size that it was tuned for
    assert as_json(*words, "--size", "N=7")["outputs"][2]["shape"] == [8]


def test_everything_wrong_with_the_inputs_is_said_at_once(engine: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", x=np.zeros((2, 8)), tokens=np.arange(5), other=np.zeros(1))
    errors = command("run", engine, "--npz", tmp_path / "bad.npz", code=2).stderr
    for part in (
        "x is float64[2, 8]; wanted x: f32[N, 8]",
        ".astype('float32')",
        "shift: f32[4] is missing",
        "other is no",
    ):
        assert part in errors
    np.save(tmp_path / "flat.npy", np.zeros(8))  # no conversion is proposed where the shape would not fit after it
    errors = command("run", engine, "--input", f"x={tmp_path / 'flat.npy'}", code=2).stderr
    assert "x is float64[8]; wanted x: f32[N, 8]" in errors and "astype" not in errors
    assert "--random" in command("run", engine, code=2).stderr
    cases = [
        (("--size", "N=3"), "--random"),
        (("--random", "--size", "N=99"), "N (1 … 16)"),
        (("--random", "--size", "M=3"), "M is none of its dims; the dims are N"),
        (("--random", "--size", "N=many"), "write DIM=N; the dims are N"),
        (("--random", "--input", "x"), "NAME=FILE.npy"),
        (("--input-dir", tmp_path / "missing"), "no such folder"),
        (("--npz", tmp_path / "missing.npz"), "missing.npz"),
        (("--input", f"x={tmp_path / 'missing.npy'}"), "missing.npy"),
        (("--random", "--seed", "-1"), "no number from 0 to"),
        (("--random", "--precision", "bfloat16"), "conflicts"),
        (("--random", "--device", "cuda"), "cuda"),
        (("--random", "-o", "/proc/x.npz"), "cannot be written"),
        (("--random", "-o", "/proc/x"), "cannot be written"),
    ]
    for words, match in cases:
        assert match in command("run", engine, *words, code=2).stderr, words


def test_a_language_model_is_sent_to_its_own_commands(pico_engine: Path) -> None:
    assert "ingot generate" in command("run", pico_engine, "--random", code=2).stderr


def test_sizes_beyond_the_machine_are_an_error_before_the_run(engine: Path, tmp_path: Path) -> None:
    net = Network("net")
    net.outputs["y"] = net.input("x", Spec((ingot.Dim("N"), 1 << 20), "float32")) + 1
    build_network(net, {}).save(tmp_path / "wide.ingot")
    done = command("run", tmp_path / "wide.ingot", "--random", "--size", "N=2000000", code=1)
    assert "are available" in done.stderr


def test_misfits_of_one_engine() -> None:
    engine = build()
    good = feeds()
    assert problems(engine, good) == []
    assert "it must be [3]" in problems(engine, good | {"tokens": np.arange(7)})[0]
    assert "N (1 … 16)" in problems(engine, feeds(17))[0]
    (flat,) = problems(engine, good | {"x": np.zeros(8, np.float32)})
    assert flat == f"x is float32[8]; wanted x: f32[N, 8]{ONE_OF_A_BATCH}"
    (narrow,) = problems(engine, good | {"x": good["x"][:, 1:]})
    assert narrow == f"x is float32[2, 7]; wanted x: f32[N, 8]{other_sizes('x', 1, 8)}"
    assert sizes_of(engine) == {"N": 3} and sizes_of(engine, ["N=1"]) == {"N": 1}


def test_bfloat16_goes_through_files(tmp_path: Path) -> None:
    net = Network("net")
    x = net.input("x", Spec((3, 4), "bfloat16"))
    net.outputs["y"] = x * 2
    build_network(net, {}).save(tmp_path / "net.ingot")
    first = as_json("run", tmp_path / "net.ingot", "--random", "-o", tmp_path / "out.npz")
    port = Port("y", "bfloat16", (3, 4))
    read = arrays.read_npz(tmp_path / "out.npz")
    assert read["y"].dtype == np.float32
    narrow = arrays.fitted(read["y"], port)
    assert narrow.dtype == dtypes.bfloat16.numpy
    assert figures("y", narrow)["checksum"] == first["outputs"][0]["checksum"]
    assert arrays.fitted(read["y"] + np.float32(1e-6), port).dtype == np.float32  # would lose bits: left as it is
    np.save(tmp_path / "bits.npy", narrow)
    assert arrays.fitted(arrays.read_npy(tmp_path / "bits.npy"), port).tobytes() == narrow.tobytes()


def test_figures_of_arrays() -> None:
    odd = np.array([[1, np.nan], [np.inf, 3]], np.float16)
    found = figures("y", odd)
    assert (found["min"], found["max"], found["mean"], found["nan"], found["inf"]) == (1, 3, 2, 1, 1)
    assert figures("e", np.zeros((0, 3), np.float32))["mean"] is None
    assert figures("s", np.array(5, np.int64))["max"] == 5
    assert figures("b", np.array([True, False]))["mean"] == 0.5
    json.dumps([found, figures("n", np.array([np.nan], np.float32))], allow_nan=False)


# --------------------------------------------------------------------------------------------------------------- files


def npy(array: Array) -> bytes:
    with open(os.memfd_create("npy"), "w+b") as file:
        np.save(file, array)
        file.seek(0)
        return file.read()


def test_files_that_are_no_arrays_are_typed_errors(tmp_path: Path) -> None:
    good = npy(np.arange(1000, dtype=np.float32))
    objects = npy(np.array([{}, 1], object))
    huge = good.replace(b"(1000,)", b"(10**9,)").replace(b"(1000,), ", b"(1000000000000,), ", 1)
    claims = bytearray(good[:128]).replace(b"(1000,)", b"(999999999999,)").replace(b" " * 9 + b"\n", b" \n")
    bad = {
        "empty": b"", "junk": b"junk" * 50, "cut": good[:-1], "cut header": good[:40], "long": good + b"x",
        "objects": objects, "huge": huge, "claims": bytes(claims), "version": good.replace(b"\x01\x00", b"\x09\x00", 1),
        "negative": good.replace(b"(1000,)", b"(-100,)"), "code": good.replace(b"1000", b"f()0"),
        "too many": npy(np.zeros((0, 2), np.float32)).replace(b"2), }" + b" " * 18, b"4611686018427387904), }"),
        "truth": npy(np.array([True, False]))[:-1] + b"\x02",
    }  # fmt: skip
    for name, data in bad.items():
        (tmp_path / "x.npy").write_bytes(data)
        with pytest.raises(FileError, match=r"x\.npy"):
            print(name, arrays.read_npy(tmp_path / "x.npy"))
    with pytest.raises(FileError, match="cannot be read"):
        arrays.read_npy(tmp_path)
    os.mkfifo(tmp_path / "pipe.npz")
    for read in (arrays.read_npy, arrays.read_npz):
        with pytest.raises(FileError, match="not a regular file"):
            read(tmp_path / "pipe.npz")
    for data in (b"", b"PK", b"junk" * 30):
        (tmp_path / "x.npz").write_bytes(data)
        with pytest.raises(FileError, match=r"x\.npz"):
            arrays.read_npz(tmp_path / "x.npz")


def test_archives_made_to_do_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    good = npy(np.zeros(1 << 20, np.float32))

    def archive(*members: tuple[str, bytes]) -> bytes:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members:
                file.writestr(name, data)
        return path.read_bytes()

    archive(("x.npy", good))
    assert arrays.read_npz(path)["x"].shape == (1 << 20,)
    monkeypatch.setattr(arrays, "available_memory", lambda: 1 << 20)
    with pytest.raises(MemoryLimitError, match="unpacks to"):
        arrays.read_npz(path)
    monkeypatch.undo()
    data = archive(("x.npy", npy(np.arange(3.0))))
    for broken in (data[:-30], data.replace(b"x.npy", b"y.npy", 1), data[:60] + b"\xff\xff" + data[62:]):
        path.write_bytes(broken)
        with pytest.raises(FileError):
            arrays.read_npz(path)
    archive(("x.npy", npy(np.array([{}], object))))
    with pytest.raises(FileError, match="Python objects"):
        arrays.read_npz(path)
    archive(("../../x.txt", b""))
    with pytest.raises(FileError, match="no array"):
        arrays.read_npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("x.npy", good)
    with pytest.raises(FileError, match=r"x\.npy' is packed by a method"):
        arrays.read_npz(path)
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(("x.npy", good), ("x.npy", good))
    with pytest.raises(FileError, match="one name"):
        arrays.read_npz(path)


def test_names_of_results_do_not_choose_folders(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(UserError, match="name of a file"):
            arrays.write_arrays(str(tmp_path / "out"), {name: np.zeros(1)})
    assert not (tmp_path / "out").exists()
    arrays.write_arrays(str(tmp_path / "out.npz"), {"a/b": np.zeros(1), "file": np.ones(2)})
    assert set(np.load(tmp_path / "out.npz")) == {"a/b", "file"}


# ------------------------------------------------------------------------------------------------------------- profile


def test_bench_profiles_a_network(engine: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ("bench", engine, "--size", "N=16", "--repeat", 2, "--bandwidth", 10, "--threads", 1)
    found = as_json(*words, "--profile", trace)
    products = [c for c in found["calls"] if c["kernel"] == "matmul_packed"]
    assert [c["flops"] for c in products] == [2 * 16 * 8 * 64, 2 * 16 * 64 * 4]
    assert sum(k["share"] for k in found["kernels"]) == pytest.approx(1)
    assert found["roofs"]["bandwidth"] == 10e9 and found["roofs"]["float32"] > 1e8
    assert {"share_of_roof", "bound_by", "gb_per_s", "where", "ms"} <= set(products[0])
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == [c["kernel"] for c in found["calls"]]
    assert "profiled_runs" not in as_json(*words) and found["waiting_ms"] == 0
    shared = as_json(*words[:-1], 2, "--profile")
    shares = [row["share"] for row in shared["kernels"]]
    assert shared["waiting_ms"] > 0 and sum(row["share"] for row in shared["calls"]) == pytest.approx(sum(shares))
    assert sum(shares) < 1
    assert "(threads waiting)" in command(*words[:-1], 2, "--profile").stdout
    text = command(*words, "--profile", "--profile-calls", 1).stdout
    assert "of the roof" in text and text.count("matmul_packed") in (1, 2)  # the slowest call may be another's
    slow = command(*words, "--bandwidth", 0.001, "--profile").stdout  # no memory is as slow as that
    assert "from caches: faster than memory's 0.0 GB/s" in slow
    assert any(" in caches " in line and "  memory" in line for line in slow.splitlines())
    assert "SOURCE comes first" in command("bench", engine, "--profile", engine, code=2).stderr
    command("bench", "--profile", engine, code=2)


def test_costs_of_calls() -> None:
    def call(name: str, shapes: str, **params: Any) -> Call:
        tensors = [("float32", tuple(map(int, s.split("x")))) for s in shapes.replace("->", " ").split()]
        return Call(name, params, tuple(tensors[:-1]), (tensors[-1],), 4096)

    conv = call("conv_packed", "1x8x8x16 1x144x32 -> 1x8x8x32", kernel=[3, 3], groups=1, outputs=32)
    assert cost.flops(conv) == 2 * 64 * 32 * 9 * 16
    grouped = call("conv_packed", "1x8x8x16 4x36x32 -> 1x4x4x32", kernel=[3, 3], groups=4, outputs=32)
    assert cost.flops(grouped) == 2 * 16 * 32 * 9 * 4
    transposed = call("conv_transpose_packed", "1x4x4x16 1x64x32 -> 1x8x8x32", kernel=[2, 2], groups=1, outputs=32)
    assert cost.flops(transposed) == 2 * 64 * 32 * 16
    heads = "2x4x5x8 2x4x7x8 2x4x7x6 -> 2x4x5x6"
    assert cost.flops(call("attention", heads, causal=False)) == 2 * 8 * 35 * 14
    square = "1x1x3x8 1x1x3x8 1x1x3x8 -> 1x1x3x8"
    assert cost.flops(call("attention", square, causal=True)) == 2 * 6 * 16
    wide = "1x1x2x8 1x1x5x8 1x1x5x8 -> 1x1x2x8"
    assert cost.flops(call("attention", wide, causal=True)) == 2 * 3 * 16
    assert cost.flops(call("copy", "3x3 -> 3x3")) == 0 and cost.moved(call("copy", "3x3 -> 3x3")) == 4096
    assert cost.moved(call("embedding", "5 1000x8 -> 5x8", packed=False)) == 2 * 160 + 20
    paged = Call("paged_attention", {}, (("bfloat16", (1, 4, 8)), ("bfloat16", (9, 2, 2, 128))),
                 (("bfloat16", (1, 4, 8)),), 0, Attended(100, 100))  # fmt: skip
    assert cost.flops(paged) == 4 * 4 * 8 * 100
    assert cost.moved(paged) == 128 + 100 * 2 * 2 * 8 * 2
    host = Call("host nonzero", {}, (("float32", (3,)),), (("int64", (3, 1)),), 36)
    assert (cost.flops(host), cost.moved(host), cost.compute(host)) == (0, 36, "float32")
    assert cost.compute(paged) == "bfloat16" and cost.compute(conv) == "float32"


def test_run_loads_no_compiler(engine: Path) -> None:
    code = f"""
import sys
from ingot.cli.main import main
assert main(["run", {str(engine)!r}, "--random", "--json"]) == 0
assert not [m for m in sys.modules if m.startswith(("ingot.passes", "ingot.ops", "ingot.nn", "torch"))]
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(Path(ingot.__file__).parents[1])}
    )


# ---------------------------------------------------------------------------------------------------------------- diff


def test_diff(engine: Path, tmp_path: Path) -> None:
    n = ingot.Dim("N", 1, 3, 16)
    specs = {"x": Spec((n, 8), "float32"), "shift": Spec((4,), "float32"), "tokens": Spec((n + 1,), "int64")}
    narrow = tmp_path / "bf16.ingot"
    ingot.build(Net(), specs, weights_from="random", precision="bfloat16", report=False).save(narrow)
    found = as_json("diff", narrow, engine)
    assert [p["name"] for p in found["layers"]] == ["up", "down"]
    assert [p["name"] for p in found["outputs"]] == ["y", "p", "t"]
    assert found["tolerance"] is None and found["first_beyond"] is None and found["not_compared"] == []
    assert 0 < found["layers"][0]["relative"] < 0.02
    np.savez(tmp_path / "in.npz", **feeds())
    words = ("diff", narrow, engine, "--npz", tmp_path / "in.npz", "--tolerance")
    assert as_json(*words, "0.1")["first_beyond"] is None
    done = command(*words, "1e-6", "--values", code=1)
    assert "<- first beyond" in done.stdout and "given inputs" in done.stdout
    assert "no number from 0 on" in command(*words, "nan", code=2).stderr
    np.save(tmp_path / "x.npy", feeds()["x"])
    assert (
        "shift: f32[4] is missing"
        in command("diff", narrow, engine, "--input", f"x={tmp_path / 'x.npy'}", code=2).stderr
    )


def test_diff_of_a_language_model_and_its_folder(engine: Path, pico: Path, pico_engine: Path) -> None:
    assert "different networks" in command("diff", pico_engine, engine, code=2).stderr
    found = as_json("diff", pico_engine, pico)
    assert len(found["layers"]) == 9
    assert 0 < found["outputs"][0]["relative"] < 0.02


# ------------------------------------------------------------------------------------------------------------- inspect


def test_inspect_plans_memory_at_a_size(engine: Path) -> None:
    one, more = (as_json("inspect", engine, "--size", f"N={n}", "--threads", 1)["memory"]["main"] for n in (1, 16))
    assert one["sizes"] == {"N": 1} and one["threads"] == 1
    assert one["arena"] < more["arena"] and one["weights"] == more["weights"]
    session = ingot.load(engine).session(threads=1)
    session.run(feeds(16))
    measured = session.memory()
    assert (measured.arena, measured.arena_lower_bound) == (more["arena"], more["lower_bound"])
    assert "memory of main at N=3" in command("inspect", engine).stdout
    assert "N (1 … 16)" in command("inspect", engine, "--size", "N=99", code=2).stderr
    planned = session.planned({"N": 2})
    assert planned.arena >= planned.buffers + planned.working
    with pytest.raises(ArgumentError, match="'N' has no value"):
        session.planned({})
