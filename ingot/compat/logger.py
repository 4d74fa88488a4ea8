"""tensorrt_llm.logger: severities and lines on standard error, by Python's logging."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

_LOG = logging.getLogger("ingot.compat")


class Logger:
    """The logger of the retired API. Levels: internal_error, error, warning, info, verbose, debug."""

    INTERNAL_ERROR: ClassVar[str] = "internal_error"
    ERROR: ClassVar[str] = "error"
    WARNING: ClassVar[str] = "warning"
    INFO: ClassVar[str] = "info"
    VERBOSE: ClassVar[str] = "verbose"
    LEVELS: ClassVar[dict[str, int]] = {
        "internal_error": logging.CRITICAL, "error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO,
        "verbose": logging.DEBUG, "debug": logging.DEBUG,
    }  # fmt: skip

    def __init__(self) -> None:
        self._level = "warning"
        self._said: set[str] = set()

    @property
    def level(self) -> str:
        return self._level

    def set_level(self, min_severity: str) -> None:
        """What is shown from now on. Raises ValueError for a word that is no level."""
        word = str(min_severity).lower()
        if word not in self.LEVELS:
            raise ValueError(f"logger.set_level: {min_severity!r} is not one of {', '.join(self.LEVELS)}")
        self._level = word
        _LOG.setLevel(self.LEVELS[word])

    def log(self, severity: str, *msg: Any) -> None:
        _LOG.log(self.LEVELS[severity], " ".join(map(str, msg)))

    def critical(self, *msg: Any) -> None:
        self.log("internal_error", *msg)

    fatal = critical

    def error(self, *msg: Any) -> None:
        self.log("error", *msg)

    def warning(self, *msg: Any) -> None:
        self.log("warning", *msg)

    def info(self, *msg: Any) -> None:
        self.log("info", *msg)

    def debug(self, *msg: Any) -> None:
        self.log("debug", *msg)

    verbose = debug

    def _first(self, key: str) -> bool:
        known = key in self._said
        self._said.add(key)
        return not known

    def warning_once(self, *msg: Any, key: str = "") -> None:
        """A warning, unless one of the same key (default: the same words) was logged before."""
        if self._first(f"warning {key or msg}"):
            self.warning(*msg)

    def info_once(self, *msg: Any, key: str = "") -> None:
        """An info, unless one of the same key (default: the same words) was logged before."""
        if self._first(f"info {key or msg}"):
            self.info(*msg)


logger = Logger()
