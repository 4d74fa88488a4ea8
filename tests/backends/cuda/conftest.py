"""Triton's interpreter and torch's CPU in the place of a GPU, where there is none."""

from __future__ import annotations

from functools import partial
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


@pytest.fixture(autouse=True)
def no_likely_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU sessions compile nothing for steps that may follow: they would keep the tests beside them waiting."""
    torch: Any = pytest.importorskip("torch")
    if torch.cuda.is_available():
        executor: Any = pytest.importorskip("ingot.backends.cuda.executor")
        monkeypatch.setattr(executor, "likely_after", lambda *there: ())


@pytest.fixture
def cuda_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device cuda is torch's CPU where there is no GPU."""
    torch: Any = pytest.importorskip("torch")
    if torch.cuda.is_available():
        return
    devices: Any = pytest.importorskip("ingot.backends.cuda.devices")
    executor: Any = pytest.importorskip("ingot.backends.cuda.executor")
    monkeypatch.setattr(devices, "resolve", lambda name: "0")
    monkeypatch.setattr(devices, "available", lambda name: None)
    monkeypatch.setattr(executor, "open_session", partial(executor.open_on, torch, torch.device("cpu")))
