"""Sessions: binding inputs, running kernels and host calls, faults, states, profiles."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import _native
from tests.native.engines import WEIGHTS, Program, attend, chain, header, normalise, select, symbol

Array = Any


def engine(program: Program) -> _native.Engine:
    return _native.Engine.from_memory(json.dumps(header(main=program.json)).encode(), WEIGHTS)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def code_of(caught: pytest.ExceptionInfo[_native.Error]) -> str:
    return caught.value.code


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_runs_kernels_in_order(threads: int) -> None:
    session = _native.Session(engine(normalise()), threads=threads)
    assert session.threads == threads
    assert session.inputs == [("x", "float32", ["T", 8]), ("ids", "int32", ["T"])]
    assert session.outputs == [("turned", "float32", [8, "T"]), ("rows", "float32", ["T", 8])]
    for size in (1, 5, 64, 5, 2):
        x, ids = numbers(size, 8), np.arange(size, dtype=np.int32) % 4
        result = session.run({"ids": ids, "x": x})
        expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * WEIGHTS["w"]
        np.testing.assert_allclose(result["turned"], expected.T, rtol=1e-5)
        np.testing.assert_array_equal(result["rows"], WEIGHTS["table"][ids])


def test_a_long_chain_shares_its_arena() -> None:
    session = _native.Session(engine(chain(100)), threads=1)
    x = numbers(64, 8)
    np.testing.assert_allclose(session.run({"x": x})["y"], 101 * x, rtol=1e-4)
    memory = session.memory()
    assert memory["arena_lower_bound"] == 3 * (x.nbytes + _native.RED_ZONE)
    assert memory["arena"] < 50 * (x.nbytes + _native.RED_ZONE) and memory["state"] == 0


def multiples() -> Program:
    """y = x + x for x [8·H, 2·W + 1], where W is bare elsewhere."""
    p = Program(symbol("H", 1, 4), symbol("W"))
    x, _ = p.input("x", [["*", 8, "H"], ["+", ["*", 2, "W"], 1]]), p.input("w", ["W"])
    p.output("y", p.binary("add", x, x, [["*", "H", 8], ["+", ["*", 2, "W"], 1]]))
    return p


def test_a_multiple_binds_a_symbol() -> None:
    session = _native.Session(engine(multiples()))
    for h, w in ((1, 0), (3, 2), (4, 7)):
        x = numbers(8 * h, 2 * w + 1)
        np.testing.assert_array_equal(session.run({"x": x, "w": numbers(w)})["y"], x + x)


@pytest.mark.parametrize(
    ("shape", "w", "why"),
    [
        ((12, 3), 1, r"input 'x' is float32\[12, 3\]; its dimension 0 must be a multiple of 8, and 12 is not"),
        ((0, 3), 1, "'x' has H=0, which is not in 1 … 4"),
        ((40, 3), 1, "'x' has H=5, which is not in 1 … 4"),
        ((8, 5), 1, r"input 'x' is float32\[8, 5\]; .* here float32\[8, 3\], is needed$"),
        ((3,), 1, r"is float32\[3\]; .* is needed: where it is one sample of a batch, give it a dimension more"),
    ],
)
def test_sizes_that_are_no_multiple(shape: tuple[int, ...], w: int, why: str) -> None:
    with pytest.raises(_native.Error, match=why):
        _native.Session(engine(multiples())).run({"x": numbers(*shape), "w": numbers(w)})


@pytest.mark.parametrize(
    "size", [["*", "H", "H"], ["*", -1, "H"], ["//", "H", 2], ["min", "H", 4], ["*", 2**40, ["*", 2**40, "H"]], 8]
)
def test_sizes_that_bind_nothing(size: Any) -> None:
    p = Program(symbol("H"))
    p.output("y", p.binary("add", *[p.input("x", [size])] * 2, [8]))
    with pytest.raises(_native.Error, match="no input has 'H' as a dimension"):
        _native.Session(engine(p))


def test_empty_arrays_run() -> None:
    session = _native.Session(engine(chain()))
    assert session.run({"x": np.zeros((0, 8), np.float32)})["y"].shape == (0, 8)


def test_results_are_the_callers() -> None:
    session = _native.Session(engine(chain()))
    x = numbers(3, 8)
    first = session.run({"x": x})["y"]
    kept = first.copy()
    session.run({"x": x * 7})
    np.testing.assert_array_equal(first, kept)


def test_strided_and_typed_arrays() -> None:
    p = Program(symbol("T"))
    for dtype in ("bfloat16", "float16", "int64", "bool", "uint8"):
        buffer = p.input(dtype, ["T", 3], dtype)
        p.output(dtype, buffer)
    session = _native.Session(engine(p))
    base = np.arange(24).reshape(4, 6)
    feeds = {name: base.astype(getattr(ml_dtypes, name, name))[::-1, ::2] for name, _, _ in session.inputs}
    for name, result in session.run(feeds).items():
        assert result.dtype == feeds[name].dtype
        np.testing.assert_array_equal(result, feeds[name])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "the inputs are 'x', 'ids'; missing: 'x', 'ids'"),
        ({"x": numbers(2, 8)}, "missing: 'ids'"),
        ({"x": numbers(2, 8), "ids": np.zeros(2, np.int32), "mask": 1, 3: 4}, "unknown: 'mask', 3"),
        ({"x": numbers(2, 8), "ids": np.zeros(3, np.int32)}, "'ids' has T=3, but another array has T=2"),
        ({"x": numbers(2, 7), "ids": np.zeros(2, np.int32)}, r"'x' is float32\[2, 7\]; float32\[T, 8\]"),
        ({"x": numbers(2, 8), "ids": np.zeros(2, np.int64)}, r"'ids' is int64\[2\]; int32\[T\] is needed"),
        ({"x": numbers(2, 8), "ids": np.zeros((2, 1), np.int32)}, r"'ids' is int32\[2, 1\]; int32\[T\] is needed"),
        ({"x": numbers(65, 8), "ids": np.zeros(65, np.int32)}, "'x' has T=65, which is not in 1 … 64"),
        ({"x": numbers(0, 8), "ids": np.zeros(0, np.int32)}, "'x' has T=0, which is not in 1 … 64"),
        ({"x": [1.0], "ids": np.zeros(2, np.int32)}, "input 'x': a NumPy array is needed, not list"),
        ({"x": numbers(2, 8).astype(complex), "ids": np.zeros(2, np.int32)}, "input 'x' is an array of complex128"),
        ({"x": numbers(2, 8).astype(">f4"), "ids": np.zeros(2, np.int32)}, "input 'x' is >f4, in the other byte order"),
        ({"x": np.zeros((1,) * 9, np.float32), "ids": np.zeros(2, np.int32)}, "has 9 dimensions, more than 8; float32"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(feeds: dict[Any, Any], message: str) -> None:
    session = _native.Session(engine(normalise()))
    with pytest.raises(_native.Error, match=message) as caught:
        session.run(feeds)
    assert code_of(caught) == "input"
    session.run({"x": numbers(2, 8), "ids": np.zeros(2, np.int32)})  # and nothing is left behind


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fault_in_values_names_its_place(threads: int) -> None:
    session = _native.Session(engine(normalise()), threads=threads)
    for bad in (4, -2, 2**31 - 1):
        message = f"^rows: take: index out of range \\({bad} at element 1, limit 4\\)"
        with pytest.raises(_native.Error, match=message) as caught:
            session.run({"x": numbers(2, 8), "ids": np.array([0, bad], np.int32)})
        assert code_of(caught) == "value"
    good = session.run({"x": numbers(2, 8), "ids": np.array([3, -1], np.int32)})
    np.testing.assert_array_equal(good["rows"], [WEIGHTS["table"][3], np.zeros(8)])


def test_options_that_cannot_be() -> None:
    for program, options, message in (
        (chain(), {"threads": -1}, "threads: -1 is not in 0 … 1024"),
        (chain(), {"threads": 5000}, "threads: 5000"),
        (attend(), {}, "kv_blocks: 0 is not in 1"),
        (attend(), {"kv_blocks": 4, "kv_block_size": 24}, "kv_block_size: 24 is no multiple of 16"),
        (attend(), {"kv_blocks": 4, "kv_block_size": 0}, "kv_block_size: 0"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            _native.Session(engine(program), **options)
        assert code_of(caught) == "argument"
    with pytest.raises(_native.Error) as caught:
        _native.Session(engine(attend()), kv_blocks=1 << 30, kv_block_size=4096)
    assert code_of(caught) == "memory"


def step(q: Array, slot: list[int], start: list[int], context: list[int], table: list[list[int]]) -> dict[str, Array]:
    ints = {"slot": slot, "query_start": start, "context_len": context, "block_table": table}
    return {"q": q, "k": q, "v": q} | {name: np.array(value, np.int32) for name, value in ints.items()}


def test_states_stay_between_runs() -> None:
    session = _native.Session(engine(attend()), threads=2, kv_blocks=4)
    assert session.memory()["state"] == 4 * 2 * 16 * 16 * 4
    q = numbers(3, 1, 16)
    whole = session.run(step(q, [16, 17, 18], [0, 3], [3], [[1]]))["y"]
    session.run(step(q[:2], [32, 33], [0, 2], [2], [[2]]))
    last = session.run(step(q[2:], [34], [0, 1], [3], [[2]]))["y"]
    np.testing.assert_array_equal(last[0], whole[2])
    other = _native.Session(engine(attend()), threads=2, kv_blocks=4)
    assert not np.array_equal(other.run(step(q[2:], [34], [0, 1], [3], [[2]]))["y"], last)


def test_more_shapes_than_plans_are_kept() -> None:
    p = Program(symbol("T"), symbol("B"))
    a, b = p.input("a", ["T"]), p.input("b", ["B"])
    p.output("ab", p.binary("mul", p.view(a, ["T", 1], [1, 1]), p.view(b, [1, "B"], [1, 1]), ["T", "B"]))
    session = _native.Session(engine(p), threads=2)
    for t in list(range(20)) * 2:
        for size in range(0, 64, 7):
            x, y = numbers(t), numbers(size)
            np.testing.assert_array_equal(session.run({"a": x, "b": y})["ab"], np.outer(x, y))


def positive(call: int, arrays: list[Array], results: list[Any], symbols: list[Any]) -> list[Array]:
    assert (call, results, symbols) == (0, [["int32", ["n"]]], [["T", len(arrays[0])]])
    return [np.flatnonzero(arrays[0][:, 0] > 0).astype(np.int32)]


def test_host_calls_bind_symbols() -> None:
    made = engine(select())
    assert made.host_calls("main") == ["pick"]
    session = _native.Session(made, threads=2, host=positive)
    for size in (5, 9, 1, 5):
        x = numbers(size, 8)
        np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x[x[:, 0] > 0])
    assert [item.get("host", item.get("kernel")) for item in session.profile({"x": x})] == [
        "pick",
        "take",
        "elementwise",
    ]


def test_host_calls_between_kernels() -> None:
    p = Program(symbol("T"))
    x = p.input("x", ["T", 8])
    doubled = p.binary("add", x, x, ["T", 8])
    sorted_ = p.temp(["T", 8])
    p.host("sort", [doubled], [sorted_], axis=1)
    p.output("y", p.binary("add", sorted_, doubled, ["T", 8]))
    asked: list[Any] = []

    def host(call: int, arrays: list[Array], results: list[Any], symbols: list[Any]) -> list[Array]:
        asked.append((call, results, symbols))
        return [np.sort(arrays[0], 1)]

    session = _native.Session(engine(p), threads=2, host=host)
    x = numbers(4, 8)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.sort(2 * x, 1) + 2 * x)
    assert asked == [(1, [["float32", [4, 8]]], [["T", 4]])]


def test_a_host_call_takes_whole_arrays() -> None:
    """A view may show one element ever so often; a kernel reads it as it is, a host would get that many."""
    p = Program(symbol("T"))
    x = p.input("x", ["T", 8])
    sums = p.temp([8])
    p.host("reduce_sum", [p.view(x, [10**9, 8], [0, 1])], [sums])
    p.output("y", sums)
    session = _native.Session(engine(p), host=lambda *_: [np.zeros(8, np.float32)])
    with pytest.raises(_native.Error, match=r"operand 0, float32\[1000000000, 8\], is not contiguous") as caught:
        session.run({"x": numbers(4, 8)})
    assert code_of(caught) == "program"


@pytest.mark.parametrize(
    ("result", "code", "message"),
    [
        ([], "value", "host.pick: pick: the host returned 0 arrays; 1 are needed"),
        ([np.zeros((2, 2), np.int32)], "value", r"result 0 is int32\[2, 2\]; int32\[n\] is needed"),
        ([np.zeros(2, np.int64)], "value", r"result 0 is int64\[2\]; int32\[n\], here int32\[2\], is needed"),
        ([np.zeros(65, np.int32)], "value", "has n=65, which is not in 0 … 64"),
        ([3], "input", "a NumPy array is needed, not int"),
    ],
)
def test_host_results_that_do_not_fit(result: list[Any], code: str, message: str) -> None:
    session = _native.Session(engine(select()), host=lambda *_: result)
    with pytest.raises(_native.Error, match=message) as caught:
        session.run({"x": numbers(2, 8)})
    assert code_of(caught) == code


def test_host_exceptions_pass_through() -> None:
    def host(*_: Any) -> list[Array]:
        raise KeyError("from the host")

    session = _native.Session(engine(select()), host=host)
    for _ in range(2):
        with pytest.raises(KeyError, match="from the host"):
            session.run({"x": numbers(2, 8)})


def test_host_calls_need_a_host() -> None:
    with pytest.raises(_native.Error, match=r"operations without a native kernel \(pick\)") as caught:
        _native.Session(engine(select()))
    assert code_of(caught) == "argument"


def test_a_second_run_meanwhile_is_busy() -> None:
    inside, leave = threading.Event(), threading.Event()

    def host(*_: Any) -> list[Array]:
        inside.set()
        assert leave.wait(60)
        return [np.zeros(1, np.int32)]

    session = _native.Session(engine(select()), host=host)
    x = numbers(2, 8)
    results: list[Array] = []
    thread = threading.Thread(target=lambda: results.append(session.run({"x": x})["y"]))
    thread.start()
    assert inside.wait(60)
    for run in (session.run, session.profile):
        with pytest.raises(_native.Error, match="running already") as caught:
            run({"x": x})
        assert code_of(caught) == "busy"
    leave.set()
    thread.join(60)
    np.testing.assert_array_equal(results[0], 2 * x[:1])


def test_sessions_of_one_engine_run_side_by_side() -> None:
    made = engine(chain(20))
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            session = _native.Session(made, threads=2)
            for size in range(1, 40):
                x = numbers(size, 8) * seed
                np.testing.assert_allclose(session.run({"x": x})["y"], 21 * x, rtol=1e-4)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not faults


def test_a_forked_child_has_threads_of_its_own() -> None:
    session = _native.Session(engine(chain()), threads=2)
    x = numbers(4, 8)
    expected = session.run({"x": x})["y"]
    child = os.fork()
    if child == 0:  # leave without running anything of pytest
        os._exit(0 if np.array_equal(session.run({"x": x})["y"], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_profile_measures_every_call() -> None:
    session = _native.Session(engine(normalise()), threads=2)
    calls = session.profile({"x": numbers(4, 8), "ids": np.zeros(4, np.int32)})
    assert [(c["call"], c["kernel"], c["where"]) for c in calls] == [
        (0, "rms_norm", "norm"),
        (1, "copy", "turn"),
        (2, "take", "rows"),
    ]
    assert all(c["ns"] > 0 for c in calls)
    assert calls[0]["bytes"] == 4 * 8 * 4 * 2 + 8 * 4


def test_kernel_table() -> None:
    table = _native.kernels()
    names = [(item["name"], item["version"]) for item in table]
    assert len(set(names)) == len(names) and ("matmul_packed", 1) in names
    for item in table:
        assert item["operands"] and item["levels"][0] == "portable"
    assert _native.level() in _native.levels()


@pytest.mark.parametrize(("level", "message"), [("turbo", "there is no such level"), ("portable", "")])
def test_ingot_isa(level: str, message: str) -> None:
    import subprocess
    import sys

    script = "from ingot import _native\ntry: print(_native.level())\nexcept _native.Error as e: print(e.code, e)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"INGOT_ISA": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(f"argument INGOT_ISA={level}: {message}" if message else level)
