"""Feed-forward blocks, with the parameter names of the retired API: fc, gate, proj."""

from __future__ import annotations

from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.nn.layers.linear import ColumnLinear, RowLinear
from ingot.nn.module import Module


class MLP(Module):
    """proj(act(fc(x))); a gated activation such as swiglu has an fc of twice the width.

    Args:
        hidden_size: of x and of the result.
        ffn_hidden_size: of the layer between.
        hidden_act: a name in functional.ACT2FN.
        bias: whether the linear layers have one.
        dtype: of the weights; default float32.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        hidden_act: str,
        bias: bool = True,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        self.activation = functional.activation_function(hidden_act)
        width = ffn_hidden_size * 2 if functional.is_gated_activation(hidden_act) else ffn_hidden_size
        self.hidden_act = hidden_act
        self.fc = ColumnLinear(hidden_size, width, bias, dtype)
        self.proj = RowLinear(ffn_hidden_size, hidden_size, bias, dtype)

    def forward(self, hidden_states: Any) -> Any:
        """[…, hidden_size] → the same"""
        return self.proj(self.activation(self.fc(hidden_states)))


class GatedMLP(Module):
    """proj(act(fc(x)) · gate(x)); arguments as MLP, with the activation of the fc half (silu for a swiglu block)."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        hidden_act: str,
        bias: bool = True,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__()
        self.activation = functional.activation_function(functional.non_gated_version(hidden_act))
        self.hidden_act = hidden_act
        self.fc = ColumnLinear(hidden_size, ffn_hidden_size, bias, dtype)
        self.gate = ColumnLinear(hidden_size, ffn_hidden_size, bias, dtype)
        self.proj = RowLinear(ffn_hidden_size, hidden_size, bias, dtype)

    def forward(self, hidden_states: Any) -> Any:
        """[…, hidden_size] → the same"""
        return self.proj(functional.mul(self.activation(self.fc(hidden_states)), self.gate(hidden_states)))


class FusedGatedMLP(GatedMLP):
    """GatedMLP under its old name: the build fuses the two products of every gated block by itself."""
