"""ATen ops of complex numbers: pairs in one dimension more, which ops that only move elements carry along."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as fn
from ingot.frontends.torch_export.aten import layers, picking, pointwise, reduction, shapes  # noqa: F401  their entries
from ingot.frontends.torch_export.aten.making import filled
from ingot.frontends.torch_export.aten.promotion import as_operand, cast, floating
from ingot.frontends.torch_export.aten.table import (
    COMPLEX_TABLE,
    TABLE,
    AnyOperand,
    AnyTensor,
    AnyTensors,
    Complex,
    MaybeDType,
    MaybeInts,
    Result,
    Scalar,
    Sizes,
    Tensor,
    Unsupported,
    aten,
)
from ingot.ir import F, Network, Value
from ingot.ir.spec import axes_of, axis_of

PARTS = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}


def part_type(dtype: Any) -> Any:
    """The element type of both parts of complex numbers."""
    if dtype not in PARTS:
        raise Unsupported(f"{dtype.name} numbers are not supported")
    return PARTS[dtype]


def as_complex(x: Any, like: Any = None) -> Complex:
    """A tensor as complex numbers, in the element type of `like`'s parts when given."""
    if isinstance(x, Complex):
        return x if like is None else Complex(cast(x.pairs, like))
    return Complex(fn.complex(floating(x) if like is None else cast(x, like)))


def _common(*xs: Any) -> Any:
    """The element type of the parts of a result: torch promotes as it does floats, and numbers change nothing."""
    tensors = [x.pairs.dtype if isinstance(x, Complex) else x.dtype for x in xs if hasattr(x, "shape")]
    return dtypes.float64 if dtypes.float64 in tensors else dtypes.float32


# ------------------------------------------------------------------------------------------------------- parts


@aten("aten.view_as_complex.default", views=True, complex=True)
def view_as_complex(self: Tensor) -> Result:
    return Complex(fn.view_as_complex(self))


@aten("aten.view_as_real.default", "aten.view_as_real_copy.default", views=True, complex=True)
def view_as_real(self: Complex) -> Result:
    return self.pairs


@aten("aten.real.default", views=True, complex=True)
def real(self: AnyTensor) -> Result:
    return fn.real(self.pairs) if isinstance(self, Complex) else self


@aten("aten.imag.default", views=True, complex=True)
def imag(self: Complex) -> Result:
    return fn.imag(self.pairs)


@aten("aten._conj.default", "aten.conj.default", "aten._conj_physical.default", "aten.conj_physical.default",
      views=True, complex=True)  # fmt: skip
def conj(self: AnyTensor) -> Result:
    return Complex(fn.conj(self.pairs)) if isinstance(self, Complex) else self


@aten("aten.complex.default", complex=True)
def of_parts(real: Tensor, imag: Tensor) -> Result:
    return Complex(fn.complex(real, imag))


@aten("aten.polar.default", complex=True)
def polar(abs: Tensor, angle: Tensor) -> Result:
    return Complex(fn.polar(abs, angle))


@aten("aten.abs.default", "aten.absolute.default", complex=True)
def absolute(self: Complex) -> Result:
    return fn.complex_abs(self.pairs)


@aten("aten.angle.default", complex=True)
def angle(self: AnyTensor) -> Result:
    if isinstance(self, Complex):
        return fn.angle(self.pairs)
    x = floating(self)
    return pointwise.where(F.less(x, 0.0), math.pi, pointwise.where(F.equal(x, x), 0.0, x))


# -------------------------------------------------------------------------------------------------- arithmetic


def _both(a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands in one type: complex tensors as pairs, real tensors, or real numbers."""
    kind = _common(a, b)
    network = next(x.pairs.network if isinstance(x, Complex) else x.network for x in (a, b) if hasattr(x, "shape"))

    def one(x: Any) -> Any:
        if isinstance(x, Complex):
            return cast(x.pairs, kind)
        if isinstance(x, complex):
            return network.constant(np.array([x.real, x.imag], kind.numpy))
        return x if isinstance(x, int | float) else as_operand(x, kind)

    return one(a), one(b)


def _is_real(x: AnyOperand) -> bool:
    return not isinstance(x, Complex | complex)


def _lifted(x: Any) -> Any:
    """A real operand for the numbers of pairs."""
    return fn.unsqueeze(x, -1) if isinstance(x, Value) else x


def _sum(a: AnyOperand, b: AnyOperand, compute: Callable[..., Any]) -> Result:
    x, y = _both(a, b)
    x, y = (fn.complex(v) if isinstance(v, Value) and _is_real(given) else v for v, given in ((x, a), (y, b)))
    if isinstance(x, Value) and isinstance(y, Value):
        return Complex(compute(x, y))
    pairs = x if isinstance(x, Value) else y  # the other one is a number, which has a real part only
    re, im = fn.real(pairs), fn.imag(pairs)
    return Complex(fn.complex(compute(re, y) if pairs is x else compute(x, re),
                              im if pairs is x or compute is F.add else F.neg(im)))  # fmt: skip


def _scaled(x: AnyOperand, alpha: Scalar) -> Any:
    return x if alpha == 1 else mul(x, alpha) if isinstance(x, Value | Complex) else x * alpha


@aten("aten.add.Tensor", "aten.add.Scalar", complex=True)
def add(self: AnyOperand, other: AnyOperand, alpha: Scalar = 1) -> Result:
    return _sum(self, _scaled(other, alpha), F.add)


@aten("aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor", "aten.subtract.Scalar", complex=True)
def sub(self: AnyOperand, other: AnyOperand, alpha: Scalar = 1) -> Result:
    return _sum(self, _scaled(other, alpha), F.sub)


@aten("aten.rsub.Tensor", "aten.rsub.Scalar", complex=True)
def rsub(self: AnyOperand, other: AnyOperand, alpha: Scalar = 1) -> Result:
    return sub(other, self, alpha)


@aten("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar", complex=True)
def mul(self: AnyOperand, other: AnyOperand) -> Result:
    x, y = _both(self, other)
    if not _is_real(self) and not _is_real(other):
        return Complex(fn.complex_mul(x, y))
    return Complex(F.mul(x, _lifted(y)) if _is_real(other) else F.mul(_lifted(x), y))


@aten("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.true_divide.Scalar", complex=True)
def div(self: AnyOperand, other: AnyOperand) -> Result:
    x, y = _both(self, other)
    if _is_real(other):
        return Complex(F.div(x, _lifted(y)))
    if isinstance(x, int | float):
        return mul(reciprocal(other), x)
    return Complex(fn.complex_div(fn.complex(x) if _is_real(self) else x, y))


@aten("aten.reciprocal.default", complex=True)
def reciprocal(self: AnyOperand) -> Result:
    if not isinstance(self, Complex):
        raise Unsupported("it takes a complex tensor")
    one = F.add(F.mul(fn.real(self.pairs), 0.0), 1.0)
    return Complex(fn.complex_div(fn.complex(one), self.pairs))


@aten("aten.neg.default", "aten.negative.default", complex=True)
def neg(self: Complex) -> Result:
    return Complex(F.neg(self.pairs))


@aten("aten.square.default", complex=True)
def square(self: Complex) -> Result:
    return mul(self, self)


@aten("aten.exp.default", complex=True)
def exp(self: Complex) -> Result:
    return Complex(fn.complex_exp(self.pairs))


def _bilinear(compute: Callable[[Any, Any], Any], a: AnyTensor, b: AnyTensor) -> Result:
    """What is linear in two operands, by their parts."""
    x, y = _both(a, b)
    if _is_real(a):
        return Complex(fn.complex(compute(x, fn.real(y)), compute(x, fn.imag(y))))
    if _is_real(b):
        return Complex(fn.complex(compute(fn.real(x), y), compute(fn.imag(x), y)))
    (p, q), (r, s) = ((fn.real(v), fn.imag(v)) for v in (x, y))
    return Complex(fn.complex(F.sub(compute(p, r), compute(q, s)), F.add(compute(p, s), compute(q, r))))


@aten("aten.matmul.default", complex=True)
def matmul(self: AnyTensor, other: AnyTensor) -> Result:
    return _bilinear(lambda a, b: layers.matmul(a, b), self, other)


@aten("aten.mm.default", "aten.bmm.default", complex=True)
def product(self: AnyTensor, mat2: AnyTensor) -> Result:
    return matmul(self, mat2)


@aten("aten.einsum.default", complex=True)
def einsum(equation: str, tensors: AnyTensors) -> Result:
    if len(tensors) == 1:
        pairs = as_complex(tensors[0]).pairs
        return Complex(fn.complex(*(fn.einsum(equation, part) for part in (fn.real(pairs), fn.imag(pairs)))))
    if len(tensors) != 2:
        raise Unsupported("of complex numbers it takes one or two operands")
    return _bilinear(lambda a, b: fn.einsum(equation, a, b), *tensors)


def _reduced(name: str) -> None:
    @aten(f"aten.{name}.default", f"aten.{name}.dim_IntList" if name == "sum" else f"aten.{name}.dim", complex=True)
    def of_parts(self: Complex, dim: MaybeInts = None, keepdim: bool = False) -> Result:
        axes = axes_of(dim or None, len(self.shape))
        return Complex(getattr(F, f"reduce_{name}")(self.pairs, axes=axes, keepdims=keepdim))


_reduced("sum")
_reduced("mean")


# ---------------------------------------------------------------------------------------------------- conversions


@aten("aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.to.device", views=True, complex=True)
def to_dtype(self: AnyTensor, dtype: MaybeDType = None) -> Result:
    """A real type takes the real parts, as torch does with a warning."""
    if dtype is None:
        return self
    if dtype.kind == "complex":
        return as_complex(self, part_type(dtype))
    return cast(real(self), dtype)


@aten("aten.copy.default", complex=True)
def copy(self: AnyTensor, src: AnyTensor) -> Result:
    if not isinstance(self, Complex):
        return F.expand(cast(real(src), self.dtype), self.shape)
    return Complex(F.expand(as_complex(src, self.pairs.dtype).pairs, self.pairs.shape))


def _filled(word: str, value: float) -> None:
    def pairs(network: Network, size: Sizes, dtype: Any) -> Result:
        whole = filled(network, size, value, part_type(dtype))
        return Complex(fn.complex(whole))

    @aten(f"aten.{word}.default", complex=True)
    def make(network: Network, size: Sizes, dtype: MaybeDType = None) -> Result:
        return pairs(network, size, dtype)

    @aten(f"aten.{word}_like.default", complex=True)
    def make_like(self: AnyTensor, dtype: MaybeDType = None) -> Result:
        kind = self.dtype if dtype is None else dtype
        network = self.pairs.network if isinstance(self, Complex) else self.network
        return pairs(network, self.shape, kind) if kind.kind == "complex" else filled(
            network, self.shape, value, kind)  # fmt: skip

    @aten(f"aten.new_{word}.default", complex=True)
    def make_new(self: AnyTensor, size: Sizes, dtype: MaybeDType = None) -> Result:
        kind = self.dtype if dtype is None else dtype
        network = self.pairs.network if isinstance(self, Complex) else self.network
        return pairs(network, size, kind) if kind.kind == "complex" else filled(network, size, value, kind)


_filled("zeros", 0.0)
_filled("ones", 1.0)


# ------------------------------------------------------------------------------------------------ only movement


@aten("aten.cat.default", "aten.concat.default", "aten.concatenate.default", complex=True)
def cat(tensors: AnyTensors, dim: int = 0) -> Result:
    return _joined(fn.concat, tensors, axis_of(dim, len(tensors[0].shape), "dim"))


@aten("aten.stack.default", complex=True)
def stack(tensors: AnyTensors, dim: int = 0) -> Result:
    return _joined(fn.stack, tensors, axis_of(dim, len(tensors[0].shape) + 1, "dim"))


def _joined(join: Callable[..., Any], tensors: AnyTensors, axis: int) -> Result:
    kind = _common(*tensors)
    return Complex(join([as_complex(x, kind).pairs for x in tensors], axis))


@aten("aten.t.default", "aten.mT.default", complex=True, views=True)
def transposed(self: Complex) -> Result:
    rank = len(self.shape)
    return self if rank < 2 else Complex(fn.transpose(self.pairs, rank - 2, rank - 1))


@aten("aten.adjoint.default", "aten.mH.default", complex=True, views=True)
def adjoint(self: Complex) -> Result:
    return transposed(conj(self))


def _carry(*names: str, dims: str = "", more: int = 0, pair: dict[str, Any] | None = None) -> None:
    """Enters ops that move elements: those of real numbers, with pairs in the last dimension.

    Args:
        dims: the parameters that name dimensions, of a rank that is `more` than that of the numbers.
        pair: what those that list sizes, dimensions or counts get behind theirs for the pairs' dimension; "first": in
            front of them.
    """
    for name in names:
        entry = TABLE[name]
        COMPLEX_TABLE[name] = entry._replace(function=_carried(entry.function, dims.split(), more, pair or {}), kinds={
            **entry.kinds, "self": COMPLEX_TABLE["aten.imag.default"].kinds["self"]})  # fmt: skip


def _carried(function: Callable[..., Any], dims: list[str], more: int, pair: dict[str, Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def run(self: Complex, **given: Any) -> Any:
        rank = len(self.shape)
        bound = signature.bind(self.pairs, **given)
        bound.apply_defaults()
        arguments = bound.arguments
        for name in dims:
            value = arguments[name]
            if value is not None:
                each = value if isinstance(value, tuple) else (value,)
                places = tuple(axis_of(d, rank + more, name) for d in each)
                arguments[name] = places if isinstance(value, tuple) else places[0]
        for name, extra in pair.items():
            if arguments.get(name) is not None:
                arguments[name] = extra + arguments[name] if name == "pad" else (
                    *arguments[name], rank if extra == "rank" else extra)  # fmt: skip
        found = function(*bound.args, **bound.kwargs)
        return tuple(map(Complex, found)) if isinstance(found, tuple | list) else Complex(found)

    return run


_carry("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", pair={"size": 2, "shape": 2})
_carry("aten.expand.default", "aten.broadcast_to.default", pair={"size": 2})
_carry("aten.repeat.default", pair={"repeats": 1})
_carry("aten.permute.default", dims="dims", pair={"dims": "rank"})
_carry("aten.flatten.using_ints", dims="start_dim end_dim")
_carry("aten.unflatten.int", "aten.slice.Tensor", "aten.select.int", "aten.narrow.default", "aten.split.Tensor",
       "aten.split_with_sizes.default", "aten.chunk.default", "aten.unbind.int", "aten.squeeze.dim",
       "aten.squeeze.dims", "aten.index_select.default", dims="dim")  # fmt: skip
_carry("aten.unsqueeze.default", dims="dim", more=1)
_carry("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default", dims="dim0 dim1 axis0 axis1")
_carry("aten.movedim.intlist", "aten.movedim.int", dims="source destination")
_carry("aten.flip.default", "aten.roll.default", dims="dims")
_carry("aten.squeeze.default", "aten.index.Tensor", "aten.contiguous.default", "aten.detach.default",
       "aten.alias.default", "aten.lift_fresh.default", "aten.resolve_conj.default", "aten.resolve_neg.default",
       "aten.clone.default", "aten.lift_fresh_copy.default", "aten.detach_copy.default",
       "aten.alias_copy.default")  # fmt: skip
_carry("aten.constant_pad_nd.default", "aten.pad.default", pair={"pad": (0, 0)})
