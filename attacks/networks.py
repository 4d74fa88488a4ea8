"""Attacks by the portable network in an engine's header (classes 26 to 37), which Python verifies before any use."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from attacks.image import Image, engine

Network = dict[str, Any]


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Network:
    return {"op": op, "version": 1, "in": inputs, "out": outputs, "attrs": attrs, "where": op}


def network(name: str = "main") -> Network:
    """y = softmax(x · wᵀ), and the place of a constant."""
    return {
        "name": name,
        "dims": [{"name": "N", "min": 0, "opt": None, "max": 64, "unbacked": False}],
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["N", 8]}],
        "parameters": [{"name": "w", "dtype": "float32", "shape": [4, 8]}],
        "constants": [{"name": "one", "dtype": "float32", "shape": [1], "data": "AACAPw=="}],
        "states": [],
        "nodes": [
            node("matmul", ["x", "w"], ["a"], transpose_a=False, transpose_b=True, out_dtype=None),
            node("softmax", ["a"], ["b"], axis=-1),
            node("add", ["b", "one"], ["c"]),
        ],
        "outputs": [["y", "c"]],
    }


def _changed(change: Callable[[Network], object]) -> Callable[[Image], None]:
    """An engine whose network `change` alters in place."""

    def content(image: Image) -> None:
        one = network()
        change(one)
        image.ours["networks"] = {"main": one}

    return content


def attack(number: int, name: str, change: Callable[[Network], object], why: str, at: str = "network") -> None:
    engine(number, f"network: {name}", _changed(change), **{at: ("network|op|dim|dtype|value", why)})


def _node(index: int, **changes: Any) -> Callable[[Network], None]:
    return lambda n: n["nodes"][index].update(changes)


def _attrs(index: int, **changes: Any) -> Callable[[Network], None]:
    return lambda n: n["nodes"][index]["attrs"].update(changes)


def _instead(op: str, **attrs: Any) -> Callable[[Network], None]:
    """Another op in the place of the softmax."""
    return lambda n: n["nodes"].__setitem__(1, node(op, ["a"], ["b"], **attrs))


attack(26, "a cycle", _node(0, **{"in": ["c", "w"]}), "no value %c")
attack(26, "a node that reads itself", _node(1, **{"in": ["b"]}), "no value %b")
attack(27, "a dangling value", _node(1, **{"in": ["nowhere"]}), "nowhere")
attack(27, "a value defined twice", _node(1, out=["a"]), "a")
attack(27, "a result named as an input", _node(1, out=["x"]), "x")
attack(27, "an output that nothing gives", lambda n: n["outputs"].append(["z", "nowhere"]), "nowhere")
attack(27, "two outputs of one name", lambda n: n["outputs"].append(["y", "b"]), "y")
attack(27, "two inputs of one name", lambda n: n["inputs"].append(n["inputs"][0]), "x")
attack(27, "too many results", _node(1, out=["b", "d"]), "result|output|name")
attack(27, "no results", _node(1, out=[]), "result|output|name")
attack(28, "an unknown op", _instead("os.system", command="id"), "os.system")
attack(28, "a class attribute as an op", _instead("__class__"), "__class__")
engine(28, "network: an op of a newer version", _changed(_node(1, version=99)),
       network=("engine_version", "softmax is of version 99; this ingot knows"))  # fmt: skip
_VERSIONS: list[Any] = [0, -1, 2**63 - 1, "1", 1.0, True, None, [1], {}]
for _version in _VERSIONS:
    engine(28, f"network: the op version {_version!r}", _changed(_node(1, version=_version)),
           network=("network|op|engine_version", "version"))  # fmt: skip
attack(28, "an older version that could mean something else", _instead("cast", dtype="float32"), "none of version 1")
attack(29, "a missing attribute", _instead("permute"), "permute has attributes .'dims'.; missing .'dims'")
attack(29, "an extra attribute", _attrs(1, path="/etc/passwd"), "path")
attack(29, "an attribute that is a method", _attrs(1, __init__=0), "__init__")
_AXES: list[Any] = ["0", 0.5, None, [0], True, {}, 2**62]
for _value in _AXES:
    attack(29, f"the axis {_value!r}", _attrs(1, axis=_value), "axis")
attack(29, "a missing key", lambda n: n["nodes"][1].pop("where"), "where")
attack(29, "an extra key", _node(1, address=4096), "address")
attack(29, "a node that is a list", lambda n: n["nodes"].append([]), "node 3")
attack(29, "too many operands", _node(1, **{"in": ["a"] * 50}), "softmax")
attack(29, "too few operands", _node(0, **{"in": ["x"]}), "matmul")
attack(29, "an operand of another type", lambda n: n["inputs"][0].update(dtype="int32"), "matmul")
attack(29, "an unknown dtype", lambda n: n["inputs"][0].update(dtype="float7"), "float7")
attack(31, "an axis out of range", _attrs(1, axis=2), "axis")
attack(31, "dims that are no permutation", _instead("permute", dims=[0, 0]), "permut")
attack(31, "a concat axis out of range", _instead("concat", dim=9), "dim")
attack(32, "two unknown sizes in a reshape", _instead("reshape", shape=[-1, -1]), "-1|reshape")
attack(32, "a reshape to another size", _instead("reshape", shape=["N", 5]), "reshape")
attack(30, "a slice behind the end", _instead("slice", starts=[0, 3], sizes=["N", 2], strides=[1, 1]), "slice")
attack(30, "a slice with stride 0", _instead("slice", starts=[0, 0], sizes=["N", 2], strides=[1, 0]), "stride")
attack(30, "padding that crops more than there is", _instead("pad", before=[0, -9], after=[0, 0], value=0.0), "pad")
_DIMS: list[Any] = [-1, 1.5, ["+", "N"], ["import", "os"], ["//", "N", 0], 2**63 - 1, [], {}, True, "N; import os"]
for _dim in _DIMS:
    attack(37, f"an input with the dim {_dim!r}", lambda n, d=_dim: n["inputs"][0].update(shape=[d, 8]), "")
attack(37, "a dim twice", lambda n: n["dims"].append(n["dims"][0]), "N")
attack(37, "a dim whose bounds cross", lambda n: n["dims"][0].update(min=65), "N")
attack(37, "a shape of 2**80 elements", lambda n: n["inputs"][0].update(shape=[2**40, 2**40]), "large")
attack(16, "65 dims", lambda n: n["inputs"][0].update(shape=[1] * 65), "large|at most")
attack(35, "a constant of 10**12 elements", lambda n: n["constants"][0].update(shape=[10**12]), "bytes of data")
attack(35, "a constant that is not base64", lambda n: n["constants"][0].update(data="!!!!"), "base64")
STATE = {"name": "kv", "dtype": "float32", "type": "kv_cache", "heads": 1, "head_dim": 16}


def _twice(n: Network) -> None:
    n["states"].append(STATE)
    n["inputs"].append({"name": "k", "dtype": "float32", "shape": ["N", 1, 16]})
    n["inputs"].append({"name": "s", "dtype": "int32", "shape": ["N"]})
    n["nodes"].extend(node("kv_write", ["kv", "k", "k", "s"], [out]) for out in ("kv1", "kv2"))


attack(27, "a state consumed twice", _twice, "kv")
attack(27, "a state with 0 heads", lambda n: n["states"].append(STATE | {"heads": 0}), "heads|kv")


def _branch(nodes: list[Network], result: str) -> Network:
    return {
        "name": "inner", "dims": [], "inputs": [{"name": "p", "dtype": "bool", "shape": []}], "parameters": [],
        "constants": [], "states": [], "nodes": nodes, "outputs": [["q", result]],
    }  # fmt: skip


def _deep(levels: int) -> Network:
    """Branches within branches."""
    inner = _branch([node("logical_not", ["p"], ["q"])], "q")
    for _ in range(levels):
        inner = _branch([node("cond", ["p", "p"], ["q"], then_branch=inner, else_branch=_branch([], "p"))], "q")
    return inner


engine(33, "network: branches 17 deep", lambda image: image.ours["networks"].update(main=_deep(17)), both="deep")


def _endless(n: Network) -> None:
    same = _branch([], "p")
    n["inputs"] = [{"name": "x", "dtype": "bool", "shape": []}]
    n.update(dims=[], parameters=[], constants=[], outputs=[["y", "z"]])
    n["nodes"] = [node("while_loop", ["x"], ["z"], condition=same, body=copy.deepcopy(same), limit=500)]


attack(33, "a loop that does not end", _endless, "500 rounds", "interpret")
attack(33, "a loop without rounds", lambda n: (_endless(n), n["nodes"][0]["attrs"].update(limit=0)), "limit")
