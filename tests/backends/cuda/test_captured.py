"""Captured steps of target cuda: padded, replayed and one behind the other as steps without graphs, which without a GPU
are computed anew in the place of each replay.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import ingot
from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda.launch_shapes import most_tiles, tiles_of  # noqa: E402
from ingot.backends.cuda.steps import MOST_TOKENS, Size, requests_of, tokens_of  # noqa: E402
from tests.backends.cuda.llama import builder, choice, mixed, step  # noqa: E402

pytestmark = [pytest.mark.usefixtures("cuda_here"), one_of_each()]
GPU = torch.cuda.is_available()
ONE_EACH = Size(4, 4, 4, 64, True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Builds a small Llama with random weights, once in every form."""
    return builder(tmp_path_factory.mktemp("llama"))


def again(work: Any) -> Any:
    """In the place of a graph: computes everything again, where it lies."""
    found = work()

    def replay() -> None:
        new = work()
        for old, now in zip(found.values(), new.values(), strict=True) if isinstance(found, dict) else [(found, new)]:
            old.copy_(now)

    return replay, found


def captures(session: Any) -> Any:
    """A session whose steps are captured; without a GPU as far as that goes."""
    executor = session._executor
    if not GPU:
        executor._captures = True
        executor._graphs.captured = again
    return executor


@LONG
def test_captured_steps(made: Any) -> None:
    """Padded steps as steps without padding; one that is replayed knows nothing of the one before."""
    built = made(precision="float32")
    captured, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor, plain._executor._captures = captures(captured), False
    for rows, context in ((3, 5), (4, 6), (3, 17)):
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


@pytest.mark.parametrize("captured", [True, False])
@LONG
def test_launched_steps(made: Any, captured: bool) -> None:
    """Tokens stay on the device for the step behind, which is launched before anybody has read them."""
    built = made(precision="float32")
    session, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    if captured:
        captures(session)
    else:
        session._executor._captures = False
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
    assert [size for size, _ in session._executor._steps] == [ONE_EACH] * 2


@pytest.mark.parametrize("words", [{}, {"kv": "int8"}, {"weights": "int8"}])
@LONG
def test_captured_prompts(made: Any, words: dict[str, str]) -> None:
    """Prompts, their ends and decodes in one step, from the second time on in a graph of a padded size; what one step
    leaves in the inputs is nothing to the next."""
    built = made(precision="float32", **words)
    captured, plain = (built.on("cuda").session(kv_blocks=8) for _ in range(2))
    executor, plain._executor._captures = captures(captured), False
    for counts, before, logits in (
        ([5, 3], [0, 0], [0, 1]), ([4, 1], [5, 3], [1]), ([7, 2], [9, 4], [0, 1]), ([1, 3, 9], [16, 6, 0], [0, 2]),
        ([2, 3], [17, 9], [0]),
    ):  # fmt: skip
        feeds = mixed(counts, before, logits, 2)
        found, expected = (session.run(feeds)["logits"] for session in (captured, plain))
        assert found.shape == expected.shape == (len(logits), 128)
        assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()  # interpreted: 0
    assert list(executor._steps) == [(Size(16, 4, 4, 64, False), None)]
    states = [next(iter(session._executor._states.values())) for session in (captured, plain)]
    assert torch.equal(*(state.cpu().view(torch.uint8) for state in states)) or GPU
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


@LONG
def test_a_step_that_cannot_be_captured(made: Any) -> None:
    """Without memory for its graph it runs call by call."""
    session = made(precision="float32").on("cuda").session(kv_blocks=8)
    executor = captures(session)

    def short(work: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    executor._graphs.captured = short
    feeds = step(3, 5, 2)
    wanted = made(precision="float32").on("cuda").session(kv_blocks=8).run(feeds)["logits"]
    assert np.abs(session.run(feeds)["logits"] - wanted).max() <= 1e-6
    assert executor._steps == {(ONE_EACH, None): None}
