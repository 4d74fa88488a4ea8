"""Reading numbers out of a config.json: every value is checked, and all faults are reported in one error."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ingot.errors import CheckpointError

_REQUIRED: Any = object()


class Fields:
    """A JSON object being read. Every reader returns a usable value even after a fault, so that reading can go on.

    Args:
        values: the object. A key whose value is null counts as absent.
        prefix: put before key names in messages, for nested objects.
        faults: where faults are collected; share it between the objects of one file.
        names: what this file calls a key that the others call otherwise; messages name the file's.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        prefix: str = "",
        faults: list[str] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.values, self.prefix, self.names = values, prefix, names or {}
        self.faults: list[str] = [] if faults is None else faults

    def called(self, names: Mapping[str, str]) -> Fields:
        """The same object, read under other names: usual key → this file's key."""
        return Fields(self.values, self.prefix, self.faults, names)

    def has(self, key: str) -> bool:
        return self.values.get(self.names.get(key, key)) is not None

    def fault(self, key: str, why: str) -> None:
        self.faults.append(f"{self.prefix}{self.names.get(key, key)}: {why}")

    def integer(self, key: str, low: int, high: int, default: Any = _REQUIRED) -> int:
        """An int in low..high; without a default the key is required."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is _REQUIRED or value is default:
            return low if value is _REQUIRED else value
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"must be an integer, not {_shown(value)}")
        elif not low <= value <= high:
            self.fault(key, f"must lie in {low:,}..{high:,}, not {value:,}")
        else:
            return value
        return low

    def number(self, key: str, low: float, high: float, default: Any = _REQUIRED) -> float:
        """A finite number, low < value <= high."""
        value = self._get(key, default)
        if value is _REQUIRED or value is default:
            return high if value is _REQUIRED else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(key, f"must be a number, not {_shown(value)}")
        elif not math.isfinite(value) or not low < value <= high:
            self.fault(key, f"must be greater than {low:g} and at most {high:g}, not {value:g}")
        else:
            return float(value)
        return high

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fault(key, f"must be true or false, not {_shown(value)}")
            return default
        return value

    def choice(self, key: str, known: Collection[str], default: Any = _REQUIRED) -> str:
        """One of the known words; the message lists them."""
        value = self._get(key, default)
        if value is _REQUIRED:
            return next(iter(known))
        if not isinstance(value, str) or value not in known:
            self.fault(key, f"{_shown(value)} is not supported; supported are {', '.join(sorted(known))}")
            return next(iter(known))
        return value

    def nested(self, key: str) -> Fields | None:
        """The object under `key`, or None when absent."""
        value = self._get(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fault(key, f"must be an object, not {_shown(value)}")
            return None
        return Fields(value, f"{self.prefix}{key}.", self.faults)

    def finish(self, where: str) -> None:
        """Raise everything that has been found wrong."""
        if self.faults:
            raise CheckpointError(f"{where}:\n  " + "\n  ".join(self.faults))

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(self.names.get(key, key))
        if value is None:
            if default is _REQUIRED:
                self.fault(key, "is missing")
            return default
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
