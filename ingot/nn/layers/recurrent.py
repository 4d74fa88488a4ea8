"""Recurrent layers under torch's names, arguments and parameters, and their cells for one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.errors import ModuleError
from ingot.ir import F
from ingot.nn.layers.linear import positive
from ingot.nn.module import Module
from ingot.nn.parameter import Parameter


class _Recurrent(Module):
    """The parameters of layers and directions, under torch's names: weight_ih_l0, weight_hh_l0_reverse, …"""

    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool, dropout: float,
        bidirectional: bool, proj_size: int, dtype: DType | str | None,
    ) -> None:  # fmt: skip
        super().__init__()
        layer = type(self).__name__
        positive(layer, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if type(proj_size) is not int or not 0 <= proj_size < hidden_size:
            raise ModuleError(f"{layer}: proj_size={proj_size!r} must be an int from 0 to hidden_size − 1")
        if not 0 <= dropout <= 1:
            raise ModuleError(f"{layer}: dropout={dropout!r} must be a number from 0 to 1")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        rows, width = self.gates * hidden_size, proj_size or hidden_size
        for layer_number, suffix in self._directions():
            wide = input_size if layer_number == 0 else width * (2 if bidirectional else 1)
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, wide), "weight_hh": (rows, width)}
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
            shapes |= {"weight_hr": (proj_size, hidden_size)} if proj_size else {}
            for name, shape in shapes.items():
                self.register_parameter(name + suffix, Parameter(shape=shape, dtype=dtype))

    def _directions(self) -> Iterator[tuple[int, str]]:
        for layer in range(self.num_layers):
            for direction in ("", "_reverse") if self.bidirectional else ("",):
                yield layer, f"_l{layer}{direction}"

    def _weights(self) -> list[Any]:
        """All of them, in torch's order."""
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else []),
                 *(["weight_hr"] if self.proj_size else [])]  # fmt: skip
        return [getattr(self, name + suffix) for _, suffix in self._directions() for name in names]

    def _options(self) -> dict[str, Any]:
        return {"has_biases": self.bias, "num_layers": self.num_layers, "bidirectional": self.bidirectional,
                "batch_first": self.batch_first}  # fmt: skip


class LSTM(_Recurrent):
    """An LSTM of several layers, in one direction or both.

    Args:
        input_size: I, the width of the input.
        hidden_size: H, the units of each direction.
        num_layers: each but the first reads the output of the one before.
        bias: whether there are biases.
        batch_first: input and output are [N, T, …] instead of [T, N, …]; states are not.
        dropout: accepted for torch's signature; an engine does not train.
        bidirectional: a second direction reads the steps backwards; outputs stand side by side.
        proj_size: the output's width K, if it is projected; 0: K is H.
        dtype: of the weights, and so of the input; default float32.

    Raises:
        ModuleError: sizes that are not positive, a projection that is not narrower than H.
    """

    gates = 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, dtype
        )

    def forward(self, x: Any, hx: tuple[Any, Any] | None = None, lengths: Any = None) -> tuple[Any, tuple[Any, Any]]:
        """[T, N, I] or [T, I] → the output [T, N, D·K], and the last states [L·D, N, K] and [L·D, N, H].

        `lengths` [N]: the steps of each sequence, as a packed one has them; see `functional.lstm`.
        """
        y, h, c = functional.lstm(x, hx, self._weights(), **self._options(), lengths=lengths)
        return y, (h, c)


class GRU(_Recurrent):
    """A GRU of several layers, in one direction or both. Arguments and errors as of LSTM."""

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, dtype)

    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """[T, N, I] or [T, I] → the output [T, N, D·H] and the last state [L·D, N, H]."""
        return functional.gru(x, hx, self._weights(), **self._options(), lengths=lengths)


class RNN(_Recurrent):
    """h = activation(W x + b + U h + c) over the steps; `nonlinearity` is tanh or relu. Arguments and
    errors as of LSTM."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, dtype)
        self.nonlinearity = _known("RNN", nonlinearity)

    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """[T, N, I] or [T, I] → the output [T, N, D·H] and the last state [L·D, N, H]."""
        run = functional.rnn_tanh if self.nonlinearity == "tanh" else functional.rnn_relu
        return run(x, hx, self._weights(), **self._options(), lengths=lengths)


def _known(layer: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ModuleError(f"{layer}: nonlinearity={nonlinearity!r} must be 'tanh' or 'relu'")
    return nonlinearity


class _Cell(Module):
    """One step of a layer: parameters under torch's names."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, dtype: DType | str | None = None) -> None:
        super().__init__()
        positive(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        for name, shape in (("weight_ih", (rows, input_size)), ("weight_hh", (rows, hidden_size))):
            self.register_parameter(name, Parameter(shape=shape, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(shape=(rows,), dtype=dtype) if bias else None)

    def _step(self, run: Any, x: Any, states: tuple[Any, ...] | None) -> list[Any]:
        """The states [N, H] after a step from x [N, I], or [H] from [I]."""
        params = [self.weight_ih, self.weight_hh, *([self.bias_ih, self.bias_hh] if self.bias else [])]
        single = len(x.shape) == 1
        one = F.reshape(x, (1, 1, *x.shape) if single else (1, *x.shape))
        first = None
        if states is not None:
            first = [F.reshape(s, (1, 1, *s.shape) if single else (1, *s.shape)) for s in states]
        hx = first if first is None or len(first) > 1 else first[0]
        _, *last = run(one, hx, params, has_biases=self.bias)
        return [F.reshape(s, s.shape[2:] if single else s.shape[1:]) for s in last]


class LSTMCell(_Cell):
    """One step of an LSTM: x [N, I] and the states → the states (h [N, H], c [N, H])."""

    gates = 4

    def forward(self, x: Any, hx: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """[N, I] or [I]; `hx`: h and c before the step, zeros when None."""
        h, c = self._step(functional.lstm, x, hx)
        return h, c


class GRUCell(_Cell):
    """One step of a GRU: x [N, I] and the state h → h [N, H]."""

    gates = 3

    def forward(self, x: Any, hx: Any = None) -> Any:
        """[N, I] or [I]; `hx`: h before the step, zeros when None."""
        return self._step(functional.gru, x, None if hx is None else (hx,))[0]


class RNNCell(_Cell):
    """One step of an RNN: x [N, I] and the state h → h [N, H]."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: DType | str | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, dtype)
        self.nonlinearity = _known("RNNCell", nonlinearity)

    def forward(self, x: Any, hx: Any = None) -> Any:
        """[N, I] or [I]; `hx`: h before the step, zeros when None."""
        run = functional.rnn_tanh if self.nonlinearity == "tanh" else functional.rnn_relu
        return self._step(run, x, None if hx is None else (hx,))[0]
