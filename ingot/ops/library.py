"""Ops of a user's own in a shared library of the C ABI that native/include/ingot_op.h says."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.errors import DimError, DTypeError, ExternalOpError, OpError
from ingot.ir import Op, Spec, require
from ingot.ops.external import external_op

Array = np.ndarray[Any, Any]

ABI = 1
MAX_OPS, MAX_SIGNATURE, MAX_RANK = 1024, 4096, 8
MESSAGE = 512  # bytes
# As ingot_dtype in native/include/ingot.h counts them.
CODES = ("float32", "bfloat16", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
         "uint64", "bool")  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
                ("shape", ctypes.c_int64 * MAX_RANK))  # fmt: skip


class _Number(ctypes.Structure):
    _fields_ = (("integer", ctypes.c_int64), ("real", ctypes.c_double))


class _Call(ctypes.Structure):
    _fields_ = (
        ("operands", ctypes.POINTER(_Tensor)), ("results", ctypes.POINTER(_Tensor)),
        ("numbers", ctypes.POINTER(_Number)), ("operand_count", ctypes.c_int), ("result_count", ctypes.c_int),
        ("number_count", ctypes.c_int), ("message", ctypes.c_void_p), ("message_size", ctypes.c_size_t),
    )  # fmt: skip


_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Call))


class _Op(ctypes.Structure):
    _fields_ = (("signature", ctypes.c_char_p), ("version", ctypes.c_int), ("run", _RUN))


class _Table(ctypes.Structure):
    _fields_ = (("abi", ctypes.c_int), ("count", ctypes.c_int), ("ops", ctypes.POINTER(_Op)))


def op_library(path: str | os.PathLike[str]) -> list[Callable[..., Any]]:
    """The ops of a shared library, as `external_op` returns them.

    The library's code runs in this process from here on: load only what you would run. Its ops are called in host
    calls, several at once from several threads, without Python's lock.

    Raises ExternalOpError for a file that is no such library, or has another ABI; OpError for a signature that is none.
    """
    where = os.path.abspath(os.fsdecode(path))
    if not os.path.isfile(where):
        raise ExternalOpError(f"{where} is no file: op_library takes the path of a shared library")
    try:
        library = ctypes.CDLL(where)
        entry = library.ingot_ops
    except (OSError, AttributeError, ValueError) as e:
        raise ExternalOpError(f"{where} is no library of ops: {e}") from None
    entry.restype, entry.argtypes = ctypes.POINTER(_Table), ()
    found = entry()
    if not found:
        raise ExternalOpError(f"{where}: ingot_ops gives no table")
    table = found.contents
    if table.abi != ABI:
        raise ExternalOpError(f"{where} is of ABI {table.abi}; this ingot knows {ABI}: compile it with its ingot_op.h")
    if not 0 < table.count <= MAX_OPS or not table.ops:
        raise ExternalOpError(f"{where}: it says that it has {table.count} ops; a library has 1 to {MAX_OPS}")
    return [_made(table.ops[i], f"{where}, op {i}") for i in range(table.count)]


def _made(item: Any, where: str) -> Callable[..., Any]:
    if not item.signature or not item.run:
        raise ExternalOpError(f"{where}: it has no signature, or no run")
    declared = parse(item.signature[: MAX_SIGNATURE + 1], where)
    run = item.run

    def infer(self: Op, *specs: Spec) -> Any:
        return declared.results_of(specs)

    def reference(self: Op, *arrays: Array) -> Any:
        return _called(declared, run, self, arrays)

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *declared.operands)]
    infer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    infer.__annotations__ = {"return": ", ".join(["Spec"] * len(declared.results))}
    body = {
        "infer": infer, "reference": reference, "__doc__": f"{item.signature.decode()}, of {where}.",
        "__annotations__": dict(declared.attributes), **declared.defaults,
    }  # fmt: skip
    return external_op(declared.name, item.version)(type(declared.name.rpartition(".")[2], (Op,), body))


# ------------------------------------------------------------------------------------------------------ signatures


@dataclass(frozen=True)
class Declared:
    """A signature: operands and results as (dtype, sizes), a size being a number or a name."""

    name: str
    operands: Mapping[str, Spec]
    attributes: Mapping[str, str]  # name → int or float
    defaults: Mapping[str, Any]
    results: tuple[Spec, ...]

    def results_of(self, specs: Sequence[Spec]) -> Any:
        """The results' Specs for operands; OpError where they do not fit."""
        sizes: dict[str, Any] = {}
        for (name, wanted), spec in zip(self.operands.items(), specs, strict=True):
            fits = spec.dtype is wanted.dtype and len(spec.shape) == len(wanted.shape)
            for size, given in zip(wanted.shape, spec.shape, strict=False):
                known = size if isinstance(size, int) else sizes.setdefault(str(size), given)
                fits = fits and known == given
            shown = ", ".join(f"{n} = {size}" for n, size in sizes.items())
            require(fits, f"{name} must be {wanted}{f', where {shown}' if shown else ''}")
        made = tuple(Spec([d if isinstance(d, int) else sizes[str(d)] for d in r.shape], r.dtype) for r in self.results)
        return made if len(made) > 1 else made[0]


_SPEC = r"\w+\[[^\]]*\]"
_SIGNATURE = re.compile(r"([\w.]+)\((.*)\) -> (.+)")
_OPERAND = re.compile(rf"([a-z]\w*): ({_SPEC})")
_ATTRIBUTE = re.compile(r"([a-z]\w*): (int|float)(?: = (-?[\w.+-]+))?")
_COMMA = re.compile(r", (?![^\[]*\])")  # outside of brackets
_SIZE = re.compile(r"[0-9]{1,18}|[A-Za-z]\w*")


def parse(signature: bytes, where: str) -> Declared:
    """A signature of native/include/ingot_op.h. Raises OpError with what is wrong with it."""
    try:
        text = signature.decode()
    except UnicodeDecodeError:
        text = ""
    whole = _SIGNATURE.fullmatch(text) if len(signature) <= MAX_SIGNATURE else None
    if whole is None:
        raise OpError(f"{where}: {text[:200]!r} is no signature, like acme.f(x: float32[N], eps: float) -> float32[N]")
    operands: dict[str, Spec] = {}
    attributes: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for part in _COMMA.split(whole[2]) if whole[2] else ():
        operand, attribute = _OPERAND.fullmatch(part), _ATTRIBUTE.fullmatch(part)
        name = (operand or attribute or {1: ""})[1]
        if not name or name in operands or name in attributes or (operand and attributes):
            raise OpError(f"{where}: {part[:80]!r} is neither an operand nor an attribute behind them, or stands twice")
        if operand:
            operands[name] = _spec(operand[2], where)
        elif attribute:
            attributes[name] = attribute[2]
            if attribute[3] is not None:
                defaults[name] = _number(attribute[2], attribute[3], where)
    results = tuple(_spec(part, where) for part in _COMMA.split(whole[3]))
    known = {str(d) for spec in operands.values() for d in spec.shape}
    if unknown := [str(d) for spec in results for d in spec.shape if not isinstance(d, int) and str(d) not in known]:
        raise OpError(f"{where}: a result has the size {unknown[0]}, which no operand has")
    if not operands:
        raise OpError(f"{where}: it takes no operand")
    return Declared(whole[1], operands, attributes, defaults, results)


def _spec(text: str, where: str) -> Spec:
    dtype, _, rest = text.partition("[")
    sizes = [size for size in rest.removesuffix("]").split(", ") if size]
    try:
        if not re.fullmatch(_SPEC, text) or dtype not in CODES or not all(map(_SIZE.fullmatch, sizes)):
            raise OpError("its type or a size is none")
        if len(sizes) > MAX_RANK:
            raise OpError(f"it has more than {MAX_RANK} dimensions")
        return Spec([int(size) if size.isdigit() else dims.Dim(size) for size in sizes], dtype)
    except (OpError, DimError, DTypeError) as e:
        raise OpError(f"{where}: {text[:80]!r} is no tensor: {e}") from None


def _number(kind: str, text: str, where: str) -> Any:
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise OpError(f"{where}: {text[:40]!r} is no {kind}") from None


# ----------------------------------------------------------------------------------------------------------- calls


def _called(declared: Declared, run: Any, op: Op, arrays: Sequence[Array]) -> Any:
    operands = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    found = declared.results_of([Spec.of(a) for a in arrays])
    specs = found if isinstance(found, tuple) else (found,)
    results = [np.zeros(spec.evaluate({}), spec.dtype.numpy) for spec in specs]
    numbers = (_Number * len(declared.attributes))()
    for number, (name, kind) in zip(numbers, declared.attributes.items(), strict=True):
        value = getattr(op, name)
        number.integer, number.real = (value, 0.0) if kind == "int" else (0, value)
    message = ctypes.create_string_buffer(MESSAGE)
    tensors, made = (_tensors(group) for group in (operands, results))
    call = _Call(tensors, made, numbers, len(operands), len(results), len(numbers), ctypes.addressof(message), MESSAGE)
    if run(ctypes.byref(call)):
        message[MESSAGE - 1] = b"\0"
        why = message.value.decode(errors="replace") or "it gives no reason"
        raise ExternalOpError(f"{declared.name} failed: {why}")
    return tuple(results) if len(results) > 1 else results[0]


def _tensors(arrays: Sequence[Array]) -> Any:
    described = (_Tensor * len(arrays))()
    for tensor, array in zip(described, arrays, strict=True):
        tensor.data, tensor.dtype = array.ctypes.data, CODES.index(dtypes.get(array.dtype).name)
        tensor.rank = array.ndim
        tensor.shape[: array.ndim] = array.shape
    return described
