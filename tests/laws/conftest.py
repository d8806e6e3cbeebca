"""How long the random stacks are searched: `--hypothesis-profile=thorough` draws 10,000 in place of 200."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

CALM = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile("random_stacks", max_examples=200, derandomize=True, **CALM)
settings.register_profile("thorough", max_examples=10_000, print_blob=True, **CALM)
