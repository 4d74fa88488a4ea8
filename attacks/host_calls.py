"""Attacks by host calls in an otherwise good engine (classes 26 to 37): ops that Python's NumPy references answer."""

from __future__ import annotations

from typing import Any

from attacks.image import Image, engine

Json = Any
X, IDS, W = 0, 1, 2  # x [N, 8], ids [N], w [4, 8]
ROW = {"kind": "view", "of": X, "shape": [8], "stride": [1], "offset": 0}


def calls(
    number: int,
    name: str,
    op: str,
    params: Json,
    operands: list[int],
    results: list[tuple[str, list[Json]]],
    why: str,
    code: str = "program",
    at: str = "session",
    symbols: tuple[Json, ...] = (),
    buffers: tuple[Json, ...] = (),
    **more: Json,
) -> None:
    """An engine whose only call is this host call. Buffers from the third on are `buffers`, then the results.

    at: "session" when the call is refused before anything runs; then a run is too.
    """

    def content(image: Image) -> None:
        p = image.program
        p["symbols"] += symbols
        made = [{"kind": "temp", "dtype": dtype, "shape": shape} for dtype, shape in results]
        p["buffers"] = [*p["buffers"][:3], *buffers, *made]
        out = list(range(3 + len(buffers), len(p["buffers"])))
        call = {"host": op, "version": 1, "in": operands, "out": out, "params": params, "where": "layer.0"}
        p["calls"] = [call | more]
        p["outputs"] = [{"name": f"y{i}", "buffer": b} for i, b in enumerate(out)]

    readers = ("session", "run") if at == "session" else (at,)
    engine(number, name, content, **dict.fromkeys(readers, (code, why)))


SIX = [("int32", [6])]
LIKE_X = [("float32", ["N", 8])]
_IOTA = {"size": 10**9, "start": 0, "step": 1, "dtype": "int32"}
_PAD = {"before": [10**9, 0], "after": [0, 0], "value": 0.0}

# ---- declarations that are no results of the op
calls(
    35, "iota of 10**9 numbers said to be six", "iota", _IOTA, [], SIX, r"gives i32\[1000000000\], .* declares i32\[6\]"
)
calls(35, "expand to 10**9 rows said to be one", "expand", {"shape": [10**9, 8]}, [3], [("float32", [1, 8])],
      r"gives f32\[1000000000, 8\], the program declares f32\[1, 8\]", buffers=(ROW,))  # fmt: skip
calls(35, "expand to nothing", "expand", {"shape": [0, 8]}, [3], [("float32", [1, 8])], "declares", buffers=(ROW,))
calls(35, "a pad by 10**9 rows said to be none", "pad", _PAD, [X], LIKE_X, r"gives f32\[N \+ 1000000000, 8\]")
calls(30, "a pad that cuts off more than there is", "pad", {"before": [0, -99], "after": [0, 99], "value": 0.0}, [X],
      LIKE_X, "would leave -91")  # fmt: skip
calls(29, "a pad by no number", "pad", {"before": [0], "after": [1], "value": "inf"}, [IDS],
      [("int32", [["+", "N", 1]])], "value inf")  # fmt: skip
calls(35, "a concat said to be shorter", "concat", {"dim": 0}, [X] * 40, LIKE_X, r"gives f32\[40\*N, 8\]")
calls(35, "an outer product said to be a number", "einsum", {"equation": "ab,cd->abcd"}, [W, W], [("float32", [])],
      r"gives f32\[4, 8, 4, 8\]")  # fmt: skip
calls(32, "a reshape with two unknown sizes", "reshape", {"shape": [-1, -1]}, [W], [("float32", [4, 8])], "at most one")
calls(32, "a reshape to other sizes", "reshape", {"shape": [8, 8]}, [W], [("float32", [8, 8])], "32 elements")
calls(30, "a slice far outside", "slice", {"starts": [2**40, 0], "sizes": [4, 8], "strides": [1, 1]}, [W],
      [("float32", [4, 8])], "reaches")  # fmt: skip
calls(
    31, "a permutation that is none", "permute", {"dims": [0, 0]}, [W], [("float32", [4, 4])], "no permut|permutation"
)
calls(29, "results of another type", "sort", {"axis": 1, "descending": False}, [X], LIKE_X * 2, r"i64\[N, 8\]")
calls(29, "one result of two", "sort", {"axis": 1, "descending": False}, [X], LIKE_X, "declares")
calls(29, "a result too many", "cumsum", {"axis": 1}, [X], LIKE_X * 2, "declares")
calls(29, "no results", "cumsum", {"axis": 1}, [X], [], "declares nothing")

# ---- ops, attributes and operands
calls(28, "a host call of a newer version", "cumsum", {"axis": 1}, [X], LIKE_X, "version 9; this ingot knows",
      "engine_version", version=9)  # fmt: skip
calls(28, "a host call that could mean something else", "cast", {"dtype": "float32"}, [X], LIKE_X, "none of version 1")
_VERSIONS: list[Json] = [0, -1, "1", 1.0, True, None, [1], 2**63]
for _version in _VERSIONS:
    calls(28, f"a host call of the version {_version!r}", "cumsum", {"axis": 1}, [X], LIKE_X, "version",
          version=_version)  # fmt: skip
calls(28, "a host call of no op", "os.system", {"cmd": "id"}, [X], LIKE_X, "there is no op 'os.system'")
calls(28, "a host call of a module", "__import__", {"name": "os"}, [X], LIKE_X, "there is no op")
calls(28, "a host call of a state op", "kv_write", {}, [X, X, X, IDS], LIKE_X, "must be a state")
calls(29, "a host call without attributes", "permute", {}, [W], [("float32", [8, 4])], "missing .*dims")
calls(29, "a host call with an attribute too many", "cumsum", {"axis": 1, "plugin": "x"}, [X], LIKE_X, "plugin")
_AXES: list[Json] = ["0", None, 0.0, True, [0], {}, 2**63 - 1, 2, -3]
for _axis in _AXES:
    calls(31, f"a host call with the axis {_axis!r}", "cumsum", {"axis": _axis}, [X], LIKE_X, "axis")
for _count in (0, 2, 3):
    calls(29, f"cumsum of {_count} operands", "cumsum", {"axis": 1}, [X] * _count, LIKE_X, "takes 1 operands")
calls(29, "a cast to an unknown type", "cast", {"dtype": "float9", "saturate": False}, [X], LIKE_X, "float9", version=2)
calls(36, "einsum with 60 letters", "einsum", {"equation": "a" * 60}, [W], [("float32", [])], "names 60 dimensions")
calls(36, "einsum that repeats a label", "einsum", {"equation": "ab->aa"}, [W], [("float32", [4, 4])], "twice")
calls(36, "einsum of an equation of 1 MB", "einsum", {"equation": "a," * 10**6}, [W], [("float32", [])], "the equation")
calls(31, "a host call of a dim that is no symbol", "reshape", {"shape": ["Z", 8]}, [W], [("float32", [4, 8])], "Z")
calls(37, "a dim of an attribute that overflows", "expand", {"shape": [["*", "N", 2**62], 8]}, [3], LIKE_X, "declares",
      buffers=(ROW,))  # fmt: skip
calls(32, "a dim of an attribute that divides by zero", "expand", {"shape": [["//", 8, 0], 8]}, [3], LIKE_X, "divisor",
      buffers=(ROW,))  # fmt: skip
calls(32, "a dim that divides by zero at run time", "iota",
      {"size": ["//", 8, ["-", "N", 5]], "start": 0, "step": 1, "dtype": "int32"}, [],
      [("int32", [["//", 8, ["-", "N", 5]]])], "divisor|divides", "input", "run")  # fmt: skip
calls(37, "a size that this run does not have", "top_k", {"axis": 0, "k": 9, "largest": True}, [IDS],
      [("int32", [9]), ("int64", [9])], "k must be from 0 to 5", "input", "run")  # fmt: skip

# ---- sizes that the call binds
_COUNT = {"name": "c", "min": 0, "max": 3, "unbacked": True}
_FREE = _COUNT | {"max": None}
calls(37, "more found than the program allows", "nonzero", {"count": "c"}, [X], [("int64", [2, "c"])], "c=40", "value",
      "run", (_COUNT,), binds=["c"])  # fmt: skip
calls(37, "a count twice", "nonzero", {"count": "c"}, [X], [("int64", ["c", "c"])], "declares", symbols=(_FREE,),
      binds=["c"])  # fmt: skip
calls(37, "a count of another type", "nonzero", {"count": "c"}, [X], [("int32", [2, "c"])], "declares",
      symbols=(_FREE,), binds=["c"])  # fmt: skip
calls(37, "a count without a name", "nonzero", {"count": None}, [X], [("int64", [2, "c"])], "binds", symbols=(_FREE,),
      binds=["c"])  # fmt: skip
calls(37, "a count that an input has", "nonzero", {"count": "N"}, [X], [("int64", [2, "c"])], "binds|unbacked",
      symbols=(_FREE,), binds=["c"])  # fmt: skip
calls(37, "an op that binds nothing", "cumsum", {"axis": 1}, [X], [("float32", ["c", 8])], "binds", symbols=(_FREE,),
      binds=["c"])  # fmt: skip

# ---- memory and time that operands and results do not show
calls(35, "an honest iota of 16 GB", "iota", {"size": 2 * 10**9, "start": 0, "step": 1, "dtype": "int64"}, [],
      [("int64", [2 * 10**9])], "", "memory", "run")  # fmt: skip
calls(35, "an operand of 40 GB in 32 bytes", "reduce_sum", {"axes": [0], "keepdims": False}, [3], [("float32", [8])],
      "contiguous", "program", "run",
      buffers=({"kind": "view", "of": X, "shape": [10**9, 8], "stride": [0, 1], "offset": 0},))  # fmt: skip


def _image(shape: list[int]) -> Json:
    return {"kind": "view", "of": W, "shape": shape, "stride": [1] * len(shape), "offset": 0}


_FAR = 2**31 - 1


def _geometry(stride: int = 1, pre: int = 0, post: int = 0, dilation: int = 1, **more: Json) -> Json:
    return {"stride": [stride], "pre_padding": [pre], "post_padding": [post], "dilation": [dilation]} | more


calls(35, "a convolution of padding", "conv", _geometry(pre=_FAR, dilation=_FAR, groups=1, channels_last=False),
      [3, 4], [("float32", [1, 1, 1])], "would need", "memory", "run",
      buffers=(_image([1, 1, 1]), _image([1, 1, 2])))  # fmt: skip
calls(30, "a convolution by a padding beyond 32 bits", "conv",
      _geometry(pre=2**40, dilation=2**40, groups=1, channels_last=False), [3, 4], [("float32", [1, 1, 1])], "at most",
      buffers=(_image([1, 1, 1]), _image([1, 1, 2])))  # fmt: skip
calls(35, "a transposed convolution that is cut off", "conv_transpose",
      _geometry(stride=_FAR, post=_FAR, groups=1, channels_last=False), [3, 4], [("float32", [1, 1, 1])],
      "would need", "memory", "run", buffers=(_image([1, 1, 2]), _image([1, 1, 1])))  # fmt: skip
calls(35, "a largest element of padding", "max_pool",
      _geometry(pre=2**30, post=2**30 - 1, dilation=_FAR, kernel=[2], ceil_mode=False, channels_last=False), [3],
      [("float32", [1, 1, 1])], "would need", "memory", "run", buffers=(_image([1, 1, 1]),))  # fmt: skip
calls(35, "a mean of padding", "avg_pool",
      {"kernel": [_FAR], "stride": [1], "pre_padding": [2**30], "post_padding": [2**30 - 2], "ceil_mode": False,
       "count_include_pad": True, "divisor": None, "channels_last": False}, [3], [("float32", [1, 1, 1])],
      "would need", "memory", "run", buffers=(_image([1, 1, 1]),))  # fmt: skip
calls(33, "phases without end", "lowered",
      {"inner": {"op": "conv_transpose", "version": 1, "attrs": _geometry(stride=_FAR, groups=1, channels_last=True)},
       "layouts": [["plain", [0]], ["phases", [1], 1, 1, 1]], "epilogue": [[["input", "float32", 0]], [0]],
       "dtype": "float32", "parts": 1, "group": 0}, [3, 4], [("float32", [1, 1, 1])], "too large",
      buffers=(_image([1, 1, 1]), _image([1, 1, 1])))  # fmt: skip


# ---- networks inside
def _tensor(name: str, dtype: str, shape: list[Json]) -> Json:
    return {"name": name, "dtype": dtype, "shape": shape}


def _network(nodes: list[Json], inputs: list[Json], output: str) -> Json:
    return {"name": "inner", "dims": [], "inputs": inputs, "parameters": [], "constants": [], "states": [],
            "nodes": nodes, "outputs": [["y", output]]}  # fmt: skip


def _node(op: str, attrs: Json, operands: list[str], result: str) -> Json:
    return {"op": op, "version": 1, "attrs": attrs, "where": "", "in": operands, "out": [result]}


_ALWAYS = _network([_node("equal", {}, ["a", "a"], "y")], [_tensor("a", "int32", [])], "y")
_NEVER = _network([_node("not_equal", {}, ["a", "a"], "y")], [_tensor("a", "int32", [])], "y")
_SAME = _network([_node("abs", {}, ["a"], "y")], [_tensor("a", "int32", [])], "y")
_LARGE = _network(
    [
        _node("iota", {"size": 10**9, "start": 0, "step": 1, "dtype": "int32"}, [], "many"),
        _node("reduce_max", {"axes": [0], "keepdims": False}, ["many"], "most"),
        _node("add", {}, ["most", "a"], "y"),
    ],
    [_tensor("a", "int32", [])],
    "y",
)
ONE = {"kind": "view", "of": IDS, "shape": [], "stride": [], "offset": 0}
calls(33, "a loop that does not end", "while_loop", {"condition": _ALWAYS, "body": _SAME, "limit": 2**62}, [3],
      [("int32", [])], "limit must be", buffers=(ONE,))  # fmt: skip
calls(33, "a loop that does not end in 1,000 rounds", "while_loop",
      {"condition": _ALWAYS, "body": _SAME, "limit": 1000}, [3], [("int32", [])], "after 1000 rounds", "value", "run",
      buffers=(ONE,))  # fmt: skip
calls(33, "a loop whose body makes 4 GB", "while_loop", {"condition": _ALWAYS, "body": _LARGE, "limit": 10}, [3],
      [("int32", [])], "would need", "memory", "run", buffers=(ONE,))  # fmt: skip
calls(33, "a loop of no network", "while_loop", {"condition": 1, "body": [], "limit": 10}, [3], [("int32", [])],
      "a network has the keys", buffers=(ONE,))  # fmt: skip
_DEEP: Json = _SAME
for _ in range(40):
    _DEEP = _network(
        [_node("while_loop", {"condition": _ALWAYS, "body": _DEEP, "limit": 10}, ["a"], "y")],
        [_tensor("a", "int32", [])],
        "y",
    )
calls(33, "a loop 40 deep", "while_loop", {"condition": _ALWAYS, "body": _DEEP, "limit": 10}, [3], [("int32", [])],
      "deep", "program|engine_file", buffers=(ONE,))  # fmt: skip

# ---- values
calls(34, "a host call with an index out of range", "take", {"axis": 0}, [W, IDS], LIKE_X,
      "layer.0: host call take: take: index 4 is out of range", "value", "run_far")  # fmt: skip
calls(34, "a host call with a negative index", "embedding", {}, [IDS, W], LIKE_X, "index -2 is out of range", "value",
      "run_negative")  # fmt: skip


def program() -> Json:
    """A good program of host calls: attributes of all kinds, two results, a network inside, a size that one binds."""
    buffers = [{"kind": "input", "name": "x", "dtype": "float32", "shape": ["N", 8]},
               {"kind": "input", "name": "one", "dtype": "int32", "shape": []}]  # fmt: skip
    made: list[tuple[str, Json, list[int], list[tuple[str, list[Json]]]]] = [
        ("cumsum", {"axis": 1}, [0], LIKE_X),
        ("sort", {"axis": 1, "descending": True}, [0], [("float32", ["N", 8]), ("int64", ["N", 8])]),
        ("pad", {"before": [1, 0], "after": [0, 2], "value": 1.5}, [0], [("float32", [["+", "N", 1], 10])]),
        ("slice", {"starts": [["-", "N", 1], 7], "sizes": [1, 8], "strides": [1, -1]}, [0], [("float32", [1, 8])]),
        ("einsum", {"equation": "na,nb->ab"}, [0, 0], [("float32", [8, 8])]),
        ("cast", {"dtype": "int8", "saturate": True}, [0], [("int8", ["N", 8])]),
        ("while_loop", {"condition": _NEVER, "body": _SAME, "limit": 3}, [1], [("int32", [])]),
        ("nonzero", {"count": "c"}, [0], [("int64", [2, "c"])]),
    ]
    calls, outputs = [], []
    for op, params, operands, results in made:
        out = list(range(len(buffers), len(buffers) + len(results)))
        buffers += [{"kind": "temp", "dtype": dtype, "shape": shape} for dtype, shape in results]
        version = 2 if op == "cast" else 1
        calls.append({"host": op, "version": version, "in": operands, "out": out, "params": params, "where": "layer.0"})
        outputs += [{"name": f"y{b}", "buffer": b} for b in out]
    calls[-1]["binds"] = ["c"]
    symbols = [{"name": "N", "min": 1, "max": 64}, _FREE]
    return {"version": 1, "symbols": symbols, "buffers": buffers, "calls": calls, "outputs": outputs}
