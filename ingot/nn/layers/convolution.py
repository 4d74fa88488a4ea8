"""Convolutions and transposed convolutions, with torch's parameter names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ingot import dims, functional
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.nn.layers.linear import positive
from ingot.nn.module import Module
from ingot.nn.parameter import Parameter

Sizes = int | Sequence[int]


def sizes_of(layer: str, what: str, value: Any, rank: int, least: int | None = 1) -> tuple[int, ...]:
    """One int per spatial dimension, from one for all or one each.

    Raises:
        ModuleError: another number of entries, entries that are no ints or below `least`.
    """
    found = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    found = found * rank if len(found) == 1 else found
    if len(found) != rank or not all(type(v) is int and (least is None or v >= least) for v in found):
        wanted = "an int" if least is None else "a positive int" if least else "an int of 0 or more"
        raise ModuleError(f"{layer}: {what}={value!r} must be {wanted}, or {rank} of them")
    return found


class _Convolution(Module):
    """What the two kinds share: the parameters, and checking them."""

    rank: ClassVar[int]
    transposed: ClassVar[bool]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Sizes | str,
        dilation: Sizes,
        groups: int,
        bias: bool,
        padding_mode: Any,
        dtype: DType | str | None,
        pre_padding: Sizes | None,
        post_padding: Sizes | None,
    ) -> None:
        super().__init__()
        layer, rank = type(self).__name__, self.rank
        positive(layer, in_channels=in_channels, out_channels=out_channels, groups=groups)
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise ModuleError(f"{layer}: {name}={channels} is not a multiple of groups={groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes_of(layer, "kernel_size", kernel_size, rank)
        self.stride = sizes_of(layer, "stride", stride, rank)
        self.dilation = sizes_of(layer, "dilation", dilation, rank)
        least = None if self.transposed else 0
        word = not self.transposed and padding in ("valid", "same")
        self.padding: Any = padding if word else sizes_of(layer, "padding", padding, rank, 0)
        self.pre_padding, self.post_padding = (
            None if value is None else sizes_of(layer, name, value, rank, least)
            for name, value in (("pre_padding", pre_padding), ("post_padding", post_padding))
        )
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ModuleError(f'{layer}: padding="same" needs stride 1, not {stride!r}')
        modes = ("zeros", "explicit_round_down", "explicit_round_up", "same_upper", "same_lower")
        if not isinstance(padding_mode, str) or padding_mode.lower() not in modes:
            raise ModuleError(f"{layer}: padding_mode={padding_mode!r} must be one of {', '.join(modes)}")
        self.padding_mode = padding_mode
        inner = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(shape=(*inner, *self.kernel_size), dtype=dtype)
        self.register_parameter("bias", Parameter(shape=(out_channels,), dtype=dtype) if bias else None)

    def _arguments(self) -> dict[str, Any]:
        mode = "explicit_round_down" if self.padding_mode == "zeros" else self.padding_mode
        names = ("stride", "padding", "dilation", "groups", "pre_padding", "post_padding")
        return {name: getattr(self, name) for name in names} | {"padding_mode": mode}


class _Conv(_Convolution):
    transposed = False
    convolve: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: DType | str | None = None,
        *,
        pre_padding: Sizes | None = None,
        post_padding: Sizes | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, dtype,
            pre_padding, post_padding,
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """[N, in_channels, …] or [in_channels, …] → the same with out_channels"""
        return type(self).convolve(x, self.weight, self.bias, **self._arguments())


class Conv1d(_Conv):
    """Convolution over one dimension; arguments as Conv2d."""

    rank, convolve = 1, functional.conv1d


class Conv2d(_Conv):
    """Convolution over two dimensions: weight [out_channels, in_channels / groups, *kernel_size].

    Args:
        in_channels, out_channels: of x and of the result.
        kernel_size, stride, dilation: an int, or one for each dimension.
        padding: zeros on both sides, "valid" (none), or "same" (the size stays; stride 1 only).
        groups: how many shares the channels fall into that know nothing of each other.
        bias: whether there is a bias [out_channels].
        padding_mode: "zeros", or a mode of functional.conv2d ("same_upper", …).
        dtype: of weight and bias, and so of x; default float32.
        pre_padding, post_padding: zeros in front and behind, instead of `padding`.

    Raises:
        ModuleError: sizes that are not positive, channels that are not a multiple of the groups.
    """

    rank, convolve = 2, functional.conv2d


class Conv3d(_Conv):
    """Convolution over three dimensions; arguments as Conv2d."""

    rank, convolve = 3, functional.conv3d


class _ConvTranspose(_Convolution):
    transposed = True
    convolve: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        *,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        dtype: DType | str | None = None,
        pre_padding: Sizes | None = None,
        post_padding: Sizes | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, dtype,
            pre_padding, post_padding,
        )  # fmt: skip
        layer = type(self).__name__
        self.output_padding = sizes_of(layer, "output_padding", output_padding, self.rank, 0)
        for i, (size, s, d) in enumerate(zip(self.output_padding, self.stride, self.dilation, strict=True)):
            if size >= max(s, d):
                raise ModuleError(
                    f"{layer}: output_padding of spatial dimension {i} is {size}; it must be below {max(s, d)}, the "
                    f"larger of stride {s} and dilation {d}"
                )

    def forward(self, x: Any, output_size: Sequence[Any] | None = None) -> Any:
        """[N, in_channels, …] or [in_channels, …] → the same with out_channels

        Args:
            output_size: the spatial sizes wanted, or all sizes of the result; ints or dims such as another tensor's.
                It takes the place of output_padding: of the S sizes that a stride S leaves open it picks one.

        Raises:
            ModuleError: (a ValueError) another number of sizes, or sizes out of reach. Sizes that are known only at
                run time are checked then.
        """
        convolve, arguments = type(self).convolve, self._arguments()
        if output_size is None:
            return convolve(x, self.weight, self.bias, output_padding=self.output_padding, **arguments)
        wanted = self._wanted(x, output_size)
        room = self._room(x, wanted)
        padding = tuple(r if isinstance(r, int) else s - 1 for r, s in zip(room, self.stride, strict=True))
        y = convolve(x, self.weight, self.bias, output_padding=padding, **arguments)
        if dims.all_fixed(room):
            return y
        # The largest result, cut to what is asked for. A cut that starts before the first element is refused at run
        # time, so it starts at 0 only for a size within reach.
        outer = len(y.shape) - self.rank
        starts = [dims.minimum(0, r, dims.add(s - 1, dims.mul(r, -1))) for r, s in zip(room, self.stride, strict=True)]
        return functional.slice(y, [*[0] * outer, *starts], [*y.shape[:outer], *wanted])

    def _wanted(self, x: Any, output_size: Sequence[Any]) -> list[Dimension]:
        """The spatial sizes of an output_size."""
        sizes = [dims.as_dim(n) for n in output_size]
        if len(sizes) not in (self.rank, len(x.shape)):
            raise ModuleError(
                f"{type(self).__name__}: output_size must have {self.rank} entries, or {len(x.shape)} for the whole "
                f"result, not {len(sizes)}"
            )
        return sizes[-self.rank :]

    def _room(self, x: Any, wanted: list[Dimension]) -> list[Dimension]:
        """How much larger than the smallest possible result each size is, which must be below the stride."""
        same, sizes = self.padding_mode.lower().startswith("same"), x.shape[-self.rank :]
        before = self.padding if self.pre_padding is None else self.pre_padding
        after = self.padding if self.post_padding is None else self.post_padding
        least = []
        for n, k, s, d, b, a in zip(sizes, self.kernel_size, self.stride, self.dilation, before, after, strict=True):
            span = d * (k - 1) + 1
            cut = max(span - s, 0) if same else b + a
            least.append(dims.add(dims.mul(dims.add(n, -1), s), span - cut))
        room = [dims.add(w, dims.mul(n, -1)) for w, n in zip(wanted, least, strict=True)]
        bounds = map(dims.bounds, room)
        if any(high < 0 or low >= s for (low, high), s in zip(bounds, self.stride, strict=True)):
            most = [dims.add(n, s - 1) for n, s in zip(least, self.stride, strict=True)]
            raise ModuleError(
                f"{type(self).__name__}: output_size {wanted} is out of reach: sizes go from {least} to {most} for an "
                f"input of {list(sizes)}"
            )
        return room


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over one dimension; arguments as ConvTranspose2d."""

    rank, convolve = 1, functional.conv_transpose1d


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over two dimensions: weight [in_channels, out_channels / groups, *kernel_size].

    Args:
        in_channels, out_channels: of x and of the result.
        kernel_size, stride, dilation: an int, or one for each dimension.
        padding: rows cut from both sides of the whole result.
        output_padding: rows that are left on at the end after all.
        groups, bias, dilation: by name only, as torch and the retired API order them differently.
        padding_mode: "zeros", or a mode of functional.conv_transpose2d ("same_upper", …).
        dtype: of weight and bias, and so of x; default float32.
        pre_padding, post_padding: what is cut in front and behind, instead of `padding`; may be negative.

    Raises:
        ModuleError: sizes that are not positive, channels that are not a multiple of the groups, an output_padding
            that reaches stride and dilation.
    """

    rank, convolve = 2, functional.conv_transpose2d


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over three dimensions; arguments as ConvTranspose2d."""

    rank, convolve = 3, functional.conv_transpose3d
