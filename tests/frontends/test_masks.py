"""Rows that a mask hides whole, from torch: NaN where a softmax is written out, zeros from torch's own attention; and
what the comparison of a build says about either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot import errors
from ingot.backends import cpu
from ingot.builder.switches import Debug
from ingot.frontends.comparing import seeded
from ingot.ir import F, Network, Spec
from ingot.passes import dense_attention
from ingot.passes.masks import shows

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning:torch")  # torch of itself
Tensor = torch.Tensor


class Attention(nn.Module):
    """nn.MultiheadAttention of a sequence with itself: a softmax and a product with weights, torch's op without."""

    def __init__(self, width: int, heads: int, weights: bool, average: bool = True, give: bool = False) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)
        self.options: dict[str, Any] = {"need_weights": weights, "average_attn_weights": average}
        self.give = give

    def forward(self, x: Tensor, hidden: Tensor) -> Any:
        y, weights = self.inner(x, x, x, key_padding_mask=hidden, **self.options)
        return (y, weights) if self.give else y


def torch_of(module: nn.Module, *inputs: Tensor) -> list[np.ndarray[Any, Any]]:
    """What the exported layers compute: torch's fast path, other code, gives NaN where torch's op gives 0."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            found = module.eval()(*inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return [t.float().numpy() for t in (found if isinstance(found, tuple) else (found,))]


def check_runs(engine: ingot.Engine, module: nn.Module, inputs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """The engine's numbers are torch's, NaN in the same places."""
    got = list(engine.run({name: t.numpy() for name, t in inputs.items()}).values())
    for ours, theirs in zip(got, torch_of(module, *inputs.values()), strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        largest = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=1))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)


def masks(batch: int, length: int, hidden: bool) -> Tensor:
    """A padding mask; with `hidden` one that hides the whole first row."""
    mask = torch.rand(batch, length) < 0.5
    mask[:, 0] = False
    if hidden:
        mask[0] = True
    return mask


def check_attention(batch: int, length: int, width: int, heads: int) -> None:
    """All forms of the layer, built on either kind of mask, with sizes that may change."""
    dynamic = {"x": {0: "B", 1: "L"}, "hidden": {0: "B", 1: "L"}}
    for number, (weights, average, give) in enumerate(
        ((True, True, False), (True, True, True), (True, False, True), (False, True, False))
    ):
        torch.manual_seed(100 * batch + 10 * length + number)
        module = Attention(width, heads, weights, average, give)
        hidden = bool(number % 2)
        x, mask = torch.randn(batch, length, width), masks(batch, length, hidden)
        engine = ingot.build(module, (x, mask), dynamic=dynamic)
        assert engine.report.source.startswith("against torch")
        assert ("NaN in the same" in engine.report.source) == (hidden and weights)
        for blind, more in ((True, 0), (False, 0), (True, 2)):
            inputs = {"x": torch.randn(batch + more, length, width), "hidden": masks(batch + more, length, blind)}
            check_runs(engine, module, inputs)
            y = next(iter(engine.run({name: t.numpy() for name, t in inputs.items()}).values()))
            bias = module.inner.out_proj.bias.detach().numpy()
            if blind and weights:
                assert np.isnan(y[0]).all() and np.isfinite(y[1:]).all()
            elif blind:
                np.testing.assert_allclose(y[0], np.broadcast_to(bias, y[0].shape), rtol=0, atol=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("batch", "length", "width", "heads"), [(2, 5, 12, 3), (1, 3, 8, 2), (3, 33, 32, 4)])
def test_multihead_attention_under_padding(batch: int, length: int, width: int, heads: int) -> None:
    check_attention(batch, length, width, heads)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "heads"), [(8, 2), (12, 3), (32, 4)])
def test_multihead_attention_of_all_sizes(width: int, heads: int) -> None:
    for batch, length in itertools.product((1, 2, 3), (3, 5, 8, 16, 33)):
        check_attention(batch, length, width, heads)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("weights", [False, True])
def test_half_precision(precision: str, weights: bool) -> None:
    torch.manual_seed(0)
    module = Attention(32, 4, weights)
    engine = ingot.build(module, (torch.randn(3, 9, 32), masks(3, 9, True)), precision=precision)
    check_runs(engine, module, {"x": torch.randn(3, 9, 32), "hidden": masks(3, 9, True)}, 0.05)


class Encoder(nn.Module):
    def __init__(self, before: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=before) for _ in range(2)
        )

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        return x


class Decoder(nn.Module):
    def __init__(self, before: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, norm_first=before)

    def forward(self, x: Tensor, hidden: Tensor) -> Any:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.layer(
            x, x.flip(1), tgt_mask=causal, tgt_key_padding_mask=hidden, memory_key_padding_mask=hidden.flip(1)
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_transformer_layers(kind: Callable[[bool], nn.Module], before: bool, precision: str) -> None:
    torch.manual_seed(1)
    module = kind(before)
    dynamic = {"x": {0: "B"}, "hidden": {0: "B"}}
    engine = ingot.build(module, (torch.randn(2, 7, 16), masks(2, 7, True)), dynamic=dynamic, precision=precision)
    for blind in (False, True):
        inputs = {"x": torch.randn(3, 7, 16), "hidden": masks(3, 7, blind)}
        check_runs(engine, module, inputs, 1e-5 if precision == "float32" else 0.06)


def written(low: float, add: bool = False) -> Callable[..., Tensor]:
    """Attention by hand; `shown` is True where a key is seen."""

    def forward(q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / 3
        scores = scores + (~shown * low) if add else scores.masked_fill(~shown, low)
        return torch.softmax(scores, -1) @ v

    return forward


LEAST = torch.finfo(torch.float32).min
FORMS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "filled with -inf": (written(-torch.inf), "nan"),
    "filled with the least float": (written(LEAST), "mean"),
    "the least float added, as transformers does": (written(LEAST, add=True), "mean"),
    "torch's own": (lambda q, k, v, shown: functional.scaled_dot_product_attention(q, k, v, shown), "zero"),
    "torch's own, floats": (lambda q, k, v, shown: functional.scaled_dot_product_attention(
        q, k, v, torch.zeros(shown.shape).masked_fill(~shown, -torch.inf)), "zero"),
    "torch's own, the least float": (lambda q, k, v, shown: functional.scaled_dot_product_attention(
        q, k, v, torch.zeros(shown.shape).masked_fill(~shown, LEAST)), "mean"),
}  # fmt: skip


class Form(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.compute = FORMS[form][0]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
        return self.compute(q, k, v, shown)


@pytest.mark.sampled(7, by=lambda given: given["form"])
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_attention_written_in_each_way(form: str, rank: int, decomposed: bool, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = Form(form).eval()
    q, k, v = (torch.randn(*(2, 3)[: rank - 2], n, 8) for n in (5, 9, 9))
    shown = ~masks(5, 9, True)
    program = torch.export.export(module, (q, k, v, shown))
    torch.export.save(program.run_decompositions() if decomposed else program, tmp_path / "net.pt2")
    engine = ingot.build(tmp_path / "net.pt2")
    kernels = [call.get("kernel") for call in engine.header["programs"]["cpu"]["entries"]["main"]["calls"]]
    assert "attention" in kernels and "softmax" not in kernels
    check_runs(engine, module, {"q": q, "k": k, "v": v, "shown": shown})
    (y,) = engine.run({"q": q.numpy(), "k": k.numpy(), "v": v.numpy(), "shown": shown.numpy()}).values()
    blind, mean = y[..., 0, :], v.numpy().mean(-2)
    if FORMS[form][1] == "nan":
        assert np.isnan(blind).all()
    else:
        np.testing.assert_allclose(blind, mean if FORMS[form][1] == "mean" else 0 * mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_rows_of_minus_infinity(log: bool) -> None:
    class Soft(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            compute = torch.log_softmax if log else torch.softmax
            return compute(x, -1), compute(x, 0)

    x = torch.randn(6, 20)
    x[0], x[1, 3], x[2, 4], x[3, 1:] = -torch.inf, torch.nan, torch.inf, -torch.inf
    x[:, 7], x[4] = -torch.inf, LEAST
    engine = ingot.build(Soft(), (x,))
    check_runs(engine, Soft(), {"x": x})


# ------------------------------------------------------------------------------------------- what is drawn, and said


def test_queries_and_values_made_of_bools_are_no_masks() -> None:
    net = Network("net")
    hidden = net.input("hidden", Spec((2, 3, 5, 8), "bool"))
    k = net.input("k", Spec((2, 3, 7, 8), "float32"))
    shown = net.input("shown", Spec((2, 3, 7, 4), "bool"))
    net.outputs["y"] = F.scaled_dot_product_attention(F.cast(hidden, "float32"), k, F.cast(shown, "float32"))
    assert shows(net, hidden) is None and shows(net, shown) is None
    seen = net.input("seen", Spec((5, 7), "bool"))
    net.outputs["z"] = F.scaled_dot_product_attention(F.cast(hidden, "float32"), k, k, seen)
    assert shows(net, seen) is True and shows(net, hidden) is None


def test_drawn_masks_hide_no_row_whole() -> None:
    """Key 0 is seen by all rows of all masks, whichever value hides and whatever stands between."""
    net = Network("masks")
    x = net.input("x", Spec(("N", 4, 4), "float32"))
    names = ("hides", "shows", "denied", "both", "unknown")
    hides, shown, denied, both, unknown = (net.input(n, Spec(("N", 4), "bool")) for n in names)
    apart = [F.reshape(m, (m.shape[0], 1, 4)) for m in (hides, shown, denied, both, unknown)]
    y = F.where(apart[0], np.float32(-np.inf), x)
    y = F.where(F.logical_and(apart[1], apart[3]), y, np.float32(np.finfo(np.float32).min))
    y = F.where(F.logical_not(apart[2]), y, np.float32(-1e9))
    net.outputs["y"] = F.scaled_dot_product_attention(y, y, y, apart[1])
    net.outputs["z"] = F.logical_not(apart[4])
    found = {v.name: shows(net, v) for v in net.inputs if v.name != "x"}
    assert found == {"hides": False, "shows": True, "denied": False, "both": True, "unknown": None}
    arrays = seeded(net, {"N": 50}, 3)
    for name in names:
        assert arrays[name].any() and not arrays[name].all(), "it hides something"
    assert not arrays["hides"][:, 0].any() and arrays["shows"][:, 0].all() and not arrays["denied"][:, 0].any()
    assert not arrays["unknown"][:, 0].any() and arrays["unknown"][:, -1].all()


def hidden_rows() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Attention(8, 2, True), (torch.randn(2, 5, 8), masks(2, 5, True))


def test_a_step_at_fault_is_named_at_once_and_by_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite that forgets what hidden rows give: the comparison finds the step, and says where NaN is missing."""
    whole = dense_attention._attention
    rules = []
    for rule in dense_attention.ATTENTION:
        wrong = lambda scores, v, turned: whole(scores, v, turned, "zero")  # noqa: E731
        rules.append(dense_attention.Rule(rule.name, rule.pattern, wrong, rule.when))
    monkeypatch.setattr(dense_attention, "ATTENTION", tuple(rules[:1]))
    module, inputs = hidden_rows()
    with pytest.raises(errors.MismatchError) as caught:
        ingot.build(module, inputs)
    message = str(caught.value)
    assert "on example inputs output output_0 is not NaN in 40 of 80 elements where it should be" in message
    assert "the first at [0, 0, 0]" in message and "debug=" not in message
    assert "pass 'dense attention' changed output 'output_0'" in message
    with pytest.raises(errors.NetworkError, match="pass 'dense attention' changed output 'output_0': it is not NaN"):
        ingot.build(module, inputs, debug=Debug(check=True))


def test_a_kernel_at_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    op = "scaled_dot_product_attention"
    (kernel,) = cpu.CPU.table[op]

    def wrong(op_: Any, node: Any) -> Any:
        params = kernel.runs[op](op_, node)
        return params | {"scale": 0.5 * params["scale"]}

    monkeypatch.setitem(cpu.CPU.table, op, [replace(kernel, runs={op: wrong})])
    torch.manual_seed(0)
    inputs = (torch.randn(2, 5, 8), masks(2, 5, False))
    with pytest.raises(errors.MismatchError, match=r"A kernel is at fault: %\S+ = scaled_dot_product_attention in "):
        ingot.build(Attention(8, 2, False), inputs)
    with pytest.raises(errors.MismatchError, match="shows in the whole program only"):
        ingot.build(Attention(8, 2, True), inputs, debug=Debug(check=True))


class Drops(nn.Module):
    """Drops elements in evaluation mode too."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "dropout":
            return functional.dropout(x, 0.1)
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


@pytest.mark.parametrize("how", ["dropout", "attention"])
def test_dropout_of_evaluation_mode_is_not_sent_back_to_evaluation_mode(how: str) -> None:
    """A module in this process is exported in evaluation mode: the advice has to say what else there is to do."""
    with pytest.raises(errors.UnsupportedError, match=r"functional\.dropout does so without training=self\.training"):
        ingot.build(Drops(how).eval(), (torch.randn(1, 2, 3, 4),))
