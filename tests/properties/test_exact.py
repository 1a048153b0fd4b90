"""`policy="exact"`: equal inputs give equal bits, whatever was called, evicted or cleared
before.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check, examples, identical, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.policy.materialize import LARGE_SIZE, typical_changes
from incrax.engine.store.budget import make_limits
from properties.corpus import CORPUS
from properties.programs import START, programs
from properties.timelines import arguments

pytestmark = pytest.mark.optimized

seeds = st.integers(0, 10_000)
X = np.linspace(-3.0, 40.0, 30_000)
THETA = np.array([0.3, 0.25, 0.0, 1.0, 5.0, 2.5, 0.2, 1.5])


def likelihood(theta, x):
    """A mixture of two Gaussians and an exponential, extended."""

    def normal(mu, sigma):
        return jnp.exp(-0.5 * ((x - mu) / sigma) ** 2) / sigma

    p, q, mu, sigma, nu, tau, rate, total = theta
    background = jnp.where(x > 0, rate * jnp.exp(-rate * x), 1e-9)
    density = p * normal(mu, sigma) + q * normal(nu, tau) + (1 - p - q) * background
    return total - jnp.sum(jnp.log(total * density))


def exact(fun, **options):
    return incrax.incremental(fun, policy="exact", **options)


def check_history(fun, calls, tuning=None, factor=64.0, **options):
    """Every result has the bits of one that starts from nothing, and agrees with `jax.jit`."""
    ours, anew = (exact(fun, tuning=tuning, **options) for _ in range(2))
    plain = jax.jit(fun)
    for args in calls:
        anew.clear()
        result = ours(*args)
        identical(result, anew(*args))
        same(result, plain(*args), factor=factor)
        check(ours)
    identical(ours(*calls[-1]), exact(fun, tuning=tuning, **options)(*calls[-1]))
    return ours


@examples(1 / 3)
@given(programs(), seeds, st.sampled_from([None, MINIMAL]))
def test_random_programs_have_no_history(program, seed, tuning):
    check_history(program, arguments(START, seed, 8), tuning)


def scan_points(rng, num):
    """Single elements changed, rejected and accepted, now and then everything."""
    theta, points = THETA, []
    for number in range(num):
        proposal = theta.copy()
        index = slice(None) if number % 7 == 6 else rng.integers(len(theta))
        proposal[index] *= 1 + 1e-3 * rng.normal()
        points += [(proposal, X)]
        theta = proposal if rng.random() < 0.5 else theta
    return points


DERIVATIVES = {"value": lambda f: f, "gradient": jax.value_and_grad, "hessian": jax.hessian}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, {}) for name in DERIVATIVES],
        ("value", {"versions": 1}),
        ("gradient", {"versions": 1}),
        ("gradient", {"memory": 3_000_000}),
    ],
    ids=str,
)
def test_a_likelihood_has_no_history(name, options):
    ours = check_history(
        DERIVATIVES[name](likelihood),
        scan_points(np.random.default_rng(3), 25),
        factor=1024,
        **options,
    )
    assert ours.stats.loaded
    assert ours.stats.races == 0


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_evicted_values_come_back_with_the_same_bits(share):
    calls = scan_points(np.random.default_rng(4), 25)
    ours, anew = exact(likelihood), exact(likelihood)
    for number, args in enumerate(calls):
        anew.clear()
        identical(ours(*args), anew(*args))
        if number == 2:
            store = ours._traces.latest.engine.store
            store.budget_bytes = int(share * store.saved_bytes)
    assert ours.stats.evicted


def test_another_program_gives_other_bits():
    """What the policy is for: the whole function, fused differently, has other last bits, so the
    tests can fail.
    """
    f, whole = exact(jax.value_and_grad(likelihood)), jax.jit(jax.value_and_grad(likelihood))
    pairs = [(f(*args), whole(*args)) for args in scan_points(np.random.default_rng(3), 25)]
    leaves = [zip(*map(jax.tree.leaves, pair), strict=True) for pair in pairs]
    assert any(
        np.asarray(x).tobytes() != np.asarray(y).tobytes() for pair in leaves for x, y in pair
    )


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_has_no_history(name):
    fun, start = CORPUS[name]
    check_history(fun, arguments(start, 5, 6))


def test_a_changed_input_runs_what_depends_on_it_and_the_top():
    f = exact(likelihood)
    f(THETA, X)
    segments = f._traces.latest.engine.chooser.segments
    before = f.stats.filled
    f(np.array([*THETA[:-1], 2.0]), X)
    assert f.stats.filled == before
    f(np.array([0.3, 0.25, 0.1, *THETA[3:]]), X)
    reached = [
        g for g in segments.groups.values() if f._traces.latest.engine.facts.mask(g[0]) >> 3 & 1
    ]
    assert f.stats.filled - before == sum(len(segments.plan(g).eqns) for g in reached) > 0
    families = {program.executable.family for program in segments._programs.values()}
    assert len(families) == len(segments.groups) - 1  # two groups are alike, and share a program
    assert f.stats.compiles == len(families) + 1


def test_numbers_from_the_host_and_the_device_run_the_same_program():
    f = exact(lambda a, b, x: a * jnp.exp(b) + jnp.sum(x))
    results = [
        f(*wrap) for wrap in [(0.1, 0.7, X), (0.1, jnp.float64(0.7), X), (np.float64(0.1), 0.7, X)]
    ]
    for b in np.linspace(0, 1, 40):
        f(0.1, float(b), X)
    results.append(f(0.1, 0.7, X))
    for result in results[1:]:
        assert np.asarray(result).tobytes() == np.asarray(results[0]).tobytes()


def test_plans_do_not_depend_on_free_memory(monkeypatch):
    monkeypatch.setattr("incrax.engine.store.budget.default_budget_bytes", lambda: 1000)
    assert make_limits(2, None, is_exact=True).planned_bytes > 1000
    assert make_limits(2, None, is_exact=False) == (2, 1000, 1000)
    assert make_limits(2, 5, is_exact=True) == (2, 5, 5)


def test_typical_changes_are_single_inputs_and_all_but_data():
    f = exact(likelihood)
    f(THETA, X)
    facts = f._traces.latest.engine.facts
    assert len(X) >= LARGE_SIZE
    changes = typical_changes(facts.dependence.layout, facts.program.invars, 10)
    assert [len(facts.dependence.layout.leaves_of(change)) for change in changes] == [1] * 10
    assert changes[0] == facts.dependence.layout.leaf_mask(0)
    assert len(typical_changes(facts.dependence.layout, facts.program.invars, 10**6)) < 10


@jax.custom_jvp
def _scaled_sine(x, y):
    return jnp.sin(x) * y


@_scaled_sine.defjvp
def _scaled_sine_jvp(primals, tangents):
    x, y = primals
    return _scaled_sine(x, y), 3 * tangents[0] * jnp.cos(x) * y + tangents[1] * jnp.sin(x)


def test_fresh_has_the_bits_of_the_call_and_saves_nothing():
    """Segments fuse otherwise than the whole program: in the Hessian that shows in most signs of
    zero.
    """
    hessian = jax.hessian(lambda a, b: jnp.sum(_scaled_sine(a, b)))
    rng = np.random.default_rng(3)
    g = exact(hessian)
    for _ in range(6):
        a, b = rng.normal(size=(2, 7))
        fresh = g.fresh(a, b)
        assert g.stats.calls == g.stats.filled == g.stats.ran == g.stats.saved_bytes == 0
        identical(fresh, exact(hessian)(a, b))
    f = exact(likelihood)
    for scale in (1.0, 1.1, 0.9):
        called = f(THETA * scale, X)
        counts = f.stats.as_dict()
        identical(f.fresh(THETA * scale, X), called)
        assert f.stats.as_dict() == counts
