"""The functions that follow from an op's declaration: its operands under their names here, then its attributes.

An op whose `arguments` are not empty has one, under its own name or `function`. A reduction takes `dim` and `keepdim`,
as torch does. Whatever takes its arguments in another way is a function of its own in this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from ingot.functional.tensor import Tensor, axes_of
from ingot.ir import OPS, F, Op
from ingot.ops.reduce import Reduce


def names() -> dict[str, type[Op]]:
    """The derived functions by name, and the ops that they call."""
    return {cls.function or cls.name: cls for cls in OPS.values() if cls.arguments}


def find(name: str) -> Callable[..., Any]:
    """The derived function of that name. Raises AttributeError when there is none."""
    if name not in names():
        raise AttributeError(f"ingot.functional has no function {name!r}")
    return _function(name)


@cache
def _function(name: str) -> Callable[..., Any]:
    cls = names()[name]
    made = _reduction(cls) if issubclass(cls, Reduce) else _plain(cls)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = cls.__doc__
    return made


def _plain(cls: type[Op]) -> Callable[..., Any]:
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in cls.arguments]
    for name in cls.attributes:
        parameters.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=getattr(cls, name, Parameter.empty)))
    signature = Signature(parameters)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        operands = [given.pop(name) for name in cls.arguments]
        return getattr(F, cls.name)(*operands, **given)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _reduction(cls: type[Op]) -> Callable[..., Any]:
    def call(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        return getattr(F, cls.name)(input, axes=axes_of(input, dim), keepdims=keepdim)

    return call
