"""The torch target: any network on every torch device that this machine has, against the CPU's native core."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot import _lazy, dtypes
from ingot.backends import torch_device
from ingot.backends.cuda import devices as cuda_devices
from ingot.backends.torch_device import Settings
from ingot.backends.torch_executor import _exact_on_cpu, _exact_on_gpu
from ingot.backends.torch_target import TORCH
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.engine.session import Engine
from ingot.errors import (
    ArgumentError,
    BusyError,
    IngotError,
    InputError,
    MemoryLimitError,
    RecipeError,
    UserError,
    ValueFault,
)
from ingot.ir import OPS, Case, F, Network, Op, Spec, StateSpec
from ingot.ir.weight_format import weight_format
from ingot.ops.in_torch import to_array, to_tensor
from ingot.ops.lowering import Lowered
from ingot.passes.pipeline import lower
from ingot.words import WEIGHTS
from tests import nets
from tests.engine.test_ops_run import CASES, network_of
from tests.frontends.test_torch_export_nets import SMALL, batch
from tests.ops.check import assert_close, sample, sizes_for

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")

DEVICES = torch_device.present(torch)
RUN = [(cls, case) for cls, case in CASES if case.no_engine is None]
IDS = [f"{cls.name}-{case.why}" for cls, case in RUN]
# What is answered by references: what only another target makes of a network.
BY_REFERENCE = {"decode_image", "fused_elementwise", "lowered"}


def far(got: Mapping[str, Array], want: Mapping[str, Array]) -> float:
    """The largest difference over the largest number, of all outputs; NaN and infinities are in the same places."""
    found = 0.0
    for name, array in got.items():
        finite = np.isfinite(want[name])
        np.testing.assert_array_equal(np.where(finite, 0, array), np.where(finite, 0, want[name]))
        a, b = (np.where(finite, x, 0).astype(np.float64) for x in (array, want[name]))
        found = max(found, np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))
    return found


# --------------------------------------------------------------------------------------------------------- every op


@pytest.mark.sampled(6, by=lambda given: given["cls"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("cls", "case"), RUN, ids=IDS)
def test_op(cls: type[Op], case: Case, device: str) -> None:
    """As the CPU's engine has it, by the op's torch form unless it is declared otherwise."""
    network = network_of(cls, case)
    node, sizes = network.nodes[-1], sizes_for(case)
    arrays = sample(node.op, case.specs, sizes, 0)
    given = {v.name: a for v, a in zip(node.inputs, arrays, strict=True)}
    engine = build_network(network, {v.name: given[v.name] for v in network.parameters})
    if network.states:  # they are empty in a session: the form is compared by itself
        compare_form(cls, node.op.evaluate(sizes), arrays, device)
        return
    feeds = {
        v.name: given[v.name] if v.name in given else np.zeros(v.spec.evaluate(sizes), np.bool_) for v in network.inputs
    }
    want, session = engine.run(feeds), engine.session(device=device)
    got = session.run(feeds)
    assert got.keys() == want.keys()
    for name, array in got.items():
        assert_close(array, want[name], f"{cls.name}: {case.why}", 2 * cls.tolerance)
        if array.dtype == np.float32:
            assert far({name: array}, want) <= 1e-5
    host = {item["host"] for item in session.profile(feeds) if "host" in item}
    if device == "torch:cpu":  # others compute fewer dtypes
        assert host <= BY_REFERENCE | {"cast"}, f"answered by a reference: {host}"
    assert host or cls.name not in BY_REFERENCE, f"{cls.name} has a torch form: say so here"


def compare_form(cls: type[Op], op: Op, arrays: tuple[Array, ...], device: str) -> None:
    there = torch.device(device.removeprefix("torch:"))
    wanted = op.reference(*arrays)
    if op.torch is None:
        assert cls.name == "rope_kv_write"
        return
    found = op.torch(torch, *(to_tensor(torch, a, there) for a in arrays))
    for got, want in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True):
        assert_close(to_array(torch, got), want, f"{cls.name} on {device}", cls.tolerance)


FORMS = [(cls, case) for cls, case in RUN if cls.torch is not None and not issubclass(cls, Lowered)]


@pytest.mark.sampled(6, by=lambda given: given["cls"])
@pytest.mark.parametrize(("cls", "case"), FORMS, ids=[f"{cls.name}-{case.why}" for cls, case in FORMS])
def test_form_stays_on_its_device(cls: type[Op], case: Case) -> None:
    """On a device without numbers: whatever allocates elsewhere, or reads something back, fails there."""
    node, sizes = network_of(cls, case).nodes[-1], sizes_for(case)
    meta = torch.device("meta")
    tensors = [to_tensor(torch, a, meta) for a in sample(node.op, case.specs, sizes, 0)]
    op = node.op if node.op.binds else node.op.evaluate(sizes)
    if op.binds or cls.name in ("cond", "while_loop"):  # what is in an operand says what comes out, or which way to go
        with pytest.raises((NotImplementedError, RuntimeError), match="data-independent|meta tensor"):
            op.torch(torch, *tensors)
        return
    with meta if not tensors else torch.device("cpu"):
        found = op.torch(torch, *tensors)
    if found is None:
        assert cls.name == "cast"
        return
    for one in found if isinstance(found, tuple) else (found,):
        assert one.device == meta
    if op.torch_fault is not None:
        assert (fault := op.torch_fault(torch, *tensors)).shape == () and fault.device == meta
    if cls.name == "kv_write":
        assert found is tensors[0], "a state is updated in place"


# ------------------------------------------------------------------------------------------------------ whole networks


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SMALL)
def test_net(name: str, device: str, tmp_path: Path) -> None:
    """The nets of the benchmarks, small, from an engine file that was built for the CPU."""
    make, shape, dynamic = SMALL[name]
    torch.manual_seed(0)
    net = make().eval()
    ingot.build(net, (batch(name, shape, 1),), dynamic={"x": dynamic}, report=False).save(tmp_path / "net.ingot")
    engine = ingot.load(tmp_path / "net.ingot", device)
    larger = tuple(n + 8 * (axis in dynamic) for axis, n in enumerate(shape, 1))
    session = engine.session()
    for count, sizes in ((1, shape), (3, shape), (2, larger)):
        x = batch(name, sizes, count)
        want = engine.session(device="cpu").run({"x": x})
        assert far(session.run({"x": x}), want) <= 1e-5
        assert far(engine.run({"x": x}), want) <= 1e-5
    assert not [item for item in session.profile({"x": x}) if "host" in item]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weights", WEIGHTS[:3])
def test_a_decoder_and_its_states(device: str, weights: str) -> None:
    """A prompt in two steps, with a row of padding: the second step reads what the first has left. Weights of integers
    and scales stay what they are.
    """
    network = nets.llama(bias=True)
    engine = build_network(network, nets.weights(network), format=weight_format(weights))
    both = [engine.session(kv_blocks=8, device=where) for where in ("cpu", device)]
    for context, rows in ((5, 5), (20, 15), (21, 1)):
        feeds = nets.step(context, rows)
        want, got = (session.run(feeds) for session in both)
        assert far({"logits": got["logits"][:1]}, {"logits": want["logits"][:1]}) <= 1e-5
    memory = both[1].memory()
    assert memory.state == 2 * 8 * 16 * 2 * 2 * 16 * 4 and memory.weights > 0 and memory.arena > 0


@pytest.mark.parametrize("device", DEVICES)
def test_language_model(device: str, pico: Path) -> None:
    """Greedy and seeded tokens, several requests at once, and scores, as on the CPU in float32."""
    engine = ingot.build(pico, precision="float32", report=False)
    prompts, text = ["import os", "def fib(n):", "for i in range("], "import os\nimport sys\n" * 12
    found = []
    for where in ("cpu", device):
        with ingot.LLM(engine, device=where) as llm:
            greedy = [c.token_ids for c in llm.generate(prompts, max_tokens=16)]
            seeded = llm.generate("import", max_tokens=12, temperature=0.8, seed=3, repetition_penalty=1.1)
            found.append((greedy, seeded.token_ids, llm.score(text, window=32).nats_per_token, llm.embed("import os")))
    (greedy, seeded, nats, vector), (*others, their_nats, their_vector) = found
    assert [greedy, seeded] == others
    assert their_nats == pytest.approx(nats, rel=1e-5)
    assert far({"vector": their_vector}, {"vector": vector}) <= 1e-5


# ------------------------------------------------------------------------------------------------------ stored weights


def test_portable_passes_are_those_of_every_target() -> None:
    from ingot.backends.cpu import CPU
    from ingot.passes.pipeline import portable

    names = [each.name for each in portable()]
    for target in (CPU, TORCH):
        assert [each.name for each in target.passes][: len(names)] == names


def test_a_folded_weight_is_taken_as_it_is_folded() -> None:
    """A batch norm's scale is in the weight that is stored; the network for torch has the same fold, and no norm."""
    make, shape, dynamic = SMALL["resnet"]
    engine = ingot.build(make().eval(), (batch("resnet", shape, 1),), dynamic={"x": dynamic}, report=False)
    network = _lazy.load("ingot.ir.text:from_json")(engine.header["networks"]["main"])
    assert any(n.op.name == "batch_norm" for n in network.nodes)
    lowered = lower(network, TORCH)
    assert not any(n.op.name == "batch_norm" for n in lowered.nodes)
    folded = [v for v in lowered.parameters if any(step.name == "scale" for step in v.recipe.steps)]
    assert folded


def test_a_recipe_that_does_not_give_its_tensor() -> None:
    engine = small()
    (entry,) = engine.header["weights"].values()
    entry["recipe"]["steps"].append(["reshape", 1, {"shape": [36], "in": [len(entry["recipe"]["steps"])]}])
    with pytest.raises(RecipeError, match=r"is stored as float32\[9, 4\], and its recipe gives float32\[36\]"):
        engine.session(device="torch:cpu")


def test_a_weight_that_cannot_be_had_back() -> None:
    network = Network("n")
    x = network.input("x", Spec(("T", 4), "float32"))
    network.output("y", F.matmul(x, network.parameter("w", Spec((4, 4), "float32"))))
    engine = build_network(network, {"w": np.eye(4, dtype=np.float32)})
    (entry,) = engine.header["weights"].values()
    cast, *layouts = entry["recipe"]["steps"]
    later = [[name, version, {**args, "in": [i + 2 for i in args["in"]]}] for name, version, args in layouts]
    cast[2]["in"] = [0]
    entry["recipe"] = {"sources": ["w", "v"], "steps": [cast, ["scale", 1, {"axis": 0, "in": [2, 1]}], *later]}
    network.parameter("v", Spec((4,), "float32"))
    engine.header["networks"]["main"] = _lazy.load("ingot.ir.text:to_json")(network)
    with pytest.raises(UserError, match="w cannot be had for device torch: w is stored only in a form"):
        engine.session(device="torch:cpu")


# ---------------------------------------------------------------------------------------------------------- a session


def small(dtype: str = "float32") -> Engine:
    network = Network("n")
    x = network.input("x", Spec(("T", 4), dtype))
    ids = network.input("ids", Spec(("T",), "int32"))
    table = network.parameter("table", Spec((9, 4), dtype))
    network.output("y", x + F.embedding(ids, table))
    return build_network(network, {"table": np.arange(36).reshape(9, 4).astype(dtypes.get(dtype).numpy)})


def feeds(*ids: int) -> dict[str, Array]:
    return {"x": np.ones((len(ids), 4), np.float32), "ids": np.array(ids, np.int32)}


@pytest.mark.parametrize("device", DEVICES)
def test_values_that_an_op_does_not_take(device: str) -> None:
    """Checked on the device, and read back once at the end: the session goes on."""
    session = small().session(device=device)
    with pytest.raises(ValueFault, match="embedding.*out of range"):
        session.run(feeds(1, 9))
    with pytest.raises(ValueFault, match="embedding.*out of range"):
        session.run(feeds(-1))
    np.testing.assert_array_equal(session.run(feeds(1))["y"], [[5, 6, 7, 8]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "value"),
    [("slot", 8 * 16), ("slot", -2), ("context_len", 4), ("context_len", 17), ("block_table", 8), ("block_table", -1),
     ("query_start", 1), ("logit_rows", 6), ("token_ids", 80)],
)  # fmt: skip
def test_steps_that_describe_nothing(device: str, name: str, value: int) -> None:
    network = nets.llama(layers=1)
    session = build_network(network, nets.weights(network)).session(kv_blocks=8, device=device)
    step = nets.step()
    step[name].flat[0] = value
    with pytest.raises(ValueFault, match="out of range"):
        session.run(step)


def test_states_that_no_memory_holds() -> None:
    network = Network("n")
    state = network.state("kv", StateSpec("float32", heads=10**8, head_dim=10**4))
    k, slot = network.input("k", Spec(("T", 10**8, 10**4), "float32")), network.input("slot", Spec(("T",), "int32"))
    network.parameter("table", Spec((9, 4), "float32"))
    F.kv_write(state, k, k, slot)
    network.output("y", slot + 1)
    session = small()
    session.header["networks"]["main"] = _lazy.load("ingot.ir.text:to_json")(network)
    with pytest.raises(MemoryLimitError, match="the states on torch:cpu: Unable to allocate"):
        session.session(device="torch:cpu", kv_blocks=4)


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        (ValueError("a negative eps"), ValueFault, "embedding.* on torch:cpu: a negative eps"),
        (IndexError("dim 7"), ValueFault, "dim 7"),
        (OverflowError("too large"), ValueFault, "too large"),
        (MemoryError(), MemoryLimitError, "a run on torch:cpu: MemoryError"),
    ],
)
def test_whatever_a_form_raises(raised: Exception, error: type[IngotError], words: str) -> None:
    """A stranger's network may ask for anything that the ops' rules let pass."""

    def form(self: Op, torch: Any, *tensors: Any) -> Any:
        raise raised

    session = small().session(device="torch:cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPS["embedding"], "torch", form)
        with pytest.raises(error, match=words):
            session.run(feeds(1))
        patch.setattr(OPS["embedding"], "torch", None)
        patch.setattr(OPS["embedding"], "reference", form)
        with pytest.raises(error, match=words):
            session.run(feeds(1))
    np.testing.assert_array_equal(session.run(feeds(1))["y"], [[5, 6, 7, 8]])


def test_inputs_and_outputs() -> None:
    session = small().session(device="torch:cpu")
    assert [str(p) for p in (*session.inputs, *session.outputs)] == [
        "x: f32[T, 4]", "ids: i32[T]", "y: f32[T, 4]",
    ]  # fmt: skip
    out = {"y": np.zeros((2, 4), np.float32)}
    assert session.run(feeds(0, 1), out)["y"] is out["y"] and out["y"][1, 3] == 8
    for wrong, words in (
        ({"x": feeds(1)["x"]}, "ids missing"), ({**feeds(1), "z": feeds(1)["x"]}, "z unknown"),
        ({**feeds(1), "x": np.ones((1, 4))}, "input 'x' is float64"), ({**feeds(1), "ids": feeds(1, 2)["ids"]}, "T is"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            session.run(wrong)
    for wrong, words in (({"y": np.zeros((3, 4), np.float32)}, r"\[3, 4\]"), ({"z": np.zeros(1)}, "is no output")):
        with pytest.raises(InputError, match=words):
            session.run(feeds(0, 1), wrong)


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_without_elements(device: str) -> None:
    """As on the CPU: extremes of nothing, and results without elements that torch refuses to make."""
    n, t = Dim("N", 0), Dim("T", 0)
    net = Network("net")
    x, i = net.input("x", Spec((n, t, 4), "float32")), net.input("i", Spec((n, t, 4), "int32"))
    window = {"kernel": (2, 2), "stride": (1, 1), "pre_padding": (0, 0), "post_padding": (0, 0)}
    net.outputs.update(
        largest=F.reduce_max(x, axes=(1,)), least=F.reduce_min(i, axes=(1,)), most=F.reduce_max(i, axes=(1,)),
        whole=F.softmax(x, axis=1), where=F.argmax(x, axis=2), last=F.slice(x, (0, 0, 3), (n, t, 1), (1, 1, 1)),
        pooled=F.avg_pool(F.reshape(x, (n, t, 2, 2)), **window),
    )  # fmt: skip
    engine = build_network(net, {})
    for sizes in ((0, 3), (2, 0), (0, 0), (2, 3)):
        given = {"x": np.ones((*sizes, 4), np.float32), "i": np.ones((*sizes, 4), np.int32)}
        want, got = engine.run(given), engine.on(device).run(given)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array, strict=True)
    assert want["most"].tolist() == [[1] * 4] * 2


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_that_an_op_does_not_take(device: str) -> None:
    """The last of no rows: torch's IndexError has no type of ours."""
    net, t = Network("net"), Dim("T", 0)
    net.outputs["y"] = F.slice(net.input("x", Spec((t, 3), "float32")), (t - 1, 0), (1, 3), (1, 1))
    session = build_network(net, {}).session(device=device)
    with pytest.raises(ValueFault, match="slice"):
        session.run({"x": np.ones((0, 3), np.float32)})
    np.testing.assert_array_equal(session.run({"x": np.ones((2, 3), np.float32)})["y"], np.ones((1, 3)))


@pytest.mark.parametrize("device", DEVICES)
def test_who_writes_to_a_result_changes_nothing_else(device: str) -> None:
    net = Network("net")
    x, w = net.input("x", Spec((2, 3), "float32")), net.parameter("w", Spec((2, 3), "float32"))
    net.outputs.update(w=w, turned=F.permute(w, (1, 0)), x=x, rows=F.reshape(x, (3, 2)), sum=x + w)
    session = build_network(net, {"w": np.ones((2, 3), np.float32)}).session(device=device)
    given = {"x": np.full((2, 3), 2, np.float32)}
    for array in session.run(given).values():
        array += 5
    for name, array in session.run(given).items():
        np.testing.assert_array_equal(array, {"w": 1, "turned": 1, "sum": 3}.get(name, 2), name)


@pytest.mark.parametrize("device", DEVICES)
def test_whole_numbers_are_held_as_whole_numbers(device: str) -> None:
    """float32 has 24 bits of a number, float64 53."""
    for dtype, most in (("int32", 2**31 - 1), ("int64", 2**62 + 1)):
        net = Network("net")
        x = net.input("x", Spec((4,), dtype))
        net.outputs.update(low=F.clip(x, 0.0, None), high=F.clip(x, None, 2.0**31))
        given = np.array([2**24 + 1, -5, most, most - 2], dtype)
        got = build_network(net, {}).on(device).run({"x": given})
        np.testing.assert_array_equal(got["low"], np.maximum(given, 0), strict=True)
        np.testing.assert_array_equal(got["high"], np.minimum(given.astype(np.int64), 2**31).astype(dtype), strict=True)


def test_planned() -> None:
    session = small().session(device="torch:cpu")
    planned = session.planned({"T": 10})
    assert planned.arena == 10 * 3 * 16 and planned.most_at == 1  # x, the rows and their sum
    with pytest.raises(ArgumentError, match="sizes has no T"):
        session.planned({})


def test_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    session = small().session(device="torch:cpu")
    inside, go = threading.Event(), threading.Event()
    form = OPS["embedding"].torch

    def held(self: Op, torch: Any, *tensors: Any) -> Any:
        inside.set()
        assert go.wait(60)
        return form(self, torch, *tensors)

    monkeypatch.setattr(OPS["embedding"], "torch", held)
    thread = threading.Thread(target=session.run, args=(feeds(1),))
    thread.start()
    assert inside.wait(60)
    try:
        with pytest.raises(BusyError):
            session.run(feeds(1))
    finally:
        go.set()
        thread.join()


def test_weights_are_shared_by_sessions() -> None:
    engine = small()
    one, two = engine.session(device="torch:cpu"), engine.on("torch").session()
    assert one._executor._loaded is two._executor._loaded


def test_float32_is_computed_as_float32() -> None:
    """Whatever torch was told before; and it is told again afterwards."""
    seen = []
    form = OPS["embedding"].torch
    before = torch.backends.mkldnn.conv.fp32_precision
    session = small().session(device="torch:cpu")

    def look(self: Op, torch: Any, *tensors: Any) -> Any:
        seen.append((torch.backends.mkldnn.conv.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision))
        return form(self, torch, *tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPS["embedding"], "torch", look)
        session.run(feeds(1))
    assert seen == [("ieee", "ieee")]
    assert torch.backends.mkldnn.conv.fp32_precision == before


@pytest.fixture
def words() -> Iterator[dict[str, Any]]:
    """torch's settings of float32, all without a word of their own; as they were before when the test is over."""
    backends = torch.backends
    names = ("", "mkldnn", "cudnn", "mkldnn.matmul", "mkldnn.conv", "cuda.matmul", "cudnn.conv")
    places = {name: attrgetter(name)(backends) if name else backends for name in names}
    before = {name: place.fp32_precision for name, place in places.items()}
    for place in places.values():
        place.fp32_precision = "none"
    yield places
    for name, place in places.items():
        place.fp32_precision = before[name]


@pytest.mark.parametrize("above", ["", "mkldnn"])
@pytest.mark.parametrize("own", ["", "mkldnn.conv", "mkldnn"])
@pytest.mark.parametrize("exact", [_exact_on_cpu, _exact_on_gpu], ids=["cpu", "gpu"])
def test_a_setting_takes_the_word_above_it_after_a_run_too(
    above: str, own: str, exact: Settings, words: dict[str, Any]
) -> None:
    """Of a process that sets the words above when a run is over there is no difference to one without a run."""

    def told(run: bool) -> dict[str, str]:
        for place in words.values():
            place.fp32_precision = "none"
        for name in {above, own}:
            words[name].fp32_precision = "tf32"
        if run:
            with exact(torch):
                pass
        found = {name: place.fp32_precision for name, place in words.items()}
        words[above].fp32_precision = "ieee"
        return found | {f"{name} later": place.fp32_precision for name, place in words.items()}

    assert told(run=True) == told(run=False)


def test_settings_are_as_before_when_one_cannot_be_set() -> None:
    class Refuses:
        word = property(lambda self: "old", lambda self, value: (_ for _ in ()).throw(RuntimeError(value)))

    place = SimpleNamespace(word="old")
    settings = Settings(lambda _: [(place, "word", "new"), (Refuses(), "word", "new")])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new"), settings(torch):
            raise AssertionError("it does not run")
        assert place.word == "old"


@pytest.mark.parametrize("exact", [_exact_on_cpu, _exact_on_gpu], ids=["cpu", "gpu"])
def test_settings_of_a_process_that_froze_them(
    exact: Settings, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever imports torch's own tests does."""
    place = words["mkldnn.matmul" if exact is _exact_on_cpu else "cuda.matmul"]
    words[""].fp32_precision = "tf32"  # whether that is the place's own word, torch tells only when it is changed
    with monkeypatch.context() as frozen:
        frozen.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
        with exact(torch):
            assert place.fp32_precision == "ieee" and torch.backends.flags_frozen()
        assert place.fp32_precision == "tf32" and torch.backends.flags_frozen()


def test_settings_that_two_threads_change_in_a_process_that_froze_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's flag is of the process: whoever changes settings meanwhile would find it frozen, or leave it open."""
    second_began, first_runs = threading.Event(), threading.Event()
    found: list[bool] = []

    def of_first(_: Any) -> list[Any]:
        running.append(pool.submit(enter_second))
        second_began.wait(0.2)  # it waits for its turn, so that this is over by time
        return []

    def of_second(_: Any) -> list[Any]:
        second_began.set()
        first_runs.wait(10)
        found.append(torch.backends.flags_frozen())
        return []

    def enter_second() -> None:
        with Settings(of_second)(torch):
            found.append(torch.backends.flags_frozen())

    running: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as frozen:
        frozen.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
        with Settings(of_first)(torch):
            first_runs.set()
            running[0].result(10)
        assert found == [False, True] and torch.backends.flags_frozen()


def test_a_callers_autocast_changes_no_bit() -> None:
    """It would compute products in bfloat16; it holds again after the run."""
    engine = build_network(_linear(), {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)})
    given = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    want = engine.session(device="torch:cpu").run(given)["y"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = engine.session(device="torch:cpu").run(given)["y"]
        assert torch.is_autocast_enabled("cpu")
    np.testing.assert_array_equal(found, want)


def _linear() -> Network:
    network = Network("n")
    x, w = network.input("x", Spec(("T", 64), "float32")), network.parameter("w", Spec((64, 64), "float32"))
    network.outputs["y"] = F.matmul(x, w, transpose_b=True)
    return network


# ------------------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gpu", "device 'gpu' is not available: write cpu or torch"),
        ("cuda:99", "device 'cuda:99': .*torch:cpu"),
        ("cuda:x", "N the number of a GPU"),
        ("cpu:0", "device 'cpu:0' is not available"),
        ("torch:", "device 'torch:' is not available"),
        ("torch:gpu", "torch knows no such device"),
        ("torch:meta", "computes no numbers"),
        ("torch:cuda:99", "is not there .*; torch .* has here: torch:cpu"),
        ("", "device '' is not available"),
        (7, "device 7 is not available"),
    ],
)
def test_words_that_name_no_device(word: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        small().on(word)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(_lazy.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"device torch needs the package 'torch': pip install 'ingot\[torch\]'"):
        torch_device.resolve("cpu")
    with pytest.raises(UserError, match=r"device cuda:0 needs the package 'torch': pip install 'ingot\[cuda\]'"):
        cuda_devices.resolve("")


def test_names_are_whole() -> None:
    engine = small()
    assert [str(engine.on(word).device) for word in (None, "cpu", "torch", "torch:cpu")] == [
        "cpu", "cpu", "torch:cpu", "torch:cpu",
    ]  # fmt: skip
