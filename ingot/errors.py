"""Every error a user can meet, each with a stable code (listed in docs/errors.md).

A message says what went wrong, where (op and operands, module path, source line when known), why, and what to do.
`exit_code` is what the command line returns: 2 for the user's mistake, 1 for ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class IngotError(Exception):
    """Base of all errors raised on purpose."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1

    def json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {"code": self.code, "message": str(self)}


class UserError(IngotError):
    """The request cannot be carried out as given: an option, a path, a conflict between two words."""

    code = "usage"
    exit_code = 2


class DTypeError(UserError, TypeError):
    """An unknown or unsupported element type."""

    code = "dtype"


class DimError(UserError, ValueError):
    """A dimension that is malformed, out of bounds, or known by one name with two sets of bounds."""

    code = "dim"


class OpError(UserError, ValueError):
    """An op refused its operands or attributes."""

    code = "op"


class NetworkError(UserError, ValueError):
    """A network that breaks a rule of the IR; the message lists every offender."""

    code = "network"


class ModuleError(UserError, ValueError):
    """A Module used against its rules: a bad layer argument, names or weights that do not fit, a hopeless trace."""

    code = "module"


class CheckpointError(UserError):
    """A model directory or exported file that cannot be read: description, weights, names, shapes, architecture."""

    code = "checkpoint"


class UnsupportedError(UserError):
    """Ops of a source, or ways of using them, that ingot has no counterpart for; the message lists them all.

    rows: the same as data, a dict each of `op`, `calls`, `where` (a list), `why` and `what_to_do`.
    """

    code = "unsupported"

    def __init__(self, message: str, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)

    def json(self) -> dict[str, Any]:
        return {**super().json(), "unsupported": [dict(row) for row in self.rows]}


class ExternalOpError(UserError):
    """An op of a user's own: not given where an engine needs it, declared otherwise, or wrong in what it gives."""

    code = "external_op"


class MismatchError(IngotError):
    """Two networks that should compute the same do not: an imported one and its source, the two of `ingot diff`, or
    an engine here and where it was built."""

    code = "mismatch"


class RecipeError(UserError, ValueError):
    """A stored weight cannot be made: an unknown step, operands that a step refuses, a source without a value."""

    code = "recipe"


class FileError(UserError):
    """A file could not be read or written."""

    code = "io"


class EngineFileError(UserError):
    """Not a well-formed engine file."""

    code = "engine_file"


class EngineVersionError(EngineFileError):
    """An engine file of a format or kernel version that this release does not know."""

    code = "engine_version"


class ProgramError(EngineFileError):
    """A program inside an engine file breaks a rule that the executor relies on."""

    code = "program"


class KernelRefused(IngotError):
    """No kernel on this machine takes a call of the program."""

    code = "kernel_refused"


class InputError(UserError, ValueError):
    """An array given to a network: missing, unknown, or of the wrong type or shape."""

    code = "input"


class ValueFault(UserError, ValueError):
    """A fault that only the values show, at run time: an index out of range, a loop that does not end."""

    code = "value"


class RequestError(UserError, ValueError):
    """A request for text or scores that cannot be carried out: a parameter out of range, a prompt that is none."""

    code = "request"


class TooLongError(RequestError):
    """A request that needs more room than the model's context or the whole KV cache has."""

    code = "too_long"


class ArgumentError(UserError, ValueError):
    """Something that was named is not there or not legal: an entry, a tensor, an option of a session, INGOT_ISA."""

    code = "argument"


class MemoryLimitError(IngotError, MemoryError):
    """Not enough memory for what was asked."""

    code = "memory"


class DeviceError(IngotError):
    """A device has failed or is gone: this process computes nothing there any more."""

    code = "device"


class BusyError(UserError, RuntimeError):
    """A session runs one call at a time and one is under way."""

    code = "busy"


class OverloadedError(IngotError):
    """A request has waited too long for something that others keep busy; it may be made again later."""

    code = "overloaded"


BY_CODE: dict[str, type[IngotError]] = {
    cls.code: cls
    for cls in (
        IngotError, UserError, DTypeError, DimError, OpError, NetworkError, ModuleError, CheckpointError,
        UnsupportedError, ExternalOpError, MismatchError, RecipeError, FileError, EngineFileError, EngineVersionError,
        ProgramError, KernelRefused, InputError, ValueFault, RequestError, TooLongError, ArgumentError,
        MemoryLimitError, DeviceError, BusyError, OverloadedError,
    )
}  # fmt: skip


def from_code(code: str, message: str) -> IngotError:
    """The error of the native core's `code` (an unknown code is a fault of ours: the base class)."""
    return BY_CODE.get(code, IngotError)(message)


def typed(error: Exception) -> IngotError:
    """The error of an exception of the native core's."""
    return from_code(getattr(error, "code", "internal"), str(error))


def other_sizes(name: str, axis: int, size: int) -> str:
    """What to do about an array that differs in a dimension that an engine has fixed."""
    return (
        f". Dimension {axis} is fixed at {size} in this engine: to run other sizes, build it again with that dimension "
        f"dynamic (dynamic={{{name!r}: {{{axis}: 'N'}}}} for a torch module, 'N' in an ingot.Spec; a .pt2 or .onnx "
        "file is exported with dynamic_shapes or dynamic_axes)"
    )


ONE_OF_A_BATCH = ": where it is one sample of a batch, give it a dimension more (array[None] in NumPy)"
