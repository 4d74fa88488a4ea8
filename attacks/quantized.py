"""Attacks by weights of integers and scales (classes 23 and 24): in the program, and in the portable network."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from attacks.image import Image, engine
from attacks.networks import attack as network_attack
from attacks.networks import node

Program = dict[str, Any]

# 40 inputs and 32 outputs: a panel of 5 steps of 8 values, in 4 bytes each for 32 outputs, and scales of two groups.
PANELS, SCALES = [1, 5, 32, 4], [1, 2, 32]
PANEL_BYTES, SCALE_BYTES = 640, 256
IDENTITY = {"steps": [["input", "float32", 0]], "outputs": [0]}


def good(image: Image) -> None:
    """y = x · wᵀ, w of 4 bits in groups of 32; it opens, and runs."""
    image.ours["programs"]["cpu"]["entries"]["main"] = {
        "version": 1,
        "symbols": [{"name": "N", "min": 0, "max": 64}],
        "buffers": [
            {"kind": "input", "name": "x", "dtype": "float32", "shape": ["N", 40]},
            {"kind": "weight", "tensor": "q", "dtype": "uint8", "shape": PANELS},
            {"kind": "weight", "tensor": "s", "dtype": "float32", "shape": SCALES},
            {"kind": "temp", "dtype": "float32", "shape": ["N", 32]},
        ],
        "calls": [
            {"kernel": "matmul_packed", "version": 1, "in": [0, 1, 2], "out": [3], "where": "product",
             "params": {"n": 32, "k": 40, "parts": 1, "group": 32, "epilogue": IDENTITY}},
        ],
        "outputs": [{"name": "y", "buffer": 3}],
    }  # fmt: skip
    image.ours["weights"] = {name: {"recipe": {"sources": [name], "steps": []}, "hash": []} for name in "qs"}
    image.entries = [
        ("q", {"dtype": "U8", "shape": PANELS, "data_offsets": [0, PANEL_BYTES]}),
        ("s", {"dtype": "F32", "shape": SCALES, "data_offsets": [PANEL_BYTES, PANEL_BYTES + SCALE_BYTES]}),
    ]
    image.data = bytes(range(128)) * 5 + bytes(SCALE_BYTES)


def program(number: int, name: str, change: Callable[[Program], object], why: str, at: str = "native") -> None:
    """An engine of the good one whose program `change` alters in place; `at` tells when it has to be refused."""

    def content(image: Image) -> None:
        good(image)
        change(image.program)

    engine(number, f"4 bits: {name}", content, **{at: ("program|kernel_refused", why)})


def params(**changed: Any) -> Callable[[Program], object]:
    return lambda p: p["calls"][0]["params"].update(changed)


def without_groups(p: Program) -> None:
    del p["calls"][0]["params"]["group"]
    p["calls"][0]["in"] = [0, 1]


def view(buffer: int, place: int, **changed: Any) -> Callable[[Program], None]:
    """The operand at a place is a view of a buffer."""

    def change(p: Program) -> None:
        p["buffers"].append({"kind": "view", "of": buffer, "offset": 0, **changed})
        p["calls"][0]["in"][place] = len(p["buffers"]) - 1

    return change


program(24, "a group of 0", params(group=0), "group")
program(24, "a negative group", params(group=-32), "group")
program(24, "a group that is no multiple of 8", params(group=12), "32, 64 or 128")
program(24, "a group of 2**60", params(group=2**60), "scales|group")
program(24, "groups that no kernel has", params(group=8), "32, 64 or 128")
program(24, "larger groups than there are scales for", params(group=64), "scales", "run")
program(24, "no scales", lambda p: p["calls"][0].update({"in": [0, 1]}), "operand|operands|scales")
program(24, "no groups and no scales", without_groups, "4 bits")
program(24, "scales that are the panels", lambda p: p["calls"][0].update({"in": [0, 1, 1]}), "scales")
program(24, "scales of another shape", view(2, 2, shape=[2, 1, 32], stride=[32, 32, 1]), "scales", "run")
program(24, "scales that repeat", view(2, 2, shape=SCALES, stride=[64, 0, 1]), "scales|contiguous", "run")
program(24, "more inputs than the panels hold", params(k=48), "weight", "run")
program(24, "fewer inputs than the panels hold", params(k=32), "weight|k", "run")
program(24, "inputs beyond counting", params(k=2**62), "weight|k")
program(24, "more outputs than the panels hold", params(n=33), "weight", "run")
program(24, "two weights in the panels of one", params(parts=2), "weight", "run")
program(23, "panels of 3 bytes for 8 values", view(1, 1, shape=[1, 5, 32, 3], stride=[640, 128, 4, 1]), "weight", "run")
program(23, "panels that overlap", view(1, 1, shape=PANELS, stride=[640, 64, 4, 1]), "weight|contiguous", "run")


def weights(name: str, group: int, scales: list[int], why: str, dtype: str = "int4", columns: int = 8) -> None:
    """The portable network's weight is `dequantize` of constants."""

    def change(net: dict[str, Any]) -> None:
        count = 4 * columns
        size = scales[0] * scales[1] * 4
        net["constants"] += [
            {"name": "q", "dtype": dtype, "shape": [4, columns],
             "data": base64.b64encode(bytes(count if dtype != "int4" else (count + 1) // 2)).decode()},
            {"name": "s", "dtype": "float32", "shape": scales, "data": base64.b64encode(bytes(size)).decode()},
        ]  # fmt: skip
        made = node("dequantize", ["q", "s"], ["wide"], dtype="float32", group=group)
        made["version"] = 2
        net["nodes"].insert(0, made)
        net["nodes"][1]["in"] = ["x", "wide"]

    network_attack(24, f"weights, {name}", change, why)


weights("groups that do not divide", 5, [4, 1], "divide|group", dtype="int8")
weights("a negative group", -8, [4, 1], "group", dtype="int8")
weights("scales of another length", 4, [4, 1], "scale", dtype="int8")
weights("more scales than groups", 8, [4, 2], "scale", dtype="int8")
weights("4 bits in a constant of too few bytes", 8, [4, 1], "int4|bytes|constant|data")
