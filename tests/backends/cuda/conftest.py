"""Triton's interpreter in the place of a GPU, where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def scalars_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's scalars are arrays of one element, which NumPy from 2.5 on makes no ints of."""
    if find_spec("triton") is not None:
        interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
        patch = interpreter._patch_lang_tensor

        def patched(tensor: Any, scope: Any) -> None:
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
