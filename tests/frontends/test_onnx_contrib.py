"""Ops of com.microsoft and ensembles of trees: a sample beside ONNX Runtime, refusals, faults of a run."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from ingot import dtypes  # noqa: E402
from ingot.errors import IngotError, UnsupportedError  # noqa: E402
from tools.conformance import onnx_peers  # noqa: E402
from tools.conformance.onnx_contrib import ours, tried  # noqa: E402
from tools.conformance.onnx_probes import TREES, Probe, probes  # noqa: E402

PROBES = probes()
# Of each op the model that asks for most; `make conformance PART=onnx-contrib` runs all.
SAMPLE = {probe.op: probe for probe in PROBES}


def test_a_sample_agrees_with_onnx_runtime() -> None:
    found = [tried(probe) for probe in SAMPLE.values()]
    assert len(found) > 45
    assert [(one.probe.name, one.why) for one in found if one.why] == []
    assert [(one.probe.name, one.host) for one in found if one.host] == []


def one(name: str) -> Probe:
    (probe,) = [p for p in PROBES if p.name == name]
    return probe


@pytest.mark.parametrize(
    ("lengths", "total"),
    [([0, 8, 1], 8), ([1, 1, 9], 9), ([2, 3, 8], 7), ([-3, 8, 8], 8), ([8, 8, 8], 12)],
    ids=["no tokens", "more than past and new", "more than the longest", "negative", "a longest beyond past and new"],
)
def test_lengths_that_do_not_fit_are_a_fault(lengths: list[int], total: int) -> None:
    """Seven past tokens and a new one."""
    probe = one("GroupQueryAttention: a token behind past")
    operands = list(probe.operands)
    operands[5:7] = np.array(lengths, np.int32) - 1, np.array(total, np.int32)
    with pytest.raises(IngotError, match="seqlens_k . 1 must be at least the number of new tokens"):
        ours(probe._replace(operands=tuple(operands)))


@pytest.mark.parametrize(
    ("name", "attributes", "why"),
    [
        ("Attention: plain", {"do_rotary": 1}, "rotary embeddings inside of it"),
        ("Attention: plain", {"qkv_hidden_sizes": [8, 8, 4]}, "do not add up to 24"),
        ("GroupQueryAttention: a prompt", {"kv_cache_bit_width": 8}, "quantised caches"),
        ("MatMulNBits: 4 bits in blocks of 16", {"bits": 3}, "only 2, 4 and 8 bits"),
        ("FusedConv: Relu", {"activation": "Gelu"}, "the activation Gelu is not known"),
        ("CDist: euclidean", {"metric": "cosine"}, "the metric cosine is not supported"),
        ("GatherBlockQuantized: bytes of 4 bits", {"quantize_axis": 0}, "the axis that is gathered has no blocks"),
    ],
)
def test_what_is_not_supported(name: str, attributes: dict[str, Any], why: str) -> None:
    probe = one(name)
    with pytest.raises(UnsupportedError, match=why):
        ours(probe._replace(attributes={**probe.attributes, **attributes}))


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"nodes_truenodeids": [0, 1, 2]}, "have a cycle"),
        ({"nodes_truenodeids": [9, 0, 0]}, "leads to one that is not there"),
        ({"nodes_featureids": [4, 0, 0]}, "ask for feature 4 of 4"),
        ({"nodes_modes": ["BRANCH_NEAR", "LEAF", "LEAF"]}, "the mode BRANCH_NEAR is not known"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes of a tree have one number"),
        ({"nodes_values": [1.0]}, "differ in length"),
        ({"target_ids": [0, 3]}, "a target beyond"),
        ({"target_nodeids": [0, 2]}, "a node that is no leaf has weights"),
        ({"n_targets": 1 << 40}, "are not supported"),
        ({"post_transform": "PROBIT"}, "post_transform 4 is not supported"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN is none of"),
    ],
)
def test_trees_that_contradict_themselves(attributes: dict[str, Any], why: str) -> None:
    good: dict[str, Any] = {
        "n_targets": 1, "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [3, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [5.0, 7.0],
    }  # fmt: skip
    x = np.array([[0, 0, 0, 0.25], [0, 0, 0, 0.75]], np.float32)
    probe = Probe("TreeEnsembleRegressor", "one branch", (x,), good, domain=TREES)
    assert ours(probe)[0][0].tolist() == [[5.0], [7.0]]
    with pytest.raises(UnsupportedError, match=why):
        ours(probe._replace(attributes={**good, **attributes}))


def test_a_row_of_trees_whose_depth_differs() -> None:
    """A tree of two levels beside one that is a leaf from the start."""
    attributes = {
        "n_targets": 1, "nodes_treeids": [0, 0, 0, 0, 0, 1], "nodes_nodeids": [0, 1, 2, 3, 4, 0],
        "nodes_featureids": [0, 0, 0, 0, 0, 0], "nodes_values": [1.0, 0.0, 0, 0, 0, 0],
        "nodes_modes": ["BRANCH_LT", "BRANCH_GT", "LEAF", "LEAF", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 3, 0, 0, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0, 0],
        "target_treeids": [0, 0, 0, 1], "target_nodeids": [2, 3, 4, 0], "target_ids": [0] * 4,
        "target_weights": [1.0, 2.0, 4.0, 100.0],
    }  # fmt: skip
    x = np.array([[2.0], [0.5], [-0.5]], np.float32)
    (found,), _ = ours(Probe("TreeEnsembleRegressor", "uneven", (x,), attributes, domain=TREES))
    assert found.tolist() == [[101.0], [102.0], [104.0]]


def test_a_peer_whose_process_dies_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test at which it does is missed, and another process goes on behind it."""
    monkeypatch.setattr(onnx_peers, "PATIENCE", 0.5)
    says = {
        0: "print('{}'); print('{\"a\": \"\"}', flush=True); import os; os.abort()",
        2: "print('{}'); print('{\"c\": \"wrong\"}', flush=True); import time; time.sleep(60)",
        4: "print('{}', flush=True); print('{\"e\": \"\"}')",
    }
    found = onnx_peers.results(list("abcde"), lambda first: [sys.executable, "-S", "-c", says[first]])
    ended = {"b": "its process ends with status -6", "d": "it takes 0.5 seconds or more"}
    assert found == {"a": "", "c": "wrong", "e": "", **ended}
    with pytest.raises(RuntimeError, match="does not run at all: its process ends with status 3"):
        onnx_peers.results(["a"], lambda first: [sys.executable, "-S", "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "bfloat16"])
def test_elements_that_share_a_byte(kind: str) -> None:
    dtype = dtypes.get(kind).numpy
    x = np.arange(15).astype(np.uint8).reshape(3, 5) % (1 << min(dtypes.get(kind).bits, 4))
    whole = x.astype(np.int8) - (8 if kind == "int4" else 2 if kind == "int2" else 0)
    array = whole.astype(dtype)
    assert np.array_equal(onnx_peers._restored(onnx_peers._packed(array), array.dtype), array)
