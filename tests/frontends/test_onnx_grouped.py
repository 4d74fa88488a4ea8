"""GroupQueryAttention for batches whose requests have lengths of their own: one engine, beside each request alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import ingot.onnx_backend as backend  # noqa: E402
from ingot.errors import IngotError  # noqa: E402

HEADS, GROUPS, WIDTH, LONGEST = 4, 2, 16, 32
RNG = np.random.default_rng(3)


def model(attributes: Mapping[str, Any], sink: bool, by_shape: bool) -> Any:
    """`by_shape`: total_sequence_length is the width of a mask, as decoders are exported; else an input."""
    helper, kinds = onnx.helper, onnx.TensorProto
    q, k = [("N", "T", heads * WIDTH) for heads in (HEADS, GROUPS)]
    shapes = {"q": q, "k": k, "v": k, "past_key": ("N", GROUPS, "P", WIDTH), "past_value": ("N", GROUPS, "P", WIDTH),
              "cos": (LONGEST, WIDTH // 2), "sin": (LONGEST, WIDTH // 2)}  # fmt: skip
    shapes |= {"sink": (HEADS,)} if sink else {}
    inputs = [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in shapes.items()]
    inputs.append(helper.make_tensor_value_info("lengths", kinds.INT32, ["N"]))
    nodes = []
    if by_shape:
        inputs.append(helper.make_tensor_value_info("mask", kinds.INT64, ["N", "W"]))
        nodes = [helper.make_node("Shape", ["mask"], ["width"], start=1),
                 helper.make_node("Cast", ["width"], ["total"], to=kinds.INT32)]  # fmt: skip
    else:
        inputs.append(helper.make_tensor_value_info("total", kinds.INT32, []))
    names = ["q", "k", "v", "past_key", "past_value", "lengths", "total", "cos", "sin", "", "", "sink" * sink]
    nodes.append(helper.make_node("GroupQueryAttention", names, ["y", "key", "value"], domain="com.microsoft",
                                  num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, **attributes))  # fmt: skip
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "key", "value")]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "grouped", inputs, outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds(lengths: list[int], total: int, new: int, past: int, by_shape: bool) -> dict[str, Any]:
    n = len(lengths)
    shapes = {"q": (n, new, HEADS * WIDTH), "k": (n, new, GROUPS * WIDTH), "v": (n, new, GROUPS * WIDTH),
              "past_key": (n, GROUPS, past, WIDTH), "past_value": (n, GROUPS, past, WIDTH),
              "cos": (LONGEST, WIDTH // 2), "sin": (LONGEST, WIDTH // 2), "sink": (HEADS,)}  # fmt: skip
    found: dict[str, Any] = {name: RNG.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    found["lengths"] = np.array(lengths, np.int32) - 1
    return found | ({"mask": np.ones((n, total), np.int64)} if by_shape else {"total": np.array(total, np.int32)})


def turned(x: Any, cos: Any, sin: Any, start: int) -> Any:
    """x [T, H, D] with rotary embeddings from a place on."""
    a, b = np.split(x, 2, -1)
    cos, sin = (table[start : start + len(x), None] for table in (cos, sin))
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def alone(given: Mapping[str, Any], i: int, total: int, sink: bool, size: int, attributes: Mapping[str, Any]) -> Any:
    """Request i in NumPy: the result [T, H·D], and present keys and values [G, size, D]."""
    new, length = given["q"].shape[1], int(given["lengths"][i]) + 1
    before = 0 if total == new else length - new
    q, k, v = (given[n][i].reshape(new, -1, WIDTH) for n in ("q", "k", "v"))
    q, k = (turned(x, given["cos"], given["sin"], before) for x in (q, k))
    present = np.zeros((2, size, GROUPS, WIDTH), np.float32)
    for to, past, late in zip(present, ("past_key", "past_value"), (k, v), strict=True):
        to[:before] = given[past][i].swapaxes(0, 1)[:before]
        to[before : before + new] = late
    found = np.zeros((new, HEADS, WIDTH), np.float32)
    window, cap = attributes.get("local_window_size", LONGEST), attributes.get("softcap")
    for t, head in np.ndindex(new, HEADS):
        seen = slice(max(0, before + t + 1 - window), before + t + 1)
        keys, values = (x[seen, head * GROUPS // HEADS] for x in present)
        scores = keys @ q[t, head] * attributes.get("scale", WIDTH**-0.5)
        scores = cap * np.tanh(scores / cap) if cap else scores
        weights = np.exp(np.append(scores, given["sink"][head] if sink else -np.inf))
        found[t, head] = (weights[:-1] / weights.sum()) @ values
    return found.reshape(new, -1), *present.swapaxes(1, 2)


@pytest.mark.parametrize(
    ("attributes", "sink", "by_shape"),
    [({}, False, True), ({"local_window_size": 3, "softcap": 1.5}, False, False), ({"scale": 0.3}, True, True)],
    ids=["plain", "a window and a softcap", "sinks"],
)
def test_requests_of_different_lengths(attributes: dict[str, Any], sink: bool, by_shape: bool) -> None:
    net = backend.prepare(model(attributes, sink, by_shape))
    for lengths, total, new, past in (
        ([5, 5], 5, 1, 4),  # one behind the other
        ([8, 3, 1], 8, 1, 7),
        ([2, 4], 4, 1, 9),  # a buffer with room for more
        ([5, 2, 4], 5, 5, 0),  # prompts
        ([4, 1], 4, 4, 6),  # prompts into a buffer
        ([9, 5, 3], 9, 3, 6),  # several tokens behind past ones
        ([1], 1, 1, 0),
    ):
        given = feeds(lengths, total, new, past, by_shape)
        y, keys, values = net.run({n: x for n, x in given.items() if n != "sink" or sink})
        size = max(total, past)
        assert keys.shape == values.shape == (len(lengths), GROUPS, size, WIDTH)
        for i, length in enumerate(lengths):
            wanted = alone(given, i, total, sink, size, attributes)
            own = min(length, new) if total == new else new  # behind a shorter prompt nothing is meant
            np.testing.assert_allclose(y[i, :own], wanted[0][:own], rtol=1e-4, atol=1e-5)
            for mine, other in zip((keys[i], values[i]), wanted[1:], strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("past", [0, 4])
def test_lengths_that_are_none(past: int) -> None:
    """0 and less, also where the new tokens are the first: nothing would say that a request has no token."""
    net = backend.prepare(model({}, False, False))
    for lengths, new in (([0, 3], 3), ([-(2**31) + 1, 3], 3), ([2**31, 3], 3), ([3, 4], 3), ([0, 1], 1)):
        given = feeds([1, 1], new, new, past, False)
        given["lengths"] = np.array([n - 1 for n in lengths], np.int32)
        with pytest.raises(IngotError, match="seqlens_k \\+ 1 must be at least"):
            net.run({n: x for n, x in given.items() if n != "sink"})
    with pytest.raises(IngotError, match="softcap is -1; it must be greater than 0"):
        backend.prepare(model({"softcap": -1.0}, False, False))
