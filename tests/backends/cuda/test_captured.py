"""Padded steps of target cuda: call by call and replayed, and one behind the other, as steps without padding. Without a
GPU they are computed anew in the place of each replay.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from random import Random
from threading import current_thread, main_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ingot
from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda import executor as cuda_executor  # noqa: E402
from ingot.backends.cuda.choice import Kind  # noqa: E402
from ingot.backends.cuda.compiled_only import NotCompiled, compiled_only, is_compiled_only  # noqa: E402
from ingot.backends.cuda.launch_shapes import most_tiles, tiles_of  # noqa: E402
from ingot.backends.cuda.steps import (  # noqa: E402
    MOST_REQUESTS,
    MOST_TOKENS,
    Graph,
    Size,
    likely_after,
    requests_of,
    tokens_of,
)
from ingot.ops.narrow_cache import SCALE, torch_vectors  # noqa: E402
from tests.backends.cuda.llama import builder, choice, mixed, step  # noqa: E402

pytestmark = [pytest.mark.usefixtures("cuda_here"), one_of_each()]
GPU = torch.cuda.is_available()
ONE_EACH = Size(4, 4, 4, 64, True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds a small Llama with random weights, once in every form."""
    return builder(tmp_path_factory.mktemp("llama"))


def again(work: Any) -> Graph:
    """In the place of a graph: computes everything again, where it lies."""
    outputs: dict[str, Any] = {}

    def replay() -> None:
        for name, tensor in work().items():
            outputs.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    return Graph(replay, outputs)


def captures(session: Any) -> Any:
    """A session whose steps are captured; without a GPU as far as that goes."""
    executor = session._executor
    if not GPU:
        executor._captures = True
        executor._graphs.captured = again
    return executor


def recorded(executor: Any) -> list[Any]:
    """The sizes of the steps that are graphs."""
    return [size for (size, _), step in executor._steps.items() if step.recorded]


@LONG
def test_captured_steps(made: Any) -> None:
    """Padded steps as steps without padding, the first one call by call; one that is replayed knows nothing of the one
    before."""
    built = made(precision="float32")
    captured, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor, plain._executor._captures = captures(captured), False
    for rows, context in ((3, 5), (4, 6), (3, 17)):
        assert recorded(executor) == ([] if context == 5 else [ONE_EACH])
        feeds = step(rows, context, 2)
        found, expected = (session.run(feeds) for session in (captured, plain))
        assert found["logits"].shape == (rows, 128) and found["hidden"].shape == expected["hidden"].shape
        assert np.abs(found["logits"] - expected["logits"]).max() <= 1e-6  # interpreted: 0
    assert list(executor._steps) == [(ONE_EACH, None)]
    wrong = step(3, 5, 2) | {"token_ids": np.full(3, 128, np.int32)}
    with pytest.raises(ingot.errors.ValueFault, match="embedding"):
        captured.run(wrong)
    with pytest.raises(ingot.errors.InputError, match="slot"):
        captured.run({name: array for name, array in feeds.items() if name != "slot"})


@LONG
def test_a_graph_is_recorded_behind_a_launch(made: Any) -> None:
    """In the thread that runs the session, once; the numbers before and after are the same bits."""
    session = made(precision="float32").on("cuda").session(kv_blocks=8)
    executor, order = captures(session), []
    captured, started = executor._graphs.captured, executor._started

    def note(work: Any) -> Graph:
        assert current_thread() is main_thread() and not is_compiled_only()
        order.append("record")
        return captured(work)

    def start(*args: Any) -> Any:
        found = started(*args)  # on a GPU NotCompiled at first
        order.append("launch")
        return found

    executor._graphs.captured, executor._started = note, start
    runs = [(step(3, context, 2), choice(3, back=[2])) for context in (5, 6)]
    before = [session.launch(*run) for run in runs[:1]]
    assert order == ["launch", "record"]  # before anybody waits
    before.append(session.launch(*runs[1]))
    after = [session.launch(*run)() for run in runs]
    (padded,) = executor._steps.values()
    assert padded.runs == 4 and order == ["launch", "record", "launch", "launch", "launch"]
    for one, other in zip([wait() for wait in before], after, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist() and one.logprobs.tolist() == other.logprobs.tolist()
        assert one.outputs["logits"].tobytes() == other.outputs["logits"].tobytes()


@LONG
@pytest.mark.parametrize("lacks", ["choose", "take_inputs"])
def test_kernels_that_are_not_compiled(made: Any, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled while the step waits, and beside it those of steps that are likely next. What was
    launched of the step before is launched again, and the next steps take their own turns."""
    built = made(precision="float32")
    session, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor, compiled, asked = captures(session), set(), []
    where = executor._chooser if lacks == "choose" else executor._launcher
    launches = getattr(where, lacks)

    def launch(*args: Any) -> Any:
        if not compiled and is_compiled_only():
            raise NotCompiled(lacks)
        return launches(*args)

    class Compiling:
        def compile(self, *what: Any) -> None:
            compiled.add(lacks)
            asked.append(what)

    monkeypatch.setattr(where, lacks, launch)
    monkeypatch.setattr(cuda_executor, "likely_after", likely_after)
    executor._compiling, executor._foresees = Compiling(), True
    for context in (5, 6, 7, 8, 9):
        feeds = step(3, context, 2)
        wanted = plain.run(feeds)["logits"].argmax(1)
        assert session.launch(feeds, choice(3))().tokens.tolist() == wanted.tolist()
    assert not is_compiled_only() and recorded(executor) == [ONE_EACH]  # no graph waits either
    assert asked == [(ONE_EACH, (Kind.GREEDY,), likely_after(3, 64))]


@LONG
def test_a_run_whose_results_find_no_memory(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one of its size is recorded, though it is not the first."""
    executor = captures(session := made(precision="float32").on("cuda").session(kv_blocks=8))

    def short(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(executor._transfer, "back", short)
        with pytest.raises(ingot.errors.MemoryLimitError):
            session.run(step(3, 5, 2))
    assert recorded(executor) == []
    session.run(step(3, 5, 2))
    assert recorded(executor) == [ONE_EACH]


@LONG
def test_a_run_for_which_there_is_no_memory(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps behind it know nothing of it, though the device has taken its inputs."""
    built = made(precision="float32")
    session, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor = captures(session)
    executor._graphs.captured = again  # a graph on a GPU has memory
    choose = executor._chooser.choose

    def short(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for context in (5, 6, 7, 8):
        feeds = step(3, context, 2)
        monkeypatch.setattr(executor._chooser, "choose", short if context in (5, 7) else choose)
        if context in (5, 7):
            with pytest.raises(ingot.errors.MemoryLimitError):
                session.launch(feeds, choice(3))
        wanted = plain.run(feeds)["logits"].argmax(1)
        monkeypatch.setattr(executor._chooser, "choose", choose)
        assert session.launch(feeds, choice(3))().tokens.tolist() == wanted.tolist()


@pytest.mark.parametrize("captured", ["before", "meanwhile", "never"])
@LONG
def test_launched_steps(made: Any, captured: str) -> None:
    """Tokens stay on the device for the step behind, which is launched before anybody has read them."""
    built = made(precision="float32")
    session, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    if captured == "never":
        session._executor._captures = False
    elif captured == "before":
        executor = captures(session)
        session.launch(step(3, 5, 2), choice(3))()
        assert recorded(executor) == [ONE_EACH]
    else:
        captures(session)
    first, second = step(3, 5, 2), step(3, 6, 2)
    wanted = [plain.run(first)["logits"].argmax(1)]
    known = second | {"token_ids": np.array([*wanted[0][[2, 0]], 9], np.int32)}
    logits = plain.run(known)["logits"]
    unknown = second | {"token_ids": np.array([0, 0, 9], np.int32)}
    waits = [session.launch(first, choice(3)), session.launch(unknown, choice(3, [2, 0, -1], [0, 2]))]
    one, two = (wait() for wait in waits)
    assert one.tokens.tolist() == wanted[0].tolist() and one.outputs["logits"].shape == (0, 128)
    assert two.tokens.tolist() == logits.argmax(1).tolist()
    assert np.abs(two.outputs["logits"] - logits[[0, 2]]).max() <= 2e-6
    log_total = np.log(np.exp(logits.astype(np.float64)).sum(1))
    assert np.abs(two.logprobs - (logits.max(1) - log_total)).max() <= 1e-5
    with pytest.raises(ingot.errors.ValueFault, match="embedding"):
        session.launch(second | {"token_ids": np.full(3, 128, np.int32)}, choice(3))()


@LONG
def test_more_steps_under_way_than_a_ring_has_slots(made: Any) -> None:
    """Each takes its own inputs and leaves its tokens in memory of its own, whenever they are read; kinds of choice are
    captured apart, and go on from each other's tokens."""
    built = made(precision="float32")
    session, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    captures(session)
    tokens, waits, wanted = np.arange(5, 8, dtype=np.int32), [], []
    for context in range(5, 12):
        feeds = step(3, context, 2)
        wanted.append(plain.run(feeds | {"token_ids": tokens})["logits"].argmax(1))
        behind = None if context == 5 else [0, 1, 2]
        feeds["token_ids"] = tokens if behind is None else np.zeros(3, np.int32)
        # so cold that a draw is the greatest
        waits.append(session.launch(feeds, choice(3, behind, temperature=1e-30 if context % 3 == 0 else 0.0)))
        tokens = wanted[-1].astype(np.int32)
    assert [wait().tokens.tolist() for wait in waits] == [w.tolist() for w in wanted]
    assert recorded(session._executor) == [ONE_EACH] * 2


@pytest.mark.parametrize("words", [{}, {"kv": "int8"}, {"weights": "int8"}])
@LONG
def test_captured_prompts(made: Any, words: dict[str, str]) -> None:
    """Prompts, their ends and decodes in one step of a padded size, from the third time on in a graph; what one step
    leaves in the inputs is nothing to the next."""
    built = made(precision="float32", **words)
    captured, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor, plain._executor._captures = captures(captured), False
    for number, (counts, before, logits) in enumerate((
        ([5, 3], [0, 0], [0, 1]), ([4, 1], [5, 3], [1]), ([7, 2], [9, 4], [0, 1]), ([1, 3, 9], [16, 6, 0], [0, 2]),
        ([2, 3], [17, 9], [0]),
    )):  # fmt: skip
        assert recorded(executor) == [Size(16, 4, 4, 64, False)][: number > 1]
        feeds = mixed(counts, before, logits, 2)
        found, expected = (session.run(feeds)["logits"] for session in (captured, plain))
        assert found.shape == expected.shape == (len(logits), 128)
        assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()  # interpreted: 0
    assert list(executor._steps) == [(Size(16, 4, 4, 64, False), None)]
    assert recorded(executor) == [Size(16, 4, 4, 64, False)]
    states = [next(iter(session._executor._states.values())) for session in (captured, plain)]
    written = [(state.view(torch.uint8) != 0).flatten(2).any(2) for state in states]  # blocks and their places
    assert torch.equal(*written)
    vectors = [torch_vectors(torch, state, state.shape[-1] - SCALE * (state.dtype == torch.int8)) for state in states]
    near = 2e-5 * vectors[1].abs().amax()  # products of other numbers of rows differ by their roundings,
    if states[0].dtype == torch.int8:
        near = near + vectors[1].abs().amax(-1, keepdim=True) / 127  # which may round an integer the other way
    assert ((vectors[0] - vectors[1]).abs() <= near).all()
    wrong = mixed([5, 3], [0, 0], [0], 2)
    wrong["token_ids"][2] = 128
    with pytest.raises(ingot.errors.ValueFault, match="embedding"):
        captured.run(wrong)


@LONG
@pytest.mark.parametrize("count", [3, 7])
def test_prompts_of_steps_in_a_row(made: Any, count: int) -> None:
    """Each goes on from the tokens that the one before has chosen, decodes beside prompts, whatever is captured; one
    that ends no prompt chooses none."""
    built = made(precision="float32")
    session, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor = captures(session)
    plain._executor._captures = False
    plan = [
        ([5, 3], [0, 0], [0, 1], None), ([1, 3], [5, 3], [0], [0, -1, -1, -1]),
        ([1, 4], [6, 6], [0, 1], [0, -1, -1, -1, -1]), ([1, 1], [7, 10], [0, 1], [0, 1]), ([3, 2], [0, 0], [], None),
        ([4, 2], [3, 2], [], None), ([2, 2], [7, 4], [1], None),
    ]  # fmt: skip
    waits, wanted = [], []
    for counts, before, logits, behind in plan[:count]:
        feeds = mixed(counts, before, logits, 2)
        known = feeds["token_ids"].copy()
        for at, row in enumerate(behind or ()):
            if row >= 0:
                known[at] = wanted[-1][row]
                feeds["token_ids"][at] = 0
        wanted.append(plain.run(feeds | {"token_ids": known})["logits"].argmax(1))
        waits.append(session.launch(feeds, choice(len(logits), behind, tokens=sum(counts))))
    assert [wait().tokens.tolist() for wait in waits] == [w.tolist() for w in wanted]
    assert [(size.tokens, size.logits) for size, _ in executor._steps] == [(16, 4), (2, 2), (16, 0)][: count // 2]


@pytest.mark.parametrize("cached", [True, False])
def test_nothing_is_compiled_where_nobody_waits(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton asks before it compiles."""
    files = pytest.importorskip("ingot.backends.cuda.kernel_files")
    source = SimpleNamespace(cached=cached, name="product_rows")
    monkeypatch.setattr(files.Source, "of", lambda *asked: source)
    monkeypatch.setattr(files, "driver", SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: None)))
    before: list[Any] = []
    hook = files._Hook(lambda **asked: bool(before.append(asked)))
    asked = {"fn": SimpleNamespace(jit_function=None), "compile": {}}
    assert not hook(**asked) and len(before) == 1
    with compiled_only(), nullcontext() if cached else pytest.raises(NotCompiled, match="product_rows"):
        assert not hook(**asked)
    assert len(before) == 1 + cached


def test_sizes() -> None:
    """A padded step has room for what it stands for, and little more."""
    random = Random(1)
    for count in range(1, MOST_TOKENS + 1):
        padded = tokens_of(count)
        assert count <= padded == tokens_of(padded) and padded - count < max(16, count / 4)
        assert count <= requests_of(count) < 4 * count
    for group in (1, 3, 4, 8, 16, 200):
        for _ in range(30):
            counts = [random.choice([1, 2, random.randrange(1, 200)]) for _ in range(random.randrange(1, 20))]
            assert len(tiles_of(np.cumsum([0, *counts]), group)) <= most_tiles(sum(counts), len(counts), group)


def test_steps_that_are_not_captured() -> None:
    """Those with hidden states, with rows that there are not or more of them than requests, and large ones."""
    feeds = mixed([5, 3], [0, 0], [0, 1], 2)
    assert Size.of(feeds) == Size(16, 4, 4, 64, False)
    more = {"hidden_rows": np.zeros(1, np.int32)}, {"logit_rows": np.array([4, 8], np.int32)}
    more += {"logit_rows": np.array([-1], np.int32)}, {"logit_rows": np.array([0, 1, 7], np.int32)}
    assert [Size.of(feeds | words) for words in more] == [None] * 4
    assert Size.of(mixed([MOST_TOKENS], [0], [0], 64)) == Size(MOST_TOKENS, 1, 1, 64, False)
    assert Size.of(mixed([MOST_TOKENS + 1], [0], [0], 65)) is None
    assert Size.of(mixed([2] + [1] * 256, [0] * 257, [0], 1)) is None
    assert Size.of(mixed([1] * 256, [3] * 256, [0], 1)) == Size(256, 256, 256, 64, True)


def test_what_is_likely_next() -> None:
    """Decodes of as many requests come first, and no size is compiled twice."""
    sizes = likely_after(9, 512)
    assert sizes[0] == Size(16, 16, 16, 512, True) and {size.columns for size in sizes} == {512}
    assert len(set(sizes)) == len(sizes)
    assert {size.tokens for size in sizes if size.each} == {1 << i for i in range(9)}
    assert {size.requests for size in sizes if not size.each} == {1, 4, 16, 64, MOST_REQUESTS}


@LONG
def test_a_step_that_cannot_be_captured(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Without memory for its graph, or for any other reason, it runs call by call, which is said once."""
    session, plain = (made(precision="float32").on("cuda").session(kv_blocks=8) for _ in range(2))
    executor = captures(session)
    tried = []

    def short(work: Any) -> Any:
        tried.append(work)
        raise torch.OutOfMemoryError("CUDA out of memory, as it is")

    executor._graphs.captured = short
    with caplog.at_level(logging.WARNING, "ingot.cuda"):
        for rows in (3, 3, 3, 1, 1):
            feeds = step(rows, 5, 2)
            wanted = plain.run(feeds)["logits"]
            assert np.abs(session.run(feeds)["logits"] - wanted).max() <= 1e-6
            assert recorded(executor) == []
    assert len(tried) == 2 * (1 + GPU)  # a size is not tried at every step
    assert [record.getMessage().endswith("CUDA out of memory, as it is") for record in caplog.records] == [True]
