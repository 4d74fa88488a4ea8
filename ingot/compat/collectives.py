"""Collectives of one rank: what they give is the tensor itself, and what is fused with them."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any

from ingot.compat.functional import FUNCTIONS
from ingot.compat.refusal import called, refused


class AllReduceStrategy(IntEnum):
    """How ranks would be summed over; there is one."""

    NCCL = 0
    MIN_LATENCY = 1
    UB = 2
    AUTO = 3
    ONESHOT = 4
    TWOSHOT = 5
    LOWPRECISION = 6
    MNNVL = 7
    NCCL_SYMMETRIC = 8
    SYMM_MEM = 9


class AllReduceConfig(IntFlag):
    """Settings of versions before 1.0; there is one rank."""

    USE_MEMCPY = 1
    PUSH_MODE = 2


class AllReduceFusionOp(IntEnum):
    """What follows the sum in one step."""

    NONE = 0
    RESIDUAL_RMS_NORM = 1
    LAST_PROCESS_FOR_UB = 2
    RESIDUAL_RMS_PREPOST_NORM = 3
    RESIDUAL_RMS_NORM_QUANT_FP8 = 4
    RESIDUAL_RMS_NORM_QUANT_NVFP4 = 5
    RESIDUAL_RMS_NORM_OUT_QUANT_FP8 = 6
    RESIDUAL_RMS_NORM_OUT_QUANT_NVFP4 = 7
    MOE_ALLREDUCE_RESIDUAL_RMS_NORM = 8


class AllReduceParams:
    """What is done beside a sum over ranks."""

    def __init__(
        self, strategy: AllReduceStrategy = AllReduceStrategy.AUTO,
        fusion_op: AllReduceFusionOp = AllReduceFusionOp.NONE, bias: Any = None, residual: Any = None,
        norm_weight: Any = None, scale: Any = None, norm_pre_residual_weight: Any = None, eps: float = 1e-6,
        enable_allreduce: bool = True, trigger_completion_at_end: bool = True,
    ) -> None:  # fmt: skip
        self.strategy, self.fusion_op = strategy, fusion_op
        self.bias, self.residual, self.norm_weight = bias, residual, norm_weight
        self.scale, self.norm_pre_residual_weight, self.eps = scale, norm_pre_residual_weight, eps
        self.enable_allreduce = enable_allreduce
        self.trigger_completion_at_end = trigger_completion_at_end

    def has_affine(self) -> int:
        return int(self.norm_weight is not None)

    def has_bias(self) -> int:
        return int(self.bias is not None)

    def has_scale(self) -> int:
        return int(self.scale is not None)

    def update_strategy(self) -> None:
        """One rank has no choice."""
        if self.strategy is AllReduceStrategy.AUTO:
            self.strategy = AllReduceStrategy.NCCL


def _one_rank(name: str, group: Any) -> None:
    if len(group) > 1:
        raise refused(f"{name} of {len(group)} ranks", "ingot's engines run on one device; use world size 1")


@called("allreduce")
def allreduce(
    tensor: Any, group: Any, all_reduce_params: Any = None, workspace: Any = None, instance_id: int = 0,
    strategy: Any = None,
) -> Any:  # fmt: skip
    """The tensor itself. With params that fuse RESIDUAL_RMS_NORM: the norm of tensor + bias + residual, and that sum.

    A third argument that is no AllReduceParams is the workspace of versions before 0.17.
    """
    _one_rank("allreduce", group)
    params = all_reduce_params if isinstance(all_reduce_params, AllReduceParams) else AllReduceParams()
    if params.fusion_op is AllReduceFusionOp.NONE:
        return tensor
    if params.fusion_op is not AllReduceFusionOp.RESIDUAL_RMS_NORM or params.residual is None:
        raise refused(f"allreduce with {params.fusion_op.name}", "RESIDUAL_RMS_NORM with a residual")
    if params.scale is not None or params.norm_pre_residual_weight is not None:
        raise refused("allreduce with scale or norm_pre_residual_weight", "rms_norm and mul beside it")
    add, rms_norm = FUNCTIONS["add"], FUNCTIONS["rms_norm"]
    tensor = tensor if params.bias is None else add(tensor, params.bias)
    whole = add(tensor, params.residual)
    return rms_norm(whole, whole.shape[-1], 1, params.norm_weight, params.eps), whole


@called("allgather")
def allgather(tensor: Any, group: Any, gather_dim: int = 0) -> Any:
    """The tensor itself."""
    _one_rank("allgather", group)
    return tensor


@called("reduce_scatter")
def reduce_scatter(tensor: Any, group: Any) -> Any:
    """The tensor itself."""
    _one_rank("reduce_scatter", group)
    return tensor


@called("gemm_allreduce")
def gemm_allreduce(
    a: Any, b: Any, group: Any, transa: bool = False, transb: bool = False, alpha: Any = None, output_dtype: Any = None,
    fp8_inputs_override: bool = False, a_sf: Any = None, b_sf: Any = None,
) -> Any:  # fmt: skip
    """matmul(a, b) times alpha, as output_dtype."""
    _one_rank("gemm_allreduce", group)
    if fp8_inputs_override or a_sf is not None or b_sf is not None:
        raise refused("gemm_allreduce of quantised inputs", "matmul of floats")
    out = FUNCTIONS["matmul"](a, b, transa, transb)
    if alpha is not None:
        out = FUNCTIONS["mul"](out, alpha)
    return out if output_dtype is None else FUNCTIONS["cast"](out, output_dtype)


FUNCTIONS.update(
    allreduce=allreduce, allgather=allgather, reduce_scatter=reduce_scatter, gemm_allreduce=gemm_allreduce
)
ENUMS = {
    cls.__name__: cls for cls in (AllReduceStrategy, AllReduceConfig, AllReduceFusionOp, AllReduceParams)
}  # fmt: skip
