"""Float64 everywhere; which cases and how many random ones the default run takes.

Hypothesis is deterministic unless the nightly profile is chosen.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from pathlib import Path

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)

common = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("default run", derandomize=True, max_examples=5, **common)
hypothesis.settings.register_profile("push", derandomize=True, max_examples=25, **common)
hypothesis.settings.register_profile("nightly", derandomize=False, max_examples=1000, **common)

MAX_PROGRAMS = 400
NUM_CASES = 3
"""Of one test, in the default run."""

SLOW = Path(__file__).with_name("slow.txt")
"""Tests, or cases of them, that take more than two seconds; written by `python scripts/slow_tests.py`."""


def pytest_configure(config):
    """Where exhaustive tests run, random ones draw all their examples: `-m "exhaustive or hypothesis"` is the rest."""
    is_default = config.option.markexpr == "not exhaustive"
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default run" if is_default else "push"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What is slow is exhaustive; of a test with many cases some are enough by default, evenly spread."""
    slow = frozenset(SLOW.read_text().splitlines())
    tests = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.nodeid in slow or name in slow:
            item.add_marker("exhaustive")
        tests[name].append(item)
    for cases in tests.values():
        chosen = {k * (len(cases) - 1) // (NUM_CASES - 1) for k in range(NUM_CASES)}
        for number in set(range(len(cases))) - chosen:
            if cases[number].get_closest_marker("every_case") is None:
                cases[number].add_marker("exhaustive")


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
