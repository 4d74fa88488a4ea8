"""Where conversations wait for the processes that write them as prompts, so that nobody else waits for those."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ingot.errors import IngotError, OverloadedError
from ingot.serve import frames
from ingot.text.chat_template import PROCESSES

MAX_CHATS = 512  # that wait
CHAT_SECONDS = 10.0  # that one waits


@dataclass
class _Waiting:
    future: Future[None]
    seconds: float = 0.0


class ChatQueue:
    """Conversations in the order in which they came. Safe from several threads.

    A template takes a millisecond, or nearly a second if it is made to. Without a queue of their own those of the
    second kind would keep prompts of the first, and completions, for as long as there are any.

    Args:
        write: does the work; it raises nothing.
        refuse: tells a client why its conversation is not written.
    """

    def __init__(self, write: Callable[[frames.Generate], None], refuse: Callable[[int, IngotError], None]) -> None:
        self._write = write
        self._refuse = refuse
        self._threads = ThreadPoolExecutor(PROCESSES, "ingot-chat")
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}

    def put(self, message: frames.Generate) -> None:
        """Has the conversation written in its turn, or refuses it: at once when too many wait."""
        with self._lock:
            full = len(self._waiting) >= MAX_CHATS
            if not full:
                self._waiting[message.id] = _Waiting(self._threads.submit(self._begin, message))
        if full:
            self._refuse(message.id, OverloadedError(f"{MAX_CHATS} conversations wait for the chat template"))

    def drop(self, id: int) -> bool:
        """Whether the conversation waited, and does no longer."""
        with self._lock:
            found = self._waiting.get(id)
            if found is None or not found.future.cancel():
                return False
            del self._waiting[id]
        return True

    def look(self, seconds: float) -> None:
        """To be called every so many seconds: refuses who has waited too long."""
        with self._lock:
            for waiting in self._waiting.values():
                waiting.seconds += seconds
            late = [id for id, waiting in self._waiting.items() if waiting.seconds > CHAT_SECONDS]
        for id in filter(self.drop, late):
            message = f"the conversation has waited {CHAT_SECONDS:g} s for the chat template, which others keep busy"
            self._refuse(id, OverloadedError(message))

    def _begin(self, message: frames.Generate) -> None:
        with self._lock:
            del self._waiting[message.id]
        self._write(message)
