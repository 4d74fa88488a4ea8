"""A conversation with a model that fits its context: what has been said, and which turns are no longer in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ingot.errors import TooLongError

Message = dict[str, str]


class ChatModel(Protocol):
    """What a conversation needs of an LLM."""

    context_length: int

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], /) -> list[int]:
        """The tokens up to where the answer begins."""


class Conversation:
    """Turns of a user and a model, a system message before them if there is one.

    Use: `ids = begin(text, room)`, let the model answer, then `finish(answer)`, or `withdraw()` when nothing came.

    Attributes:
        system: said before everything else; never dropped.
        turns: (user, answer), oldest first.
        dropped: turns that have left the model's context, over the whole conversation.
    """

    def __init__(self, model: ChatModel, system: str | None = None) -> None:
        self._model = model
        self._asked: str | None = None
        self.system = system
        self.turns: list[tuple[str, str]] = []
        self.dropped = 0

    def messages(self) -> list[Message]:
        """The whole as a chat template takes it."""
        said = [(("user", user), ("assistant", answer)) for user, answer in self.turns]
        parts = list(itertools.chain.from_iterable(said))
        if self.system:
            parts.insert(0, ("system", self.system))
        if self._asked is not None:
            parts.append(("user", self._asked))
        return [{"role": role, "content": content} for role, content in parts]

    def begin(self, text: str, room: int) -> list[int]:
        """What the model is to go on from after the user said `text`.

        The oldest turns leave until the answer has `room` tokens, if there are enough of them.

        Raises TooLongError when this message alone does not fit, and what the template raises; then nothing has
        changed.
        """
        kept, self._asked = self.turns, text
        limit = self._model.context_length
        try:
            while (ids := self._fitting(limit - room)) is None:
                self.turns = self.turns[1:]
            if len(ids) >= limit:
                raise TooLongError(
                    f"the message takes {len(ids):,} tokens with what stands before it, and the context holds "
                    f"{limit:,}, one of them for the answer: shorten it"
                )
        except BaseException:
            self.turns, self._asked = kept, None
            raise
        self.dropped += len(kept) - len(self.turns)
        return ids

    def _fitting(self, tokens: int) -> list[int] | None:
        """The prompt; None when there are turns that can be left out and it has more tokens, or far too many."""
        try:
            ids = self._model.chat_prompt(self.messages())
        except TooLongError:
            if self.turns:
                return None
            raise
        return None if self.turns and len(ids) > tokens else ids

    def finish(self, answer: str) -> None:
        """The model's answer to what was asked last."""
        assert self._asked is not None
        self.turns.append((self._asked, answer))
        self._asked = None

    def withdraw(self) -> None:
        """What was asked last has not been said."""
        self._asked = None

    def reset(self) -> None:
        """Forgets all turns; the system message stays."""
        self.turns, self._asked, self.dropped = [], None, 0
