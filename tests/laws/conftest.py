"""How long Hypothesis searches: `--hypothesis-profile=thorough` draws 10,000 random stacks in place of 200."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

CALM = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile("short", max_examples=200, derandomize=True, **CALM)
settings.register_profile("thorough", max_examples=10_000, print_blob=True, **CALM)
settings.load_profile("short")
