"""Target cuda on networks, its kernels interpreted where there is no GPU: the calls of a Llama, and the CPU's text."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.backends import device
from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda import kernel_calls, launch  # noqa: E402
from ingot.backends.cuda.devices import require_float8  # noqa: E402
from ingot.backends.cuda.operands import Rows  # noqa: E402
from ingot.backends.cuda.program import Attention, Experts, Product, Single, written_over  # noqa: E402
from ingot.errors import UserError  # noqa: E402
from ingot.ops.conversion import Dequantize  # noqa: E402
from tests.backends.cuda.llama import LLAMA, builder, step  # noqa: E402

pytestmark = [pytest.mark.usefixtures("cuda_here"), one_of_each()]
GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds a small Llama with random weights, once in every form."""
    return builder(tmp_path_factory.mktemp("llama"))


def calls(built: Any) -> Any:
    return built.on("cuda").session(kv_blocks=4)._executor._made.calls


def test_calls_of_a_llama(made: Any) -> None:
    """A layer is four products and one attention; what is left are nodes by themselves."""
    found = calls(made())
    products = [c for c in found if isinstance(c, Product)]
    assert len(products) == 4 + 1 and sum(isinstance(c, Attention) for c in found) == 1
    qkv, output, gate_up, down = products[:4]
    assert [len(qkv.outs), output.extra is not None, gate_up.pair, down.extra is not None] == [3, True, True, True]
    assert qkv.norm and gate_up.norm and not output.norm and not down.norm and products[-1].norm
    rest = {c.nodes[0].op.name for c in found if isinstance(c, Single)}
    assert rest == {"rope_table", "embedding", "reshape", "take", "rms_norm"}


@LONG
def test_results_in_the_place_of_what_they_add(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sums of a layer, for nothing reads later what they add; not where it is a result of the network."""
    executor = made(precision="float32").on("cuda").session(kv_blocks=16)._executor
    made_calls, network = executor._made.calls, executor._network
    output, down = (n for n, c in enumerate(made_calls) if isinstance(c, Product) and c.extra is not None)
    assert written_over(network, made_calls) == {output, down}
    with monkeypatch.context() as patch:
        patch.setitem(network.outputs, "residual", made_calls[down].extra)
        assert written_over(network, made_calls) == {output}
    places = set()
    whole = executor._launcher._whole
    monkeypatch.setattr(executor._launcher, "_whole", lambda x, weight, out, bias, extra: (
        places.add(extra is not None and out is extra), whole(x, weight, out, bias, extra)))  # fmt: skip
    executor.run(step(6, 17, 2))
    assert places == {True, False}


@pytest.mark.parametrize("weights", ["int8", "int4-g32"])
def test_a_head_that_is_the_table(made: Any, weights: str) -> None:
    """It is multiplied with as it is stored: only the rows that were looked up are turned into floats."""
    found = calls(made(precision="float32", weights=weights))
    products = [c for c in found if isinstance(c, Product)]
    assert len(products) == 4 + 1 and products[-1].norm is not None and products[-1].factors[0].scales is not None
    turned = [c.nodes[0] for c in found if isinstance(c, Single) and isinstance(c.nodes[0].op, Dequantize)]
    assert [node.inputs[0].node.op.name for node in turned] == ["embedding"]


def test_memory_of_weights(made: Any) -> None:
    """Bytes as they lie on the device: two integers of 4 bits share one."""
    held = {w: made(precision="float32", weights=w).on("cuda").session(kv_blocks=4).memory().weights
            for w in ("int8", "int4-g32")}  # fmt: skip
    outputs = {64: 32 + 2 * 16 + 3 * 64, 32: 64}  # of a layer's linear ones, by inputs; the table is int8 in both
    saved = sum(n * (k - k // 2 + 4 - 2 * k // 32) for k, n in outputs.items())  # numbers and scales
    assert held["int8"] - held["int4-g32"] == saved


@pytest.mark.parametrize(("weights", "activations"), [
    ("same", "same"), ("int8", "same"), ("int4-g32", "same"), ("int4-g32", "int8"), ("fp8", "same"), ("fp8", "fp8"),
])  # fmt: skip
def test_text(made: Any, weights: str, activations: str) -> None:
    """Greedy text as on the CPU: whole prompts by torch forms, then decodes by the kernels."""
    built = made(precision="float32", weights=weights, activations=activations)
    prompt, words = [5, 9, 77, 3, 12], {"max_tokens": 24 if GPU else 3, "ignore_end": True}
    expected = ingot.LLM(built).generate(prompt, **words)
    with ingot.LLM(built, device="cuda") as llm:
        assert llm.generate(prompt, **words).token_ids == expected.token_ids


@pytest.mark.parametrize("rows", [1, 6])
def test_a_step(made: Any, rows: int) -> None:
    """The logits of one step as torch's; nobody's rows may show in them."""
    built = made(precision="float32")
    feeds = step(rows, 17, 2)
    found, expected = (built.on(d).session(kv_blocks=2 * rows).run(feeds)["logits"] for d in ("cuda", "torch"))
    assert found.shape == expected.shape == (rows, 128)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()  # interpreted: 9e-8


@pytest.mark.parametrize("activations", ["same", "fp8"])
def test_weights_of_float8(made: Any, activations: str) -> None:
    """A layer is the same calls as of floats, with the rounding of rows in them; the table stays int8."""
    products = [c for c in calls(made(weights="fp8", activations=activations)) if isinstance(c, Product)]
    assert [c.factors[0].weight.dtype.name for c in products] == ["float8_e4m3fn"] * 4 + ["int8"]
    assert [c.rounds for c in products] == [activations == "fp8"] * 4 + [False]
    assert [c.before_rounding for c in products] == [False, False, activations == "fp8", False, False]
    assert [len(products[0].outs), products[1].extra is not None, products[2].pair] == [3, True, True]
    assert [c.norm is not None for c in products] == [True, False, True, False, True]


@LONG
def test_a_prompt_in_float8(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows go by the library, and what the gate gives stays float8 for the product behind it."""
    monkeypatch.setattr(kernel_calls, "TILE_ROWS", 8)
    monkeypatch.setattr(launch, "TILE_ROWS", 8)
    if not GPU:  # the interpreter has no products of bfloat16
        monkeypatch.setattr(kernel_calls.KernelCalls, "_attention", lambda *args: False)
    built = made(precision="bfloat16", weights="fp8", activations="fp8")
    i32 = partial(np.array, dtype=np.int32)
    feeds = {
        "token_ids": i32(range(5, 25)), "positions": i32(range(20)), "query_start": i32([0, 20]),
        "context_len": i32([20]), "block_table": i32([[0, 1]]), "slot": i32(range(20)), "logit_rows": i32(range(20)),
        "hidden_rows": i32([]),
    }  # fmt: skip
    given = []
    blank = launch.Launcher.blank_rows
    monkeypatch.setattr(launch.Launcher, "blank_rows", lambda *args: given.append(args[2]) or blank(*args))
    found, expected = (
        built.on(d).session(kv_blocks=2).run(feeds)["logits"].astype(np.float32) for d in ("cuda", "torch")
    )
    assert given == [64, 32, 64, 64]  # rows of qkv, of what follows attention, of the gate, and what the gate gives
    assert np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()  # 0.004: roundings of bfloat16


def test_float8_needs_a_gpu_that_converts_it(made: Any) -> None:
    for words in ({"weights": "fp8"}, {"kv": "fp8"}):
        network = made(**words).on("cuda").session(kv_blocks=4)._executor._network
        require_float8((8, 9), network)
        with pytest.raises(UserError, match=r"compute capability 8\.9, and this one has 8\.6: build with"):
            require_float8((8, 6), network)
    require_float8((8, 0), made(weights="int8", kv="int8").on("cuda").session(kv_blocks=4)._executor._network)


MIXTRAL = LLAMA | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
                   "num_experts_per_tok": 2, "tie_word_embeddings": False}  # fmt: skip


@pytest.mark.parametrize("weights", ["int8", "int4-g32", "int4-g64-asym", "fp8"])
def test_experts_of_few_bits(tmp_path: Path, weights: str) -> None:
    """They are one call with what makes floats of them; the engine gives on torch what it gives on the CPU."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    built = ingot.build(tmp_path, weights_from="random", seed=1, weights=weights, report=False)
    (experts,) = (c for c in calls(built) if isinstance(c, Experts))
    assert len(experts.nodes) == 13
    assert all((factor.zeros is not None) == weights.endswith("asym") for factor in experts.factors)
    feeds = step(6, 17, 2)
    found, wanted = (built.on(d).session(kv_blocks=12).run(feeds)["logits"] for d in ("cpu", "torch"))
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@LONG
@pytest.mark.parametrize("weights", ["same", "int8", "int4-g32-asym"])
def test_a_mixture_of_experts(tmp_path: Path, weights: str) -> None:
    """Its experts are one call, of few rows and of many, and give what torch's form gives, and the CPU."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    built = ingot.build(tmp_path, weights_from="random", seed=1, weights=weights, report=False)
    (experts,) = (c for c in calls(built) if isinstance(c, Experts))
    assert len(experts.nodes) == (1 if weights == "same" else 13)
    for rows in (1, 6):
        feeds = step(rows, 17, 2)
        sessions = [built.on(d).session(kv_blocks=2 * rows) for d in ("cuda", "torch", "cpu")]
        found, *others = (session.run(feeds)["logits"] for session in sessions)
        for expected in others:
            assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
        assert "experts" in {item["kernel"] for item in sessions[0].profile(feeds)}


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_caches_of_8_bits(made: Any, kv: str) -> None:
    """Attention over them is the kernel's: a step gives what torch gives, and leaves the same cache."""
    built = made(precision="float32", kv=kv)
    assert sum(isinstance(c, Attention) for c in calls(built)) == 1
    sessions = [built.on(d).session(kv_blocks=12) for d in ("cuda", "torch")]
    for context in (16, 17):
        found, expected = (session.run(step(6, context, 2))["logits"] for session in sessions)
        assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()
    states = [next(iter(session._executor._states.values())) for session in sessions]
    assert states[0].dtype == states[1].dtype == (torch.int8 if kv == "int8" else torch.float8_e4m3fn)
    ours, theirs = (state.cpu().view(torch.uint8) for state in states)
    assert (ours != theirs).float().mean() < 0.01 and ours.any()


@LONG
def test_requests_of_all_kinds(made: Any) -> None:
    """What the device chooses, and what only the host can, together and alone, as on the CPU."""
    built = made(precision="float32")
    kinds = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.5, "top_k": 7, "seed": 4},
             {"temperature": 1.0, "top_p": 0.7, "min_p": 0.01, "seed": 5}, {"frequency_penalty": 1.5},
             {"logprobs": 3, "temperature": 0.5, "seed": 6}, {"logit_bias": {4: 50.0}}]  # fmt: skip
    tokens = 12 if GPU else 4

    def answers(llm: Any) -> list[Any]:
        streams = [llm.stream([5, 9, 77 + i], max_tokens=tokens, ignore_end=True, **k) for i, k in enumerate(kinds)]
        for stream in streams:
            for _ in stream:
                pass
        return [stream.completion for stream in streams]

    with ingot.LLM(built) as cpu, ingot.LLM(built, device="cuda") as gpu:
        for found, wanted in zip(answers(gpu), answers(cpu), strict=True):
            assert found.token_ids == wanted.token_ids
            assert np.allclose(found.logprobs, wanted.logprobs, atol=1e-4)
            assert [set(top) for top in found.top_logprobs] == [set(top) for top in wanted.top_logprobs]
        stopped = gpu.generate([5, 9, 77], max_tokens=tokens, stop_ids=[answers(cpu)[0].token_ids[1]])
        assert stopped.finish_reason == "stop" and gpu.stats().blocks_used == 0
        assert gpu.score(list(range(5, 25))).nats_per_token == pytest.approx(
            cpu.score(list(range(5, 25))).nats_per_token, abs=1e-5
        )


@pytest.mark.parametrize("late", [False, True])
def test_requests_that_fail(made: Any, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, or on a device that fails, a request ends with a typed error and its blocks come back."""
    with ingot.LLM(made(precision="float32"), device="cuda") as llm:
        executor: Any = llm._runner._session._executor  # type: ignore[attr-defined]
        calls, wait = executor._calls, executor._transfer.wait

        def fail(*_: Any) -> Any:
            executor._calls, executor._transfer.wait = calls, wait
            if late:
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

        if late:
            executor._transfer.wait = fail
        else:
            executor._calls = fail
        error, said = (ingot.errors.DeviceError, "no more use") if late else (ingot.errors.MemoryLimitError, "2 GiB")
        with pytest.raises(error, match=said):
            llm.generate([5, 9, 77], max_tokens=3)
        assert llm.stats().blocks_used == 0
        assert len(llm.generate([5, 9, 77], max_tokens=2, ignore_end=True).token_ids) == 2
        gain = next(t for v, t in executor._loaded.tensors.items() if v.kind == "parameter" and t.dim() == 1)
        kept = gain.clone()
        gain.fill_(float("nan"))
        with pytest.raises(ingot.errors.ValueFault, match="NaN"):
            llm.generate([5, 9, 77], max_tokens=3)
        gain.copy_(kept)


@pytest.mark.parametrize("device", ["cuda", "torch"])
def test_where_numbers_are_lost(made: Any, device: str) -> None:
    """With check a fault of the logits names the step and the layer."""
    built = made(precision="float32")
    with ingot.LLM(built, device=device, check=True) as llm:
        assert len(llm.generate([5, 9, 77], max_tokens=2, ignore_end=True).token_ids) == 2
        executor: Any = llm._runner._session._executor  # type: ignore[attr-defined]
        values = {v.name: v for v in executor._loaded.tensors if v.kind == "parameter"}
        name = next(n for n in values if "layers.0" in n and "norm" in n)
        gain = executor._loaded.tensors[values[name]]
        kept = gain.clone()
        gain.fill_(float("nan"))
        with pytest.raises(ingot.errors.ValueFault, match=r"in step 3 the first numbers .* in .*layers\.0\."):
            llm.generate([5, 9, 77], max_tokens=3)
        gain.copy_(kept)
        assert llm.stats().blocks_used == 0
    with pytest.raises(ingot.errors.UserError, match="devices torch and cuda"):
        ingot.LLM(built, check=True)


def test_where_numbers_of_float8_are_lost(made: Any) -> None:
    """Rows that one product has rounded for the next are looked at as what they stand for."""
    executor = made(precision="float32").on("cuda").session(kv_blocks=4)._executor
    node = executor._made.calls[0].nodes[-1]
    numbers = torch.ones((2, 16)).to(torch.float8_e4m3fn)
    for scale, said in ((1.0, ""), (float("nan"), f"{node.op.name} in {node.where}")):
        rows = Rows(numbers, torch.tensor([1.0, scale]), torch.float32)
        executor._look(node, {node.outputs[0]: rows})
        assert executor._bad == said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("token_ids", 128, "embedding"), ("slot", 99999, "kv_write"), ("block_table", -2, "paged_attention")],
)
def test_faults(made: Any, name: str, value: int, said: str) -> None:
    feeds = step(2, 5, 1)
    feeds[name] = np.full_like(feeds[name], value)
    session = made().on("cuda").session(kv_blocks=2)
    with pytest.raises(ingot.errors.ValueFault, match=said):
        session.run(feeds)
    good = session.run(step(2, 5, 1))["logits"]
    assert np.isfinite(good).all()


def test_profile_names_kernels(made: Any) -> None:
    built = made().on("cuda").session(kv_blocks=2)
    names = {item.get("kernel") for item in built.profile(step(1, 5, 1))}
    assert {"product", "decode_attention", "embedding"} <= names
    whole = step(1, 5, 1)
    whole |= {"query_start": np.array([0, 2], np.int32), "token_ids": np.array([5, 6], np.int32),
              "positions": np.array([3, 4], np.int32), "slot": np.array([3, 4], np.int32)}  # fmt: skip
    assert "prefill_attention" in {item.get("kernel") for item in built.profile(whole)}


def test_a_step_that_ends_no_prompt(made: Any) -> None:
    """Its head has no rows: no weight is read for them, nor made wide."""
    built = made().on("cuda").session(kv_blocks=2)
    feeds = step(1, 5, 1) | {"query_start": np.array([0, 2], np.int32), "logit_rows": np.array([], np.int32)}
    feeds |= {name: np.array([3, 4], np.int32) for name in ("token_ids", "positions", "slot")}
    assert built.run(feeds)["logits"].shape == (0, 128)
    assert not [item for item in built.profile(feeds) if "matmul" in item["kernel"]]


@pytest.mark.parametrize("word", ["cuda:x", "cuda:0:1", "cuda:-1"])
def test_bad_words(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ingot.errors.UserError, match="cuda"):
        device.device_of(word)
