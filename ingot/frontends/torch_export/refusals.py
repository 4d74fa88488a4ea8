"""Why torch cannot export a module, in a user's words: what it met, at which line, and what to do about it."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

MAX_SAID = 1500  # characters of torch's own words
Line = tuple[str, int]

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_SIZE = re.compile(r"L\['(\w+)'\]((?:\[[^\]]*\])*)\.size\(\)\[(\d+)\]")
_STATIC = re.compile(r"tracing inferred a static shape of (\d+) for dimension inputs(\S*)\.shape\[(\d+)\]")
_FIXED = re.compile(r"You marked (L\[\S+\.size\(\)\[\d+\]) as .* specialized it to be a constant \((\d+)\)")
# what torch goes on with behind its reason: settings, links, how to debug torch
_NOISE = (
    "consider using data-dependent", "Caused by:", "For more information", "For extended logs", "If you suspect",
    "For more debugging help", "For C++ stack trace", "The following call raised", "The error above occurred",
    "User code:", "Potential framework code culprit", "To fix the error", "Developer debug context",
    "For more details about", "from user code", "Set TORCHDYNAMO",
)  # fmt: skip

# what torch says → what it is about, and what to do
_REASONS = (
    ("data-dependent expression", "what forward does depends on values: choose with torch.where or torch.cond, or give "
     "sizes and numbers as arguments (num_classes of one_hot, for one)"),
    ("Pending unbacked symbols", "a size depends on values in a way that torch cannot follow: give it as an argument"),
    (r"\.numpy\(\)", "forward leaves torch by .numpy(): write it in torch's ops"),
    (r"\.tolist\(\)", "forward makes Python numbers of values by .tolist(): keep them as tensors"),
    ("aten.equal", "forward makes a Python truth of values: use (x == y).all() and torch.where"),
    ("aten.allclose", "forward makes a Python truth of values: use torch.isclose(x, y).all() and torch.where"),
    ("_sym_log2", "forward takes a logarithm of a size: compute it outside of the module, or leave the size fixed"),
    (r"aten\.", "torch has no export of this op: compute it outside of the module and give the result as an input"),
)  # fmt: skip


def why_not(torch: Any, error: BaseException, name: str) -> str:
    """Why torch.export cannot export the module NAME, in our words where they are known, else in torch's first ones."""
    text = str(error)
    fixed = [(said(m[1]), m[2]) for m in _FIXED.finditer(text)]
    fixed += [(f"dimension {m[3]} of {_path(m[2])}", m[1]) for m in _STATIC.finditer(text)]
    if fixed:
        lines = dict(_fixed_at(torch, error))
        found = [f"{size} has to be {n}, as in the example{_at(lines.get(int(n)))}" for size, n in fixed]
        return (
            f"torch.export cannot export {name} with this size dynamic: {'; '.join(dict.fromkeys(found))}. Leave it "
            "out of dynamic, or write that line so that any size will do: whole numbers (n // 2, not int(n / 2)), no "
            "float(n) or math.sqrt(n), no layer of a fixed size"
        )
    where, reason = _at(line_of(torch, error)), next((way for word, way in _REASONS if re.search(word, text)), "")
    why = reason or said(_first(text)) or f"forward raised {type(error).__name__}"
    return f"torch.export cannot export {name}{where}: {why.replace('FakeTensor', 'Tensor')}"


def said(text: str) -> str:
    """A text of torch's with sizes of inputs in words: `dimension 1 of x` for `L['x'].size()[1]`."""
    return _SIZE.sub(lambda m: f"dimension {m[3]} of {m[1]}{m[2]}", text)


def _path(text: str) -> str:
    """`pair[0]` for `['pair'][0]`."""
    return re.sub(r"^\['(\w+)'\]", r"\1", text)


def _first(text: str) -> str:
    """torch's reason, without what it goes on with."""
    kept: list[str] = []
    for line in text.splitlines():
        if any(word in line for word in _NOISE):
            break
        kept.append(line.rstrip())
    return re.sub(r"\n{2,}", "\n", "\n".join(kept)).strip()[:MAX_SAID]


def _at(line: Line | None) -> str:
    """` (net.py:12: y = x / math.sqrt(n))`."""
    if line is None:
        return ""
    code = linecache.getline(*line).strip()
    return f" ({os.path.basename(line[0])}:{line[1]}{f': {code:.80}' if code else ''})"


def line_of(torch: Any, error: BaseException) -> Line | None:
    """The user's line that an error came from: the innermost outside of torch and of ingot."""
    found = None
    for frame, number in _frames(error.__traceback__):
        file = frame.f_code.co_filename
        if not _is_torchs(torch, file) and not file.startswith((_OURS, "<")):
            found = (file, number)
    return found


_CALLS_FORWARD = os.path.join("nn", "modules", "module.py")


def _is_torchs(torch: Any, file: str) -> bool:
    """Whether a file is of the torch package."""
    return file.startswith(os.path.dirname(torch.__file__) + os.sep)


def _is_forward(torch: Any, file: str) -> bool:
    """Whether a file is a user's, or of torch.nn's layers, which ask as a user's forward does."""
    layers = os.path.join(os.path.dirname(torch.__file__), "nn") + os.sep
    return not _is_torchs(torch, file) or file.startswith(layers) and not file.endswith(_CALLS_FORWARD)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[Any, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _fixed_at(torch: Any, error: BaseException) -> Iterator[tuple[int, Line]]:
    """Where a size was taken for the example's number, as far as torch's state in the error's frames tells."""
    for frame, _ in _frames(error.__traceback__):
        for value in list(frame.f_locals.values()) if frame.f_code.co_name == "_non_strict_export" else ():
            env: Any = getattr(value, "shape_env", None)
            for symbol, place in list(getattr(env, "replacements_slocs", {}).items()):
                number, line = env.replacements.get(symbol), line_of_place(torch, place)
                if getattr(number, "is_integer", False) and str(number).isdecimal() and line is not None:
                    yield int(number), line


# where torch decides for forward's `if` and `min`; code without a file is called by the last
_ASKS = ("_dynamo/variables/tensor.py", "_export/non_strict_utils.py", _CALLS_FORWARD)


def asked_at(torch: Any, place: Any) -> tuple[bool, Line | None]:
    """Whether forward asked what torch has a guard for, and not torch for itself, and at which line."""
    file = getattr(getattr(place, "framework_loc", None), "filename", "") or ""
    line = line_of_place(torch, place)
    return bool(file) and (_is_forward(torch, file) or file.endswith(_ASKS)), line


def line_of_place(torch: Any, place: Any) -> Line | None:
    """The user's line of a place that torch keeps beside a guard; None where it is inside of torch."""
    theirs = re.search(r"# (\S+):(\d+) in", getattr(place, "maybe_user_loc", None) or "")
    if theirs:
        return os.path.basename(theirs[1]), int(theirs[2])
    frame: Any = getattr(place, "framework_loc", None)
    file = getattr(frame, "filename", "")
    return (file, frame.lineno) if file and _is_forward(torch, file) else None
