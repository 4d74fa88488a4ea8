"""Chooses tokens on the device, as the CPU's sampler would, and keeps them there for the step behind.

The CPU weighs logits by an exponential function of its own and adds the weights up in another order. So the token of a
draw is the same unless the random number lies within rounding (1e-6 of the total) of where two tokens meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.launch_shapes import power
from ingot.backends.device import Choice

MOST = 2048  # rows of a step
PART = 2048  # logits of a program
RANKS = 1024  # that are looked for at least, where every row has a top_k of not more
# The words of a choice that the device reads, one of each row.
WORDS = {"temperature": "float32", "top_k": "int32", "top_p": "float32", "min_p": "float32", "uniform": "float64"}


class Kind(Enum):
    """What the rows of a step ask for together: one more than the one before each."""

    GREEDY = 0
    DRAWN = 1  # from all tokens
    TOP = 2  # from those of the first RANKS ranks
    RANKED = 3  # from those of any ranks


def kind_of(choice: Choice, vocabulary: int) -> Kind:
    """The least that does for all rows."""
    hot = choice.temperature > 0
    if not hot.any():
        return Kind.GREEDY
    limited = hot & ((choice.top_k < vocabulary) | (choice.top_p < 1) | (choice.min_p > 0))
    if not limited.any():
        return Kind.DRAWN
    return Kind.TOP if choice.top_k[limited].max() <= min(RANKS, vocabulary) else Kind.RANKED


class Chooser:
    """Chooses tokens on one device. `chosen`: those of the last step, int32 [MOST]."""

    def __init__(self, torch: Any, device: Any, launcher: Launcher) -> None:
        self._torch = torch
        self._launcher = launcher
        self.chosen = torch.zeros(MOST, dtype=torch.int32, device=device)

    @cached_property
    def _kernels(self) -> Any:
        return _lazy.load("ingot.backends.cuda.choice_kernels")

    def follow(self, token_ids: Any, behind: Any) -> Any:
        """token_ids [T] with the tokens of the step before where `behind` says which of them."""
        out = self._torch.empty_like(token_ids)
        if len(out):
            size = 256
            self._kernels.follow[(-(-len(out) // size),)](
                token_ids, behind, self.chosen, out, len(out), BN=size, **self._launcher.options, num_warps=4
            )
        return out

    def choose(self, logits: Any, words: Mapping[str, Any], kind: Kind, away: Any = None) -> Any:
        """Of each row of logits, float32 [R, n], its token, and the bits of its log probability: int32 [2, R].

        away: int64 [1], where that shall lie instead: the address of memory of the host, page-locked, or 0.
        """
        torch, there = self._torch, logits.device
        rows, n = logits.shape
        parts = -(-n // PART)
        tops = torch.empty((rows, parts), dtype=torch.float32, device=there)
        places = torch.empty((rows, parts), dtype=torch.int32, device=there)
        sums, drawn_sums = torch.empty((2, rows, parts), dtype=torch.float64, device=there)
        found = torch.empty((2, rows), dtype=torch.int32, device=there) if away is None else away
        by_rank = kind in (Kind.TOP, Kind.RANKED)
        ranked = by_rank_of(torch, logits, words, min(RANKS, n) if kind is Kind.TOP else n) if by_rank else places
        self._kernels.choose[(rows, parts)](
            logits, tops, places, sums, drawn_sums, words["temperature"], words["uniform"], ranked,
            self._launcher.zeros(rows, there), self.chosen, found, n, logits.stride(0), parts, rows, BN=PART,
            BP=power(parts), DRAWN=kind is not Kind.GREEDY, RANKED=by_rank, AWAY=away is not None, num_warps=4,
            **self._launcher.options,
        )  # fmt: skip
        return found


def by_rank_of(torch: Any, logits: Any, words: Mapping[str, Any], ranks: int) -> Any:
    """The tokens of rows that draw from the likeliest ones, int32 [R]; -1 for other rows. Every row that has a top_k
    below the vocabulary has one of at most `ranks`, as have all where that is fewer than there are tokens.
    """
    n = logits.shape[1]
    temperature, top_k, top_p, min_p = (words[name][:, None] for name in ("temperature", "top_k", "top_p", "min_p"))
    if ranks < n:
        # One number for logit and place, so that of equal logits the first ranks first; -0 is 0.
        bits = (logits + 0.0).view(torch.int32).long()
        keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) * 2**32 - torch.arange(n, device=logits.device)
        order = keys.topk(ranks, 1).indices
        values = logits.gather(1, order)
    else:
        values, order = logits.sort(dim=1, descending=True, stable=True)
    weights = ((values - values[:, :1]) / temperature.clamp(min=1e-30)).exp()
    running = weights.double().cumsum(1)
    mass = running.gather(1, (top_k.long() - 1).clamp(0, ranks - 1))
    enough = torch.where(top_p < 1, top_p.double() * mass, torch.inf)
    rank = torch.arange(ranks, device=logits.device)
    kept = (rank < top_k) & (running - weights < enough) & (weights > 0) & (weights >= min_p)
    last = (kept.sum(1, keepdim=True) - 1).clamp(min=0)
    target = words["uniform"][:, None] * running.gather(1, last)
    at = ((running <= target) & kept).sum(1, keepdim=True).minimum(last)
    limited = (temperature > 0) & ((top_k < n) | (top_p < 1) | (min_p > 0))
    return torch.where(limited, order.gather(1, at), -1)[:, 0].int()


def tokens_of(found: Any) -> tuple[Any, Any]:
    """Of what `choose` gave, as an array: the tokens, int64, and their log probabilities, float32."""
    return found[0].astype(np.int64), found[1].view(np.float32)
