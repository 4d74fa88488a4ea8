"""ATen's recurrent layers and cells, which torch.export keeps whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import functional as fn
from ingot.frontends.torch_export.aten.table import MaybeTensor, Result, Results, Tensor, Tensors, Unsupported, aten
from ingot.ir import F


def _options(has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
             batch_first: bool) -> dict[str, Any]:  # fmt: skip
    if train and dropout:
        raise Unsupported("it was exported in training mode, with dropout; call module.eval() before")
    return {"has_biases": has_biases, "num_layers": num_layers, "bidirectional": bidirectional,
            "batch_first": batch_first}  # fmt: skip


@aten("aten.lstm.input")
def lstm(
    input: Tensor, hx: Tensors, params: Tensors, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Results:  # fmt: skip
    options = _options(has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return fn.lstm(input, hx, params, **options)  # type: ignore[arg-type]


@aten("aten.gru.input")
def gru(
    input: Tensor, hx: Tensor, params: Tensors, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Results:  # fmt: skip
    return fn.gru(input, hx, params, **_options(has_biases, num_layers, dropout, train, bidirectional, batch_first))


@aten("aten.rnn_tanh.input")
def rnn_tanh(
    input: Tensor, hx: Tensor, params: Tensors, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Results:  # fmt: skip
    options = _options(has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return fn.rnn_tanh(input, hx, params, **options)


@aten("aten.rnn_relu.input")
def rnn_relu(
    input: Tensor, hx: Tensor, params: Tensors, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Results:  # fmt: skip
    options = _options(has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return fn.rnn_relu(input, hx, params, **options)


def _cell(run: Callable[..., Any], x: Tensor, states: tuple[Tensor, ...], weights: tuple[MaybeTensor, ...]) -> Results:
    """The states after one step."""
    before = [F.reshape(s, (1, *s.shape)) for s in states]
    params = [w for w in weights if w is not None]
    _, *after = run(F.reshape(x, (1, *x.shape)), before if len(before) > 1 else before[0], params,
                    has_biases=len(params) == 4)  # fmt: skip
    return tuple(F.reshape(s, s.shape[1:]) for s in after)


@aten("aten.lstm_cell.default")
def lstm_cell(
    input: Tensor, hx: Tensors, w_ih: Tensor, w_hh: Tensor, b_ih: MaybeTensor = None, b_hh: MaybeTensor = None
) -> Results:
    return _cell(fn.lstm, input, hx, (w_ih, w_hh, b_ih, b_hh))


@aten("aten.gru_cell.default")
def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: MaybeTensor = None, b_hh: MaybeTensor = None
) -> Result:
    return _cell(fn.gru, input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@aten("aten.rnn_tanh_cell.default")
def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: MaybeTensor = None, b_hh: MaybeTensor = None
) -> Result:
    return _cell(fn.rnn_tanh, input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@aten("aten.rnn_relu_cell.default")
def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: MaybeTensor = None, b_hh: MaybeTensor = None
) -> Result:
    return _cell(fn.rnn_relu, input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]
