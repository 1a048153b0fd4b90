"""Float64 everywhere; hypothesis is deterministic unless the nightly profile is chosen."""

from __future__ import annotations

import os

import hypothesis
import jax

jax.config.update("jax_enable_x64", True)

common = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("push", derandomize=True, max_examples=25, **common)
hypothesis.settings.register_profile("nightly", derandomize=False, max_examples=1000, **common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "push"))
