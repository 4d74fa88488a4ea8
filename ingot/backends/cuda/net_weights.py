"""What target cuda makes of a net's weights when it is opened: the forms in which calls read them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ingot.backends.cuda.net_calls import HALVES, Call, Chain, GraphSum, Joined, Sums
from ingot.backends.cuda.net_rows import Batch, batch_of
from ingot.backends.cuda.program import Single
from ingot.backends.torch_executor import Loaded
from ingot.ir import Node, Op
from ingot.ops.conversion import Dequantize
from ingot.ops.in_torch import call as by_form
from ingot.ops.spatial import Conv, ConvTranspose

PIXEL = 4  # channels to which images of fewer are padded, in int8


@dataclass(frozen=True)
class NetMade:
    """A net on a device: its calls, and what its sessions share.

    calls: of all nodes; running: without those whose results are stored since the opening, `widened`. ready: weights in
    the form in which calls read them, by the first node. choices: which way computes a call, by its sizes, and refused:
    why libraries declined others.
    """

    loaded: Loaded
    calls: tuple[Call, ...]
    widened: set[Node] = field(default_factory=set)
    ready: dict[Node, Any] = field(default_factory=dict)
    choices: dict[Any, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @cached_property
    def running(self) -> tuple[Call, ...]:
        """What a run computes."""
        return tuple(call for call in self.calls if self.widened.isdisjoint(call.nodes))

    @cached_property
    def batch(self) -> Batch | None:
        """The batch of the net, if it has one."""
        return batch_of(self.loaded.network)


def prepared(torch: Any, loaded: Loaded, calls: tuple[Call, ...]) -> NetMade:
    """Lays weights as calls read them: convolutions' channels last, joined products' one behind the other; those of few
    bits that are read as floats become these.
    """
    made, tensors = NetMade(loaded, calls), loaded.tensors
    for call in calls:
        if isinstance(call, Single | Chain):
            _widen(torch, made, call)
    for node in loaded.network.nodes:
        if isinstance(node.op, Conv | ConvTranspose) and node.inputs[1] in tensors and len(node.inputs[1].shape) == 4:
            weight = node.inputs[1]
            if weight.dtype in HALVES:
                tensors[weight] = tensors[weight].contiguous(memory_format=torch.channels_last)
    for call in calls:
        if isinstance(call, Joined):
            weights = call.weights
            whole = torch.cat([_bytes(torch, tensors[weight]) for weight in weights]).view(tensors[weights[0]].dtype)
            scales = [tensors[scale].flatten() for scale in call.scales]
            biases = torch.cat([tensors[bias] for bias in call.biases])
            made.ready[call.nodes[0]] = (whole, biases, torch.cat(scales) if scales else None)
            at = 0
            for weight in weights:
                if len(weight.uses) == 1:  # a view of the whole: nothing is held twice
                    tensors[weight] = whole[at : at + weight.shape[0]]
                at += tensors[weight].shape[0]
        elif isinstance(call, Sums):
            weight, factors = tensors[call.weight], tensors[call.factors]
            if weight.dim() == 4:  # channels last, as the kernel reads them
                weight = tensors[call.weight] = weight.contiguous(memory_format=torch.channels_last)
            if few_channels(call.node.op, weight):
                weight = in_lines(weight)
            made.ready[call.node] = (weight, factors.reshape(-1).expand(weight.shape[0]).contiguous())
        elif isinstance(call, GraphSum):
            graph = tensors[call.nodes[0].inputs[1]]
            k, v, w = graph.shape
            made.ready[call.nodes[0]] = graph.permute(2, 1, 0).reshape(w, v * k).contiguous()
    held = sum(tensor.nbytes for tensor in tensors.values())
    return replace(made, loaded=replace(loaded, bytes=held))


def _widen(torch: Any, made: NetMade, call: Single | Chain) -> None:
    """Floats of a weight that is stored in few bits, once for all runs: nobody reads the bits then."""
    (node, *more), tensors = call.nodes, made.loaded.tensors
    if more or not isinstance(node.op, Dequantize) or not all(v in tensors for v in node.given):
        return
    operands: list[Any] = [None if v.spec is None else tensors[v] for v in node.inputs]
    (tensors[node.output],), _ = by_form(torch, node, node.op, operands, operands[0].device, {})
    made.widened.add(node)
    for value in node.given:
        if set(value.uses) == {node} and not made.loaded.network.is_output(value):
            del tensors[value]


def _bytes(torch: Any, x: Any) -> Any:
    """A tensor of a type that not everything joins, as one of bytes."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def few_channels(op: Op, weight: Any) -> bool:
    """Whether a convolution of int8 reads pixels of a line at once: the channels of one are fewer than the bytes that
    matrix units multiply."""
    if not isinstance(op, Conv) or weight.dim() != 4 or min(*op.pre_padding, *op.post_padding) < 0:
        return False
    return bool(weight.shape[1] <= PIXEL and weight.shape[3] > 1 and op.dilation[1] == 1)


def in_lines(weight: Any) -> Any:
    """[O, C, KH, KW] as [O, KH, bytes of a line of pixels], zeros where there is nothing."""
    outputs, channels, high, wide = weight.shape
    found = weight.new_zeros(outputs, high, -(-wide * PIXEL // 32) * 32 // PIXEL, PIXEL)
    found[:, :, :wide, :channels] = weight.permute(0, 2, 3, 1)
    return found.reshape(outputs, high, -1)
