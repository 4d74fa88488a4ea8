"""Engines and sessions: what goes in and out, typed errors, threads, saving and loading."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ingot import dtypes, functional
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.engine import file
from ingot.engine.session import Engine, load
from ingot.errors import BusyError, EngineFileError, FileError, IngotError, InputError, UserError, ValueFault
from ingot.ir import Network, Spec
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.recipe import Recipe
from ingot.ops.host import HostCalls
from tests import nets

Array = np.ndarray[Any, Any]


def simple(dtype: str = "float32") -> Engine:
    net = Network("net")
    x = net.input("x", Spec((Dim("T", 0, None, 64), 4), dtype))
    y = net.input("y", Spec((Dim("T"),), "int32"))
    net.outputs["sum"] = x + x
    net.outputs["twice"] = y * 2
    return build_network(net, {})


def stored_weight() -> tuple[Engine, Array]:
    """An engine that stores one weight of its own, and that weight."""
    net = Network("net")
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    x = net.input("x", Spec((Dim("T"), 4), "float32"))
    net.outputs["y"] = functional.matmul(x, net.parameter("w", Spec(weight.shape, "float32")))
    return build_network(net, {"w": weight}), weight


def feeds(rows: int = 3, dtype: str = "float32") -> dict[str, Array]:
    x = np.arange(rows * 4).reshape(rows, 4).astype(dtypes.get(dtype).numpy)
    return {"x": x, "y": np.arange(rows, dtype=np.int32)}


def test_what_an_engine_says_of_itself() -> None:
    engine = simple()
    assert [str(p) for p in engine.inputs] == ["x: f32[T, 4]", "y: i32[T]"]
    assert [str(p) for p in engine.outputs] == ["sum: f32[T, 4]", "twice: i32[T]"]
    session = engine.session(threads=1)
    assert session.inputs == engine.inputs and session.outputs == engine.outputs
    assert engine.entries == ["main"] and engine.kind == "network" and "network" in repr(engine)
    assert str(nets_engine().inputs[2]) == "query_start: i32[B + 1]"


def nets_engine(dtype: str = "float32") -> Engine:
    net = nets.llama(dtype=dtype)
    return build_network(net, nets.weights(net), config={"note": 1}, files={"tokenizer.json": b"{}", "empty": b"x"})


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_runs_of_several_sizes(rows: int) -> None:
    engine = simple()
    out = engine.run(feeds(rows))
    np.testing.assert_array_equal(out["sum"], feeds(rows)["x"] * 2)
    np.testing.assert_array_equal(out["twice"], feeds(rows)["y"] * 2)


def test_results_are_fresh_and_out_is_filled() -> None:
    session = simple().session()
    first = session.run(feeds())["sum"]
    kept = first.copy()
    given = np.empty((3, 4), np.float32)
    out = session.run({"x": feeds()["x"] + 1, "y": feeds()["y"]}, out={"sum": given})
    np.testing.assert_array_equal(first, kept)
    assert out["sum"] is given and given[0, 0] == 2
    with pytest.raises(InputError, match=r"out\['sum'\] is"):
        session.run(feeds(), out={"sum": np.empty(3, np.float32)})
    with pytest.raises(InputError, match="out names 'other'"):
        session.run(feeds(), out={"other": given})


def test_results_go_straight_into_strided_arrays_and_tensors() -> None:
    session = simple().session()
    wide = np.zeros((4, 6), np.float32)
    tensor = torch.zeros((3, 2), dtype=torch.int32)
    given = {"sum": wide.T[1:4], "twice": tensor[:, 1]}
    out = session.run(feeds(), out=given)
    assert list(out) == ["sum", "twice"] and out["sum"] is given["sum"] and out["twice"] is given["twice"]
    np.testing.assert_array_equal(wide[:, 1:4].T, feeds()["x"] * 2)
    assert tensor.tolist() == [[0, 0], [0, 2], [0, 4]] and wide[:, 0].sum() == 0
    fixed = np.zeros((3, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        session.run(feeds(), out={"sum": fixed})
    x = feeds()["x"]
    np.testing.assert_array_equal(session.run({**feeds(), "x": x}, out={"sum": x})["sum"], feeds()["x"] * 2)


def test_arrays_elsewhere_and_odd_ones_are_refused() -> None:
    class Elsewhere:
        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("must not be asked")

        def __dlpack_device__(self) -> Any:
            return 2, 0

    class Silent:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("no")

    y = np.arange(3, dtype=np.int32)
    for value, why in (
        (Elsewhere(), "runs on the CPU"),
        (Silent(), "through DLPack"),
        (torch.zeros((3, 4), device="meta"), "on meta"),
        (torch.zeros((3, 4)).to_sparse(), "no NumPy view"),
        (np.ma.masked_array(np.zeros((3, 4), np.float32), True), "mask would be lost"),
    ):
        with pytest.raises(InputError, match=why):
            simple().run({"x": value, "y": y})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_tensors_and_dlpack_come_in(dtype: str) -> None:
    engine = simple(dtype)
    arrays = feeds(dtype=dtype)
    want = engine.run(arrays)["sum"]
    x = torch.from_numpy(arrays["x"].astype(np.float32)).to(getattr(torch, dtype))
    got = engine.run({"x": x, "y": torch.arange(3, dtype=torch.int32)})["sum"]
    assert got.dtype == dtypes.get(dtype).numpy and got.tobytes() == want.tobytes()
    if dtype != "bfloat16":

        class Other:
            def __dlpack__(self, **_: Any) -> Any:
                return arrays["x"].__dlpack__()

            def __dlpack_device__(self) -> Any:
                return arrays["x"].__dlpack_device__()

        assert engine.run({**arrays, "x": Other()})["sum"].tobytes() == want.tobytes()


def test_strided_inputs_are_read() -> None:
    wide = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    x = wide.T[1:4]
    np.testing.assert_array_equal(simple().run({"x": x, "y": np.arange(6, dtype=np.int32)[::2]})["sum"], x + x)


def test_large_arrays_are_read_and_written_where_they_lie() -> None:
    """The same numbers from arrays that can stay, from those that cannot, and where inputs and results share memory."""
    net = Network("large")
    x = net.input("x", Spec((Dim("N"), 256), "float32"))
    y = functional.relu(functional.permute(x, (1, 0)) + 1.0)
    net.outputs = {"y": y, "again": y, "places": functional.nonzero(x)}
    session = build_network(net, {}).session(threads=2)
    rng = np.random.default_rng(0)
    for rows in (128, 200, 16, 128):
        dense = rng.standard_normal((rows, 256)).astype(np.float32)
        odd = np.frombuffer(b"x" + dense.tobytes(), np.float32, offset=1).reshape(dense.shape)  # aligned to nothing
        given = np.asfortranarray(dense)
        kept = []
        for array in (dense, odd, given, np.repeat(dense, 2, 1)[:, ::2], dense):
            out = {"y": given.T} if array is given and rows == 128 else {}
            found = session.run({"x": array}, out=out)
            want = np.maximum(dense.T + 1, 0)
            np.testing.assert_array_equal(found["y"], want)
            np.testing.assert_array_equal(found["again"], want)
            np.testing.assert_array_equal(found["places"], np.nonzero(dense))
            kept += [] if out else [(found["y"], want)]
        assert all(np.array_equal(found, want) for found, want in kept)  # later runs wrote elsewhere
        assert not np.shares_memory(kept[0][0], kept[-1][0])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"x": None}, "x.*NoneType"),
        ({"x": [[1.0] * 4] * 3}, "is a list"),
        ({"x": np.zeros((3, 4))}, "float64"),
        ({"x": np.zeros((3, 5), np.float32)}, "x"),
        ({"x": np.zeros((2, 4), np.float32)}, "T"),
        ({"x": np.zeros(4, np.float32)}, "x"),
        ({"z": np.zeros(3, np.int32)}, "unknown.*z"),
        ({"x": np.zeros((65, 4), np.float32), "y": np.zeros(65, np.int32)}, "T.*64"),
        ({"x": np.array(["a"] * 3)}, "x"),
        ({"x": torch.zeros((3, 4), requires_grad=True, dtype=torch.float64)}, "float64"),
    ],
)
def test_inputs_that_do_not_fit(change: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"(?s){why}"):
        simple().run({**feeds(), **change})


def test_a_missing_input_is_named() -> None:
    with pytest.raises(InputError, match="missing.*y"):
        simple().run({"x": feeds()["x"]})


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_an_engine_that_ran_goes_with_its_last_reference(device: str) -> None:
    built, weight = stored_weight()
    array = next(iter(built._tensors.values()))  # type: ignore[union-attr]
    engine = built.on(device)
    session = engine.session()
    (found,) = engine.run(x=np.ones((2, 4), np.float32)).values()
    np.testing.assert_array_equal(found, np.ones((2, 4), np.float32) @ weight)
    gone = [weakref.ref(one) for one in (built, engine, array)]
    gc.collect()
    gc.disable()
    try:
        del engine, built, array
        assert [one() is None for one in gone[:2]] == [True, True]
        np.testing.assert_array_equal(*session.run(x=np.ones((2, 4), np.float32)).values(), found)
        del session
        assert gone[-1]() is None
    finally:
        gc.enable()


def test_engines_are_shared_by_threads() -> None:
    engine = simple()
    wrong: list[Any] = []

    def work(rows: int) -> None:
        for _ in range(30):
            out = engine.run(feeds(rows))["sum"]
            if not np.array_equal(out, feeds(rows)["x"] * 2):
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(n + 1,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_session_runs_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a host call of one run waits, a second run is refused, and the first then ends well."""
    inside, go_on = threading.Event(), threading.Event()
    host = HostCalls.__call__

    def waiting(*args: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return host(*args)

    monkeypatch.setattr(HostCalls, "__call__", waiting)
    net = Network("net")
    x = net.input("x", Spec((1, 2, 2), "float64"))
    net.outputs["y"] = functional.conv1d(x, np.array([[[1.0], [2.0]]]))  # of float64: no kernel
    session = build_network(net, {}).session()
    data = {"x": np.array([[[0.0, 1.0], [2.0, 3.0]]])}
    results: list[dict[str, Array]] = []
    thread = threading.Thread(target=lambda: results.append(session.run(data)))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(BusyError, match="one"):
        session.run(data)
    go_on.set()
    thread.join()
    np.testing.assert_array_equal(results[0]["y"], [[[4, 7]]])
    session.run(data)


# ------------------------------------------------------------------------------------------------------ language models


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_decoder_gives_the_interpreters_numbers(dtype: str) -> None:
    net = nets.llama(dtype=dtype, bias=True)
    weights = nets.weights(net)
    session = build_network(net, weights).session(kv_blocks=8)
    states = nets.caches(net)
    for step in (nets.step(20, 20), nets.step(21, 1, seed=1), nets.step(26, 5, seed=2)):
        want = interpret(net, step, weights, states=states)["logits"]
        got = session.run(step)["logits"]
        scale = float(np.abs(want).max())
        tolerance = {"float32": 1e-5, "bfloat16": 0.04, "float16": 0.005}[dtype]
        np.testing.assert_allclose(got, want, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_and_threads_change_nothing(dtype: str) -> None:
    """One prefill, chunks of it, and single tokens end in the same logits, bit for bit."""
    engine = nets_engine(dtype)
    whole = engine.session(threads=1, kv_blocks=8).run(nets.step(33, 33))["logits"][0]
    ids = nets.step(33, 33)["token_ids"]
    for sizes in ((16, 17), (1,) * 33, (5, 20, 8)):
        session = engine.session(threads=2, kv_blocks=8)
        context = 0
        for size in sizes:
            context += size
            step = nets.step(context, size)
            step["token_ids"][:size] = ids[context - size : context]
            logits = session.run(step)["logits"][0]
        np.testing.assert_array_equal(logits, whole)


def test_a_slot_outside_the_cache_is_a_value_fault() -> None:
    step = nets.step()
    step["slot"][0] = 10_000
    with pytest.raises(ValueFault, match="slot"):
        nets_engine().session(kv_blocks=8).run(step)


def test_session_options_that_cannot_be_kept() -> None:
    engine = nets_engine()
    for options, why in (
        ({"entry": "x"}, "no entry 'x'"),
        ({"threads": -1}, "threads: -1"),
        ({"kv_blocks": 0}, "kv_blocks: 0"),
        ({"kv_blocks": 4, "kv_block_size": 7}, "kv_block_size: 7"),
    ):
        with pytest.raises(IngotError, match=why) as raised:
            engine.session(**options)  # type: ignore[arg-type]
        assert raised.value.code == "argument"
    with pytest.raises(IngotError, match="kv_cache"):
        engine.run(nets.step())


def test_profile_and_memory() -> None:
    session = nets_engine().session(kv_blocks=8)
    calls = session.profile(nets.step())
    assert {"rms_norm", "matmul_packed", "paged_attention"} <= {c["kernel"] for c in calls}
    assert all(c["ns"] >= 0 for c in calls) and any(c["where"] == "model.layers.1" for c in calls)
    memory = session.memory()
    assert memory.weights > 0 and memory.state > 0 and memory.arena >= memory.arena_lower_bound > 0


# ------------------------------------------------------------------------------------------------------ saving, loading


def test_saving_and_loading(tmp_path: Path) -> None:
    engine = nets_engine("bfloat16")
    size = engine.save(tmp_path / "net.ingot")
    assert size == (tmp_path / "net.ingot").stat().st_size
    engine.save(tmp_path / "again.ingot")
    nets_engine("bfloat16").save(tmp_path / "rebuilt.ingot")
    loaded = load(tmp_path / "net.ingot")
    loaded.save(tmp_path / "copied.ingot")
    first = (tmp_path / "net.ingot").read_bytes()
    for name in ("again", "rebuilt", "copied"):
        assert (tmp_path / f"{name}.ingot").read_bytes() == first, name
    assert loaded.files() == {"tokenizer.json": b"{}", "empty": b"x"} and loaded.config == engine.config
    file.read(tmp_path / "net.ingot", verify=True)
    a, b = (e.session(kv_blocks=8).run(nets.step())["logits"] for e in (engine, loaded))
    np.testing.assert_array_equal(a, b)
    for name in loaded.header["weights"]:
        assert loaded.tensor(name).tobytes() == engine.tensor(name).tobytes()
        with pytest.raises(ValueError, match="read-only"):
            loaded.tensor(name)[...] = 0


def test_recipes_rebuild_the_stored_bytes(tmp_path: Path) -> None:
    net = nets.llama(dtype="bfloat16")
    weights = {n: w.astype(np.float32) for n, w in nets.weights(net).items()}  # recipes cast
    build_network(net, weights).save(tmp_path / "net.ingot")
    stored = file.read(tmp_path / "net.ingot")
    recipes = {n: e["recipe"] for n, e in stored.header["weights"].items() if e["recipe"] is not None}
    assert set(weights) == {s for r in recipes.values() for s in r["sources"]}
    for name, recipe in recipes.items():
        assert evaluate(Recipe.from_json(recipe), weights).tobytes() == stored.read(name).tobytes()


def test_a_tensor_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no tensor 'x'"):
        simple().tensor("x")


def test_files_that_are_no_engines(tmp_path: Path) -> None:
    (tmp_path / "x.ingot").write_bytes(b"hello")
    with pytest.raises(EngineFileError):
        load(tmp_path / "x.ingot")
    with pytest.raises((FileError, EngineFileError)):
        load(tmp_path / "none.ingot")


def test_running_loads_no_compiler(tmp_path: Path) -> None:
    nets_engine().save(tmp_path / "net.ingot")
    code = f"""
import sys
from ingot.engine.session import load
load({str(tmp_path / "net.ingot")!r}).session(kv_blocks=4)
unwanted = [m for m in sys.modules if m.split(".")[0] in ("torch", "onnx", "transformers", "huggingface_hub")
            or m.startswith(("ingot.passes", "ingot.ops", "ingot.nn", "ingot.frontends", "ingot.ir"))
            or m.startswith("ingot.backends.") and m not in ("ingot.backends.device", "ingot.backends.native")]
assert not unwanted, unwanted
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
