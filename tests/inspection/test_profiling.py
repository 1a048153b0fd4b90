"""Spans named after stages in the profile that JAX writes; none are made while no profile is
taken.
"""

from __future__ import annotations

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax
from incrax import _profiling

X = np.linspace(0.0, 1.0, 2_000)


def likelihood(a, b, x):
    return jnp.sum(jnp.exp(a * x)) * b


def spans(folder):
    (path,) = folder.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if "name" in event]


def test_stages_and_programs_are_named(tmp_path):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    with jax.profiler.trace(str(tmp_path)):
        for b in (1.0, 2.0, 3.0):
            f(1.0, b, X.copy())
    names = spans(tmp_path)
    assert names.count("incrax/likelihood") == 3
    for stage in ("trace", "analyse", "plan", "compile", "compare", "run", "commit"):
        assert f"incrax/{stage}" in names, stage
    assert any("likelihood_plan" in name for name in names)


def test_nothing_is_made_without_a_profile(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a span was made")

    class Refused:
        is_enabled = staticmethod(lambda: False)
        __init__ = refuse

    monkeypatch.setattr(_profiling, "TraceAnnotation", Refused)
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    assert float(f(1.0, 2.0, X)) == pytest.approx(2.0 * np.exp(X).sum())


def test_errors_pass_through_spans(monkeypatch):
    monkeypatch.setattr(_profiling, "is_profiled", lambda: True)
    with pytest.raises(ZeroDivisionError):
        _profiling.annotated("run")(lambda: 1 // 0)()
