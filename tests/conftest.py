"""Float64 everywhere; hypothesis is deterministic unless the nightly profile is chosen."""

from __future__ import annotations

import gc
import os

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)

common = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("push", derandomize=True, max_examples=25, **common)
hypothesis.settings.register_profile("nightly", derandomize=False, max_examples=1000, **common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "push"))

MAX_PROGRAMS = 400


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs():
    """Between modules, drop what JAX keeps compiled, and leave what is left out of collections of garbage.

    Each living program makes compilations, and what a test collects, slower: thousands double the time.
    """
    yield
    if len(jax.devices()[0].client.live_executables()) > MAX_PROGRAMS:
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
