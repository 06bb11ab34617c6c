"""Settings of property tests: no time limits, for a loaded machine must not fail a test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("statelake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("statelake")
