"""How fast a queue moves: its length in seconds, by what ended lately while something waited."""

from __future__ import annotations


class Pace:
    """Answers that end in a second while others wait. What happens on a server with room says nothing of that.

    Args:
        running: answers that run at once. The last twice as many to end are what counts.
    """

    def __init__(self, running: int) -> None:
        self._running = running
        self._ended = 0.0
        self._seconds = 0.0  # in which they ended
        self._count = 0  # since the last look
        self._since: float | None = None  # the last look, if something waited then

    def ended(self, count: int = 1) -> None:
        """So many answers have ended as they should."""
        self._count += count

    def look(self, now: float, waiting: bool) -> None:
        """To be called a few times a second: whether something waits."""
        if self._since is not None:
            self._ended += self._count
            self._seconds += now - self._since
            if self._ended > 2 * self._running:
                self._seconds *= 2 * self._running / self._ended
                self._ended = 2.0 * self._running
        self._count = 0
        self._since = now if waiting else None

    def seconds(self, answers: int) -> float:
        """What so many take to end, about; 0 while nothing is known.

        Until as many have ended as run at once, all of these are taken to end now: they may have begun together.
        """
        return answers * self._seconds / max(self._ended, self._running)
