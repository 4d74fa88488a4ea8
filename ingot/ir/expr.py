"""Scalar expressions: what an elementwise op does to one element, as typed steps that any back end can compile.

    {"steps": [["input", "float32", 0], ["const", "float32", 2.0], ["mul", "float32", 0, 1]], "outputs": [2]}

A step is [op, class of its result, arguments…]; arguments are earlier steps. The classes are float32 (of all float
operands up to 32 bits; no rounding between steps), float64, int64 (of all integers but uint64), uint64 and bool. An
operand is read in the class of its dtype. Integer arithmetic wraps to the operands' dtype by a "wrap" step; "round"
steps round to a narrower float where an op means it (a cast). "to_float", "to_int" and "to_bool" go from class to
class; from floats to integers by `truncate`, whose register a "to_int" step of class int64 names last.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import NetworkError

Array = np.ndarray[Any, Any]

MAX_STEPS, MAX_INPUTS, MAX_OUTPUTS = 256, 64, 16
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
           "ge": np.greater_equal}
_NARROW_FLOATS = ("bfloat16", "float16")
_WRAPS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_REGISTERS = ("int32", "int64")
FLOAT_CLASSES, INT_CLASSES = ("float32", "float64"), ("int64", "uint64")


def erf(x: Array) -> Array:
    """The error function of every element, in float64."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64)), np.float64)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _signs_differ(remainder: Array, b: Array) -> Array:
    return np.asarray((remainder != 0) & ((b < 0) != (remainder < 0)))


def remainder(a: Array, b: Array) -> Array:
    """What is left of floats after whole multiples of b, with b's sign; exact but for one rounding of a sum."""
    left = np.fmod(a, b)
    return np.asarray(np.where(_signs_differ(left, b), left + b, left))


def floor_quotient(a: Array, b: Array) -> Array:
    """⌊a / b⌋ of floats from the exact remainder, as Python and torch have it: 1 // 0.1 is 9."""
    left, ratio = np.fmod(a, b), a / b
    quotient = (a - left) / b - _signs_differ(left, b)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    return np.asarray(np.where(b == 0, ratio, np.where(quotient == 0, np.copysign(0, ratio), whole)), a.dtype)


FLOAT: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "max": np.maximum,
    "min": np.minimum, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "mod": remainder, "floordiv": floor_quotient, "fmod": np.fmod, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sigmoid": _sigmoid, "erf": erf,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "recip": np.reciprocal, "silu": lambda x: x * _sigmoid(x)}
INT: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod, "fmod": np.fmod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "abs": np.abs, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor}
BOOL: dict[str, Callable[..., Any]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
_TABLE = {"float32": FLOAT, "float64": FLOAT, "int64": INT, "uint64": INT, "bool": BOOL}
_UNARY = {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round",
          "recip", "silu", "not"}
_NUMPY: dict[str, Any] = {
    "float32": np.float32, "float64": np.float64, "int64": np.int64, "uint64": np.uint64, "bool": np.bool_}
_RANGES = {"int64": range(-(2**63), 2**63), "uint64": range(2**64)}


class NoExpression(Exception):
    """An element type that expressions do not carry (complex, floats of 8 bits, sub-byte): the op runs by itself."""


def class_of(dtype: DType) -> str:
    """The class that elements of a dtype compute in; NoExpression when there is none."""
    if dtype in (dtypes.float32, dtypes.bfloat16, dtypes.float16):
        return "float32"
    if dtype in (dtypes.float64, dtypes.uint64):
        return dtype.name
    if dtype.is_integer and dtype.bits >= 8:
        return "int64"
    if dtype is dtypes.bool_:
        return "bool"
    raise NoExpression(f"{dtype.name} elements have no scalar expression")


class Scalar:
    """One element of a value inside an expression: a step, and the dtype it stands for."""

    __slots__ = ("builder", "dtype", "index")

    def __init__(self, builder: ExprBuilder, index: int, dtype: DType) -> None:
        self.builder, self.index, self.dtype = builder, index, dtype

    def __add__(self, other: Any) -> Scalar:
        return self.builder.call("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return self.builder.call("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return self.builder.call("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return self.builder.call("sub", other, self)

    def __mul__(self, other: Any) -> Scalar:
        return self.builder.call("mul", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return self.builder.call("mul", other, self)

    def __truediv__(self, other: Any) -> Scalar:
        return self.builder.call("div", self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return self.builder.call("div", other, self)

    def __neg__(self) -> Scalar:
        return self.builder.call("neg", self)

    def __lt__(self, other: Any) -> Scalar:
        return self.builder.call("lt", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return self.builder.call("gt", self, other)


class ExprBuilder:
    """Collects the steps of one expression. Equal steps are made once."""

    def __init__(self) -> None:
        self.steps: list[list[Any]] = []
        self.outputs: list[int] = []
        self._made: dict[tuple[Any, ...], int] = {}

    def input(self, index: int, dtype: DType) -> Scalar:
        """The element of operand `index`."""
        return self._step(dtype, "input", index)

    def const(self, number: bool | int | float, dtype: DType) -> Scalar:
        """A number of a dtype."""
        cls = class_of(dtype)
        value: Any = bool(number) if cls == "bool" else int(number) if cls in INT_CLASSES else float(number)
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        return self._step(dtype, "const", value)

    def call(self, name: str, *args: Any) -> Scalar:
        """One operation on scalars (or numbers, which take the scalars' dtype). Integers wrap to their dtype."""
        lead = next(a for a in args if isinstance(a, Scalar))
        scalars = [a if isinstance(a, Scalar) else self.const(a, lead.dtype) for a in args]
        indices = [s.index for s in scalars]
        if name in COMPARE:
            return self._step(dtypes.bool_, name, *indices)
        result = self._step(lead.dtype, name, *indices)
        if lead.dtype.name in _WRAPS and name in ("add", "sub", "mul", "neg", "abs", "floordiv"):
            result = self._step(lead.dtype, "wrap", result.index, lead.dtype.name)
        return result

    def where(self, condition: Scalar, a: Any, b: Any) -> Scalar:
        """a where the condition holds, else b; one of them may be a number."""
        lead = a if isinstance(a, Scalar) else b
        a, b = (x if isinstance(x, Scalar) else self.const(x, lead.dtype) for x in (a, b))
        return self._step(a.dtype, "where", condition.index, a.index, b.index)

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        """Another dtype, as `convert` has it."""
        if x.dtype is dtype:
            return x
        source, target = class_of(x.dtype), class_of(dtype)
        if source == "float32":
            x = self.settled(x)
        if target == "bool":
            return self._step(dtype, "to_bool", x.index)
        if target == "float64":
            return self._step(dtype, "to_float", x.index)
        if target == "float32":
            if dtype is dtypes.float32 and source == "int64" and self.steps[x.index][0] == "const":
                return self.const(self.steps[x.index][2], dtype)
            value = x if source == "float32" else self._step(dtypes.float32, "to_float", x.index)
            return self._step(dtype, "round", value.index, dtype.name) if dtype.name in _NARROW_FLOATS else Scalar(
                self, value.index, dtype)
        return self._to_integer(x, source, dtype)

    def settled(self, x: Scalar) -> Scalar:
        """A narrow float rounded to its dtype: for a cast to another one, and for what jumps (a comparison).

        An operand too: it may turn out to be the result of a product that takes this expression along, in float32.
        Where it lies in memory, `rounding.without_needless_rounding` takes the step away.
        """
        if x.dtype.name not in _NARROW_FLOATS or self.steps[x.index][0] in ("const", "round"):
            return x
        return self._step(x.dtype, "round", x.index, x.dtype.name)

    def _to_integer(self, x: Scalar, source: str, dtype: DType) -> Scalar:
        if dtype is dtypes.uint64:
            return self._step(dtype, "to_int", x.index)
        low, high = integer_range(dtype)
        if source in FLOAT_CLASSES:
            register = register_of(dtype)
            whole = self._step(register, "to_int", x.index, register.name)
            from_low, from_high = integer_range(register)
        else:
            whole = x if source == "int64" else self._step(dtypes.int64, "to_int", x.index)
            if source == "bool":
                return Scalar(self, whole.index, dtype)
            from_low, from_high = integer_range(x.dtype)
        fits = dtype is dtypes.int64 or low <= from_low and from_high <= high
        return Scalar(self, whole.index, dtype) if fits else self._step(dtype, "wrap", whole.index, dtype.name)

    def output(self, x: Scalar) -> None:
        """Makes a scalar the next result."""
        self.outputs.append(x.index)

    def json(self) -> dict[str, Any]:
        """The finished expression."""
        return check({"steps": self.steps, "outputs": self.outputs})

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        """`e.exp(x)` is `e.call("exp", x)`."""
        if name in FLOAT or name in COMPARE or name in INT or name in BOOL:
            return lambda *args: self.call(name, *args)
        if name in ("and_", "or_", "not_"):
            return lambda *args: self.call(name[:-1], *args)
        raise AttributeError(f"expressions have no operation {name}")

    def _step(self, dtype: DType, name: str, *args: Any) -> Scalar:
        key = (name, class_of(dtype), *((type(a), a) for a in args))
        index = self._made.get(key)
        if index is None:
            index = self._made[key] = len(self.steps)
            self.steps.append([name, class_of(dtype), *args])
        return Scalar(self, index, dtype)


def register_of(dtype: DType) -> DType:
    """The signed integer that floats become on their way to an integer dtype (`truncate`)."""
    return dtypes.int64 if dtype in (dtypes.int64, dtypes.uint8, dtypes.uint32) else dtypes.int32


def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    low = 0 if dtype.kind == "uint" else -(2 ** (dtype.bits - 1))
    return low, low + 2**dtype.bits - 1


# ----------------------------------------------------------------------------------------------- the JSON form
def check(expr: Any) -> dict[str, Any]:
    """The expression itself when it is well formed, else a NetworkError that names the first bad step."""
    if not isinstance(expr, dict) or set(expr) != {"steps", "outputs"}:
        raise NetworkError("an expression is an object of steps and outputs")
    steps, outputs = expr["steps"], expr["outputs"]
    if not isinstance(steps, Sequence) or not 0 < len(steps) <= MAX_STEPS:
        raise NetworkError(f"an expression has 1 to {MAX_STEPS} steps")
    classes: list[str] = []
    for i, step in enumerate(steps):
        why = _fault(step, classes)
        if why:
            raise NetworkError(f"expression step {i}, {brief(step)}: {why}")
        classes.append(step[1])
    if not 0 < len(outputs) <= MAX_OUTPUTS or any(type(o) is not int or not 0 <= o < len(steps) for o in outputs):
        raise NetworkError(f"an expression has 1 to {MAX_OUTPUTS} outputs, each the index of a step")
    return expr


def _fault(step: Any, classes: list[str]) -> str | None:
    """What is wrong with a step, given the classes of those before it."""
    if not isinstance(step, Sequence) or len(step) < 3 or step[1] not in _TABLE:
        return f"a step is [operation, {' | '.join(_TABLE)}, arguments…]"
    name, cls, *args = step
    if name == "input":
        good = len(args) == 1 and type(args[0]) is int and 0 <= args[0] < MAX_INPUTS
        return None if good else f"input takes the number of an operand below {MAX_INPUTS}"
    if name == "const":
        return None if len(args) == 1 and _is_number(args[0], cls) else f"not a {cls} number"
    target = args.pop() if name == "wrap" or name in ("round", "to_int") and len(args) == 2 else None
    if any(type(a) is not int or not 0 <= a < len(classes) for a in args):
        return "arguments are the indices of earlier steps"
    got = [classes[a] for a in args]
    if name in COMPARE:
        good = cls == "bool" and len(got) == 2 and got[0] == got[1]
    elif name == "where":
        good = got == ["bool", cls, cls]
    elif name in ("to_int", "to_float", "to_bool"):
        good = len(got) == 1 and got[0] != cls and _converts(name, got[0], cls, target)
    elif name == "wrap":
        good = cls == "int64" and got == ["int64"] and target in _WRAPS
    elif target is not None:
        good = cls == "float32" and got == ["float32"] and target in _NARROW_FLOATS
    elif name in _TABLE[cls]:
        good = got == [cls] * (1 if name in _UNARY else 2)
    else:
        return f"there is no operation {name!r} of class {cls}"
    return None if good else f"{name} of class {cls} does not take {got}"


def _is_number(value: Any, cls: str) -> bool:
    if cls in FLOAT_CLASSES:
        return type(value) in (int, float) or value in ("inf", "-inf", "nan")
    return type(value) is bool if cls == "bool" else type(value) is int and value in _RANGES[cls]


def _converts(name: str, source: str, cls: str, register: Any) -> bool:
    """Whether a conversion to a class is one of those from another; only floats to int64 name a register."""
    if name == "to_int" and cls == "int64" and source in FLOAT_CLASSES:
        return register in _REGISTERS
    return register is None and cls in {"to_int": INT_CLASSES, "to_float": FLOAT_CLASSES, "to_bool": ("bool",)}[name]


def evaluate(expr: dict[str, Any], arrays: Sequence[Array], out: Sequence[DType]) -> list[Array]:
    """What the expression means, in NumPy: operands broadcast, as do results, which are rounded to their dtypes."""
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for name, cls, *args in expr["steps"]:
            values.append(_run(name, cls, args, values, arrays))
        results = [np.asarray(values[i]).astype(d.numpy) for i, d in zip(expr["outputs"], out, strict=True)]
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    return [r if r.shape == shape else np.broadcast_to(r, shape).copy() for r in results]  # it may not read them all


def _run(name: str, cls: str, args: list[Any], values: list[Array], arrays: Sequence[Array]) -> Array:
    kind = _NUMPY[cls]
    if name == "input":
        return np.asarray(arrays[args[0]], kind)
    if name == "const":
        return np.asarray(float(args[0]) if cls in FLOAT_CLASSES else args[0], kind)
    if name == "wrap" or name == "round" and len(args) == 2:
        return np.asarray(values[args[0]].astype(dtypes.get(args[1]).numpy), kind)
    if name == "to_int":
        return np.asarray(convert(values[args[0]], dtypes.get(args[1] if len(args) == 2 else cls)), kind)
    operands = [values[a] for a in args]
    if name in COMPARE:
        return np.asarray(COMPARE[name](*operands))
    if name == "where":
        return np.asarray(np.where(*operands))
    if name in ("to_float", "to_bool"):
        return convert(operands[0], dtypes.get(cls))
    return np.asarray(_TABLE[cls][name](*operands), kind)


def convert(x: Array, dtype: DType) -> Array:
    """x in another dtype, element by element.

    Floats round to nearest even, to 16 bits by way of float32. Floats to integers: see `truncate`. Integers wrap. Not 0
    is True, NaN too; True is 1.
    """
    source = dtypes.get(x.dtype)
    with np.errstate(all="ignore"):
        if dtype is dtypes.bool_:
            return np.asarray(x != 0)
        if source.is_float and dtype.is_integer:
            return truncate(x, dtype)
        if dtype.is_float and dtype.bits < 32:
            x = x.astype(np.float32)
        if source.is_integer and dtype is dtypes.int4:
            x = x.astype(np.int8)
        return np.asarray(x.astype(dtype.numpy))


def truncate(x: Array, dtype: DType) -> Array:
    """Floats to an integer dtype, as x86 converts and with it torch on it.

    Towards zero into a register, int32 or int64 (`register_of`), of which the low bits are kept. What the register does
    not hold, NaN too, becomes its smallest number. For uint64, 2⁶³ is subtracted from numbers from 2⁶³ on, and added
    again.
    """
    wide = np.trunc(x.astype(np.float64))
    upper = (wide >= 2.0**63) & (dtype is dtypes.uint64)
    register = np.int64 if dtype is dtypes.uint64 else register_of(dtype).numpy
    wide = np.where(upper, wide - 2.0**63, wide)
    least = np.iinfo(register).min
    inside = (wide >= float(least)) & (wide < -float(least))
    whole = np.where(inside, np.where(inside, wide, 0).astype(register), least)
    if dtype is dtypes.uint64:
        return np.asarray(whole.astype(np.uint64) ^ (upper.astype(np.uint64) << np.uint64(63)))
    return np.asarray(convert(whole.astype(register), dtype))
