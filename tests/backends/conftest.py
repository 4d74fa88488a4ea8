"""One GPU for all workers: tests that take all of its memory have it alone."""

from __future__ import annotations

from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock

import pytest

from tests.gpu import GPU


@pytest.fixture(autouse=True)
def share_of_the_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run there side by side, but for those marked `whole_gpu`. Those wait until the others have ended."""
    if not GPU:
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent  # of all workers
    alone = request.node.get_closest_marker("whole_gpu") is not None
    with (folder / "gpu.turn").open("w") as turn, (folder / "gpu.lock").open("w") as lock:
        flock(turn, LOCK_EX)  # who waits for the whole is not overtaken by those that want a share
        flock(lock, LOCK_EX if alone else LOCK_SH)
        flock(turn, LOCK_UN)
        yield
