"""Compiles kernels of target cuda for sm_90 without a GPU, and prints what the object and its PTX say, as JSON.

Run by test_compiled.py in a process of its own, for the interpreter changes what Triton's decorator makes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ingot.backends.cuda import (
    attention_kernels,
    choice_kernels,
    dequantize_kernels,
    expert_kernels,
    float_kernels,
    group_kernels,
    integer_kernels,
    native_launch,
    plane_kernels,
    row_kernels,
)

TARGET = GPUTarget("cuda", 90, 32)
ENTRY: Any = object()  # nothing is launched
ROWS = {"ROWS": 1, "NORM": True, "PAIR": False, "EXTRA": False, "DEPENDENT": True}
FLOATS = {**ROWS, "SCALED": False, "ROUNDS": False, "NATIVE": True}
FP32 = ("scales", "second_scales", "cos", "sin", "partial", "maxima", "weights", "slopes", "logits", "tops",
        "temperature", "back", "shares")  # fmt: skip
FP64 = ("sums", "drawn_sums", "uniform")
INTS = ("slot", "context_len", "block_table", "tiles", "query_start", "places", "ranked", "chosen", "found", "arrived",
        "order", "starts")  # fmt: skip
POINTERS = dict.fromkeys(FP32, "*fp32") | dict.fromkeys(FP64, "*fp64") | dict.fromkeys(INTS, "*i32")
BF16 = ("x", "gain", "weight", "second", "extra", "out", "q", "key", "value", "state", "a", "b")  # fmt: skip
# Where a case does not name them.
ABSENT = {"bias": None, "beta": None, "zeros": None, "second_zeros": None, "ACTIVATION": ""}
NUMBERS = ("eps", "shift", "scale", "softcap")
HEADS = {"HEADS": 32, "KV": 8, "D": 128, "P": 128, "W": 128, "WINDOW": False, "SOFTCAP": False, "ALIBI": False,
         "BLOCK": 64}  # fmt: skip
DECODE = {"R": 64, "ROPE": True, "HALVES": True, "BT": 64, "GM": 16, "GP": 4, "SPLITS": 16, "NATIVE": True,
          "DEPENDENT": True}  # fmt: skip
PROMPT = {"BM": 128, "BN": 128, "STAGES": 2, "DEPENDENT": True}
TILES = {"BM": 128, "SPLITS": 1, "ROUNDED": False, "EXTRA": False, "STAGES": 3, "DEPENDENT": True}
WORDS = {**ROWS, "R": 1, "K": 4096, "HALF": 0, "TOP": 0, "chosen": None, "NATIVE": True, "NORM": False}
PAIRS = {"TOP": 2, "SCALED": False, "GATED": True, "DEPENDENT": True}
EXPERTS = {"TOP": 2, "BE": 8, "BK": 64, "HALF": 0, "GATED": True, "SCALED": False, "ROUNDED": False, "ROUNDS": False,
           "NATIVE": True, "DEPENDENT": True}  # fmt: skip
PLANES = {"K": 4096, "SPLITS": 1, "EXTRA": False, "NATIVE": True, "STAGES": 3, "DEPENDENT": True}
GROUPS = {"K": 4096, "HALF": 64, "EXTRA": False, "NATIVE": True, "STAGES": 4, "DEPENDENT": True, "x": "*fp16",
          "partial": "*fp32", "scales": "*fp16", "second_scales": "*fp16"}  # fmt: skip
ZEROS = {"zeros": "*i8", "second_zeros": "*i8"}
CHOSEN = {"TOP": 2, "chosen": "*i32"}
HALVES = {"SCALED": False, "ROUNDS": True, "HALF": 64, "scales": "*fp16", "second_scales": "*fp16"}
EXACT = {"SCALED": True, "ROUNDED": True}
GIVEN = {"bias": "*bf16"}  # pointers that are None elsewhere
LAYER = {"NORM": 2, "beta": "*bf16"}
# The shapes that Shapes.floats chooses for Llama-3-8B, by a name: the kernel, the weight's or cache's type, warps,
# constants, and what of ABSENT is there.
CASES: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "bfloat16": (float_kernels.product_rows, "*bf16", 8, {**FLOATS, "BN": 4, "BK": 4096, "STAYS": True}),
    "bfloat16 pair": (float_kernels.product_rows, "*bf16", 4, {
        **FLOATS, "BN": 2, "BK": 4096, "PAIR": True, "STAYS": False}),
    "bfloat16 long": (float_kernels.product_rows, "*bf16", 16, {**FLOATS, "BN": 2, "BK": 16384, "STAYS": True}),
    "float8": (float_kernels.product_rows, "*fp8e4nv", 4, {
        **FLOATS, "SCALED": True, "BN": 4, "BK": 4096, "STAYS": False}),
    "float8 pair": (float_kernels.product_rows, "*fp8e4nv", 4, {
        **FLOATS, "SCALED": True, "BN": 4, "BK": 4096, "PAIR": True, "STAYS": False}),
    "float8 long": (float_kernels.product_rows, "*fp8e4nv", 8, {
        **FLOATS, "SCALED": True, "BN": 4, "BK": 16384, "STAYS": False}),
    "rounded float8": (float_kernels.product_rows, "*fp8e4nv", 4, {
        **FLOATS, "SCALED": True, "ROUNDS": True, "BN": 4, "BK": 4096, "STAYS": False}),
    "rows of float16": (row_kernels.half_rows, "", 8, {"BK": 4096, "NORM": True, "DEPENDENT": True}),
    "rows of float8": (row_kernels.float8_rows, "", 8, {"BK": 4096, "NORM": True, "NATIVE": True, "DEPENDENT": True}),
    "16 rows of float8 each": (float_kernels.product_tiles, "*fp8e4nv", 4, {
        **TILES, "BM": 16, "BN": 64, "BK": 128, "SPLITS": 4, "STAGES": 4, "PAIR": False, "SCALED": True,
        "ROUNDED": True}),
    "64 rows of float8": (float_kernels.product_tiles, "*fp8e4nv", 4, {
        **TILES, "BM": 64, "BN": 64, "BK": 128, "STAGES": 3, "PAIR": True, "SCALED": True, "ROUNDED": True}),
    "int8 pair": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, "BN": 4, "CHUNKS": 256, "PARTS": 1, "NORM": True, "PAIR": True}),
    "int8 long": (integer_kernels.product_integers, "*i32", 8, {
        **WORDS, "K": 14336, "BN": 4, "CHUNKS": 256, "PARTS": 4, "EXTRA": True}),
    "int4": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, "BN": 8, "CHUNKS": 128, "PARTS": 1, "HALF": 64, "NORM": True}),
    "int4 pair": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, "BN": 4, "CHUNKS": 128, "PARTS": 1, "HALF": 64, "NORM": True, "PAIR": True}),
    "int4 long": (integer_kernels.product_integers, "*i32", 16, {
        **WORDS, "K": 14336, "BN": 2, "CHUNKS": 512, "PARTS": 1, "HALF": 64, "EXTRA": True}),
    "int4 of four rows": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, "ROWS": 4, "R": 4, "BN": 4, "CHUNKS": 128, "PARTS": 1, "HALF": 64, "NORM": True}),
    "attention": (attention_kernels.decode_attention, "*bf16", 4, {**HEADS, **DECODE}),
    "attention of 64 rows": (attention_kernels.decode_attention, "*bf16", 2, {
        **HEADS, **DECODE, "BT": 32, "SPLITS": 1}),
    "attention of 48 heads on one": (attention_kernels.decode_attention, "*bf16", 4, {
        **HEADS, **DECODE, "HEADS": 48, "KV": 1, "BT": 32, "GM": 64, "GP": 64}),
    "attention of int8": (attention_kernels.decode_attention, "*i8", 2, {
        **HEADS, **DECODE, "W": 132, "SPLITS": 1}),
    "attention of float8": (attention_kernels.decode_attention, "*fp8e4nv", 2, {
        **HEADS, **DECODE, "SPLITS": 4}),
    "prompt": (attention_kernels.prefill_attention, "*bf16", 8, {**HEADS, **PROMPT}),
    "prompt of int8": (attention_kernels.prefill_attention, "*i8", 4, {**HEADS, **PROMPT, "W": 132, "BN": 32}),
    "prompt of float8": (attention_kernels.prefill_attention, "*fp8e4nv", 8, {**HEADS, **PROMPT}),
    "written int8": (attention_kernels.rotate_write, "*i8", 4, {
        "HEADS": 32, "HB": 32, "KV": 8, "KB": 8, "D": 128, "P": 128, "W": 132, "R": 64, "ROPE": True, "HALVES": True,
        "NATIVE": True, "DEPENDENT": True}),
    "attention of 96 wide": (attention_kernels.decode_attention, "*bf16", 4, {
        **HEADS, **DECODE, "KV": 32, "D": 96, "W": 96, "R": 48, "GP": 1}),
    "attention of 64 rows, 96 wide": (attention_kernels.decode_attention, "*bf16", 2, {
        **HEADS, **DECODE, "KV": 32, "D": 96, "W": 96, "R": 48, "GP": 1, "BT": 32, "SPLITS": 1}),
    "attention of 64 rows, 256 wide": (attention_kernels.decode_attention, "*bf16", 4, {
        **HEADS, **DECODE, "D": 256, "P": 256, "W": 256, "R": 128, "BT": 32, "SPLITS": 1}),
    "attention of int8, 80 wide": (attention_kernels.decode_attention, "*i8", 2, {
        **HEADS, **DECODE, "KV": 32, "D": 80, "W": 84, "R": 16, "GP": 1, "SPLITS": 1}),
    "attention of float8, 80 wide": (attention_kernels.decode_attention, "*fp8e4nv", 2, {
        **HEADS, **DECODE, "KV": 32, "D": 80, "W": 80, "R": 16, "GP": 1, "SPLITS": 1}),
    "prompt of 96 wide": (attention_kernels.prefill_attention, "*bf16", 8, {
        **HEADS, **PROMPT, "KV": 32, "D": 96, "W": 96}),
    "prompt of int8, 80 wide": (attention_kernels.prefill_attention, "*i8", 4, {
        **HEADS, **PROMPT, "KV": 32, "D": 80, "W": 84, "BN": 32}),
    "written 80 wide": (attention_kernels.rotate_write, "*bf16", 4, {
        "HEADS": 32, "HB": 32, "KV": 32, "KB": 32, "D": 80, "P": 128, "W": 80, "R": 16, "ROPE": True, "HALVES": True,
        "NATIVE": True, "DEPENDENT": True}),
    "many rows of int8": (float_kernels.product_tiles, "*i8", 8, {
        **TILES, "BN": 64, "BK": 64, "PAIR": True, "SCALED": True}),
    "many rows of int4": (dequantize_kernels.group_tiles, "*u8", 8, {
        "BM": 128, "EXTRA": False, "STAGES": 3, "DEPENDENT": True, "BN": 64, "HALF": 64, "PAIR": True}),
    "five rows and more": (plane_kernels.planes, "", 8, {"BK": 4096, "NORM": True, "DEPENDENT": True}),
    "64 rows of int8": (plane_kernels.product_planes, "*i8", 8, {
        **PLANES, "BM": 64, "BN": 128, "BK": 128, "HALF": 0, "PAIR": True}),
    "16 rows of int4": (plane_kernels.product_planes, "*u8", 8, {
        **PLANES, "BM": 16, "BN": 128, "BK": 128, "HALF": 64, "PAIR": False, "SPLITS": 8, "STAGES": 4}),
    "64 rows of int4": (plane_kernels.product_planes, "*u8", 8, {
        **PLANES, "BM": 64, "BN": 128, "BK": 128, "HALF": 64, "PAIR": True}),
    "16 rows of int4 as float16": (group_kernels.product_groups, "*u8", 2, {
        **GROUPS, "BM": 16, "BN": 32, "SPLITS": 8, "PAIR": False}),
    "32 rows of int4 as float16": (group_kernels.product_groups, "*u8", 2, {
        **GROUPS, "BM": 32, "BN": 32, "SPLITS": 2, "PAIR": True}),
    "64 rows of int4 as float16": (group_kernels.product_groups, "*u8", 4, {
        **GROUPS, "BM": 64, "BN": 64, "SPLITS": 1, "PAIR": True}),
    "expanded int8": (dequantize_kernels.expand_rows, "*i8", 4, {
        "BN": 8, "BK": 512, "FLOATS": False, "DEPENDENT": True}),
    "expanded float8": (dequantize_kernels.expand_rows, "*fp8e4nv", 4, {
        "BN": 8, "BK": 512, "FLOATS": True, "DEPENDENT": True}),
    "expanded int4": (dequantize_kernels.expand_groups, "*u8", 4, {"BN": 32, "HALF": 64, "DEPENDENT": True}),
    "experts of a row": (expert_kernels.pair_rows, "*bf16", 4, {**PAIRS, "BN": 1, "BK": 4096}),
    "a row of experts": (expert_kernels.pair_rows, "*bf16", 8, {**PAIRS, "GATED": False, "BN": 1, "BK": 16384}),
    "float8 experts of a row": (expert_kernels.pair_rows, "*fp8e4nv", 4, {
        **PAIRS, "SCALED": True, "BN": 4, "BK": 4096}),
    "int8 experts of a row": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, **CHOSEN, "BN": 4, "CHUNKS": 256, "PARTS": 1, "PAIR": True}),
    "int4 experts of a row": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, **CHOSEN, **ZEROS, "BN": 4, "CHUNKS": 128, "PARTS": 1, "HALF": 64, "PAIR": True}),
    "a row of int4 experts": (integer_kernels.product_integers, "*i32", 16, {
        **WORDS, **CHOSEN, **ZEROS, "K": 14336, "BN": 2, "CHUNKS": 512, "PARTS": 1, "HALF": 64}),
    "16 rows of experts": (expert_kernels.expert_tiles, "*bf16", 4, {
        **EXPERTS, "BM": 16, "BN": 64, "BK": 128, "STAGES": 4}),
    "many rows of experts": (expert_kernels.expert_tiles, "*bf16", 4, {**EXPERTS, "BM": 128, "BN": 64, "STAGES": 3}),
    "16 rows of int8 experts": (expert_kernels.expert_tiles, "*i8", 2, {
        **EXPERTS, **EXACT, "BM": 16, "BN": 32, "BK": 256, "STAGES": 3}),
    "many rows of int8 experts": (expert_kernels.expert_tiles, "*i8", 4, {
        **EXPERTS, **EXACT, "BM": 128, "BN": 64, "STAGES": 3}),
    "16 rows of float8 experts": (expert_kernels.expert_tiles, "*fp8e4nv", 2, {
        **EXPERTS, **EXACT, "BM": 16, "BN": 32, "BK": 256, "STAGES": 3}),
    "many rows of float8 experts": (expert_kernels.expert_tiles, "*fp8e4nv", 4, {
        **EXPERTS, **EXACT, "GATED": False, "BM": 128, "BN": 64, "STAGES": 3}),
    "16 rows of int4 experts": (expert_kernels.expert_tiles, "*u8", 2, {
        **EXPERTS, **EXACT, **ZEROS, "SCALED": False, "HALF": 64, "BM": 16, "BN": 32, "STAGES": 3}),
    "many rows of int4 experts": (expert_kernels.expert_tiles, "*u8", 4, {
        **EXPERTS, **EXACT, **ZEROS, **HALVES, "BM": 128, "BN": 64, "STAGES": 3}),
    "bfloat16 gelu": (float_kernels.product_rows, "*bf16", 8, {
        **FLOATS, **LAYER, **GIVEN, "BN": 4, "BK": 4096, "STAYS": True, "ACTIVATION": "gelu"}),
    "bfloat16 geglu": (float_kernels.product_rows, "*bf16", 4, {
        **FLOATS, "BN": 2, "BK": 4096, "PAIR": True, "STAYS": False, "ACTIVATION": "gelu_tanh"}),
    "bfloat16 bias and residual": (float_kernels.product_rows, "*bf16", 16, {
        **FLOATS, **GIVEN, "NORM": 0, "EXTRA": True, "BN": 2, "BK": 16384, "STAYS": True}),
    "float8 geglu": (float_kernels.product_rows, "*fp8e4nv", 4, {
        **FLOATS, "SCALED": True, "BN": 4, "BK": 4096, "PAIR": True, "STAYS": False, "ACTIVATION": "gelu_tanh"}),
    "int8 gelu": (integer_kernels.product_integers, "*i32", 8, {
        **WORDS, **GIVEN, "BN": 4, "CHUNKS": 256, "PARTS": 1, "ACTIVATION": "gelu"}),
    "int8 geglu": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, "BN": 4, "CHUNKS": 256, "PARTS": 1, "NORM": True, "PAIR": True, "ACTIVATION": "gelu_tanh"}),
    "int4 geglu": (integer_kernels.product_integers, "*i32", 4, {
        **WORDS, "BN": 4, "CHUNKS": 128, "PARTS": 1, "HALF": 64, "NORM": True, "PAIR": True,
        "ACTIVATION": "gelu_tanh"}),
    "16 rows of int8 gelu": (plane_kernels.product_planes, "*i8", 8, {
        **PLANES, **GIVEN, "BM": 16, "BN": 128, "BK": 128, "HALF": 0, "PAIR": False, "SPLITS": 4, "STAGES": 6,
        "ACTIVATION": "gelu"}),
    "64 rows of int4 geglu": (plane_kernels.product_planes, "*u8", 8, {
        **PLANES, "BM": 64, "BN": 128, "BK": 128, "HALF": 64, "PAIR": True, "ACTIVATION": "gelu_tanh"}),
    "64 rows of float8 gelu": (float_kernels.product_tiles, "*fp8e4nv", 4, {
        **TILES, **GIVEN, "BM": 64, "BN": 64, "BK": 128, "STAGES": 4, "PAIR": False, "SCALED": True, "ROUNDED": True,
        "ACTIVATION": "gelu"}),
    "many rows of int4 gelu": (dequantize_kernels.group_tiles, "*u8", 8, {
        **GIVEN, "BM": 128, "EXTRA": False, "STAGES": 3, "DEPENDENT": True, "BN": 128, "HALF": 64, "PAIR": False,
        "ACTIVATION": "gelu"}),
    "layer norm": (row_kernels.layer_norm, "", 4, {"BK": 4096, "DEPENDENT": True, "beta": "*bf16"}),
    "layer norm in five rows": (plane_kernels.planes, "", 8, {"BK": 4096, **LAYER, "DEPENDENT": True}),
    "finished rows": (row_kernels.finished, "", 4, {
        **GIVEN, "BN": 2048, "EXTRA": True, "ACTIVATION": "gelu", "DEPENDENT": True}),
    "gated rows": (row_kernels.gated, "", 4, {"BN": 2048, "ACTIVATION": "gelu_tanh", "DEPENDENT": True}),
    "64 rows of experts geglu": (expert_kernels.expert_tiles, "*bf16", 4, {
        **EXPERTS, "BM": 64, "BN": 64, "STAGES": 3, "ACTIVATION": "gelu_tanh"}),
    "choice": (choice_kernels.choose, "", 4, {
        "BN": 2048, "BP": 64, "DRAWN": True, "RANKED": False, "AWAY": False, "DEPENDENT": True}),
}  # fmt: skip

REGISTERS = {"int4 pair": 128, "int4 geglu": 128, "int4 long": 64, "int4 experts of a row": 128,
             "a row of int4 experts": 64, "int8 pair": 128, "int8 geglu": 128,
             "int8 experts of a row": 128}  # of a thread, at most, so that several programs fit

# What x is beside a weight, where it is not bfloat16.
ROWS_OF = {"16 rows of float8 each": "*fp8e4nv", "64 rows of float8": "*fp16", "64 rows of float8 gelu": "*fp16"}
ROWS_OF |= {name: "*fp16" for name in CASES if "rows of" in name and name.endswith("8 experts")}
ROWS_OF |= {name: "*fp16" for name in CASES if "rows of" in name and name.endswith("4 experts")}


def compiled(
    kernel: Any, weight: str, warps: int, constants: dict[str, Any], x: str = "*bf16", registers: int | None = None
) -> dict[str, Any]:
    """Registers, spills, and whether weights are loaded before the wait."""
    names = kernel.arg_names
    gate = {"ACTIVATION": "silu"} if constants.get("PAIR") or constants.get("GATED") else {}
    constants = {n: v for n, v in (ABSENT | gate).items() if n in names} | constants
    there = {n: v for n, v in constants.items() if isinstance(v, str) and v.startswith("*")}
    constants = {n: v for n, v in constants.items() if n not in there}
    types = dict.fromkeys(names, "i32") | dict.fromkeys(BF16, "*bf16") | {"x": x} | POINTERS
    types |= {"out": "*fp8e4nv"} if kernel is row_kernels.float8_rows else {}
    types |= {"out": "*fp16"} if kernel is row_kernels.half_rows else {}
    types |= {"x": "*i8", "partial": "*fp32"} if kernel is plane_kernels.product_planes else {}
    types |= {"out": "*i8"} if kernel is plane_kernels.planes else {}
    types |= dict.fromkeys({"weight", "second", "state"} & {*names}, weight) if weight else {}
    types |= there | dict.fromkeys(NUMBERS, "fp32") | dict.fromkeys(constants, "constexpr")
    even = [n for n in names if types[n].startswith("*") or n in ("k", "n") or n.endswith("stride")]
    source = ASTSource(
        kernel, {n: types[n] for n in names}, {(names.index(n),): v for n, v in constants.items()},
        {(names.index(n),): [["tt.divisibility", 16]] for n in even},
    )  # fmt: skip
    options = {"num_warps": warps, "launch_pdl": True, "maxnreg": registers}
    made = triton.compile(source, target=TARGET, options=options)
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    before, _, _ = made.asm["ptx"].partition("griddepcontrol.wait")
    wide = len(re.findall(r"ld\.global[\w.:]*v[24]\.b32", before))
    units = len(re.findall(r"wgmma\.mma_async", made.asm["ptx"]))
    converted = made.asm["ptx"].count("cvt.rn.f32.s32")
    head, _, _ = made.asm["ptx"].partition(".maxntid")
    taken = [int(bits) // 8 for bits in re.findall(r"\.param \.[bfsu](\d+)", head)]
    given = native_launch.Launch(source.signature, made.metadata, ENTRY).sizes
    return {**found, "units": units, "before the wait": wide, "converted": converted, "launched": given == taken}


if __name__ == "__main__":
    wanted = sys.argv[1:] or CASES
    made = {name: compiled(*CASES[name], ROWS_OF.get(name, "*bf16"), REGISTERS.get(name)) for name in wanted}
    json.dump(made, sys.stdout)
