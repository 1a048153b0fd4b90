"""Without times, no clock and no free memory decides anything: the same calls are served alike
everywhere.
"""

from __future__ import annotations

import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.engine.program.cost import ACCELERATOR, Calibration, assumed_prices
from incrax.engine.store import budget as limits

pytestmark = pytest.mark.usefixtures("known_prices")

X = np.linspace(0.1, 3.0, 60_000)


def likelihood(a, b, c, x):
    return jnp.sum(jnp.log(a * jnp.exp(-b * x) + jnp.exp(jnp.sin(c * x))))


def calls(num):
    """One input after the other, then all of them for long, as when a scan ends and a fit
    begins.
    """
    rng = np.random.default_rng(0)
    params = [1.0, 0.5, 0.7]
    for number in range(num):
        for index in [number // 3 % 3] if number < num // 2 else range(3):
            params[index] *= 1 + 0.01 * rng.normal()
        yield (*params, X)


def decisions(seed, tuning, monkeypatch, num=240):
    """What served each call under a clock of its own; that of seed 0 stands still."""
    randomness, clock = random.Random(seed), [0.0]

    def tick():
        clock[0] += randomness.choice([1e-3, 0.1, 2.0]) if seed else 0.0
        return clock[0]

    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", tick)
        f = incrax.incremental(likelihood, tuning=tuning)
        served = []
        for args in calls(num):
            f(*args)
            report = f.explain().as_dict()
            served.append((report["served_by"], report["why"], report["num_ran"]))
    return served, f.stats


@pytest.mark.parametrize("compile_s", [1.0, 0.02, 1e9])
def test_no_clock_decides_anything(compile_s, monkeypatch):
    tuning = incrax.Tuning(timed=False, compile_s=compile_s)
    first, *others = (decisions(seed, tuning, monkeypatch) for seed in range(3))
    assert all(other == first for other in others)
    assert {served for served, _, _ in first[0]} >= (
        {"whole", "plan"} if compile_s > 0.1 else {"whole"}
    )


def test_with_times_the_clock_decides(monkeypatch):
    first, *others = (decisions(seed, incrax.Tuning(), monkeypatch) for seed in range(4))
    assert any(other != first for other in others)


def test_results_are_those_of_jit():
    f, plain = (
        incrax.incremental(likelihood, tuning=incrax.Tuning(timed=False, compile_s=1.0)),
        jax.jit(likelihood),
    )
    for args in calls(40):
        same(f(*args), plain(*args))
    assert f.stats.loaded


def blocks(a, b, c, x):
    return jnp.sum(jnp.arctan2(jnp.exp(-a * x), b)) + jnp.sum(jnp.arctan2(x, jnp.sin(c * x)))


def test_segments_serve_a_change_that_has_no_plan_of_its_own(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_PLANS", 1)
    f = incrax.incremental(blocks, tuning=incrax.Tuning(timed=False, compile_s=1.0))
    served = []
    for number in range(40):
        args = (1.0 + min(number, 20) / 100, 0.5, 0.7 + max(number - 20, 0) / 100, X)
        same(f(*args), jax.jit(blocks)(*args))
        served.append((f.explain().as_dict()["served_by"], f.stats.ran))
    num_ran = np.diff([ran for _, ran in served])
    assert [word for word, _ in served[-10:]] == ["segments"] * 10
    assert set(num_ran[-10:]) == {num_ran[-1]}
    assert num_ran[-1] < served[0][1]


@pytest.mark.cpu
def test_work_that_devices_share_is_cheaper_and_handing_it_over_is_not():
    alone, shared = assumed_prices(1), assumed_prices(4)
    assert alone == Calibration()
    assert shared.flop_s == alone.flop_s / 4
    assert shared.load_seconds(8_000_000) < alone.load_seconds(8_000_000)
    assert shared.argument_s == alone.argument_s


@pytest.mark.cpu
def test_an_accelerator_is_faster_than_a_processor(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert assumed_prices(1) == ACCELERATOR
    assert ACCELERATOR.read_s < Calibration().read_s


def test_several_processes_have_the_same_budget(monkeypatch):
    monkeypatch.setattr(limits, "_free_bytes", lambda: 1e6)
    assert limits.make_limits(2, None, is_exact=False).budget_bytes == 250_000
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert limits.make_limits(2, None, is_exact=False) == (
        2,
        limits.MAX_DEFAULT_BYTES,
        limits.MAX_DEFAULT_BYTES,
    )
    assert limits.make_limits(2, 7, is_exact=False) == (2, 7, 7)


def test_the_default_budget_grows_with_the_devices_that_share_the_inputs(monkeypatch):
    monkeypatch.setattr(limits, "_free_bytes", lambda: 1e6)
    assert limits.make_limits(2, None, is_exact=False, num_parts=4).budget_bytes == 1_000_000
    assert (
        limits.make_limits(2, None, is_exact=True, num_parts=4).planned_bytes
        == 4 * limits.MAX_DEFAULT_BYTES
    )
    assert limits.make_limits(2, 7, is_exact=False, num_parts=4).budget_bytes == 7
