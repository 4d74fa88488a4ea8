"""Tokens chosen on the device, the kernels interpreted where there is no GPU, against the CPU's sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.backends.device import Choice
from tests.backends.cuda.interpreted import WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="tokens are chosen in torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda import choice as cuda  # noqa: E402
from ingot.backends.cuda.launch import Launcher  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
RNG = np.random.default_rng(0)
NEAR = 1e-6  # of the total: what rounding moves
pytestmark = one_of_each()


def chosen(logits: Any, samplers: list[Any], positions: Any) -> tuple[Any, Any, Any]:
    """The kind of choice, the tokens and their log probabilities."""
    draws = _native.draws(samplers, positions)
    assert draws[-1].all()
    choice = Choice(np.full(len(logits), -1, np.int32), *draws[:-1])
    words = {name: torch.from_numpy(getattr(choice, name)).to(DEVICE) for name in cuda.WORDS}
    kind = cuda.kind_of(choice, logits.shape[1])
    chooser = cuda.Chooser(torch, DEVICE, Launcher(torch))
    found = chooser.choose(torch.from_numpy(logits).to(DEVICE), words, kind).cpu().numpy()
    tokens, logprobs = cuda.tokens_of(found)
    assert chooser.chosen[: len(logits)].tolist() == np.maximum(tokens, 0).tolist()
    return kind, tokens, logprobs


def exactly(logits: Any, draws: Any) -> tuple[Any, Any]:
    """The tokens as float64 chooses them, and which of the draws lie within NEAR of where that would be another token:
    of the ends of the tokens' shares, or of where top-p or min-p cuts.
    """
    tokens, near = [], []
    for row, temperature, top_k, top_p, min_p, uniform in zip(logits.astype(np.float64), *draws, strict=True):
        if temperature == 0:
            tokens.append(int(row.argmax()))
            near.append(False)
            continue
        away = (row - row.max()) / max(float(temperature), 1e-30)
        limited = top_k < len(row) or top_p < 1 or min_p > 0
        order = np.argsort(-away, kind="stable")[:top_k] if limited else np.arange(len(row))
        weights = np.exp(away[order])
        running = weights.cumsum()
        cuts = np.array([])
        if limited:
            enough = float(top_p) * running[-1] if top_p < 1 else np.inf
            kept = (running - weights < enough) & (weights > 0) & (weights >= float(min_p))
            cuts = np.concatenate([(running - enough) / running[-1], (weights - float(min_p)) if min_p > 0 else []])
            order, weights, running = order[kept], weights[kept], running[kept]
        shares = running / running[-1]
        at = min(int((shares <= uniform).sum()), len(order) - 1)
        tokens.append(int(order[at]))
        near.append(bool(np.abs(shares[:-1] - uniform).min(initial=1) <= NEAR or np.abs(cuts).min(initial=1) <= NEAR))
    return np.array(tokens), np.array(near)


def sampler(vocabulary: int, **words: Any) -> Any:
    return _native.Sampler(vocabulary, np.zeros(0, np.int64), **words)


@one_of_each(by=lambda given: given["kind"])
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({}, cuda.Kind.GREEDY),
        ({"temperature": 0.7}, cuda.Kind.DRAWN),
        ({"temperature": 1.3, "top_k": 40}, cuda.Kind.TOP),
        ({"temperature": 1.0, "top_k": 1000, "top_p": 0.9, "min_p": 0.001}, cuda.Kind.TOP),
        ({"temperature": 2.0, "top_p": 0.8}, cuda.Kind.RANKED),
        ({"temperature": 1e-40, "min_p": 0.1}, cuda.Kind.RANKED),
    ],
)
def test_as_the_cpu(words: dict[str, Any], kind: Any) -> None:
    """Every row, among greedy ones, draws what the CPU draws; logits that are equal rank by number."""
    rows, vocabulary = (60, 128256) if GPU else (6, 2500)
    logits = (RNG.standard_normal((rows, vocabulary)) * 2).astype(np.float32)
    logits[:, ::7] = np.round(logits[:, ::7])
    logits[0, :] = 0.0
    logits[0, 5::9] = -0.0
    samplers = [sampler(vocabulary, seed=i, **(words if i % 3 else {})) for i in range(rows)]
    samplers[0] = sampler(vocabulary, seed=9, **words)
    positions = np.arange(100, 100 + rows)
    wanted, logprobs, _, _ = _native.sample(logits, samplers, positions)
    exact, near = exactly(logits, _native.draws(samplers, positions)[:-1])
    found = chosen(logits, samplers, positions)
    assert found[0] is kind
    assert (wanted == exact)[~near].all() and (found[1] == wanted)[~near].all()
    # Of so many tokens that are as likely few are wider than 1e-5: 17 of 60 draws are near at temperature 2, 1 at 0.7.
    assert near.sum() <= rows // 2
    assert (found[1] != wanted).sum() <= (1 if GPU else 0)
    same = found[1] == wanted
    assert np.abs(found[2] - logprobs)[same].max() <= 2e-5


def test_draws_that_are_near() -> None:
    """What the test above lets differ: a draw where two tokens meet, and a cut of top-p or min-p at a token's end."""
    logits = np.log(np.array([[4, 2, 1, 1]], np.float32))

    def near(uniform: float, top_k: int = 4, top_p: float = 1.0, min_p: float = 0.0) -> bool:
        return bool(exactly(logits, [[1.0], [top_k], [top_p], [min_p], [uniform]])[1][0])

    assert [near(u) for u in (0.5, 0.5 + 9e-7, 0.75, 0.499998, 0.6, 0.0)] == [True, True, True, False, False, False]
    assert near(0.5 / 0.75, top_k=2) and not near(0.5, top_k=2)
    assert near(0.6, top_p=0.75) and not near(0.6, top_p=0.76)
    assert near(0.6, min_p=0.25) and not near(0.6, min_p=0.26)
    tokens = [int(exactly(logits, [[1.0], [4], [1.0], [0.0], [u]])[0][0]) for u in (0.1, 0.6, 0.8, 0.9999)]
    assert tokens == [0, 1, 2, 3]


def test_no_token() -> None:
    """Rows of which nobody can choose; where others choose as if alone."""
    logits = RNG.standard_normal((5, 3000)).astype(np.float32)
    logits[0, 2999] = np.nan
    logits[1, 5] = np.inf
    logits[2] = -np.inf
    logits[3, 1:] = -np.inf
    _, tokens, _ = chosen(logits, [sampler(3000, temperature=1.0, seed=1)] * 5, np.arange(5))
    assert tokens[:4].tolist() == [-1, -1, -1, 0] and tokens[4] >= 0


def test_draws_says_who_the_host_has_to_choose_for() -> None:
    plain = [sampler(9), sampler(9, temperature=0.5, top_k=20, top_p=0.5, min_p=0.1, seed=7)]
    more = [sampler(9, **w) for w in ({"bias": [(1, 2.0)]}, {"presence": 1.0}, {"bad_words": [[3]]},
                                      {"top_logprobs": 2}, {"repetition": 1.1})]  # fmt: skip
    temperature, top_k, top_p, min_p, uniform, alone = _native.draws([*plain, *more], np.arange(7))
    assert alone.tolist() == [True, True] + [False] * 5
    assert (top_k[0], top_k[1], top_p[1]) == (9, 9, 0.5) and min_p[1] == np.float32(0.1)
    assert temperature.tolist()[:2] == [0, 0.5] and uniform[0] == 0 and 0 <= uniform[1] < 1
    with pytest.raises(_native.Error, match="positions"):
        _native.draws(plain, np.arange(3))
