"""Host calls: what the executor asks of Python for a node that has no native kernel. The op's own reference answers.

Nothing that a program says of such a call is believed. The op's shape rule has to find the declared results before the
reference runs: on the program's dims when a session is made, and on the sizes of each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import ingot.ops  # noqa: F401  (registers every op)
from ingot import dims, dims_parsing, dtypes
from ingot.dims import Dim
from ingot.errors import (
    EngineVersionError,
    ExternalOpError,
    IngotError,
    InputError,
    MemoryLimitError,
    OpError,
    ProgramError,
    UserError,
    ValueFault,
)
from ingot.ir.op import Op, infer, op_from_json
from ingot.ir.spec import Spec
from ingot.ir.text import from_json
from ingot.ops.common import Array, nbytes

# A reference may need this many bytes beside its operands and results, or this many times what these have.
MAX_WORKING, LARGER = 1 << 30, 8
MAX_STEPS = 1 << 38  # of Op.steps, each of about a nanosecond: some minutes
SHOWN = 600  # characters of a reason and of a call: a file may make them long
# What a shape rule or a reference may raise on values that nobody foresaw. Others are faults of ours.
_OF_VALUES = (ArithmeticError, LookupError, ValueError)
_UNFORESEEN = (*_OF_VALUES, IngotError, TypeError, AttributeError, RecursionError)

Declared = Sequence[tuple[str, Sequence[Any]]]  # of every result: dtype and dims, as in a program


class HostCalls:
    """The host calls of one program, checked; the executor calls it. `external`: the user's own ops among them.

    Raises ProgramError for a call whose op, attributes, operands or results the op itself refuses, EngineVersionError
    for an op of a newer version.
    """

    def __init__(self, program: Mapping[str, Any], external: Mapping[str, type[Op]] = {}) -> None:
        self._calls: dict[int, _HostCall] = {}
        known: dict[str, Dim] = {}
        for i, call in enumerate(program["calls"]):
            if "host" in call:
                try:
                    known = known or {s["name"]: _dim(s) for s in program["symbols"]}
                    self._calls[i] = _HostCall(call, program["buffers"], known, external)
                except MemoryError:
                    raise MemoryLimitError(f"{_where(call)}: there is no memory for checking it") from None
                except ProgramError:
                    raise
                except EngineVersionError as e:
                    raise EngineVersionError(f"{_where(call)}: {e}") from None
                except _UNFORESEEN as e:
                    raise ProgramError(f"{_where(call)}: {_text(e)}") from None

    def __call__(
        self, call: int, operands: list[Array], results: Declared, symbols: Sequence[tuple[str, int]]
    ) -> list[Array]:
        """The results of a call, by its place in the program.

        results: what the program declares at the sizes of this run. symbols: the sizes known so far. Raises
        ProgramError for a declaration that the op's rule does not confirm, InputError for sizes and ValueFault for
        values that the op does not take, MemoryLimitError.
        """
        return self._calls[call].run(operands, results, dict(symbols))


class _HostCall:
    def __init__(
        self, call: Mapping[str, Any], buffers: Sequence[Mapping[str, Any]], known: Mapping[str, Dim],
        external: Mapping[str, type[Op]],
    ) -> None:  # fmt: skip
        self.where = _where(call)
        self.known = known
        attributes = dict(call["params"])
        self.absent = _places(attributes.pop("absent", []), len(call["in"]))
        op = op_from_json(call["host"], call["version"], attributes, "the program", _networks(external), external)
        self.op = op.map_dims(lambda d: dims.substitute(d, known))
        self.binds = {d.name for d in self.op.bound_dims()}
        if sorted(self.binds) != sorted(call.get("binds", ())):
            raise ProgramError(
                f"{self.where}: the op binds {sorted(self.binds)}, the program says {sorted(call.get('binds', ()))}"
            )
        self.op.map_dims(self._declared)
        operands = [self._spec(*_declaration(buffers, b)) for b in call["in"]]
        self._check(self.op, self._placed(operands), [_declaration(buffers, b) for b in call["out"]])
        self.late = any(d.unbacked for s in operands for d in dims.dims_of(s.shape).values())

    def _placed(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """The operands with None in the places of absent ones."""
        whole = list(operands)
        for at in self.absent:
            whole.insert(at, None)
        return tuple(whole)

    def _declared(self, d: dims.Dimension) -> dims.Dimension:
        """A dimension of an attribute, all of whose dims the program has."""
        if unknown := dims.dims_of([d]).keys() - self.known.keys():
            raise ProgramError(f"{self.where}: it needs {', '.join(sorted(unknown))}, no symbol of the program")
        return d

    def _spec(self, dtype: str, shape: Sequence[Any]) -> Spec:
        return Spec([dims.substitute(dims_parsing.from_json(d), self.known) for d in shape], dtypes.get(dtype))

    def _check(self, op: Op, operands: tuple[Spec, ...], results: Declared) -> tuple[Spec, ...]:
        """What the op's rule makes of operands, which has to be what the program declares."""
        found = infer(op, operands, "the program")
        declared = tuple(self._spec(*result) for result in results)
        if found != declared:
            gives = f"{_shown(op, operands)} gives {_list(found)}"
            raise ProgramError(f"{self.where}: {gives}, the program declares {_list(declared)}")
        return found

    def run(self, operands: list[Array], results: Declared, symbols: Mapping[str, int]) -> list[Array]:
        try:
            op = self.op.map_dims(lambda d: dims.substitute(d, symbols))
            specs = self._placed([Spec.of(x) for x in operands])
            found = self._check(op, specs, results)
            working, steps = op.working(*specs), op.steps(*specs)
        except ProgramError:
            raise
        except _UNFORESEEN as e:  # the rule took these dims, and does not take their sizes
            raise (ValueFault if self.late else InputError)(f"{self.where}: {_text(e)}") from None
        own = nbytes(*(s for s in specs if s is not None)) + (0 if self.binds else nbytes(*found))
        most = max(MAX_WORKING, LARGER * own)
        if working > most:
            raise MemoryLimitError(
                f"{self.where}: {_shown(op, specs)} would need {working >> 20} MiB beside its operands and "
                f"results, and gets at most {most >> 20} MiB"
            )
        if steps > MAX_STEPS:
            raise (ValueFault if self.late else InputError)(
                f"{self.where}: {_shown(op, specs)} would take about {steps / 1e9:.0f} seconds, and gets at most "
                f"{MAX_STEPS / 1e9:.0f}: smaller inputs, or an op with a kernel"
            )
        if not self.binds and all(s.elements == 0 for s in found):  # what they are made of may be large
            return [np.empty(s.evaluate({}), s.dtype.numpy) for s in found]
        arrays = self._computed(op, specs, operands)
        got = tuple(map(Spec.of, arrays))
        if not _fit(got, found):
            gave = f"{_list(got)}, not {_list(found)}"
            raise IngotError(f"{self.where}: the reference of {_shown(op, specs)} gave {gave}")
        return arrays

    def _computed(self, op: Op, specs: tuple[Spec, ...], operands: list[Array]) -> list[Array]:
        """The reference's results; whatever it raises becomes one of ours that says where."""
        try:
            with np.errstate(all="ignore"):
                made = op.reference(*self._placed(operands))
                return [np.asarray(r) for r in (made if isinstance(made, tuple) else (made,))]
        except (ExternalOpError, ValueFault, InputError, MemoryLimitError) as e:
            raise type(e)(f"{self.where}: {_text(e)}") from None
        except MemoryError:
            raise MemoryLimitError(f"{self.where}: there is no memory for {_shown(op, specs)}") from None
        except (*_OF_VALUES, OpError) as e:
            raise ValueFault(f"{self.where}: {_shown(op, specs)} cannot take these values: {_text(e)}") from None
        except UserError as e:  # a package that is missing
            raise type(e)(f"{self.where}: {_text(e)}") from None
        except Exception as e:
            raise IngotError(f"{self.where}: the reference of {_shown(op, specs)} failed: {_text(e)}") from e


def _places(absent: Any, given: int) -> list[int]:
    """The places of absent operands, in order. Raises ProgramError for others."""
    if not isinstance(absent, list) or any(type(at) is not int for at in absent):
        raise ProgramError(f"absent: {_brief(repr(absent))} is no list of places of operands")
    if absent != sorted(set(absent)) or (absent and not 0 <= absent[0] <= absent[-1] < given + len(absent)):
        raise ProgramError(f"absent: {_brief(repr(absent))} are no places of operands, in order")
    return absent


def _networks(external: Mapping[str, type[Op]]) -> Callable[[Any], Any]:
    return lambda network: from_json(network, external)


def _where(call: Mapping[str, Any]) -> str:
    return f"{call['where']}: host call {call['host']}" if call.get("where") else f"host call {call['host']}"


def _brief(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _shown(op: Op, specs: tuple[Spec, ...]) -> str:
    return _brief(op.describe(specs))


def _dim(symbol: Mapping[str, Any]) -> Dim:
    return Dim(symbol["name"], symbol["min"], max=symbol["max"], unbacked=symbol.get("unbacked", False))


def _declaration(buffers: Sequence[Mapping[str, Any]], index: int) -> tuple[str, list[Any]]:
    """dtype and dims of a buffer; a view has the dtype of the memory it shows."""
    buffer = buffers[index]
    owner = buffers[buffer["of"]] if buffer["kind"] == "view" else buffer
    return owner["dtype"], buffer["shape"]


def _fit(got: Sequence[Spec], found: Sequence[Spec]) -> bool:
    """Whether results have the specs of the rule, whatever the size of a dim that the call binds."""
    return len(got) == len(found) and all(
        g.dtype is f.dtype
        and g.rank == f.rank
        and all(isinstance(d, Dim) or n == d for n, d in zip(g.shape, f.shape, strict=True))
        for g, f in zip(got, found, strict=True)
    )


def _list(specs: Sequence[Spec]) -> str:
    return _brief(", ".join(map(str, specs)) or "nothing")


def _text(error: Exception) -> str:
    """The words of an error of ours; of another its type too."""
    return _brief(str(error) if isinstance(error, IngotError) else f"{type(error).__name__}: {error}")
