"""Ops of a user's own: declared like ours but never registered, so that only who names one in code ever runs it."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from reprlib import repr as brief
from typing import Any

import numpy as np

from ingot.dtypes import DType
from ingot.errors import ExternalOpError, IngotError, OpError
from ingot.ir import Network, Op, Spec
from ingot.ir.attribute import KINDS
from ingot.ir.call import declare, function_of, signature

Array = np.ndarray[Any, Any]

MAX_NAME = 100
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_NO_ATTRIBUTES = ("Network", "Op")


def external_op(name: str, version: int = 1) -> Callable[[type[Op]], Callable[..., Any]]:
    """Declares an op of one's own; the decorated class becomes the function that calls it.

        @ingot.external_op("acme.clip_rows")
        class clip_rows(ingot.Op):
            limit: float = 1.0
            def infer(self, x: ingot.Spec) -> ingot.Spec: return x
            def reference(self, x): return np.clip(x, -self.limit, self.limit)

    Fields are attributes: int, float, bool, str, DType, Dimension, Shape, tuple[int, ...], tuple[float, ...], or one of
    them or None. `infer` gives the results' Specs from those of the operands, named dims included, and `reference`
    computes them from NumPy arrays, which it may not write to. What both give is checked at every call. An engine that
    uses the op lists it, and opens only where it is given: `ingot.load(path, ops=[clip_rows])`.

    Args:
        name: in a namespace of yours, "acme.clip_rows".
        version: goes up when attributes or their meaning change.

    Raises OpError for a name, a field or a class that is none.
    """
    asked: Any = (name, version)  # whatever a caller gave
    if not isinstance(asked[0], str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise OpError(f"an op of your own has a name in a namespace of yours, like acme.clip_rows, not {brief(name)}")
    if type(asked[1]) is not int or not 0 < version < 2**31:
        raise OpError(f"{name}: a version is a number from 1 on, not {brief(version)}")

    def register(cls: type[Op]) -> Callable[..., Any]:
        given: Any = cls
        if not (isinstance(given, type) and issubclass(given, Op) and given is not Op):
            raise OpError(f"{name}: external_op decorates a class that derives from ingot.Op")
        for method in ("infer", "reference"):
            if getattr(cls, method) is getattr(Op, method):
                raise OpError(f"{name}: {cls.__name__} has no {method}")
        _check_fields(name, cls)
        inferred, computed = cls.infer, cls.reference
        cls.infer = _checked_rule(name, inferred)  # type: ignore[method-assign]
        cls.reference = _checked_reference(name, computed)  # type: ignore[method-assign]
        cls.version, cls.external = version, True
        declare(cls, name)
        if cls.binds or cls.acts or any(o.state for o in cls.operands) or "absent" in cls.attributes:
            raise OpError(f"{name}: an op of your own has no states, binds no dim, and has no attribute called absent")
        cls.declaration = declaration_of(cls)
        return function_of(cls)

    return register


def declaration_of(cls: type[Op]) -> dict[str, Any]:
    """What an engine says of an op of this kind, and what has to agree when it is loaded."""
    kinds = ", ".join(f"{n}: {kind.name}" for n, kind in cls.attributes.items())
    shown = signature(cls) + (f" {{{kinds}}}" if kinds else "")
    return {"name": cls.name, "version": cls.version, "signature": shown}


def external_ops(*networks: Network) -> dict[str, type[Op]]:
    """The external ops that networks use, by name, inner networks included. Raises OpError for two of one name."""
    found: dict[str, type[Op]] = {}
    for cls in _used(networks):
        if found.setdefault(cls.name, cls) is not cls:
            raise OpError(f"two ops are called {cls.name}: give one another name, or declare it once")
    return dict(sorted(found.items()))


def _used(networks: Iterable[Network]) -> Iterable[type[Op]]:
    for network in networks:
        for node in network.nodes:
            if node.op.external:
                yield type(node.op)
            yield from _used(v for v in node.op.attrs().values() if isinstance(v, Network))


def _check_fields(name: str, cls: type[Op]) -> None:
    """Annotations become their text, as op declarations have them."""
    own = inspect.get_annotations(cls)  # from Python 3.14 on, a class has them only for whom asks
    for field, annotation in own.items():
        text = annotation if isinstance(annotation, str) else _text(annotation)
        kind = text.removesuffix(" | None")
        if not text.startswith("ClassVar") and (kind not in KINDS or kind in _NO_ATTRIBUTES):
            known = ", ".join(sorted(set(KINDS) - set(_NO_ATTRIBUTES)))
            raise OpError(f"{name}: field {field} is a {text[:80]}; attributes are {known}, or one of them or None")
        own[field] = text
    if own:
        cls.__annotations__ = own


def _text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and annotation.__module__ == "builtins" and not hasattr(
        annotation, "__args__") else "DType" if annotation is DType else str(annotation)  # fmt: skip


def _checked_rule(name: str, infer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(infer)
    def checked(self: Op, *specs: Any) -> Any:
        try:
            found = infer(self, *specs)
        except IngotError:
            raise
        except Exception as e:
            raise ExternalOpError(f"{name}: its infer failed on {', '.join(map(str, specs))}: {_words(e)}") from e
        several = found if isinstance(found, tuple) else (found,)
        if not several or not all(type(spec) is Spec for spec in several):
            raise ExternalOpError(f"{name}: its infer must give a Spec or a tuple of them, not {str(found)[:200]}")
        return found

    checked.__annotations__ = {name: str(text) for name, text in infer.__annotations__.items()}
    return checked


def _checked_reference(name: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference on operands that it cannot write to; results are arrays of what the rule says, or an error."""

    @functools.wraps(reference)
    def checked(self: Op, *arrays: Any) -> Any:
        wanted = self.infer(*(None if a is None else Spec.of(a) for a in arrays))
        operands = [None if a is None else _locked(a) for a in arrays]
        try:
            found = reference(self, *operands)
        except IngotError:
            raise
        except Exception as e:
            raise ExternalOpError(f"{name}: its reference failed: {_words(e)}") from e
        several, specs = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
        if len(several) != len(specs):
            raise ExternalOpError(f"{name}: its reference gave {len(several)} results, its infer says {len(specs)}")
        made = tuple(_result(name, i, x, spec) for i, (x, spec) in enumerate(zip(several, specs, strict=True)))
        return made if isinstance(wanted, tuple) else made[0]

    return checked


def _locked(array: Any) -> Array:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _result(name: str, place: int, value: Any, spec: Spec) -> Array:
    if not isinstance(value, np.ndarray | np.generic):
        raise ExternalOpError(f"{name}: result {place} is a {type(value).__name__}, no NumPy array")
    array = np.asarray(value)
    if array.dtype != spec.dtype.numpy or array.shape != spec.shape:
        raise ExternalOpError(f"{name}: result {place} is {array.dtype}{list(array.shape)}, its infer says {spec}")
    if spec.dtype.kind == "bool" and (array.view(np.uint8) > 1).any():
        raise ExternalOpError(f"{name}: result {place} is bool and has bytes that are neither 0 nor 1")
    return array


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"
