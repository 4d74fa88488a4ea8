"""layers.Mamba, Mamba2, Recurrent and their parts: products around the recurrences of recurrent.py."""

from __future__ import annotations

import math
from typing import Any

from ingot.compat.functional import FUNCTIONS
from ingot.compat.layers import ColumnLinear, Linear, RmsNorm, RowLinear
from ingot.compat.module import Module
from ingot.compat.parameter import Parameter
from ingot.compat.recurrent import mamba_conv1d, rg_lru, selective_scan
from ingot.compat.refusal import called, refused, single


class MambaConv1d(Module):
    """A causal convolution of each channel: weight [d_inner, 1, d_conv, 1], bias [d_inner]."""

    @called("MambaConv1d")
    def __init__(
        self, d_inner: int, d_conv: int = 4, pre_stride: int = 0, post_stride: int = 0, dtype: Any = None,
        apply_silu: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.d_inner, self.d_conv, self.apply_silu = d_inner, d_conv, apply_silu
        self.pre_stride, self.post_stride, self.dtype = pre_stride, post_stride, dtype
        self.weight = Parameter(shape=(d_inner, 1, d_conv, 1), dtype=dtype)
        self.bias = Parameter(shape=(d_inner,), dtype=dtype)

    @called("MambaConv1d.forward")
    def forward(
        self, x: Any, conv_state: Any, host_request_types: Any, last_token_ids: Any, host_context_lengths: Any = None,
        slot_mapping: Any = None, conv_indices: Any = None,
    ) -> Any:  # fmt: skip
        """[B, S, …] or packed [T, …], states [B, d_conv - 1, d_inner] → d_inner channels, and the states behind."""
        flat = FUNCTIONS["view"](self.weight.value, (self.d_inner, self.d_conv))
        return mamba_conv1d(
            x, conv_state, FUNCTIONS["permute"](flat, (1, 0)), self.bias.value, host_request_types, last_token_ids,
            self.d_inner, self.d_conv, self.dtype, self.pre_stride, self.post_stride, host_context_lengths,
            slot_mapping, self.apply_silu,
        )  # fmt: skip


class Mamba(Module):
    """Mamba's block: two products, a convolution, the selective scan, and a product behind."""

    @called("Mamba")
    def __init__(
        self, d_model: int, d_inner: int, d_state: int = 16, d_conv: int = 4, dt_rank: Any = "auto",
        bias: bool = False, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.d_model, self.d_inner, self.d_state, self.d_conv = d_model, d_inner, d_state, d_conv
        self.dt_rank, self.dtype = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank, dtype
        self.A = Parameter(shape=(d_state, d_inner), dtype="float32")
        self.D = Parameter(shape=(d_inner,), dtype="float32")
        self.dt_bias = Parameter(shape=(d_inner,), dtype="float32")
        self.in_proj_x, self.in_proj_z = (Linear(d_model, d_inner, bias, dtype) for _ in range(2))
        self.conv1d = MambaConv1d(d_inner, d_conv, dtype=dtype)
        self.x_proj = Linear(d_inner, self.dt_rank + 2 * d_state, False, dtype)
        self.dt_proj = Linear(self.dt_rank, d_inner, False, dtype)
        self.out_proj = Linear(d_inner, d_model, bias, dtype)

    @called("Mamba.forward")
    def forward(
        self, hidden_states: Any, conv_state: Any, ssm_state: Any, host_request_types: Any, last_token_ids: Any,
        host_context_lengths: Any = None, slot_mapping: Any = None, conv_indices: Any = None,
    ) -> Any:  # fmt: skip
        """[B, S, d_model] or packed [T, d_model] → the same, and both states behind the step.

        States are [B, d_conv - 1, d_inner] and [B, d_state, d_inner].
        """
        x, z = self.in_proj_x(hidden_states), self.in_proj_z(hidden_states)
        x, conv_state = self.conv1d(
            x, conv_state, host_request_types, last_token_ids, host_context_lengths, slot_mapping, conv_indices
        )
        both = self.x_proj(x)
        delta = self.dt_proj(FUNCTIONS["split"](both, [self.dt_rank, 2 * self.d_state], dim=-1)[0])
        y, ssm_state = selective_scan(
            x, ssm_state, delta, self.dt_bias.value, self.A.value, both, self.D.value, host_request_types,
            last_token_ids, self.d_inner, self.d_state, self.dt_rank, delta_softplus=True, dtype=self.dtype, z=z,
            slot_mapping=slot_mapping,
        )  # fmt: skip
        return self.out_proj(y), conv_state, ssm_state


class Mamba2(Module):
    """Mamba2's block: one product for all that the scan reads, a convolution, the scan of heads, norm and product."""

    @called("Mamba2")
    def __init__(
        self, d_model: int, d_inner: int, d_state: int = 16, d_conv: int = 4, headdim: int = 64, ngroups: int = 1,
        chunk_size: int = 256, bias: bool = False, rmsnorm: bool = True, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        single("Mamba2", tp_size)
        if d_inner % headdim:
            raise refused(f"Mamba2 of {d_inner} channels in heads of {headdim}", "give a divisor")
        self.d_model, self.d_inner, self.d_state, self.d_conv = d_model, d_inner, d_state, d_conv
        self.headdim, self.ngroups, self.nheads = headdim, ngroups, d_inner // headdim
        self.rmsnorm, self.dtype, self.chunk_size = rmsnorm, dtype, chunk_size
        self.A, self.D, self.dt_bias = (Parameter(shape=(self.nheads,), dtype="float32") for _ in range(3))
        shared = 2 * ngroups * d_state
        self.in_proj = ColumnLinear(d_model, 2 * d_inner + shared + self.nheads, bias, dtype)
        self.conv_dim = d_inner + shared
        self.conv1d = MambaConv1d(self.conv_dim, d_conv, pre_stride=d_inner, post_stride=self.nheads, dtype=dtype)
        if rmsnorm:
            self.norm = RmsNorm(d_inner, num_groups=ngroups, eps=1e-5, dtype=dtype)
        self.out_proj = RowLinear(d_inner, d_model, bias, dtype)

    @called("Mamba2.forward")
    def forward(
        self, hidden_states: Any, conv_state: Any, ssm_state: Any, host_request_types: Any, last_token_ids: Any,
        host_context_lengths: Any = None, slot_mapping: Any = None, conv_indices: Any = None,
    ) -> Any:  # fmt: skip
        """[B, S, d_model] or packed [T, d_model] → the same, and both states behind the step.

        States are [B, d_conv - 1, conv_dim] and [B, heads, d_state, headdim].
        """
        whole = self.in_proj(hidden_states)
        mixed, conv_state = self.conv1d(
            whole, conv_state, host_request_types, last_token_ids, host_context_lengths, slot_mapping, conv_indices
        )
        y, ssm_state = selective_scan(
            mixed, ssm_state, whole, self.dt_bias.value, self.A.value, mixed, self.D.value, host_request_types,
            last_token_ids, self.d_inner, self.d_state, dt_rank=0, delta_softplus=True, dtype=self.dtype, z=whole,
            slot_mapping=slot_mapping, nheads=self.nheads, ngroups=self.ngroups, chunk_size=self.chunk_size,
            mamba_version="Mamba2",
        )  # fmt: skip
        y = self.norm(y) if self.rmsnorm else y
        return self.out_proj(y), conv_state, ssm_state


# ---------------------------------------------------------------------------------------------- RecurrentGemma


class GroupedLinear(Module):
    """Products of blocks of neighbouring features: weight [num_blocks, in / num_blocks, out / num_blocks].

    With fuse_bias the bias is left to whoever reads the result.
    """

    @called("GroupedLinear")
    def __init__(
        self, in_features: int, out_features: int, num_blocks: int, bias: bool = True, dtype: Any = None,
        use_fp8: bool = False, tp_group: Any = None, tp_size: int = 1, gather_output: bool = True,
        strict_dtype: bool = False, fuse_bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        single("GroupedLinear", tp_size)
        if use_fp8:
            raise refused("GroupedLinear with use_fp8", "float weights: float8 has no kernel on a CPU")
        if num_blocks < 1 or in_features % num_blocks or out_features % num_blocks:
            raise refused(f"GroupedLinear of {in_features} to {out_features} in {num_blocks} blocks", "give a divisor")
        self.in_features, self.out_features, self.num_blocks = in_features, out_features, num_blocks
        self.dtype, self.fuse_bias = dtype, fuse_bias
        each, made = in_features // num_blocks, out_features // num_blocks
        self.weight = Parameter(shape=(num_blocks, each, made), dtype=dtype)
        self.register_parameter("bias", Parameter(shape=(num_blocks, made), dtype=dtype) if bias else None)

    def forward(self, x: Any) -> Any:
        """[…, in_features] → […, out_features]"""
        shape, concat, view = FUNCTIONS["shape"], FUNCTIONS["concat"], FUNCTIONS["view"]
        flat = view(x, (-1, self.num_blocks, self.in_features // self.num_blocks), False)
        product = FUNCTIONS["matmul"](FUNCTIONS["permute"](flat, (1, 0, 2)), self.weight.value)
        product = FUNCTIONS["permute"](product, (1, 0, 2))
        if self.bias is not None and not self.fuse_bias:
            product = product + self.bias.value
        return view(product, concat([*(shape(x, i) for i in range(x.ndim() - 1)), self.out_features]), False)


class RgLru(Module):
    """RG-LRU with a product for each gate."""

    @called("RgLru")
    def __init__(
        self, lru_width: int, num_heads: int = 1, dtype: Any = None, tp_group: Any = None, tp_size: int = 1
    ) -> None:
        super().__init__()
        single("RgLru", tp_size)
        self.lru_width, self.dtype = lru_width, dtype
        self.recurrent_param = Parameter(shape=(lru_width,), dtype=dtype)
        self.input_gate = GroupedLinear(lru_width, lru_width, num_heads, dtype=dtype, fuse_bias=True)
        self.recurrent_gate = GroupedLinear(lru_width, lru_width, num_heads, dtype=dtype, fuse_bias=True)

    @called("RgLru.forward")
    def forward(
        self, x: Any, y: Any, y_bias: Any, lru_state: Any, host_request_types: Any, last_token_ids: Any,
        slot_mapping: Any = None,
    ) -> Any:  # fmt: skip
        """x, y: [B, S, lru_width] or packed; states [B, lru_width] → the same, and the states behind the step."""
        return rg_lru(
            x, self.recurrent_param.value, lru_state, host_request_types, last_token_ids, self.lru_width, self.dtype,
            y=y, y_bias=y_bias, gate_x=self.input_gate(x), gate_x_bias=self.input_gate.bias.value,
            gate_a=self.recurrent_gate(x), gate_a_bias=self.recurrent_gate.bias.value, slot_mapping=slot_mapping,
        )  # fmt: skip


class FusedRgLru(Module):
    """RG-LRU with one product for both gates."""

    @called("FusedRgLru")
    def __init__(
        self, lru_width: int, num_heads: int = 1, dtype: Any = None, tp_group: Any = None, tp_size: int = 1
    ) -> None:
        super().__init__()
        single("FusedRgLru", tp_size)
        self.lru_width, self.block_size, self.dtype = lru_width, lru_width // num_heads, dtype
        self.recurrent_param = Parameter(shape=(lru_width,), dtype=dtype)
        self.gate = GroupedLinear(lru_width, 2 * lru_width, num_heads, dtype=dtype, fuse_bias=True)

    @called("FusedRgLru.forward")
    def forward(
        self, x: Any, y: Any, y_bias: Any, lru_state: Any, host_request_types: Any, last_token_ids: Any,
        slot_mapping: Any = None,
    ) -> Any:  # fmt: skip
        """As RgLru."""
        return rg_lru(
            x, self.recurrent_param.value, lru_state, host_request_types, last_token_ids, self.lru_width, self.dtype,
            block_size=self.block_size, y=y, y_bias=y_bias, gate=self.gate(x), gate_bias=self.gate.bias.value,
            slot_mapping=slot_mapping,
        )  # fmt: skip


class Recurrent(Module):
    """RecurrentGemma's recurrent block: two products, a convolution, RG-LRU, and a product behind."""

    @called("Recurrent")
    def __init__(
        self, width: int, lru_width: int, d_conv: int = 4, num_heads: int = 1, dtype: Any = None, tp_group: Any = None,
        tp_size: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        single("Recurrent", tp_size)
        self.width, self.lru_width, self.d_conv, self.dtype = width, lru_width, d_conv, dtype
        self.linear_x = ColumnLinear(width, lru_width, dtype=dtype)
        self.linear_y = ColumnLinear(width, lru_width, bias=False, dtype=dtype)
        self.y_bias = Parameter(shape=(lru_width,), dtype=dtype)
        self.conv1d = MambaConv1d(lru_width, d_conv, dtype=dtype, apply_silu=False)
        self.rg_lru = RgLru(lru_width, num_heads, dtype)
        self.linear_out = RowLinear(lru_width, width, dtype=dtype)

    @called("Recurrent.forward")
    def forward(
        self, hidden_states: Any, conv_state: Any, lru_state: Any, host_request_types: Any, last_token_ids: Any,
        host_context_lengths: Any = None, slot_mapping: Any = None, conv_indices: Any = None,
    ) -> Any:  # fmt: skip
        """[B, S, width] or packed [T, width] → the same, and both states behind the step.

        States are [B, d_conv - 1, lru_width] and [B, lru_width].
        """
        y, x = self.linear_y(hidden_states), self.linear_x(hidden_states)
        x, conv_state = self.conv1d(
            x, conv_state, host_request_types, last_token_ids, host_context_lengths, slot_mapping, conv_indices
        )
        out, lru_state = self.rg_lru(
            x, y, self.y_bias.value, lru_state, host_request_types, last_token_ids, slot_mapping
        )
        return self.linear_out(out), conv_state, lru_state


FILES = {"ssm": (MambaConv1d, Mamba, Mamba2), "recurrent": (GroupedLinear, RgLru, FusedRgLru, Recurrent)}
