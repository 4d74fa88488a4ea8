"""What is faster by another algorithm takes it, as a parameter that the core obeys; a file decides alike."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ingot
from ingot import Spec
from ingot.backends.cpu import samples
from ingot.backends.cpu.spatial import ALGORITHMS
from ingot.builder import algorithms, measurements
from ingot.builder.algorithms import LOOPS, WORDS, alternatives, measured, with_algorithms
from ingot.cli.main import main
from ingot.engine.session import Engine
from ingot.errors import FileError, UserError
from tests.kernels.one_call import opened
from tests.kernels.test_conv import IDENTITY, packed, square
from tests.quantization.test_quantize import batches, net

# ------------------------------------------------------------------------------------------- what is chosen, by a clock


class Clockwork:
    """Time that only runs of its sessions take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


Cost = Mapping[tuple[int, str], float]  # milliseconds of a call by its choice, "": by the rules, and where none is said


def choice_of(call: dict[str, Any]) -> str:
    """The choice of a call, "" where it goes by the rules."""
    found = [word for word, (name, value) in WORDS.items() if call["params"].get(name) == value]
    assert len(found) <= 1
    return found[0] if found else ""


class Pretended:
    """An engine and its sessions: so many milliseconds by call."""

    def __init__(self, clock: Clockwork, program: dict[str, Any], cost: Cost, whole: float, output: float) -> None:
        self.clock, self.whole, self.output, self.threads = clock, whole, output, 0
        words = [choice_of(call) for call in program["calls"]]
        self.times = {number: cost.get((number, word), cost[number, ""]) for number, word in enumerate(words)}

    def session(self, threads: int = 0) -> Pretended:
        self.threads = threads
        return self

    def run(self, feeds: Any) -> dict[str, Any]:
        self.clock.now += (sum(self.times.values()) + self.whole + {0: 0, 1: 3.0, 2: 1.0, 3: 2.0}[self.threads]) / 1e3
        return {"y": np.full(4, self.output)}

    def profile(self, feeds: Any) -> list[dict[str, Any]]:
        self.run(feeds)
        return [{"call": number, "ns": ms * 1e6} for number, ms in self.times.items()]


def call(
    channels: int = 16,
    outputs: int = 16,
    kernel: int = 3,
    groups: int = 1,
    x: int = 0,
    window: Mapping[str, list[int]] | None = None,
) -> dict[str, Any]:
    params = {"channels": channels, "outputs": outputs, "groups": groups, "kernel": [kernel, kernel],
              "stride": [1, 1], "dilation": [1, 1], **(window or {})}  # fmt: skip
    return {"kernel": "conv_packed", "in": [x, 1], "out": [0], "params": params, "where": f"conv{outputs}"}


PROGRAM: dict[str, Any] = {
    "buffers": [{"kind": "input", "dtype": "float32"}, {"kind": "weight", "dtype": "float32"},
                {"kind": "temp", "dtype": "int8"}, {"kind": "view", "of": 1}],
    "calls": [call(outputs=16), call(outputs=32), call(outputs=48)],
}  # fmt: skip
TIMES = {
    **{(0, word): ms for word, ms in {"": 4.0, "direct": 2.0, "winograd_2": 1.0, "winograd_4": 4.0}.items()},
    **{(1, word): ms for word, ms in {"": 4.0, "direct": 3.9, "winograd_2": 9.0, "winograd_4": 4.0}.items()},
    **{(2, word): ms for word, ms in {"": 3.0, "direct": 2.0, "winograd_2": 3.0, "winograd_4": 3.0}.items()},
}


def tuned(
    monkeypatch: pytest.MonkeyPatch, seconds: float = 100.0, whole: float = 0.0, apart: float = 0.0,
    same: tuple[int, str] | None = None, chance: Cost | None = None,
) -> algorithms.Tuned:  # fmt: skip
    """What is tuned of three calls.

    whole: milliseconds that a mixture of algorithms costs beside them. same: a call that changes no bit by a word.
    chance: what calls take too, but in the first runs only.
    """
    clock = Clockwork()
    monkeypatch.setattr(algorithms, "perf_counter", clock)
    monkeypatch.setattr(measurements, "perf_counter", clock)
    monkeypatch.setattr(algorithms, "processors", lambda: 3)

    def make(program: dict[str, Any]) -> Engine:
        words = [choice_of(call) for call in program["calls"]]
        mixed = len({*words}) > 2
        bits = sum(2.0**-40 for number, word in enumerate(words) if word and (number, word) != same)
        cost = {**TIMES, **(chance or {})} if not mixed else TIMES
        return cast(Engine, Pretended(clock, program, cost, whole * mixed, 1.0 + apart * mixed + bits))

    bar = measurements.Clock(seconds, lambda done, total: None, begin=0.0)
    return measured("key", PROGRAM, make(PROGRAM), make, {}, bar)


def test_calls_take_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(monkeypatch)
    assert found.choices == {0: "winograd_2", 2: "direct"}, "of call 1 the difference is the machine's mood"
    assert [where for _, where, *_ in found.calls] == ["conv16", "conv48"]
    assert (found.before_ms, found.after_ms) == (pytest.approx(11.0), pytest.approx(7.0))
    assert [count for count, _ in found.threads] == [1, 2, 3] and found.fastest == 2
    assert "tune: fastest with 2 thread(s)" in found.lines()[-1]
    assert json.loads(json.dumps(found.json()))["calls"][0]["algorithm"] == "winograd_2"


def test_whole_runs_and_results_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned(monkeypatch, whole=3.9).choices == {}, "what it saves, its neighbours lose"
    assert tuned(monkeypatch, whole=3.5).choices
    assert tuned(monkeypatch, apart=0.03).choices == {}, "that is more than rounding of what is narrower"
    monkeypatch.setitem(PROGRAM, "buffers", [b for b in PROGRAM["buffers"] if b.get("dtype") != "int8"])
    assert tuned(monkeypatch, apart=1e-3).choices == {}, "that is more than rounding of float32"
    assert tuned(monkeypatch, apart=1e-6).difference == pytest.approx(1e-6, rel=1e-3)


def test_what_the_rules_take_too_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned(monkeypatch, same=(0, "winograd_2")).choices == {2: "direct"}, "of another time by chance"
    monkeypatch.setitem(PROGRAM, "calls", [*PROGRAM["calls"][:2], {**PROGRAM["calls"][2], "in": [2, 1]}])
    monkeypatch.setitem(PROGRAM["calls"][2], "params", {**PROGRAM["calls"][2]["params"], "groups": 4})
    assert tuned(monkeypatch, same=(2, "direct")).choices == {0: "winograd_2", 2: "direct"}, "int8: bits tell nothing"


def test_loops_are_chosen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change no bit, and are taken where two measurements say the same."""
    product = {"kernel": "matmul_packed", "in": [0, 1], "out": [0], "params": {"n": 32, "parts": 2}, "where": "head"}
    monkeypatch.setitem(PROGRAM, "calls", [*PROGRAM["calls"][:2], product])
    for word in ("order=weights", "split=rows"):
        monkeypatch.setitem(cast(dict[Any, float], TIMES), (2, word), 1.5)
        found = tuned(monkeypatch, same=(2, word))
        assert found.choices == {0: "winograd_2", 2: word}
        assert f"tune: head: {' '.join(WORDS[word])}, 1.5 ms in the place of 3" in found.lines()
        assert dict([WORDS[word]]).items() <= json.loads(json.dumps(found.json()))["calls"][1].items()
        monkeypatch.delitem(cast(dict[Any, float], TIMES), (2, word))


def test_what_was_faster_once_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(monkeypatch, chance={(1, "order=rows"): 1.0})
    assert found.choices == {0: "winograd_2", 2: "direct"}, "with the others call 1 takes what it took"


def test_one_choice_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the rules choose; and one that is no call's fastest runs no longer than it takes to see that."""
    held = weakref.WeakSet[Pretended]()
    runs: list[str] = []  # the choice of all calls

    class Held(Pretended):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            (self.word,) = {choice_of(call) for call in given[1]["calls"]}
            held.add(self)
            assert {other.word for other in held} <= {"", self.word}

        def profile(self, feeds: Any) -> list[dict[str, Any]]:
            runs.append(self.word)
            return super().profile(feeds)

    clock = Clockwork()
    monkeypatch.setattr(algorithms, "perf_counter", clock)
    monkeypatch.setattr(measurements, "perf_counter", clock)
    slow = {(number, "winograd_4"): 9.0 for number in range(3)}

    def make(program: dict[str, Any]) -> Engine:
        return cast(Engine, Held(clock, program, {**TIMES, **slow}, 0.0, 1.0))

    able = alternatives(PROGRAM)
    rules = make(PROGRAM).session()
    found = algorithms._by_call(PROGRAM, able, rules, make, {}, measurements.Clock(100.0, lambda *_: None, begin=0.0))
    times = Counter(runs)
    assert times["winograd_4"] == 1, "over twice as slow in each call"
    assert {times[word] for word in LOOPS} == {algorithms.PROFILES}, "as fast as the rules: one run does not tell"
    assert {times[word] for word in ("direct", "winograd_2")} == {algorithms.MOST_PROFILES}
    assert times[""] * 2 == len(runs), "the rules run beside each"
    assert found["winograd_4"] == dict.fromkeys(range(3), 9.0), "what was measured stays"


def test_a_busy_look_costs_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that runs while a choice has its second look takes three times as long, the rules as well."""
    clock = Clockwork()
    monkeypatch.setattr(algorithms, "perf_counter", clock)
    monkeypatch.setattr(measurements, "perf_counter", clock)
    runs = Counter[str]()

    class Busy(Pretended):
        def profile(self, feeds: Any) -> list[dict[str, Any]]:
            slower = 3 if algorithms.LOOKS[0] <= runs["winograd_2"] < algorithms.PROFILES else 1
            runs[self.word] += 1
            return [{**call, "ns": call["ns"] * slower} for call in super().profile(feeds)]

    def make(program: dict[str, Any]) -> Engine:
        made = Busy(clock, program, TIMES, 0.0, 1.0)
        (made.word,) = {choice_of(call) for call in program["calls"]}
        return cast(Engine, made)

    able, rules = alternatives(PROGRAM), make(PROGRAM).session()
    found = algorithms._by_call(PROGRAM, able, rules, make, {}, measurements.Clock(100.0, lambda *_: None, begin=0.0))
    assert found["winograd_2"][0] == 1.0 and runs["winograd_2"] == algorithms.MOST_PROFILES


def test_no_measurement_begins_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(monkeypatch, 1e-6)
    assert (found.choices, found.threads) == ({}, [])
    some = tuned(monkeypatch, 0.2)
    assert not some.threads and some.before_ms


def test_which_calls_have_alternatives() -> None:
    calls = [call(), call(x=2), call(kernel=1), call(outputs=4, kernel=1), call(groups=4), {**call(), "in": [0, 0]},
             {**call(), "in": [0, 3]}, {**call(), "kernel": "conv_depthwise"}, call(x=2, groups=4)]  # fmt: skip
    product = {"kernel": "matmul_packed", "in": [2, 1], "params": {}}
    every, loops = (*ALGORITHMS, *LOOPS), tuple(LOOPS)
    assert alternatives({**PROGRAM, "calls": [*calls, product, {**product, "in": [0, 0]}]}) == {
        0: every, 1: loops, 2: loops, 3: ("direct",), 4: ("direct",), 6: every, 8: ("direct",), 9: loops
    }  # fmt: skip
    assert [word for word in every if WORDS[word][0] == "algorithm"] == [*ALGORITHMS]


@pytest.mark.parametrize("outputs", range(1, 10))
@pytest.mark.parametrize("channels", [8, 15, 16, 91, 92, 636, 640, 1024, 1028])
def test_few_outputs_of_int8_have_a_kernel_of_their_own(channels: int, outputs: int) -> None:
    """As the core has it, whose memory tells which one is taken."""
    for window, outside in ((square(1), 0), (square(1, 2), 0), (square(1), 3), (square(3), 0)):
        params = window.params(outputs, channels, IDENTITY) | {"outside": outside}
        x = np.zeros((1, 9, 9, channels), np.int8)
        weight = packed(np.zeros((outputs, *window.kernel, channels), np.int8), 1)
        result = ("float32", (1, *window.out((9, 9)), outputs))
        ruled, direct = (
            opened("conv_packed", params | more, [x, weight], [result])[0].planned({})["working"]
            for more in ({}, {"algorithm": "direct"})
        )
        buffers = [{"kind": "input", "dtype": "int8"}, {"kind": "weight", "dtype": "int8"}]
        call = {"kernel": "conv_packed", "in": [0, 1], "out": [0], "params": params}
        found = alternatives({"buffers": buffers, "calls": [call]})[0]
        assert found == (("direct",) if ruled != direct else tuple(LOOPS))


def test_alternatives_of_products() -> None:
    """The direct product where the build took Strassen's step. Which rows are of one sample, a program does not say."""

    def of(dtype: str = "float32", **more: Any) -> tuple[str, ...]:
        buffers = [{"kind": "weight", "dtype": dtype}, {"kind": "temp", "dtype": dtype, "shape": [8, 28, 70]}]
        params = {"n": 64, "k": 70, "parts": 1, **more}
        call = {"kernel": "matmul_packed", "in": [1, 0], "out": [0], "params": params}
        return alternatives({"buffers": buffers, "calls": [call]})[0]

    assert of() == tuple(LOOPS)
    assert of(algorithm="strassen") == ("direct", "split=rows", "split=outputs")
    assert of("bfloat16", algorithm="strassen") == ("direct", *LOOPS)  # a level's own products may be taken


def test_alternatives_for_taps_along_one_axis() -> None:
    kernels = ([9, 1], [1, 9], [2, 1], [65, 1], [3, 5])
    windows: list[dict[str, list[int]]] = [{"kernel": kernel} for kernel in kernels]
    windows += [{"kernel": [9, 1], "stride": stride} for stride in ([2, 1], [2, 2], [3, 1])]
    windows += [{"kernel": [5], "stride": [2], "dilation": [1]}, {"kernel": [9, 1], "dilation": [2, 1]},
                {"kernel": [9, 1, 1], "stride": [1, 1, 1], "dilation": [1, 1, 1]}]  # fmt: skip
    calls = [*(call(window=window) for window in windows), call(x=2, window=windows[0])]
    found = alternatives({**PROGRAM, "calls": calls})
    assert {number for number, words in found.items() if words == (*ALGORITHMS, *LOOPS)} == {0, 1, 5, 8}
    assert all(found[number] == tuple(LOOPS) for number in {*range(12)} - {0, 1, 5, 8})


# --------------------------------------------------------------------------------------------------------- of builds


class Net(ingot.nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one = ingot.nn.Conv2d(3, 16, 3, padding=1)
        self.two = ingot.nn.Conv2d(16, 20, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.two(ingot.functional.relu(self.one(x)))


def build(file: Path | None, precision: str = "float32", **words: Any) -> Engine:
    inputs = {"x": Spec((ingot.Dim("N", 1), 3, 12, 12), "float32")}
    words = {"weights_from": "random", "tune": 5.0, "progress": False, "tune_file": file, **words}
    return ingot.build(Net(), inputs, precision=precision, **words)


def of_file(file: Path, **changes: Any) -> None:
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "algorithms": {**found["algorithms"], **changes}}))


@pytest.mark.parametrize(
    ("shape", "size", "precision", "taken"),
    [
        (("N", 64, 512), 512, "float32", True),
        (("N", 64, 512), 512, "float16", True),
        (("N", 64, 512), 512, "bfloat16", True),
        ((2, 3, 64, 512), 512, "float32", True),
        (("N", 62, 512), 512, "float32", False),
        (("N", 65, 512), 512, "float32", False),
        (("N", "T", 512), 512, "float32", False),  # "T" may be the batch
        ((64, 512), 512, "float32", False),  # these may be 64 samples
        (("N", 64, 512), 256, "float32", False),
    ],
)
def test_where_strassen_is_taken(shape: tuple[Any, ...], size: int, precision: str, taken: bool) -> None:
    dims = tuple(ingot.Dim(dim, 1) if isinstance(dim, str) else dim for dim in shape)
    inputs = {"x": Spec(dims, "float32")}
    engine = ingot.build(
        ingot.nn.Linear(512, size), inputs, precision=precision, weights_from="random", progress=False, report=False
    )
    calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
    (found,) = (call["params"].get("algorithm") for call in calls if call["kernel"] == "matmul_packed")
    assert found == ("strassen" if taken else None)


def taken(forward: Callable[..., Any], *shapes: tuple[Any, ...]) -> list[str | None]:
    """What the products of a net take: `forward` of its linear layer and inputs of these shapes, "N" of them 1 to 9."""

    class Net(ingot.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = ingot.nn.Linear(512, 512)

        def forward(self, **inputs: Any) -> Any:
            return forward(self.layer, *inputs.values())

    n = ingot.Dim("N", 1, 9)
    inputs = {f"x{i}": Spec(tuple(n * d[1] if isinstance(d, tuple) else n if d == "N" else d for d in shape), "float32")
              for i, shape in enumerate(shapes)}  # fmt: skip
    engine = ingot.build(Net(), inputs, precision="float32", weights_from="random", progress=False, report=False)
    calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
    return [call["params"].get("algorithm") for call in calls if call["kernel"] == "matmul_packed"]


def attend(layer: Any, x: Any) -> Any:
    q = layer(x).reshape(-1, 64, 8, 64).permute(0, 2, 1, 3)
    return ingot.functional.scaled_dot_product_attention(q, q, q).permute(0, 2, 1, 3).reshape(-1, 64, 512)


def heads_first(x: Any) -> Any:
    """To [N · heads, T, D] and back, as torch's MultiheadAttention goes."""
    heads = x.transpose(0, 1).reshape(64, -1, 64).transpose(0, 1).reshape(-1, 8, 64, 64)
    tokens = heads.permute(2, 0, 1, 3).reshape(-1, 512)  # those of all samples one after the other
    return tokens.reshape(64, -1, 512).transpose(0, 1)


@pytest.mark.parametrize(
    ("forward", "shapes", "pairs"),
    [
        (lambda layer, x: layer(x), [(8, 64, 512)], True),
        (lambda layer, x: layer(x), [(64, 64, 512)], True),
        (lambda layer, x: layer(x), [(1, 64, 512)], True),
        (lambda layer, x: layer(x.transpose(0, 1)), [(64, 10, 512)], False),  # the sequence first
        (lambda layer, x: layer(x.transpose(0, 1)), [(64, 128, 512)], False),
        (lambda layer, x: layer(x.transpose(0, 1)), [(1, 64, 512)], False),  # rows of one sample are one row
        (lambda layer, x: layer(x.transpose(0, 1).transpose(0, 1)), [("N", 64, 512)], True),
        (lambda layer, x: layer(x.reshape(-1, 64, 512)), [(128, 512)], False),
        (lambda layer, x: layer(x.reshape(-1, 64, 512)), [(("N", 64), 512)], False),  # samples of one row
        (lambda layer, x: layer(x.reshape(-1, 64, 512)), [(("N", 32), 2, 512)], False),
        (lambda layer, x: layer(x.reshape(-1, 64, 512)), [("N", 128, 512)], True),  # two groups of rows a sample
        (lambda layer, x: layer(x.reshape(-1, 512).reshape(-1, 64, 512)), [("N", 64, 512)], True),
        (lambda layer, x: layer(x.transpose(0, 1).reshape(-1, 64, 512)), [("N", 64, 512)], False),
        (lambda layer, x: layer(x.transpose(0, 1).reshape(3, 64, 512)), [(3, 64, 512)], False),
        (lambda layer, x, y: layer(x + y), [("N", 64, 512), ("N", 64, 512)], True),
        (lambda layer, x, y: layer(x + y), [("N", 64, 512), (1, 64, 512)], True),
        (lambda layer, x, y: layer(x + y), [("N", 64, 512), (64, 512)], False),  # 64 samples, or none
        (lambda layer, x: layer(attend(layer, x)), [("N", 64, 512)], None),
        (lambda layer, x: layer(heads_first(x)), [("N", 64, 512)], True),
        (lambda layer, x: layer(heads_first(x)), [(64, 64, 512)], True),
        (lambda layer, x, h: layer(h).transpose(0, 1) + x, [(64, 8, 512), (1, 64, 512)], False),  # states
        (lambda layer, x, h: layer(h).sum(0) + x, [(64, 512), (2, 64, 512)], False),
        (lambda layer, x, h: layer(h.reshape(-1, 64, 512)).sum(0) + x, [("N", 64, 512), (1, ("N", 64), 512)], False),
        (lambda layer, x: layer(x.permute(-3, -2, -1)), [("N", 64, 512)], True),
        (lambda layer, x: layer(ingot.functional.concat([x, x], 1)), [("N", 64, 512)], True),
        (lambda layer, x: layer(ingot.functional.concat([x, x], 0)), [("N", 64, 512)], False),
        (lambda layer, x: layer(ingot.functional.softmax(x, dim=-1)), [("N", 64, 512)], True),
        (lambda layer, x: layer(ingot.functional.softmax(x, dim=0)), [("N", 64, 512)], False),
        (lambda layer, x: layer(x.sum(1)), [("N", 2, 64, 512)], True),
        (lambda layer, x: layer(x.sum(0)), [(2, 64, 64, 512)], False),
        (lambda layer, x: layer(ingot.functional.cumsum(x, 1)), [("N", 64, 512)], False),  # it may mix them
    ],
)  # fmt: skip
def test_rows_of_different_samples_are_no_pairs(forward: Any, shapes: list[Any], pairs: bool | None) -> None:
    found = taken(forward, *shapes)
    assert found == ([None, None] if pairs is None else ["strassen" if pairs else None])


class Branch(ingot.nn.Module):
    """Its layer is in the bodies, which are given the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ingot.nn.Linear(512, 512)

    def forward(self, go: Any, x: Any) -> Any:
        def body(y: Any, weight: Any) -> Any:
            return ingot.functional.linear(y, weight)

        return ingot.functional.cond(go, body, body, (x.transpose(0, 1), self.layer.weight))


def test_bodies_have_no_pairs() -> None:
    inputs = {"go": Spec((), "bool"), "x": Spec((64, 10, 512), "float32")}
    engine = ingot.build(Branch(), inputs, weights_from="random", progress=False, report=False)
    said = json.dumps(engine.header)
    assert said.count('"matmul_packed"') == 2 and "strassen" not in said


class Learned(ingot.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latents, self.layer = ingot.nn.Parameter(shape=(1, 64, 512)), ingot.nn.Linear(512, 512)

    def forward(self, x: Any) -> Any:
        return self.layer(self.latents) + x


def test_rows_that_are_learned_are_of_no_sample() -> None:
    inputs = {"x": Spec((ingot.Dim("N", 1, 9), 64, 512), "float32")}
    engine = ingot.build(Learned(), inputs, weights_from="random", progress=False, report=False)
    (y,) = engine.run({"x": np.zeros((2, 64, 512), np.float32)}).values()
    assert y.shape == (2, 64, 512)


class Block(ingot.nn.Module):
    """A layer of a transformer, with its norms, a mask, and a first layer that reads ids."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ingot.nn.Embedding(100, 512)
        self.qkv, self.out = ingot.nn.Linear(512, 1536), ingot.nn.Linear(512, 512)
        self.up, self.down = ingot.nn.Linear(512, 1024), ingot.nn.Linear(1024, 512)
        self.before, self.after = ingot.nn.LayerNorm(512), ingot.nn.RmsNorm(512)

    def forward(self, ids: Any, mask: Any) -> Any:
        x = self.words(ids)
        q, k, v = (t.reshape(-1, 64, 8, 64).permute(0, 2, 1, 3) for t in self.qkv(self.before(x)).split(512, dim=2))
        mixed = ingot.functional.scaled_dot_product_attention(q, k, v, mask.reshape(-1, 1, 1, 64))
        x = x + self.out(mixed.permute(0, 2, 1, 3).reshape(-1, 64, 512))
        return x + self.down(ingot.functional.gelu(self.up(self.after(x))))


def test_a_transformer_keeps_samples_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: Counter[Any] = Counter()
    through = samples._through

    def count(node: Any, result: Any, found: Any) -> Any:
        followed[result] += 1
        return through(node, result, found)

    monkeypatch.setattr(samples, "_through", count)
    n = ingot.Dim("N", 1, 9)
    inputs = {"ids": Spec((n, 64), "int64"), "mask": Spec((n, 64), "float32")}
    engine = ingot.build(Block(), inputs, precision="float32", weights_from="random", progress=False, report=False)
    calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
    products = [call["params"].get("algorithm") for call in calls if call["kernel"] == "matmul_packed"]
    assert products == ["strassen"] * 4
    assert set(followed.values()) == {1}, "the network is followed once, not for each product"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_file_of_measurements_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    file = tmp_path / "net.tune.json"
    first = build(file, precision)
    assert [line for line in first.log if line.startswith("tune: ")]
    monkeypatch.setattr(algorithms, "measured", lambda *_: pytest.fail("measured although there is a file"))
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 12), np.float32)
    wanted = build(None, precision, tune=None).run(x)
    for word in ALGORITHMS:
        numbers = alternatives(first.header["programs"]["cpu"]["entries"]["main"])
        of_file(file, calls=[[number, "", word, 2.0, 1.0] for number in numbers], isa="another")
        engine = build(file, precision)
        calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
        assert len(numbers) == 2 and all(calls[number]["params"]["algorithm"] == word for number in numbers)
        assert [line for line in engine.log if "was measured at another" in line]
        assert engine.summary.tuned.choices == dict.fromkeys(numbers, word)
        tolerance = 1e-5 if precision == "float32" else 0.05
        for name, y in engine.run(x).items():
            assert np.allclose(y.astype(np.float32), wanted[name].astype(np.float32), rtol=tolerance, atol=tolerance)
        engine.save(tmp_path / "one.ingot")
        build(file, precision).save(tmp_path / "two.ingot")
        assert (tmp_path / "one.ingot").read_bytes() == (tmp_path / "two.ingot").read_bytes()
        again = ingot.load(tmp_path / "one.ingot")
        assert all(np.array_equal(y, engine.run(x)[name]) for name, y in again.run(x).items())


@pytest.mark.parametrize("word", LOOPS)
def test_loops_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    """The same bits, and `inspect --why` says what calls take."""
    file, saved = tmp_path / "net.tune.json", str(tmp_path / "net.ingot")
    plain = build(file, "bfloat16")
    numbers = alternatives(plain.header["programs"]["cpu"]["entries"]["main"])
    of_file(file, calls=[[number, "", word, 2.0, 1.0] for number in numbers])
    engine = build(file, "bfloat16")
    wanted = build(None, "bfloat16", tune=None)
    x = np.random.default_rng(0).standard_normal((3, 3, 12, 12), np.float32)
    assert all(np.array_equal(y, wanted.run(x)[name]) for name, y in engine.run(x).items())
    engine.save(saved)
    assert main(["inspect", saved, "--why"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tune")]
    assert len(said) == len(numbers) > 0
    assert all(f"{' '.join(WORDS[word])} in the place of the kernel's rules" in line for line in said)


class Head(ingot.nn.Module):
    """One product of many inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = ingot.nn.Linear(640, 96)

    def forward(self, x: Any) -> Any:
        return self.head(x)


def test_an_order_is_the_one_that_runs(tmp_path: Path) -> None:
    """More rows at a time take more memory."""
    file = tmp_path / "head.tune.json"
    words: dict[str, Any] = {"weights_from": "random", "tune": 1.0, "progress": False, "tune_file": file}
    inputs = {"x": Spec((ingot.Dim("N", 1), 640), "float32")}
    ingot.build(Head(), inputs, **words)
    arena = {}
    for word in ("order=rows", "order=weights"):
        of_file(file, calls=[[0, "", word, 2.0, 1.0]])
        arena[word] = ingot.build(Head(), inputs, **words).session(threads=1).planned({"N": 600}).working
    assert arena["order=rows"] < arena["order=weights"]


def test_another_net_or_size_is_measured_anew(tmp_path: Path) -> None:
    file = tmp_path / "net.tune.json"
    build(file)
    key = json.loads(file.read_text())["algorithms"]["key"]
    engine = build(file, tune_sizes={"N": 3})
    assert [line for line in engine.log if "measured for another program" in line]
    assert json.loads(file.read_text())["algorithms"]["key"] != key


def test_a_calibrated_net_is_tuned_in_two_ways(tmp_path: Path) -> None:
    network, weights = net()
    file, report = tmp_path / "tune.json", tmp_path / "q.json"
    engine = ingot.quantize(
        network, batches(), weights=weights, tune=20.0, tune_file=file, report_file=str(report), keep="first"
    )
    found = json.loads(file.read_text())
    assert found.keys() == {"schema", "int8", "algorithms"}
    assert json.loads(report.read_text())["algorithms"]["isa"] == found["algorithms"]["isa"]
    assert engine.summary.json()["tuned"]["isa"] == found["algorithms"]["isa"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"calls": [[0, "", "direct", 1.0]]}, "calls is damaged"),
        ({"calls": [["0", "", "direct", 1.0, 1.0]]}, "calls is damaged"),
        ({"threads": [[0, 1.0]]}, "threads is damaged"),
        ({"difference": -1}, "difference is damaged"),
        ({"isa": 1}, "isa is damaged"),
        ({"more": 1}, "must have the keys"),
        ({"calls": [[0, "", "winograd_9", 1.0, 1.0]]}, "'winograd_9' for call 0, which cannot take it"),
        ({"calls": [[99, "", "direct", 1.0, 1.0]]}, "'direct' for call 99, which cannot take it"),
        ({"calls": [[0, "", "order=columns", 1.0, 1.0]]}, "'order=columns' for call 0, which cannot take it"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = tmp_path / "tune.json"
    measurements.keep(file, "algorithms", {**vars(algorithms.Tuned("k", "avx2")), **changes})
    with pytest.raises(FileError, match=words):
        algorithms.read(file, "k", PROGRAM)


def test_a_file_keeps_its_other_part(tmp_path: Path) -> None:
    file = tmp_path / "tune.json"
    for part in ("int8", "algorithms", "int8"):
        measurements.keep(file, part, {"key": part})
    assert json.loads(file.read_text()) == {"schema": 2, "int8": {"key": "int8"}, "algorithms": {"key": "algorithms"}}


def test_what_cannot_be_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in (
        ({"tune": 0}, "above 0"),
        ({"tune": None, "tune_file": "x"}, "give tune"),
        ({"tune": None, "tune_sizes": {"N": 2}}, "give tune"),
        ({"tune_sizes": {"M": 2}}, "the dims are N"),
        ({"device": "torch:cpu"}, "this machine's processor"),
    ):
        with pytest.raises(UserError, match=why):
            build(None, **cast(dict[str, Any], words))
    engine = tmp_path / "net.ingot"
    build(None, tune=None).save(engine)
    assert main(["build", str(engine), "-o", str(tmp_path / "x.ingot"), "--tune", "3"]) == 2
    assert "tune is for its source" in capsys.readouterr().err
    assert main(["build", "models/pico-python", "-o", str(tmp_path / "x.ingot"), "--tune", "3"]) == 2
    assert "not for a language model" in capsys.readouterr().err
    assert main(["build", "x.onnx", "-o", str(tmp_path / "x.ingot"), "--size", "N=3"]) == 2
    assert "--tune" in capsys.readouterr().err


def test_with_algorithms_leaves_the_program_alone() -> None:
    before = json.dumps(PROGRAM)
    changed = with_algorithms(PROGRAM, {1: "direct", 2: "split=rows"})
    assert json.dumps(PROGRAM) == before and changed["calls"][1]["params"]["algorithm"] == "direct"
    assert changed["calls"][2]["params"] == {**PROGRAM["calls"][2]["params"], "split": "rows"}
    assert changed["calls"][0] is PROGRAM["calls"][0]
