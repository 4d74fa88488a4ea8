"""Discrete Fourier transforms along one axis, of any length; and windows on a signal, which transforms read.

Complex numbers have no element type here: they are pairs (real, imaginary) in the last dimension, as torch.view_as_real
gives them. An axis counts the dimensions beside that of the pairs: −1 is the last one of the numbers, complex or not.
Transforms compute in float32 (float64 of float64) whatever they read, and round once. `norm` says which direction is
divided: "backward" the way back by n, "forward" the way there by n, "ortho" both by √n.
"""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.ir import Case, Op, Spec, op, require
from ingot.ir.spec import axis_of
from ingot.ops.common import Array, bf16, certainly_negative, f16, f32, f64, i32, minus, require_float, rounded, show

NORMS = ("backward", "ortho", "forward")


def pairs(x: Array) -> Array:
    """Complex numbers as pairs in a new last dimension."""
    return np.stack((x.real, x.imag), -1)


def numbers(x: Array) -> Array:
    """Pairs in the last dimension as complex numbers in double precision."""
    wide = x.astype(np.float64)
    return np.asarray(wide[..., 0] + 1j * wide[..., 1])


def _torch_numbers(torch: Any, x: Any) -> Any:
    return torch.view_as_complex((x if x.itemsize > 4 else x.float()).contiguous())


class Fourier(Op):
    """What all transforms have in common: x with pairs in the last dimension, or without."""

    axis: int = -1
    norm: str = "backward"
    of_pairs: ClassVar[bool] = True

    def place(self, rank: int) -> int:
        """The axis from the front, of an x of that rank."""
        return axis_of(self.axis, rank - self.of_pairs)

    def check(self, x: Spec) -> int:
        """Holds what x and the attributes have to be; gives the axis from the front."""
        require_float(x=x)
        require(self.norm in NORMS, f"norm must be one of {', '.join(NORMS)}, not {self.norm!r}")
        if self.of_pairs:
            require(len(x.shape) > 0 and x.shape[-1] == 2,
                    f"x must be pairs (real, imaginary) in its last dimension, not {show(x.shape)}")
        at = self.place(len(x.shape))
        require(dims.bounds(x.shape[at])[1] >= 1, f"there is nothing to transform: axis {self.axis} has size 0")
        return at

    def working(self, x: Spec, *_: Any) -> int:
        """Complex numbers in double precision: x, its transform, and the chirp of a long prime."""
        return 96 * int(x.elements)

    def steps(self, x: Spec, *_: Any) -> int:
        return 8 * int(x.elements) * max(int(x.elements).bit_length(), 1)

    @classmethod
    def drawn(cls, draw: Any, **attrs: Any) -> Case:
        shape = [draw.choice([0, 1, 2, 5]) for _ in range(draw.choice([0, 1, 2]))]
        at = draw.choice(range(len(shape) + 1))
        shape.insert(at, draw.choice([*range(1, 40), 64, 74, 97]))
        spec = Spec((*shape, 2) if cls.of_pairs else tuple(shape), draw.choice([dtypes.float32, dtypes.bfloat16]))
        axis = draw.choice([at, at - len(shape)])
        return Case("random", (spec,), {"axis": axis, "norm": draw.choice(NORMS), **attrs})


@op("fft")
class Fft(Fourier):
    """Complex numbers along an axis into as many: y[k] = Σ x[j] exp(−2πi·jk/n), or with `inverse` exp(2πi·jk/n)."""

    inverse: bool = False
    cases = (
        Case("rows", (f32(3, 20, 2),)),
        Case("back", (f32(3, 20, 2),), {"inverse": True}),
        Case("the first axis, a prime", (f32(37, 3, 2),), {"axis": 0, "norm": "ortho"}),
        Case("a length with a small odd prime", (f32(2, 77, 2),), {"inverse": True, "norm": "forward"}),
        Case("batch and length unknown", (f32("N", "T", 2),)),
        Case("bfloat16 rounds once", (bf16(3, 16, 2),)),
        Case("float16 rounds once", (f16(3, 15, 2),)),
        Case("float64 has no kernel", (f64(3, 15, 2),), host="the kernel takes no float64"),
        Case("one number", (f32(1, 2),)),
        Case("no rows", (f32(0, 8, 2),)),
        Case("no numbers", (f32(3, 0, 2),), error="nothing to transform: axis -1 has size 0"),
        Case("no pairs", (f32(3, 8),), error="x must be pairs"),
        Case("no axis beside the pairs", (f32(2),), error="axis -1 is out of range"),
        Case("no such norm", (f32(8, 2),), {"norm": "none"}, error="norm must be one of backward, ortho, forward"),
        Case("integers", (i32(8, 2),), error="x must be float32"),
    )

    def infer(self, x: Spec) -> Spec:
        self.check(x)
        return x

    def reference(self, x: Array) -> Array:
        at = self.place(x.ndim)
        require(x.shape[at] > 0, f"there is nothing to transform: axis {self.axis} has size 0")
        with np.errstate(all="ignore"):
            y = (np.fft.ifft if self.inverse else np.fft.fft)(numbers(x), axis=at, norm=self.norm)  # type: ignore[arg-type]
        return rounded(pairs(y), x)

    def torch(self, torch: Any, x: Any) -> Any:
        if 0 in x.shape:  # torch wants elements
            return x.clone()
        to = torch.fft.ifft if self.inverse else torch.fft.fft
        return torch.view_as_real(to(_torch_numbers(torch, x), dim=self.axis, norm=self.norm)).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        return cls.drawn(draw, inverse=draw.boolean())


@op("rfft")
class Rfft(Fourier):
    """Real numbers along an axis into complex ones: the first n/2 + 1 of them, or all n where not `onesided`.

    The others are conjugates: y[n − k] = y[k]*. x [..., n, ...] → y [..., n/2 + 1, ..., 2].
    """

    onesided: bool = True
    of_pairs = False
    cases = (
        Case("rows of an even length", (f32(3, 20),)),
        Case("rows of an odd length", (f32(3, 21),), {"norm": "forward"}),
        Case("all numbers", (f32(3, 20),), {"onesided": False}),
        Case("all numbers of an odd length", (f32(3, 9),), {"onesided": False, "norm": "ortho"}),
        Case("the first axis, twice a prime", (f32(74, 3),), {"axis": 0}),
        Case("batch and length unknown", (f32("N", "T"),)),
        Case("all of an unknown length", (f32("T", 3),), {"axis": 0, "onesided": False}),
        Case("bfloat16 rounds once", (bf16(3, 16),)),
        Case("float16 rounds once", (f16(3, 15),)),
        Case("float64 has no kernel", (f64(3, 15),), host="the kernel takes no float64"),
        Case("one number", (f32(1),)),
        Case("two", (f32(2),)),
        Case("no rows", (f32(0, 8),)),
        Case("no numbers", (f32(3, 0),), error="nothing to transform: axis -1 has size 0"),
        Case("a scalar", (f32(),), error="axis -1 is out of range"),
        Case("no such norm", (f32(8),), {"norm": "none"}, error="norm must be one of backward, ortho, forward"),
        Case("integers", (i32(8),), error="x must be float32"),
    )

    def infer(self, x: Spec) -> Spec:
        at = self.check(x)
        size = x.shape[at]
        wanted = dims.add(dims.floordiv(size, 2), 1) if self.onesided else size
        return Spec((*x.shape[:at], wanted, *x.shape[at + 1 :], 2), x.dtype)

    def reference(self, x: Array) -> Array:
        at = self.place(x.ndim)
        require(x.shape[at] > 0, f"there is nothing to transform: axis {self.axis} has size 0")
        with np.errstate(all="ignore"):
            to = np.fft.rfft if self.onesided else np.fft.fft
            y = to(x.astype(np.float64), axis=at, norm=self.norm)  # type: ignore[arg-type]
        return rounded(pairs(y), x)

    def torch(self, torch: Any, x: Any) -> Any:
        if 0 in x.shape:
            return x.new_zeros(self.infer(Spec(tuple(x.shape), "float32")).evaluate({}))
        to = torch.fft.rfft if self.onesided else torch.fft.fft
        wide = x if x.itemsize > 4 else x.float()
        return torch.view_as_real(to(wide, dim=self.axis, norm=self.norm)).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        return cls.drawn(draw, onesided=draw.boolean())


@op("irfft")
class Irfft(Fourier):
    """The way back from the first n/2 + 1 complex numbers to the n real ones; n is 2·(m − 1) of m numbers if not given.

    x [..., m, ..., 2] → y [..., n, ...]. What of n/2 + 1 numbers is missing is zero, and more are not read. The
    imaginary parts of the first one, and of the last one of an even n, do not count.
    """

    n: Dimension | None = None
    cases = (
        Case("rows of an even length", (f32(3, 11, 2),)),
        Case("rows of an odd length", (f32(3, 11, 2),), {"n": 21, "norm": "ortho"}),
        Case("more numbers than are read", (f32(3, 11, 2),), {"n": 8}),
        Case("fewer numbers than are read", (f32(3, 4, 2),), {"n": 15, "norm": "forward"}),
        Case("the first axis, twice a prime", (f32(38, 3, 2),), {"axis": 0}),
        Case("batch and length unknown", (f32("N", "T", 2),)),
        Case("a length that is given", (f32("T", 3, 2),), {"axis": 0, "n": "T"}),
        Case("bfloat16 rounds once", (bf16(3, 9, 2),)),
        Case("float16 rounds once", (f16(3, 8, 2),), {"n": 15}),
        Case("float64 has no kernel", (f64(3, 9, 2),), host="the kernel takes no float64"),
        Case("one number", (f32(3, 2),), {"n": 1}),
        Case("no rows", (f32(0, 8, 2),)),
        Case("none of one number", (f32(1, 2),), error="n must be at least 1, not 0"),
        Case("no numbers", (f32(3, 0, 2),), {"n": 4}, error="nothing to transform: axis -1 has size 0"),
        Case("no pairs", (f32(3, 8),), error="x must be pairs"),
        Case("no such norm", (f32(8, 2),), {"norm": "none"}, error="norm must be one of backward, ortho, forward"),
        Case("integers", (i32(8, 2),), error="x must be float32"),
    )

    def infer(self, x: Spec) -> Spec:
        at = self.check(x)
        size = self.length(x.shape[at])
        require(dims.bounds(size)[1] >= 1, f"n must be at least 1, not {size}")
        return Spec((*x.shape[:at], size, *x.shape[at + 1 : -1]), x.dtype)

    def length(self, given: Dimension) -> Dimension:
        """How many real numbers there are of that many complex ones."""
        return dims.mul(dims.add(given, -1), 2) if self.n is None else self.n

    def reference(self, x: Array) -> Array:
        at = self.place(x.ndim)
        n = int(self.length(x.shape[at]))
        require(x.shape[at] > 0 and n > 0, f"axis {self.axis} of {x.shape[at]} numbers cannot become one of {n}")
        with np.errstate(all="ignore"):
            y = np.fft.irfft(numbers(x), n=n, axis=at, norm=self.norm)  # type: ignore[arg-type]
        return rounded(y, x)

    def torch(self, torch: Any, x: Any) -> Any:
        n = int(self.length(x.shape[self.place(x.ndim)]))
        if 0 in x.shape:
            return x.new_zeros(self.infer(Spec(tuple(x.shape), "float32")).evaluate({}))
        return torch.fft.irfft(_torch_numbers(torch, x), n=n, dim=self.axis, norm=self.norm).to(x.dtype)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        return cls.drawn(draw, n=draw.choice([*range(1, 40), 64, 74, 97]))


@op("unfold")
class Unfold(Op):
    """Windows of `size` elements along `axis`, one every `step`, in a new last dimension; they may overlap.

    The axis of n elements becomes one of (n − size) / step + 1 windows.
    """

    axis: int
    size: int
    step: int
    in_scope = "moves"
    is_view = True
    cases = (
        Case("frames of a signal", (f32("N", 20),), {"axis": -1, "size": 8, "step": 3}),
        Case("apart from each other", (f32(2, 20, 3),), {"axis": 1, "size": 2, "step": 5}),
        Case("of an unknown length", (bf16("T"),), {"axis": 0, "size": 4, "step": 2}, dims={"T": 11}),
        Case("the whole", (f32(3, 7),), {"axis": 1, "size": 7, "step": 1}),
        Case("larger than the axis", (f32(3, 7),), {"axis": 1, "size": 8, "step": 1},
             error="windows of 8 elements do not fit into the 7 of axis 1"),
        Case("no step", (f32(9),), {"axis": 0, "size": 2, "step": 0}, error="size and step must be at least 1"),
        Case("no such axis", (f32(9),), {"axis": 1, "size": 2, "step": 1}, error="axis 1 is out of range"),
    )  # fmt: skip

    def infer(self, x: Spec) -> Spec:
        at = axis_of(self.axis, len(x.shape))
        require(self.size >= 1 and self.step >= 1, f"size and step must be at least 1, not {self.size} and {self.step}")
        rest = minus(x.shape[at], self.size)
        require(not certainly_negative(rest),
                f"windows of {self.size} elements do not fit into the {x.shape[at]} of axis {self.axis}")
        count = dims.add(dims.floordiv(rest, self.step), 1)
        return Spec((*x.shape[:at], count, *x.shape[at + 1 :], self.size), x.dtype)

    def reference(self, x: Array) -> Array:
        self.infer(Spec.of(x))
        at = axis_of(self.axis, x.ndim)
        windows = np.lib.stride_tricks.sliding_window_view(x, self.size, at)
        return windows[(*[slice(None)] * at, slice(None, None, self.step))]

    def torch(self, torch: Any, x: Any) -> Any:
        return x.unfold(self.axis, self.size, self.step)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        shape = [draw.choice([1, 2, 5]) for _ in range(draw.choice([1, 2, 3]))]
        at = draw.axis(len(shape))
        shape[at] = draw.choice([1, 4, 11, 30])
        size = draw.choice([n for n in (1, 2, 3, 7, 30) if n <= shape[at]])
        return Case("random", (f32(*shape),), {"axis": at, "size": size, "step": draw.choice([1, 2, 5, 40])})
