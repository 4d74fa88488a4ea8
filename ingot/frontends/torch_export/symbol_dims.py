"""A program's sizes in the network: its symbols as dims, or as what is learned of them while ops are imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ingot import dims
from ingot.dims import Dim, Dimension, Expr
from ingot.errors import CheckpointError, DimError, UnsupportedError
from ingot.frontends.torch_export.conditions import Range
from ingot.frontends.torch_export.symbols import Unwritten
from ingot.ir import Value

_SAMPLES = (7, 64, 131, 1000, 4096)  # for sizes that are equal but written in two ways


class SymbolDims:
    """What each symbol is: what `given` says, what an op binds, else a dim called dim_0, dim_1, … within its range.

    model: of the file or module, for messages.
    """

    def __init__(self, model: str, ranges: Mapping[str, Range], given: Mapping[str, Dimension]) -> None:
        self._model, self._ranges, self._found = model, ranges, dict(given)

    def size(self, size: Any) -> Dimension:
        """A size of the file with its symbols as dims of the network."""
        if not isinstance(size, Expr):
            return size  # type: ignore[no-any-return]
        for symbol, d in size.dims().items():
            if symbol not in self._found and isinstance(d, Unwritten):
                raise d.why
            if symbol not in self._found:
                self._found[symbol] = self._dim(symbol, f"dim_{len(self._found)}")
        return dims.substitute(size, self._found)

    def standing_in(self, size: Any) -> Dimension:
        """A size for the result of a fault, with any dim for what the file does not say."""
        unsaid = {name: Dim("unsaid") for name, d in dims.dims_of((size,)).items() if isinstance(d, Unwritten)}
        return self.size(dims.substitute(size, unsaid))

    def bind(self, symbol: Dim, size: Dimension) -> None:
        """Says what a symbol is that no size before it had."""
        self._found.setdefault(symbol.name, size)

    def learn(self, stated: Sequence[Any], shape: Sequence[Dimension]) -> None:
        """A symbol that the file has for a size of a result that only the data shows is the dim that our op binds, or
        what it computes of several. So is what the file says of a size in no whole numbers.
        """
        if len(stated) == len(shape):
            for size, found in zip(stated, shape, strict=True):
                unsaid = isinstance(size, Unwritten) or isinstance(found, Expr) and _unbacked(found)
                if isinstance(size, Dim) and unsaid:
                    self.bind(size, found)

    def check_inputs(self, inputs: Iterable[Value]) -> None:
        """Some input has to have every dim, or a multiple of it, as a size: a run knows only those."""
        inputs = list(inputs)
        given = {found.dim.name for v in inputs for d in v.shape if (found := dims.affine(d))}
        for value in inputs:
            for d in value.shape:
                if isinstance(d, Expr) and (missing := sorted(d.dims().keys() - given)):
                    raise UnsupportedError(
                        f"{self._model}: input {value.name} has the size {d}, and no input has the size "
                        f"{', '.join(missing)} or a multiple of it, so that a run cannot know it; export with plain "
                        "dynamic sizes"
                    )

    def _dim(self, symbol: str, name: str) -> Dim:
        """torch assumes 2 or more of every symbol while it exports, and means any size unless told otherwise."""
        bounds = self._ranges.get(symbol, Range(None, None))
        low = 0 if bounds.low is None or bounds.low <= 2 else bounds.low
        high = bounds.high if bounds.high is None or bounds.high < dims.MAX_VALUE else None
        try:
            return Dim(name, low, None, high)
        except DimError as e:
            raise CheckpointError(f"{self._model}: the range of the symbol {symbol[:40]}: {e}") from None


def _unbacked(size: Expr) -> bool:
    return all(d.unbacked for d in size.dims().values())


def same_sizes(stated: Sequence[Dimension], found: Sequence[Dimension]) -> bool:
    """Whether two shapes are equal, as far as a few values of their dims show."""
    return len(stated) == len(found) and all(map(_same, stated, found))


def _same(stated: Dimension, found: Dimension) -> bool:
    if isinstance(stated, int) and isinstance(found, int):
        return stated == found
    if stated == found:
        return True
    names = sorted(dims.dims_of((stated, found)))
    for i in range(len(_SAMPLES)):
        values = {name: _SAMPLES[(i + k) % len(_SAMPLES)] for k, name in enumerate(names)}
        try:
            a, b = (d if isinstance(d, int) else d.evaluate(values) for d in (stated, found))
        except DimError:
            return False
        if a != b:
            return False
    return True
