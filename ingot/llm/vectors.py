"""Texts to vectors, whatever computes the hidden states: which tokens a text is, and one vector of its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ingot.errors import RequestError, TooLongError, UserError
from ingot.text.tokenizer import Tokenizer, token_ids

Array = np.ndarray[Any, Any]

POOLINGS = ("mean", "cls", "last", "max")

Prompt = str | Sequence[int]


class Pooler:
    """Hidden states of one text, given in order and in pieces, to one vector. How they are cut changes no bit.

    Args:
        how: of POOLINGS.
    """

    def __init__(self, how: str) -> None:
        self._how = how
        self._count = 0
        self._state = np.zeros(0, np.float32)

    def add(self, states: Array) -> None:
        """The next states, float32 [n, hidden]."""
        if not len(states):
            return
        first = not self._count
        self._count += len(states)
        if self._how == "last":
            self._state = states[-1].copy()
        elif self._how == "cls":
            self._state = states[0].copy() if first else self._state
        elif first and len(states) == 1:
            self._state = states[0].copy()
        else:
            whole = states if first else np.concatenate([self._state[None], states])
            # One after the other by definition, where a sum may take any order.
            self._state = whole.max(0) if self._how == "max" else np.add.accumulate(whole)[-1].copy()

    def vector(self) -> Array:
        """float32 [hidden], of at least one state."""
        return self._state / np.float32(self._count) if self._how == "mean" else self._state


def scaled(vectors: Array) -> Array:
    """Each vector [N, hidden] brought to length 1; one of zeros stays."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12, dtype=np.float32))


class Texts:
    """What is asked to be embedded, as token ids.

    Args:
        tokenizer: the model's, if it has one.
        vocab_size: of the model.
        max_tokens: of a text.
        prompt: stands before every text.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, max_tokens: int, prompt: str) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt
        self._vocab_size, self._max_tokens = vocab_size, max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError when the model came without tokenizer.json."""
        if self._tokenizer is None:
            raise UserError("this model came without tokenizer.json: pass token ids, not text")
        return self._tokenizer

    def rows(self, text: Prompt | Sequence[Prompt], truncate: bool) -> list[list[int]]:
        """The token ids of a text or of each of several; see Embedder.embed."""
        one = isinstance(text, str) or (len(text) > 0 and not hasattr(text[0], "__len__"))
        texts = [cast(Prompt, text)] if one else cast(Sequence[Prompt], text)
        return [self._row(one, truncate) for one in texts]

    def _row(self, text: Prompt, truncate: bool) -> list[int]:
        if isinstance(text, str) and not truncate:
            self.tokenizer.check_length(text, self._max_tokens)
        ids = self._encoded(text) if isinstance(text, str) else self._checked(text)
        if len(ids) > self._max_tokens:
            if not truncate:
                raise TooLongError(
                    f"the text has {len(ids)} tokens and the model reads {self._max_tokens}: shorten it, or let it "
                    "be cut with truncate=True"
                )
            ids = ids[: self._max_tokens]
            if isinstance(text, str):
                closing = self._closing()
                ids[len(ids) - len(closing) :] = closing
        return ids

    def _encoded(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(self._prompt + text)
        if not ids:
            raise RequestError("the text has no tokens: there is nothing to embed")
        return self._checked(ids)

    def _closing(self) -> list[int]:
        """The tokens that the tokenizer puts behind every text."""
        around, word = self.tokenizer.encode("a"), self.tokenizer.encode_plain("a")
        starts = (i for i in range(len(around)) if around[i : i + len(word)] == word)
        return around[next(starts, len(around)) + len(word) :]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        found = token_ids(ids, self._vocab_size, "what is embedded")
        if not found:
            raise RequestError("a text without tokens has no vector")
        return found


def pooling_of(asked: str | None, usual: str) -> str:
    """How to pool: as asked, or as is usual for the model. Raises RequestError for what is none of POOLINGS."""
    if asked is not None and asked not in POOLINGS:
        raise RequestError(f"pooling must be one of {', '.join(POOLINGS)}, not {asked!r}")
    return usual if asked is None else asked
