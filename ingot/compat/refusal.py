"""How names and calls that are not here are refused: with the line of the user's code, and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from ingot.errors import IngotError, UnsupportedError
from ingot.ir.network import user_line

E = TypeVar("E", bound=IngotError)


class MissingName(UnsupportedError, AttributeError):
    """A name of the retired API that is not here; as an AttributeError, `hasattr` and `getattr` know it."""


class MissingImport(UnsupportedError, ImportError):
    """The same, where it is imported."""


def here() -> str:
    """`model.py:12: `, the line of the user's code that is running; empty when there is none."""
    line = user_line()
    return f"{line[0]}:{line[1]}: " if line else ""


def refused(what: str, instead: str) -> UnsupportedError:
    """The error of a call that cannot be honoured: where it stands, and what to write instead."""
    return placed(UnsupportedError(f"{what}: {instead}"))


def placed(error: E, name: str = "") -> E:
    """The error with the user's line (and the called function's name) in front, unless it has them."""
    if getattr(error, "line_of_user", None) is not None:
        return error
    named = name and not str(error).startswith(f"{name}: ")
    found = type(error)(f"{here()}{name + ': ' if named else ''}{error}")
    found.line_of_user = user_line()  # type: ignore[attr-defined]
    return found


def called(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of the retired API: whatever it refuses names its caller's line, arguments that it lacks included."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as e:
                raise refused(f"{name}{_short(signature)}", f"it was called otherwise: {e}") from None
            try:
                return function(*args, **kwargs)
            except IngotError as e:
                raise placed(e, name) from e

        return call

    return decorate


def _short(signature: inspect.Signature) -> str:
    """The signature without annotations."""
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(inspect.Signature(plain))


def single(what: str, tp_size: int) -> None:
    """Refuses a share among several devices: an engine is built for one."""
    if tp_size != 1:
        raise refused(f"{what} with tp_size={tp_size}", "engines run on one device; use tp_size=1 and whole weights")
