"""How hypothesis searches among random stacks."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

CALM = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile("random_stacks", max_examples=200, derandomize=True, **CALM)
