"""What the first launch of a process would wait for, made while the weights of its engine come to the device."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from triton.compiler import make_backend
from triton.runtime.cache import triton_key
from triton.runtime.driver import driver

from ingot.backends.cuda import native_launch


@contextmanager
def beside(torch: Any, device: Any) -> Iterator[None]:
    """Makes it beside what is inside, and waits for it at the end."""
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(_make, torch, device)
        yield
        made.result()


def _make(torch: Any, device: Any) -> None:
    """Triton's driver, of which a C compiler makes a part where Triton's cache has none; what Triton names a kernel in
    its cache by, a digest of itself (0.3 to 0.8 s) and the version of its assembler; and the library's handle.
    """
    with torch.cuda.device(device):
        native_launch.use()
        triton_key()
        make_backend(driver.active.get_current_target()).hash()
        few = torch.zeros((16, 16), dtype=torch.bfloat16, device=device)
        torch.mm(few, few)
