"""layers.MOE and its kin: a router, and of each row the few experts that it chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ingot import dtypes
from ingot import functional as f
from ingot.compat.functional import ACT2FN, FUNCTIONS, recorded
from ingot.compat.layers import MLP, GatedMLP, RowLinear
from ingot.compat.lora import part_of
from ingot.compat.module import Module, ModuleList
from ingot.compat.parameter import Parameter
from ingot.compat.quantization import QuantMode
from ingot.compat.refusal import called, refused, single
from ingot.ir import Spec, Value
from ingot.passes.weights import recipe_of, stored

# ingot's words for the activations of gated experts; TensorRT-LLM's gelu is of tanh.
_GATED = {"swiglu": "silu", "geglu": "gelu_tanh"}
_MODULES = ("moe_h_to_4h", "moe_4h_to_h", "moe_gate", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate")


@dataclass
class MoeConfig:
    """How many experts there are, how many each row has, and what their weights are."""

    class ExpertScaleNormalizationMode(IntEnum):
        """RENORMALIZE: the chosen experts' weights sum to 1. NONE: they are those of the softmax over all."""

        NONE = 0
        RENORMALIZE = 1
        SPARSE_MIXER = 2
        DEVICE_LIMITED = 3
        DEVICE_LIMITED_RENORM = 4

    num_experts: int = 0
    shared_expert_intermediate_size: int = 0
    top_k: int = 0
    normalization_mode: ExpertScaleNormalizationMode = ExpertScaleNormalizationMode.RENORMALIZE
    sparse_mixer_epsilon: float = 0.01
    tp_mode: int = 0
    device_limited_n_group: int = 0
    device_limited_topk_group: int = 0
    device_limited_routed_scaling_factor: float = 1.0

    def validate(self) -> MoeConfig:
        """The configuration itself.

        Raises:
            UnsupportedError: experts without top_k, or the other way round.
        """
        if (self.num_experts == 0) != (self.top_k == 0):
            raise refused(
                f"MoeConfig(num_experts={self.num_experts}, top_k={self.top_k})", "set both, or leave both at 0"
            )
        return self

    def has_moe(self) -> bool:
        return self.num_experts > 1

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> MoeConfig:
        """Of its fields."""
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


class MOEWeightWrapper(Module):
    """The weights of all experts: [experts, out_features, in_features], and biases [experts, out_features]."""

    @called("MOEWeightWrapper")
    def __init__(
        self, in_features: int, out_features: int, experts_per_node: int, dtype: Any = None, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.expert_shape, self.dtype, self.has_bias = (experts_per_node, out_features, in_features), dtype, has_bias
        self.weight = Parameter(shape=self.expert_shape, dtype=dtype)
        bias = Parameter(shape=(experts_per_node, out_features), dtype=dtype) if has_bias else None
        self.register_parameter("bias", bias)


class MixtureOfExperts(Module):
    """Of each row the sum of `top_k` experts, by the weights that a router gives them.

    `router` is a RowLinear in float32. `fc` and `proj` hold the experts' weights; with a gated activation fc's first
    half is multiplied with the activation of its second half. A bool in the place of `mapping` is `bias`, as in 0.7.
    """

    @called("MixtureOfExperts")
    def __init__(
        self, moe_config: MoeConfig, hidden_size: int, ffn_hidden_size: int, hidden_act: str, mapping: Any = None,
        bias: Any = True, dtype: Any = None, tp_group: Any = None, tp_size: int = 1, quant_mode: Any = None,
        use_all_reduce: bool = True, pre_quant_scale: bool = False, zero: bool = False, use_w4a8_awq: bool = False,
        use_int8_weight: bool = False, group_size: int = -1, static_routing: bool = False, tp_rank: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if isinstance(mapping, bool):
            bias, dtype = mapping, bias if not isinstance(bias, bool) else dtype
        single(type(self).__name__, tp_size)
        named = {"pre_quant_scale": pre_quant_scale, "zero": zero, "use_w4a8_awq": use_w4a8_awq,
                 "use_int8_weight": use_int8_weight, "static_routing": static_routing}  # fmt: skip
        if any(named.values()) or quant_mode not in (None, QuantMode(0)):
            raise refused(f"{type(self).__name__} of quantised weights", 'leave it out; ingot.build has weights="int8"')
        modes, config = MoeConfig.ExpertScaleNormalizationMode, moe_config.validate()
        if config.normalization_mode not in (modes.NONE, modes.RENORMALIZE):
            raise refused(f"{type(self).__name__} with {modes(config.normalization_mode).name}", "RENORMALIZE or NONE")
        if not 1 <= config.top_k <= config.num_experts:
            raise refused(f"{config.top_k} of {config.num_experts} experts", "give top_k from 1 to num_experts")
        if hidden_act not in _GATED and hidden_act not in ACT2FN:
            raise refused(f"experts with {hidden_act!r}", f"one of {', '.join(ACT2FN)}")
        self.moe_config, self.num_experts, self.top_k = config, config.num_experts, config.top_k
        self.hidden_size, self.ffn_hidden_size, self.hidden_act = hidden_size, ffn_hidden_size, hidden_act
        self.dtype, self.bias = dtype, bias
        self.router = RowLinear(hidden_size, config.num_experts, bias=False, dtype="float32")
        self.init_experts()

    def init_experts(self) -> None:
        """Makes the experts' weights."""
        made = self.ffn_hidden_size * (2 if self.hidden_act in _GATED else 1)
        self.fc = MOEWeightWrapper(self.hidden_size, made, self.num_experts, self.dtype, self.bias)
        self.proj = MOEWeightWrapper(self.ffn_hidden_size, self.hidden_size, self.num_experts, self.dtype, self.bias)

    @called("MixtureOfExperts.forward")
    def forward(
        self, hidden_states: Any, finished: Any = None, lora_layer_params: Any = None, all_reduce_params: Any = None,
        **more: Any,
    ) -> Any:  # fmt: skip
        """[…, hidden_size] → the same"""
        if finished is not None and hasattr(finished, "get_runtime_params"):  # newer versions have no `finished`
            finished, lora_layer_params = None, finished
        said = {"finished": finished, **more}
        if named := [name for name, value in said.items() if value is not None and value is not False]:
            raise refused(f"{type(self).__name__} called with {', '.join(named)}", "leave them out")
        if any(part_of(lora_layer_params, name) is not None for name in _MODULES):
            raise refused("adapters of experts", "merge them when the engine is built: ingot.build(folder, lora=…)")
        scores = self.router(FUNCTIONS["cast"](hidden_states, "float32"), part_of(lora_layer_params, "moe_router"))
        return self.forward_experts(hidden_states, scores)

    def forward_experts(self, hidden_states: Any, routing: Any) -> Any:
        """The experts' sum, by the router's scores […, experts]."""
        weights = {"fc": self.fc.weight.value, "proj": self.proj.weight.value}
        if self.bias:
            weights |= {"fc_bias": self.fc.bias.value, "proj_bias": self.proj.bias.value}
        return recorded("moe", self._mixed, {"x": hidden_states, "routing": routing, **weights})

    @property
    def _normalize(self) -> bool:
        return self.moe_config.normalization_mode == MoeConfig.ExpertScaleNormalizationMode.RENORMALIZE

    def _mixed(self, x: Any, routing: Any, fc: Any, proj: Any, fc_bias: Any = None, proj_bias: Any = None) -> Any:
        count, inner = self.num_experts, self.ffn_hidden_size
        rows, scores = f.view(x, (-1, self.hidden_size), False), f.view(f.cast(routing, "float32"), (-1, count), False)
        downs = [_expert(proj, e, 0, self.hidden_size) for e in range(count)]
        if self.hidden_act in _GATED and fc_bias is None:
            halves = [_expert(fc, e, i * inner, inner) for i in (1, 0) for e in range(count)]
            out = f.moe(
                rows, scores, halves[:count], halves[count:], downs, top_k=self.top_k, normalize=self._normalize,
                activation=_GATED[self.hidden_act],
            )  # fmt: skip
            return f.view(out, x.shape, False)
        act = f.ACT2FN[self.hidden_act]

        def expert(e: int) -> Callable[[Any], Any]:
            def run(some: Any) -> Any:
                made = f.matmul(some, _expert(fc, e, 0, fc.shape[1]), transb=True)
                made = act(made if fc_bias is None else f.add(made, f.select(fc_bias, 0, e)))
                made = f.matmul(made, downs[e], transb=True)
                return made if proj_bias is None else f.add(made, f.select(proj_bias, 0, e))

            return run

        out = _summed(rows, scores, [expert(e) for e in range(count)], self.top_k, self._normalize)
        return f.view(out, x.shape, False)


def _expert(whole: Any, e: int, start: int, size: int) -> Any:
    """Rows of one expert's matrix of [experts, rows, columns]; of a parameter a parameter, which kernels pack."""
    columns = whole.shape[2]
    if isinstance(whole, Value) and whole.kind == "parameter":
        part = recipe_of(whole).then("slice", starts=(e, start, 0), sizes=(1, size, columns))
        part = part.then("reshape", shape=(size, columns))
        return stored(whole.network, part, Spec((size, columns), whole.dtype), f"{whole.name}.{e}")
    return f.view(f.slice(whole, [e, start, 0], (1, size, columns)), (size, columns), False)


def _summed(rows: Any, scores: Any, experts: list[Callable[[Any], Any]], top_k: int, normalize: bool) -> Any:
    """Every expert on the rows that chose it, times their weights, added up in float32."""
    values, chosen = f.topk(f.softmax(scores, -1), top_k, 1)
    values = f.div(values, f.sum(values, 1, keepdim=True)) if normalize else values
    total: Any = f.mul(f.cast(rows, "float32"), 0.0)
    for e, run in enumerate(experts):
        mine = f.eq(f.cast(chosen, "int32"), np.int32(e))  # [T, top_k]
        share = f.sum(f.where(mine, values, np.float32(0)), 1)
        place = f.select(f.nonzero(f.max(f.cast(mine, "int32"), 1)), 0, 0)
        found = f.cast(run(f.index_select(rows, 0, place)), "float32")
        found = f.mul(found, f.unsqueeze(f.index_select(share, 0, place), 1))
        index = f.expand(f.unsqueeze(place, 1), found.shape)
        total = f.scatter_add(total, 0, index, found)
    return f.cast(total, dtypes.get(rows.dtype))


class MoeOOTB(MixtureOfExperts):
    """The same with a module for each expert: `experts`, of MLPs, gated ones where the activation is."""

    def init_experts(self) -> None:
        """Makes the experts."""
        kind = GatedMLP if self.hidden_act in _GATED else MLP
        act = FUNCTIONS["non_gated_version"](self.hidden_act)
        self.experts = ModuleList([
            kind(self.hidden_size, self.ffn_hidden_size, act, self.bias, self.dtype) for _ in range(self.num_experts)
        ])  # fmt: skip

    def forward_experts(self, hidden_states: Any, routing: Any) -> Any:
        """The experts' sum, by the router's scores […, experts]."""
        stack = FUNCTIONS["stack"]

        def all_of(name: str, part: str) -> Any:
            return stack([getattr(getattr(expert, name), part).value for expert in self.experts], 0)

        gated = self.hidden_act in _GATED  # fc is what the activation is of, so it comes second here
        given = {"x": hidden_states, "routing": routing, "proj": all_of("proj", "weight")}
        for part in ("weight", "bias") if self.bias else ("weight",):
            fc = all_of("fc", part)
            fc = FUNCTIONS["concat"]([all_of("gate", part), fc], 1) if gated else fc
            given["fc" if part == "weight" else "fc_bias"] = fc
        if self.bias:
            given["proj_bias"] = all_of("proj", "bias")
        return recorded("moe", self._mixed, given)


class SharedMoE(MixtureOfExperts):
    """Experts beside one that every row has: `shared_expert`, with use_shared_gate times the sigmoid of a gate."""

    @called("SharedMoE")
    def __init__(
        self, moe_config: MoeConfig, hidden_size: int, ffn_hidden_size: int, hidden_act: str, mapping: Any = None,
        bias: bool = True, dtype: Any = None, tp_group: Any = None, tp_size: int = 1, quant_mode: Any = None,
        use_shared_gate: bool = False, use_side_stream: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            moe_config, hidden_size, ffn_hidden_size, hidden_act, mapping, bias, dtype, tp_group, tp_size, quant_mode,
            **kwargs,
        )  # fmt: skip
        width = moe_config.shared_expert_intermediate_size
        if width < 1:
            raise refused("SharedMoE", "set shared_expert_intermediate_size in its MoeConfig")
        self.use_shared_gate = use_shared_gate
        self.shared_expert = MLP(hidden_size, width, hidden_act, bias=False, dtype=dtype)
        if use_shared_gate:
            self.shared_expert_gate = RowLinear(hidden_size, 1, bias=False, dtype=dtype)

    @called("SharedMoE.forward")
    def forward(self, hidden_states: Any, finished: Any = None, lora_layer_params: Any = None, **more: Any) -> Any:
        """[…, hidden_size] → the same"""
        routed = super().forward(hidden_states, finished, lora_layer_params, **more)
        shared = self.shared_expert(hidden_states)
        if self.use_shared_gate:
            shared = shared * FUNCTIONS["sigmoid"](self.shared_expert_gate(hidden_states))
        return routed + shared


FILES = {"moe": (MoeConfig, MixtureOfExperts, MoeOOTB, SharedMoE, MOEWeightWrapper)}
