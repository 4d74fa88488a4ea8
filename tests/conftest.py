"""Settings and models that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import ingot

PICO = Path(__file__).parent.parent / "models" / "pico-python"

# "ci" is what `make test` uses: the same examples at every run, and no limit on the time of one.
# `pytest --hypothesis-profile=conformance` draws fresh ones, ten times as many.
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("conformance", parent=settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def pico() -> Path:
    """The Hugging Face directory of pico-python."""
    return PICO


@pytest.fixture(scope="session")
def pico_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of pico-python in bfloat16."""
    path = tmp_path_factory.mktemp("engines") / "pico.ingot"
    ingot.build(PICO, report=False).save(path)
    return path
