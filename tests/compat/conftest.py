"""The modules of the retired API are registered while the tests of this folder run, and taken away behind them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingot import compat


@pytest.fixture(autouse=True, scope="package")
def _installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()
