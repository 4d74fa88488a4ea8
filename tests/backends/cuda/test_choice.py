"""Tokens chosen on the device, the kernels interpreted where there is no GPU, against the CPU's sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.backends.device import Choice

torch: Any = pytest.importorskip("torch", reason="tokens are chosen in torch's memory")
pytest.importorskip("triton", reason="Triton is not installed: pip install 'ingot[gpu-test]'")

from ingot.backends.cuda import choice as cuda  # noqa: E402
from ingot.backends.cuda.launch import Launcher  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
RNG = np.random.default_rng(0)


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


def sampler(vocabulary: int, **words: Any) -> Any:
    return _native.Sampler(vocabulary, np.zeros(0, np.int64), **words)


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
    found = chosen(logits, samplers, positions)
    assert found[0] is kind
    assert (found[1] != wanted).sum() <= (1 if GPU else 0)  # a draw where two tokens meet
    same = found[1] == wanted
    assert np.abs(found[2] - logprobs)[same].max() <= 2e-5


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
