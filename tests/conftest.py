"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# "ci" is what `make test` uses: the same examples at every run, and no limit on the time of one.
# `pytest --hypothesis-profile=conformance` draws fresh ones, thirty times as many.
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("conformance", parent=settings.get_profile("ci"), derandomize=False, max_examples=3000)
settings.load_profile("ci")
