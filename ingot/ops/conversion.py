"""Ops that change the dtype of elements: cast keeps the numbers, quantize and dequantize scale them.

A cast to int8 truncates and wraps like any other; what scales, rounds and saturates is quantize.
"""
from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.ir import Case, ExprBuilder, F, Op, Scalar, Spec, op, require
from ingot.ir.expr import convert, integer_range, register_of
from ingot.ir.spec import broadcast
from ingot.ops.common import (
    Array,
    bf16,
    boolean,
    dims_compared,
    each,
    f16,
    f32,
    f64,
    i8,
    i32,
    require_float,
    rounded,
    show,
    torch_wide,
    u8,
    widen,
)

UINT64 = Spec((9,), dtypes.uint64)
SCALES_OF_GROUPS = (dtypes.float32, dtypes.float16)
_NOT_ZERO = each(dims_compared(operator.ne))


@op("cast")
class Cast(Op):
    """Another dtype: floats round to nearest even, floats become integers towards zero, integers wrap, not 0 is True.

    As torch on x86 has it, for every pair of dtypes. To 16-bit floats it goes by way of float32. Floats become int8,
    int16, uint16 and int32 by way of an int32 register, other integers by way of int64, of which the low bits are kept.
    A number that this register does not hold, and NaN, is its smallest one first (so int32 of NaN is −2³¹, and int8 of
    it 0). C++ leaves those numbers undefined, and torch's vectors differ from its single elements for uint32: here it
    is the latter.

    `saturate`: a number outside of the target's range becomes the nearest in it instead, NaN the integer 0. Floats of
    8 bits and less saturate to their largest number (as torch has it for float8_e4m3fn alone), wider ones overflow to
    infinity in any case. ONNX's Cast is this op: `saturate` is its attribute for floats of 8 bits, and there numbers
    out of an integer's range are undefined.
    """

    dtype: DType
    saturate: bool = False
    in_scope = "keeps"
    version = 2
    cases = (
        Case("to bfloat16: nearest even", (f32(40),), {"dtype": "bf16"}),
        Case("to float16", (f32(3, 5),), {"dtype": "float16"}),
        Case("from bfloat16", (bf16("T", 5),), {"dtype": "float32"}),
        Case("to int32: towards zero", (f32(40),), {"dtype": "int32"}),
        Case("to int64", (bf16(40),), {"dtype": "int64"}),
        Case("to int8: towards zero, and wraps", (f32(90),), {"dtype": "int8"}),
        Case("to int8, held in its range", (f32(90),), {"dtype": "int8", "saturate": True}),
        Case("to uint64, held in its range", (f32(90),), {"dtype": "uint64", "saturate": True}),
        Case("from int32", (i32(9),), {"dtype": "float32"}),
        Case("int32 to int8 wraps", (i32(90),), {"dtype": "int8"}),
        Case("int32 to int8 saturates", (i32(90),), {"dtype": "int8", "saturate": True}),
        Case("int8 to int64", (i8(90),), {"dtype": "int64"}),
        Case("int8 to float32 scales nothing", (i8(90),), {"dtype": "float32"}),
        Case("to bool: not 0", (f32(9),), {"dtype": "bool"}),
        Case("from bool", (boolean(9),), {"dtype": "float32"}),
        Case("bool to int32", (boolean(9),), {"dtype": "int32"}),
        Case("float64 to float32", (f64(9),), {"dtype": "float32"}),
        Case("float64 to bfloat16, by way of float32", (f64(9),), {"dtype": "bfloat16"}),
        Case("float64 to int64", (f64(9),), {"dtype": "int64"}),
        Case("to float64", (bf16(9),), {"dtype": "float64"}),
        Case("from uint64", (UINT64,), {"dtype": "float32"}),
        Case("int8 to uint64 wraps", (i8(9),), {"dtype": "uint64"}),
        Case("uint64 to int8", (UINT64,), {"dtype": "int8"}),
        Case("to a float of 8 bits: no expression, runs by itself", (f32(9),), {"dtype": "float8_e4m3fn"},
             no_engine="float8_e4m3fn"),
        Case("a float of 8 bits that saturates", (f32(9),), {"dtype": "float8_e4m3fn", "saturate": True},
             no_engine="float8_e4m3fn"),
        Case("to 4 bits", (i32(9),), {"dtype": "int4"}, no_engine="int4"),
        Case("no such dtype", (f32(3),), {"dtype": "float31"}, error="attribute dtype must be an element type"),
        Case("complex", (Spec((3,), dtypes.complex64),), {"dtype": "float32"}, error="take its real part"),
    )

    @classmethod
    def upgrade(cls, version: int, attributes: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("it quantised as well, which quantize and dequantize do now; build the engine again")

    def infer(self, x: Spec) -> Spec:
        require("complex" not in (x.dtype.kind, self.dtype.kind) or x.dtype.kind == self.dtype.kind,
                "a complex number has no real form; take its real part")
        return Spec(x.shape, self.dtype)

    def reference(self, x: Array) -> Array:
        if dtypes.get(x.dtype).kind == "complex":
            return x.astype(self.dtype.numpy)
        return convert(_held(x, self.dtype), self.dtype) if self.saturate else convert(x, self.dtype)

    def on_dims(self, x: Array) -> Array:
        if self.dtype is dtypes.bool_:
            return _NOT_ZERO(self, x, np.zeros_like(x))
        return each(lambda d: int(d) if isinstance(d, bool) else d)(self, x)

    def expr(self, e: ExprBuilder, x: Scalar) -> Scalar:
        if not self.saturate or x.dtype is dtypes.bool_ or not self.dtype.is_integer:
            return e.cast(x, self.dtype)  # floats with a scalar class overflow to infinity
        low, high = integer_range(self.dtype)
        if x.dtype.is_integer:
            from_low, from_high = integer_range(x.dtype)
            held = x if from_low >= low else e.max(x, low)
            return e.cast(held if from_high <= high else e.min(held, high), self.dtype)
        x = e.settled(x)
        if x.dtype.bits < 32:
            x = e.cast(x, dtypes.float32)
        above, below = e.call("ge", x, float(high + 1)), e.call("lt", x, float(low))
        whole = e.where(above, e.const(high, self.dtype), e.cast(x, self.dtype))
        whole = e.where(below, e.const(low, self.dtype), whole)
        return e.where(e.call("eq", x, x), whole, e.const(0, self.dtype))

    def torch(self, torch: Any, x: Any) -> Any:
        """None where torch has no such dtype, or no such conversion. What is left to devices, is written out here."""
        target = getattr(torch, self.dtype.name, None)
        if target is None or self.dtype.bits < 8 or (self.saturate and self.dtype.bits == 8 and self.dtype.is_float):
            return None
        if x.is_floating_point() and self.dtype.is_integer:
            return torch_truncated(torch, torch_wide(x), self.dtype, self.saturate).to(target)
        if self.saturate and self.dtype.is_integer and x.dtype != torch.bool:
            low, high = integer_range(self.dtype)
            from_low, from_high = integer_range(dtypes.get(str(x.dtype).removeprefix("torch.")))
            x = x.clamp(max(low, from_low), min(high, from_high))
        return (x.float() if self.dtype.is_float and self.dtype.bits < 32 else x).to(target)


def torch_truncated(torch: Any, x: Any, dtype: DType, saturate: bool) -> Any:
    """Floats of at least 32 bits as int64, of which an integer dtype takes the low bits. See `Cast`."""
    if saturate:
        low, high = integer_range(dtype)
        above, below = x >= float(high + 1), x < float(low)
        whole = torch.where(above | below | x.isnan(), 0, x).long()
        most = high - 2**64 * (high >= 2**63)  # the same low bits
        return torch.where(above, most, torch.where(below, low, whole))
    limit = 2.0 ** (integer_range(register_of(dtype))[1].bit_length())
    upper = (x >= 2.0**63) & (dtype is dtypes.uint64)
    if dtype is dtypes.uint64:
        limit, x = 2.0**63, torch.where(upper, x - 2.0**63, x)
    whole = torch.where((x >= -limit) & (x < limit), x, -limit).long()
    return whole ^ (upper.long() << 63) if dtype is dtypes.uint64 else whole


def _held(x: Array, dtype: DType) -> Array:
    """x held in the range of a dtype: what saturates, before it is converted."""
    source = dtypes.get(x.dtype)
    if dtype.is_float and dtype.bits <= 8:
        limits: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        return np.asarray(np.clip(widen(x), float(limits.min), float(limits.max)))
    if not dtype.is_integer or source is dtypes.bool_:
        return x
    low, high = integer_range(dtype)
    if source.is_integer:
        from_low, from_high = integer_range(source)
        return np.clip(x, max(low, from_low), min(high, from_high))
    wide = x.astype(np.float64)
    whole = np.where(wide < low, low, convert(np.where(wide >= high, 0, wide), dtype).astype(object))
    return np.where(wide >= high, high, np.where(np.isnan(wide), 0, whole)).astype(dtype.numpy)


@op("bitcast")
class Bitcast(Op):
    """The bits of x as elements of another type of as many bits: torch's `view(dtype)`, ONNX's BitCast."""

    dtype: DType
    in_scope = "keeps"
    cases = (
        Case("float32 as integers", (f32("T", 5),), {"dtype": "int32"}),
        Case("integers as float32", (i32(40),), {"dtype": "float32"}),
        Case("bfloat16 as uint16", (bf16(3, 7),), {"dtype": "uint16"}),
        Case("float64 as int64", (f64(),), {"dtype": "int64"}),
        Case("int8 as uint8", (i8(9),), {"dtype": "uint8"}),
        Case("unsigned as signed", (UINT64,), {"dtype": "int64"}),
        Case("none", (f32(0, 3),), {"dtype": "int32"}),
        Case("another width", (f32(3),), {"dtype": "int64"}, error="float32 has 32 bits and int64 has 64"),
        Case("truths have one bit of eight", (boolean(3),), {"dtype": "uint8"}, error="cast it"),
    )

    def infer(self, x: Spec) -> Spec:
        require(dtypes.bool_ not in (x.dtype, self.dtype) and min(x.dtype.bits, self.dtype.bits) >= 8,
                f"{x.dtype.name} and {self.dtype.name} have no bits in common; cast it")
        require(x.dtype.bits == self.dtype.bits,
                f"{x.dtype.name} has {x.dtype.bits} bits and {self.dtype.name} has {self.dtype.bits}")
        return Spec(x.shape, self.dtype)

    def reference(self, x: Array) -> Array:
        return x.view(self.dtype.numpy)

    def torch(self, torch: Any, x: Any) -> Any:
        if 8 * x.itemsize != self.dtype.bits:  # unsigned numbers, which wider ones carry there
            x = x.to(getattr(torch, f"int{self.dtype.bits}"))
        return x.view(getattr(torch, self.dtype.name))


@op("quantize")
class Quantize(Op):
    """round(x / scale) + zero, held in minimum..maximum; halves to even, NaN as 0. Computed in float32.

    scale is float32 and broadcasts to x: one number for the tensor, `[C, 1, 1]` for channels, `[T, 1]` for rows, `[N,
    G, 1]` for the groups of a weight seen as `[N, G, size]`. The zero point has the quantised dtype and broadcasts
    alike; its default is 0. The range is symmetric unless an imported network has its own.
    """

    dtype: DType = dtypes.int8
    minimum: int = -127
    maximum: int = 127
    in_scope = "keeps"
    cases = (
        Case("one scale", (f32(90), f32())),
        Case("a scale per row, bfloat16", (bf16("T", 8), f32("T", 1))),
        Case("zero points of channels", (f32(2, 3, 9), f32(3, 1), i8(3, 1)), {"minimum": -128}),
        Case("uint8", (f32(90), f32(), u8()), {"dtype": "uint8", "minimum": 0, "maximum": 255}),
        Case("float64", (f64(9), f32())),
        Case("groups", (f32(2, 3, 4), f32(2, 3, 1))),
        Case("an integer", (i32(9), f32()), error="x must be float32"),
        Case("a scale of another dtype", (bf16(9), bf16()), error="scale must be float32, not bfloat16"),
        Case("a scale that is larger than x", (f32(9), f32(2, 9)), error="scale must broadcast to"),
        Case("a zero of another dtype", (f32(9), f32(), i32()), error="zero must be int8, not int32"),
        Case("a range outside of the dtype", (f32(9), f32()), {"maximum": 128}, error="must lie in -128..127"),
        Case("to floats", (f32(9), f32()), {"dtype": "float16"}, error="must be an integer of 4 to 16 bits"),
    )

    def infer(self, x: Spec, scale: Spec, zero: Spec | None = None) -> Spec:
        require_float(x=x)
        require(self.dtype.is_integer and 4 <= self.dtype.bits <= 16, "dtype must be an integer of 4 to 16 bits")
        low, high = integer_range(self.dtype)
        require(low <= self.minimum < self.maximum <= high, f"minimum and maximum must lie in {low}..{high}, in order")
        _check_scale(x, scale, zero, self.dtype)
        return Spec(x.shape, self.dtype)

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Array:
        wide = widen(x)
        with np.errstate(all="ignore"):
            found = np.rint(wide / scale.astype(wide.dtype))
            found = np.where(np.isnan(found), wide.dtype.type(0), found)
            if zero is not None:
                found = found + zero.astype(wide.dtype)
            return convert(np.clip(found, self.minimum, self.maximum), self.dtype)

    def expr(self, e: ExprBuilder, x: Scalar, scale: Scalar, zero: Scalar | None = None) -> Scalar:
        wide = dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32
        found = e.round(e.cast(e.settled(x), wide) / e.cast(scale, wide))
        found = e.where(e.eq(found, found), found, 0.0)
        if zero is not None:
            found = found + e.cast(zero, wide)
        return e.cast(e.min(e.max(found, float(self.minimum)), float(self.maximum)), self.dtype)

    def torch(self, torch: Any, x: Any, scale: Any, zero: Any = None) -> Any:
        wide = x if x.dtype == torch.float64 else x.float()
        found = torch.nan_to_num(torch.round(wide / scale), nan=0.0) + (0 if zero is None else zero)
        return torch.clamp(found, self.minimum, self.maximum).to(getattr(torch, self.dtype.name))

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return sample(rng, *specs)


@op("quantize_rows")
class QuantizeRows(Op):
    """Rows along the last dimension as int8, each with a scale of its own: numbers like x, float32 scales [..., 1].

    A row's scale is its largest magnitude / 127, its numbers are round(x · (127 / that magnitude)), halves to even. In
    a row of zeros both are 0. A row that holds a NaN or an infinity has that as its scale, so it is NaN when it is
    dequantised. Rounding to 8 bits in this way costs no calibration (SmoothQuant, arXiv:2211.10438, "per token").
    """

    in_scope = "keeps"
    cases = (
        Case("one row", (f32(1, 64),)),
        Case("bfloat16, an odd width", (bf16("T", 37),)),
        Case("float16, three dims", (f16(2, 3, 5),)),
        Case("rows of one", (f32(4, 1),)),
        Case("rows of nothing", (f32(4, 0),), error="rows of at least one element"),
        Case("no rows", (f32(0, 8),)),
        Case("an integer", (i32(9, 2),), error="x must be float32"),
        Case("no dimension", (f32(),), error="rows of at least one element"),
    )

    def infer(self, x: Spec) -> tuple[Spec, Spec]:
        _check_rows(x)
        return Spec(x.shape, dtypes.int8), Spec((*x.shape[:-1], 1), dtypes.float32)

    def reference(self, x: Array) -> tuple[Array, Array]:
        wide = widen(x)
        with np.errstate(all="ignore"):
            largest = np.abs(wide).max(-1, keepdims=True, initial=0)
            scaled = wide * (np.float32(127) / largest)
            numbers = np.rint(np.clip(np.where(np.isnan(scaled), np.float32(0), scaled), -127, 127))
        return numbers.astype(np.int8), largest / np.float32(127)

    def decompose(self, x: Any) -> tuple[Any, Any]:
        wide = F.cast(x, dtypes.float32)
        largest = F.reduce_max(F.abs(wide), axes=(-1,), keepdims=True)
        scaled = F.mul(wide, F.div(127.0, largest))
        known = F.where(F.equal(scaled, scaled), scaled, 0.0)
        numbers = F.cast(F.round(F.clip(known, minimum=-127.0, maximum=127.0)), dtypes.int8)
        return numbers, F.div(largest, 127.0)

    def torch(self, torch: Any, x: Any) -> tuple[Any, Any]:
        largest = x.float().abs().amax(-1, keepdim=True)
        most = torch.full_like(largest, 127.0)  # with a number in its place torch multiplies with a reciprocal
        inverse = most / largest
        scaled = torch.nan_to_num(x.float() * inverse, nan=0.0, posinf=127.0, neginf=-127.0)
        return torch.round(torch.clamp(scaled, -127, 127)).to(torch.int8), largest / most

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = draw.shape(least=1, min_rank=1)
        return Case("random", (Spec(shape, draw.choice([dtypes.float32, dtypes.bfloat16, dtypes.float16])),))


@op("float8_rows")
class Float8Rows(Op):
    """Rows along the last dimension as they are once each has been float8 (e4m3) with a scale of its own; in x's dtype.

    A row's scale is its largest magnitude / 448, its numbers are x · (448 / that magnitude), rounded to nearest even.
    Their product is rounded once. In a row whose magnitudes are below 2⁻¹⁰⁰ the scale is as if that were the largest. A
    row that holds a NaN or an infinity is NaN. Nothing is calibrated, as in `quantize_rows`.
    """

    in_scope = "keeps"
    cases = (
        Case("one row", (f32(1, 64),)),
        Case("bfloat16, an odd width", (bf16("T", 37),)),
        Case("float16, three dims", (f16(2, 3, 5),)),
        Case("rows of one", (f32(4, 1),)),
        Case("no rows", (f32(0, 8),)),
        Case("rows of nothing", (f32(4, 0),), error="rows of at least one element"),
        Case("an integer", (i32(9, 2),), error="x must be float32"),
    )

    def infer(self, x: Spec) -> Spec:
        _check_rows(x)
        return x

    def reference(self, x: Array) -> Array:
        wide = widen(x)
        with np.errstate(all="ignore"):
            largest = np.maximum(np.abs(wide).max(-1, keepdims=True, initial=0), LEAST_ROW)
            scaled = np.clip(wide * (dtypes.MOST_FLOAT8 / largest), -dtypes.MOST_FLOAT8, dtypes.MOST_FLOAT8)
            numbers = scaled.astype(dtypes.float8_e4m3fn.numpy).astype(np.float32)
            return rounded(numbers * (largest / dtypes.MOST_FLOAT8), x)

    def decompose(self, x: Any) -> Any:
        """Adding and taking away 1.5 · 2²³ units of the last place rounds to them."""
        wide = F.cast(x, dtypes.float32)
        largest = F.maximum(F.reduce_max(F.abs(wide), axes=(-1,), keepdims=True), float(LEAST_ROW))
        most = float(dtypes.MOST_FLOAT8)
        scaled = F.clip(F.mul(wide, F.div(most, largest)), minimum=-most, maximum=most)
        magnitude, rounding = F.abs(scaled), np.float32(1.5 * 2.0**14)
        for exponent in range(-5, 9):
            unit = np.float32(1.5 * 2.0 ** (20 + exponent))
            rounding = F.where(F.greater_equal(magnitude, 2.0**exponent), unit, rounding)
        numbers = F.sub(F.add(scaled, rounding), rounding)
        return F.cast(F.mul(numbers, F.div(largest, most)), x.dtype)

    def torch(self, torch: Any, x: Any) -> Any:
        largest = x.float().abs().amax(-1, keepdim=True).clamp_min(float(LEAST_ROW))
        most = torch.full_like(largest, float(dtypes.MOST_FLOAT8))  # with a number torch multiplies with a reciprocal
        scaled = (x.float() * (most / largest)).clamp(-float(dtypes.MOST_FLOAT8), float(dtypes.MOST_FLOAT8))
        return (scaled.to(torch.float8_e4m3fn).float() * (largest / most)).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        return QuantizeRows.draw(draw)


LEAST_ROW = np.float32(2.0**-100)


def _check_rows(x: Spec) -> None:
    require_float(x=x)
    require(x.dtype is not dtypes.float64, "x must be float32, bfloat16 or float16: scales are float32")
    require(bool(x.shape) and x.shape[-1] != 0, f"needs rows of at least one element, not {show(x.shape)}")


@op("dequantize")
class Dequantize(Op):
    """(q − zero) · scale in float32, rounded once to a float dtype: what quantize made, back (see there for shapes).

    q is an integer, or float8_e4m3fn without a zero point.

    `group`: scale and zero are [..., K / group] for q [..., K], one for so many neighbours along the last dimension; 0:
    they broadcast to q. A weight that is stored as integers is this op in a network, and products take it as it is. The
    scales of groups may be float16. The zero point has q's type; that of int4 groups may be int8.
    """

    dtype: DType = dtypes.float32
    group: int = 0
    in_scope = "keeps"
    version = 3  # 1 had no groups, 2 no int8 zero points of int4
    cases = (
        Case("one scale", (i8(90), f32())),
        Case("a scale per channel, to bfloat16", (i8("T", 8), f32(8)), {"dtype": "bfloat16"}),
        Case("zero points", (u8(2, 3, 9), f32(3, 1), u8(3, 1))),
        Case("sums of products", (i32(4, 5), f32(5))),
        Case("to float64", (i8(9), f32()), {"dtype": "float64"}),
        Case("4 bits: no expression, runs by itself", (Spec((2, 3, 4), dtypes.int4), f32(2, 3, 1)),
             no_engine="int4"),
        Case("groups of 4 bits: products take them, alone it runs by itself",
             (Spec((5, 64), dtypes.int4), f32(5, 2)), {"group": 32, "dtype": "bfloat16"}, no_engine="int4"),
        Case("groups with scales of 16 bits", (Spec((5, 64), dtypes.int4), f16(5, 2)), {"group": 32},
             no_engine="int4"),
        Case("groups with zero points", (u8(3, 24), f32(3, 3), u8(3, 3)), {"group": 8},
             host="groups are for products, which take them with their weight"),
        Case("floats of 8 bits", (Spec((5, 64), dtypes.float8_e4m3fn), f32(5, 1)), {"dtype": "bfloat16"},
             no_engine="float8_e4m3fn"),
        Case("floats of 8 bits with a zero point", (Spec((9,), dtypes.float8_e4m3fn), f32(), i8()),
             error="floats have no zero point"),
        Case("int8 zero points of 4 bits", (Spec((5, 64), dtypes.int4), f32(5, 2), i8(5, 2)),
             {"group": 32}, no_engine="int4"),
        Case("groups that do not divide", (i8(3, 24), f32(3, 5)), {"group": 5}, error="groups of 5 must divide"),
        Case("a scale of no group", (i8(3, 24), f32(3, 1)), {"group": 8}, error=r"scale must be \(3, 3\)"),
        Case("scales of groups in bfloat16", (i8(3, 24), bf16(3, 3)), {"group": 8}, error="of float32 or float16"),
        Case("a scale of 16 bits without groups", (i8(3, 24), f16(3, 1)), error="scale must be float32, not float16"),
        Case("a float", (f32(9), f32()), error="q must be an integer of 4 to 32 bits"),
        Case("to an integer", (i8(9), f32()), {"dtype": "int32"}, error="dtype must be float32"),
        Case("a zero of another dtype", (i8(9), f32(), i32()), error="zero must be int8, not int32"),
    )

    def infer(self, q: Spec, scale: Spec, zero: Spec | None = None) -> Spec:
        narrow = q.dtype is dtypes.float8_e4m3fn
        require(narrow or (q.dtype.is_integer and 4 <= q.dtype.bits <= 32),
                "q must be an integer of 4 to 32 bits, or float8_e4m3fn")
        require(not narrow or zero is None, "floats have no zero point")
        require(self.dtype in dtypes.FLOATS, "dtype must be float32, bfloat16, float16 or float64")
        if self.group:
            self._check_groups(q, scale, zero)
        else:
            _check_scale(q, scale, zero, q.dtype)
        return Spec(q.shape, self.dtype)

    def _check_groups(self, q: Spec, scale: Spec, zero: Spec | None) -> None:
        last = q.shape[-1] if q.shape else 0
        fits = isinstance(last, int) and self.group > 0 and last % self.group == 0
        require(fits, f"groups of {self.group} must divide the last dimension of q, {last}")
        wanted = (*q.shape[:-1], int(last) // self.group)
        require(scale.shape == wanted and scale.dtype in SCALES_OF_GROUPS,
                f"scale must be {show(wanted)} of {' or '.join(kind.name for kind in SCALES_OF_GROUPS)}, not {scale}")
        kinds = (q.dtype, dtypes.int8) if q.dtype is dtypes.int4 else (q.dtype,)
        require(zero is None or any(zero == Spec(wanted, kind) for kind in kinds),
                f"zero must be {show(wanted)} of {' or '.join(kind.name for kind in kinds)}")

    def reference(self, q: Array, scale: Array, zero: Array | None = None) -> Array:
        if self.group:
            scale = np.repeat(scale, self.group, -1)
            zero = None if zero is None else np.repeat(zero, self.group, -1)
        less = 0 if zero is None else zero.astype(np.int64)
        whole = q if dtypes.get(q.dtype).is_float else q.astype(np.int64) - less
        wide = np.float64 if self.dtype is dtypes.float64 else np.float32
        with np.errstate(all="ignore"):
            return rounded(whole.astype(wide) * scale.astype(wide), self.dtype)

    @property
    def expr(self) -> Any:  # type: ignore[override]
        """None with groups, whose scales do not broadcast."""
        return None if self.group else self._expr

    def _expr(self, e: ExprBuilder, q: Scalar, scale: Scalar, zero: Scalar | None = None) -> Scalar:
        wide = dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32
        if zero is not None:
            q = e.cast(q, dtypes.int64) - e.cast(zero, dtypes.int64)
        return e.cast(e.cast(q, wide) * e.cast(scale, wide), self.dtype)

    def torch(self, torch: Any, q: Any, scale: Any, zero: Any = None) -> Any:
        if self.group:
            scale = scale.repeat_interleave(self.group, -1)
            zero = None if zero is None else zero.repeat_interleave(self.group, -1)
        wide = torch.float64 if self.dtype is dtypes.float64 else torch.float32
        whole = q if zero is None else q.long() - zero.long()
        return (whole.to(wide) * scale.to(wide)).to(getattr(torch, self.dtype.name))

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return sample(rng, *specs)


def _check_scale(x: Spec, scale: Spec, zero: Spec | None, dtype: DType) -> None:
    require(scale.dtype is dtypes.float32, f"scale must be float32, not {scale.dtype.name}")
    require(broadcast(x.shape, scale.shape) == x.shape, f"scale must broadcast to {show(x.shape)}")
    if zero is not None:
        require(zero.dtype is dtype, f"zero must be {dtype.name}, not {zero.dtype.name}")
        require(broadcast(x.shape, zero.shape) == x.shape, f"zero must broadcast to {show(x.shape)}")


def sample(rng: np.random.Generator, x: Spec, scale: Spec, *zero: Spec) -> tuple[Array, ...]:
    """Operands whose scale is positive, and the numbers to quantise partly out of range."""
    scales = np.asarray(rng.uniform(0.01, 0.04, scale.shape)).astype(scale.dtype.numpy)
    if x.dtype.is_float:
        numbers = np.asarray(rng.standard_normal(x.shape) * 2)
    else:
        low, high = integer_range(x.dtype)
        numbers = np.asarray(rng.integers(max(low, -1000), min(high, 1000), x.shape, endpoint=True))
    zeros = (np.asarray(rng.integers(0, 100, z.shape)).astype(z.dtype.numpy) for z in zero)
    return (numbers.astype(x.dtype.numpy), scales, *zeros)
