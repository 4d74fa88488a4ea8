"""What kernels of target cuda are given: weights, rows with scales, norms, mixtures of experts, and forms of attention.

Tensors are torch's, on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Norm:
    """A norm of a product's rows: x / sqrt(mean(x²) + eps) · (gain + shift); or, of x less its mean where `centred`,
    a layer norm, whose gain may be None, plus `beta` if that is not None.
    """

    gain: Any
    eps: float
    shift: float
    beta: Any = None
    centred: bool = False

    @property
    def form(self) -> int:
        """As the kernels know it."""
        return 2 if self.centred else 1


@dataclass(frozen=True)
class Rows:
    """Rows of float8 [T, k], each with a scale: what a product gives another that rounds its rows. dtype: of the rows
    that they stand for."""

    numbers: Any
    scales: Any
    dtype: Any

    def __len__(self) -> int:
        return len(self.numbers)

    def stride(self, dim: int) -> int:
        """As a tensor has it."""
        return int(self.numbers.stride(dim))

    def wide(self) -> Any:
        """The rows that they stand for."""
        return (self.numbers.float() * self.scales[:, None]).to(self.dtype)


@dataclass(frozen=True)
class Weight:
    """What a product multiplies rows with, [n, k]; `second` makes it act(x · wᵀ) · (x · secondᵀ).

    scales: float32, of int8 and float8_e4m3fn one an output; with `group`, of 4 bits in bytes [n, k / 2] (`packed`),
    one a group, float32 or float16. activation: what the sums of the first one go through, by its name in
    `ops.mixture`; "" is silu of a pair, and none of one weight. zeros: int8, of experts in groups: the integer of each
    group that stands for 0; None: 0 itself.
    """

    first: Any
    scales: Any = None
    second: Any = None
    second_scales: Any = None
    group: int = 0
    activation: str = ""
    zeros: Any = None
    second_zeros: Any = None

    @property
    def acts(self) -> str:
        """The activation's name, "" for none."""
        return self.activation or ("silu" if self.second is not None else "")

    @property
    def integers(self) -> bool:
        """Whether it holds integers."""
        return self.scales is not None and not self.first.is_floating_point()

    @property
    def float8(self) -> bool:
        """Whether it holds floats of 8 bits."""
        return self.scales is not None and not self.integers

    @property
    def parts(self) -> int:
        """How many weights it is."""
        return 1 if self.second is None else 2

    @property
    def outputs(self) -> int:
        """n."""
        return int(self.first.shape[0])

    @property
    def inputs(self) -> int:
        """k."""
        return int(self.first.shape[1]) * (2 if self.group else 1)


@dataclass(frozen=True)
class Mixture:
    """The experts of a mixture, one behind the other. gated: gates and ups as a pair [experts · inner, hidden]; downs:
    [experts · hidden, inner]. top: experts of a row; normalize: whether their shares sum to 1.
    """

    gated: Weight
    downs: Weight
    experts: int
    top: int
    normalize: bool

    @property
    def weights(self) -> tuple[Weight, Weight]:
        """Both."""
        return self.gated, self.downs

    def one(self, weight: Weight) -> Weight:
        """The first expert's part of one of them."""
        n = weight.outputs // self.experts
        second = None if weight.second is None else weight.second[:n]
        return replace(weight, first=weight.first[:n], second=second)


@dataclass(frozen=True)
class Form:
    """How attention computes. cos, sin: float32 [T, R], by which queries and keys are rotated; None: they are not.
    halves: whether pairs are i and i + R. window: 0 is none; softcap: 0 is none; slopes: float32 [H], of ALiBi.
    """

    scale: float
    cos: Any = None
    sin: Any = None
    halves: bool = True
    window: int = 0
    softcap: float = 0.0
    slopes: Any = None

    @property
    def flags(self) -> dict[str, bool]:
        """What the kernels are compiled for."""
        return {"WINDOW": self.window > 0, "SOFTCAP": self.softcap > 0, "ALIBI": self.slopes is not None}


def packed(torch: Any, weight: Any, group: int) -> Any:
    """Integers of 4 bits, int8 [n, k], as the kernels read them: uint8 [n, k / 2].

    Byte j of a group holds its elements j and j + group / 2, as q + 8 each.
    """
    n, k = weight.shape
    halves = (weight + 8).to(torch.uint8).view(n, k // group, 2, group // 2)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(n, k // 2).contiguous()


def unpacked(torch: Any, weight: Any, group: int) -> Any:
    """The int8 [n, k] of what `packed` gave."""
    n, half = weight.shape
    halves = weight.view(n, 2 * half // group, 1, group // 2)
    return (torch.cat([halves & 15, halves >> 4], 2).reshape(n, 2 * half)).to(torch.int8) - 8


def or_else(instead: Any, *tensors: Any) -> Sequence[Any]:
    """Tensors, and another one in place of those that a kernel is told not to read."""
    return [instead if t is None else t for t in tensors]


def operands_of(x: Any, weight: Weight, first: Any, second: Any, bias: Any, extra: Any) -> Sequence[Any]:
    """Of a product its weights, as a kernel reads them, their scales, and what is added: x for those that it does not
    read, None for a bias that is not there."""
    first, second, scales, second_scales, extra = or_else(x, first, second, weight.scales, weight.second_scales, extra)
    return first, second, scales, second_scales, bias, extra


def norm_of(norm: Norm | None, x: Any) -> tuple[Any, Any, float, float, int]:
    """A norm as kernels are given it: gain, beta, eps, shift and NORM."""
    return (norm.gain, norm.beta, norm.eps, norm.shift, norm.form) if norm else (x, None, 0.0, 0.0, 0)


def stride_of(extra: Any) -> int:
    """From one row of what a product adds to the next: 0 where all rows get the same, or nothing."""
    return int(extra.stride(0)) if extra is not None and extra.dim() == 2 else 0
