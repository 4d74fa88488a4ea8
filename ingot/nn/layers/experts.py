"""A mixture of experts, with the parameter names of most checkpoints: gate, experts.N.gate_proj and so on."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.nn.layers.linear import Linear, positive
from ingot.nn.module import Module, ModuleList

Names = tuple[str, str, str]


class Expert(Module):
    """The three weights of one expert, under the checkpoint's names of gate, up and down."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, dtype: DType | str | None, names: Names) -> None:
        super().__init__()
        shapes = (ffn_hidden_size, hidden_size), (ffn_hidden_size, hidden_size), (hidden_size, ffn_hidden_size)
        for name, (outputs, inputs) in zip(names, shapes, strict=True):
            setattr(self, name, Linear(inputs, outputs, False, dtype))


class MoE(Module):
    """The weighted sum of each row's best experts, gated MLPs down(act(gate(x)) · up(x)).

    Args:
        hidden_size: of x and of the result.
        ffn_hidden_size: of the layer inside each expert.
        num_experts: how many there are.
        top_k: how many of them a row goes through.
        normalize: whether the weights of a row's experts are divided by their sum.
        activation: silu, gelu, gelu_tanh or relu.
        dtype: of the weights; default float32. Scores of experts are float32.
        names: of the three weights of an expert: gate, up, down.

    Raises:
        ModuleError: sizes that are not positive, more experts of a row than there are.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_experts: int,
        top_k: int = 2,
        dtype: DType | str | None = None,
        *,
        normalize: bool = True,
        activation: str = "silu",
        names: Names = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        super().__init__()
        positive("MoE", hidden_size=hidden_size, ffn_hidden_size=ffn_hidden_size, num_experts=num_experts, top_k=top_k)
        if top_k > num_experts:
            raise ModuleError(f"MoE: top_k is {top_k}, of {num_experts} experts")
        self.hidden_size, self.top_k, self.normalize = hidden_size, top_k, normalize
        self.activation, self.names = activation, names
        self.gate = Linear(hidden_size, num_experts, False, dtype, output_dtype="float32")
        self.experts = ModuleList(Expert(hidden_size, ffn_hidden_size, dtype, names) for _ in range(num_experts))

    def forward(self, x: Any) -> Any:
        """[…, hidden_size] → the same"""
        shape = tuple(x.shape)
        rows = x if len(shape) == 2 else functional.view(x, (-1, self.hidden_size))
        gates, ups, downs = ([getattr(e, name).weight for e in self.experts] for name in self.names)
        y = functional.moe(
            rows, self.gate(rows), gates, ups, downs,
            top_k=self.top_k, normalize=self.normalize, activation=self.activation,
        )  # fmt: skip
        return y if len(shape) == 2 else functional.view(y, shape)
