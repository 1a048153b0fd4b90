"""Statistics made at one point, used at points of any magnitude: right to the size of the terms, or
refused.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.plan.polynomials import algebra, analysed
from hypothesis import example, given
from hypothesis import strategies as st

N = 1200
RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(4, N)) + np.array([0.0, 0.0, 1.0, 3.0])[:, None]
ERROR = 1e-11
"""Of the sum of the sizes of the terms at the point."""

ROUNDING = 16 * float(np.finfo(float).eps)
"""Of the same with the sizes of what is added up in each term, as plain JAX has it too."""

FIRST = {
    "distance": lambda a, b, u, v: (u, -a),
    "line": lambda a, b, u, v: (a * u, b),
    "plane": lambda a, b, u, v: (a * u, b * v),
    "residual": lambda a, b, u, v: (a * u, b, -v),
    "product": lambda a, b, u, v: (a * b * u,),
}
SECOND = {
    "itself": None,
    "weights": lambda a, b, w, r: (w,),
    "another": lambda a, b, w, r: (b * w, -a),
    "distance": lambda a, b, w, r: (r, -a),
}
DIVISORS = {"one": lambda a, b: 1.0, "b": lambda a, b: b}
NAMES = [
    *((first, "weights", "one") for first in FIRST),
    ("distance", "itself", "one"),
    ("distance", "distance", "b"),
    ("residual", "itself", "b"),
    ("residual", "another", "b"),
    ("line", "another", "one"),
    ("plane", "distance", "one"),
]


@functools.cache
def made(first, second, divisor):
    """Algebra of a sum of products of sums over rows; the direct form with what its rounding is
    relative to.
    """

    def factors(a, b, rows):
        left = FIRST[first](a, b, rows[0], rows[1])
        right = left if SECOND[second] is None else SECOND[second](a, b, rows[2], rows[3])
        return left, right

    def value(a, b, rows):
        left, right = factors(a, b, rows)
        return jnp.sum(sum(left) / DIVISORS[divisor](a, b) * sum(right))

    @jax.jit
    def direct(a, b, rows):
        left, right = factors(a, b, rows)
        scale = DIVISORS[divisor](a, b)
        sizes = [sum(map(jnp.abs, part)) for part in (left, right)]
        terms = jnp.sum(jnp.abs(sum(left) / scale * sum(right)))
        return value(a, b, rows), terms, jnp.sum(sizes[0] / jnp.abs(scale) * sizes[1])

    case = analysed(value, ROWS)
    assert case.statistics is not None
    return *algebra(case, ROWS), direct


magnitudes = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5]),
    st.builds(
        lambda m, e, s: s * m * 10.0**e,
        st.floats(1.0, 9.9),
        st.integers(-12, 16),
        st.sampled_from([1, -1]),
    ),
    st.sampled_from([1e60, -1e60, 1e-60, 1e150, 1e-150, 1e200]),
)
points = st.tuples(magnitudes, magnitudes)


@given(st.sampled_from(NAMES), points, st.lists(points, min_size=1, max_size=4))
@example(("distance", "weights", "one"), (1e12, 0.0), [(0.5, 0.0)])
@example(("distance", "weights", "one"), (1e16, 0.0), [(0.6, 0.0)])
@example(("distance", "itself", "one"), (1e16, 0.0), [(0.6, 0.0)])
@example(("residual", "another", "b"), (1e200, 1e-200), [(0.0, 1e4)])
@pytest.mark.exhaustive
def test_a_result_is_right_to_the_size_of_its_terms_or_is_not_used(names, centre, others):
    saved_at, results, direct = made(*names)
    saved = saved_at(centre)
    for point in others:
        (ours,), guard = results(point, saved)
        if guard:
            plain, terms, parts = map(float, direct(*point, ROWS))
            np.testing.assert_array_equal(np.isnan(ours), np.isnan(plain))
            if np.isfinite(plain):
                assert abs(float(ours) - plain) <= ERROR * terms + ROUNDING * parts


@pytest.mark.parametrize("names", NAMES, ids="-".join)
def test_statistics_serve_around_the_point_where_they_are_made(names):
    """The size of the sum may be as small as it likes against that of its terms."""
    saved_at, results, _ = made(*names)
    saved = saved_at((1.0, 2.0))
    for point in ((1.0, 2.0), (1.1, 1.9), (0.8, 2.5)):
        assert results(point, saved)[1]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
def test_a_sum_that_vanishes_is_of_the_size_of_its_terms(scale):
    """sum w (u - a) where a is the weighted mean: a gradient at the minimum."""
    saved_at, results, direct = made("distance", "weights", "one")
    rows_mean = float(np.sum(ROWS[2] * ROWS[0]) / np.sum(ROWS[2]))
    saved = saved_at((rows_mean + 0.3 * scale, 0.0))
    (ours,), guard = results((rows_mean, 0.0), saved)
    assert guard
    assert abs(float(ours)) <= ERROR * float(direct(rows_mean, 0.0, ROWS)[1])
