"""Which sweeps are compiled without being asked, which stay on the host, and why; widths that a
warm-up finds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import samplers
from incrax.samplers.sweeping import MIN_ROWS

NUM = MIN_ROWS
SCALES = np.geomspace(1e-2, 1e2, NUM)
START = {"a": 0.5, "b": np.zeros(NUM)}
WIDTHS = np.linspace(0.5, 2.0, NUM)
ROWS = "p['b'][*]"


def normal(p, scales):
    """Independent normal elements of very different widths."""
    return -0.5 * jnp.sum((p["b"] / scales) ** 2) - 0.5 * p["a"] ** 2


def on_host(p, scales):
    a = jnp.asarray(p["a"])
    nothing = jax.pure_callback(np.zeros_like, jax.ShapeDtypeStruct((), a.dtype), a)
    return normal(p, scales) + nothing


def row_walks(num=NUM):
    return {f"p['b'][{k}]": samplers.Walk(WIDTHS[k], times=2) for k in range(num)}


def gibbs(fun=normal, scales=SCALES, num=300, start=START, **kwargs):
    return samplers.gibbs(fun, start, scales, key=1, num_sweeps=num, **kwargs)


def test_without_updates_each_row_walks_with_a_width_from_the_warm_up():
    found = gibbs(num=3000)
    assert found.why_on_host is None
    assert set(found.acceptance) == {"p['a']", ROWS}
    assert all(0.38 < share < 0.5 for share in found.acceptance.values())
    expected = np.concatenate([[1.0], SCALES])
    np.testing.assert_allclose(found.samples.std(axis=0), expected, rtol=0.25)
    assert found.num_evaluations == (3000 + 1500) * (NUM + 1)
    again = gibbs(num=50, num_warmup=0)  # steps of width one
    assert again.samples[:, 1].std() < 0.1
    assert again.num_evaluations == 50 * (NUM + 1)


def test_rows_of_several_elements_have_one_width_each():
    start = {"b": np.zeros((3, 4))}
    wide = np.array([0.1, 1.0, 10.0])[:, None]
    found = samplers.gibbs(
        lambda p: -0.5 * jnp.sum((p["b"] / wide) ** 2), start, key=3, num_sweeps=4000
    )
    assert 0.18 < found.acceptance[ROWS] < 0.3
    expected = np.broadcast_to(wide, (3, 4)).ravel()
    np.testing.assert_allclose(found.samples.std(axis=0), expected, rtol=0.25)


def test_walks_that_name_all_rows_one_by_one_are_walks_by_rows():
    apart = {**row_walks(), "p['a']": samplers.Walk(1.0)}
    together = {ROWS: samplers.Walk(WIDTHS, times=2), "p['a']": samplers.Walk(1.0)}
    found, expected = gibbs(updates=apart), gibbs(updates=together)
    np.testing.assert_array_equal(found.samples, expected.samples)
    assert found.acceptance == expected.acceptance
    assert found.why_on_host is None


FEW = {"b": np.zeros(2)}


@pytest.mark.parametrize(
    ("updates", "start"),
    [
        ({f"p['b'][{k}]": samplers.Walk(1.0) for k in range(2)}, FEW),
        ({**row_walks(NUM - 1), f"p['b'][{NUM - 1}]": samplers.Walk(1.0, times=3),
          "p['a']": samplers.Walk(1.0)}, START),
        ({**dict(reversed(row_walks().items())), "p['a']": samplers.Walk(1.0)}, START),
    ],
    ids=["few rows", "rows of other steps", "another order"],
)  # fmt: skip
def test_other_blocks_stay_on_the_host(updates, start):
    fun = lambda p, scales: -0.5 * jnp.sum(p["b"] ** 2) - 0.5 * jnp.sum(p.get("a", 0.0) ** 2)
    found = samplers.gibbs(fun, start, SCALES, updates=updates, key=1, num_sweeps=2)
    assert found.why_on_host == (
        "blocks other than walks of each row of an input move one call after another"
    )
    assert "; on the host: blocks other than" in repr(found)


def test_trajectories_are_compiled():
    updates = {
        "p['b']": samplers.Hamiltonian(0.9, num_steps=8, width=SCALES),
        "p['a']": samplers.Walk(2.4),
    }
    found = gibbs(updates=updates, num=600)
    assert found.why_on_host is None
    np.testing.assert_allclose(found.samples.std(axis=0)[1:], SCALES, rtol=0.25)
    beside = gibbs(updates={**row_walks(), "p['a']": samplers.Hamiltonian(0.9)}, num=2)
    assert set(beside.acceptance) == {ROWS, "p['a']"}


def test_a_function_that_calls_the_host_says_so():
    f = incrax.incremental(on_host)
    found = gibbs(f, num=40, chains=2)
    assert "it has side effects or calls the host" in found.why_on_host
    assert found.num_evaluations == 2 * 60 * (NUM + 1)
    assert f.stats.calls >= found.num_evaluations
    assert found.samples.shape == (2, 40, NUM + 1)
    named = gibbs(f, num=2, updates={**row_walks(), "p['a']": samplers.Walk(1.0)})
    assert "calls the host" in named.why_on_host
    assert len(named.acceptance) == NUM + 1
    with pytest.raises(incrax.errors.NotCalledError):  # rows asked for by name are a promise
        gibbs(f, updates={ROWS: samplers.Walk(1.0), "p['a']": samplers.Walk(1.0)})


def test_widths_are_found_on_the_host_too():
    fun = lambda p: -0.5 * p["a"] ** 2 - 0.5 * (p["b"] / 1e-3) ** 2
    walks = {name: samplers.Walk(times=2) for name in ("p['a']", "p['b']")}
    found = samplers.gibbs(
        fun, {"a": 0.0, "b": 0.0}, updates=walks, key=2, num_sweeps=600, chains=2
    )
    assert found.why_on_host
    assert all(0.36 < share < 0.52 for share in found.acceptance.values())
    np.testing.assert_allclose(found.samples.std(axis=(0, 1)), [1.0, 1e-3], rtol=0.25)
    assert found.num_evaluations == 2 * 900 * 4
