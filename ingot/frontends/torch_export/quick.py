"""What torch does for each op that it traces and nobody reads of a program that only our importer sees: left out."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_TORCH = f"{os.sep}torch{os.sep}"


@contextmanager
def quick(torch: Any) -> Iterator[None]:
    """Inside torch.export.export takes five sixths of its time (BERT-base). As far as this torch has the names, of the
    stack of an op, which torch writes down frame by frame, the innermost forward outside of torch is kept, and Python
    code of a graph is not made before somebody runs it.

    The older description of a tensor (`tensor_meta`), which nobody reads either, has to stay: it asks whether memory is
    contiguous, without which `contiguous` in a forward asks, and guards that the sizes stay so.
    """
    module, name = torch.fx.proxy, "CapturedTraceback"
    lazy = getattr(getattr(torch.fx, "_lazy_graph_module", None), "_use_lazy_graph_module", None)
    with ExitStack() as stack:
        if hasattr(module, name):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, _Stack)
        if lazy is not None:
            stack.enter_context(lazy(True))
        yield


class _Stack:
    """In the place of torch's captured stack: the innermost frame of a forward outside of torch."""

    @classmethod
    def extract(cls, **_: Any) -> _Stack:
        return cls()

    def summary(self) -> traceback.StackSummary:
        """As torch filters and formats it; without the text of the line, which would be read from its file."""
        found = traceback.StackSummary()
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward" and _TORCH not in code.co_filename and code.co_filename[:1] != "<":
                found.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, line=""))
                return found
            frame = frame.f_back
        return found
