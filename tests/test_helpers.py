"""The oracle itself: what `same` must not take for the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import identical, same

EPS = float(np.finfo(float).eps)
NAN, INF = float("nan"), float("inf")

DIFFERENT = {
    "signs of infinities": (INF, -INF),
    "an infinity and the largest number": (INF, np.finfo(float).max),
    "NaN and a number": (NAN, 0.0),
    "signs of zeros": (0.0, -0.0),
    "signs of zeros in an array": ([1.0, 0.0], [1.0, -0.0]),
    "a sign of a small number": (1e-15, -1e-14),
    "a small number beside a large one": ([1e6, 1e-9], [1e6, 5e-9]),
    "a small row beside a large one": ([[1e6, 2e6], [1e-9, 1e-9]], [[1e6, 2e6], [5e-9, 1e-9]]),
    "zero and a small number": (0.0, 1e-300),
    "imaginary infinities": (complex(1.0, INF), complex(1.0, -INF)),
    "imaginary zeros": (complex(1.0, 0.0), complex(1.0, -0.0)),
    "beyond the tolerance": (1.0, 1.0 + 80 * EPS),
    "integers": ([1, 2], [1, 3]),
    "shapes": ([1.0], 1.0),
    "trees": ((1.0,), [1.0]),
}
SAME = {
    "within the tolerance": (1.0, 1.0 + 32 * EPS),
    "an element by its row": ([[1.0, 1e-16]], [[1.0, 2e-16]]),
    "non-finite numbers": ([NAN, INF, -INF, -0.0], [NAN, INF, -INF, -0.0]),
    "parts by the size of a complex number": (complex(1.0, 1e-16), complex(1.0, 3e-16)),
    "no elements": (np.zeros((0, 3)), np.zeros((0, 3))),
    "flushed to zero": (0.0, 1e-310),
}


def arrays(tree):
    return jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else np.asarray(x), tree)


def pair(case):
    left, right = case
    is_tree = isinstance(left, tuple) or isinstance(right, tuple)
    return (
        [(np.float64(1.0),), [np.float64(1.0)]]
        if is_tree
        else [np.asarray(left), np.asarray(right)]
    )


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("is_turned", [False, True])
def test_what_differs_is_not_the_same(name, is_turned):
    left, right = pair(DIFFERENT[name])[:: -1 if is_turned else 1]
    with pytest.raises(AssertionError):
        same(left, right)


@pytest.mark.parametrize("name", SAME)
def test_what_differs_by_rounding_is_the_same(name):
    same(*pair(SAME[name]))


def test_types_are_compared():
    for left, right in [(np.float32(1), np.float64(1)), (jnp.asarray(1.0), jnp.float64(1.0))]:
        with pytest.raises(AssertionError):
            same(left, right)


def test_a_factor_scales_the_tolerance_and_nothing_else():
    same(np.float64(1.0), np.float64(1.0 + 80 * EPS), factor=128.0)
    for left, right in [(1e-15, -1e-14), (0.0, -0.0), (INF, -INF)]:
        with pytest.raises(AssertionError):
            same(np.float64(left), np.float64(right), factor=1e5)


def test_what_is_left_out_of_the_comparison_is_said_at_the_call():
    same(np.float64(1e-16), np.float64(-1e-16), terms=1.0)
    same(np.float64(0.0), np.float64(-0.0), is_zero_signed=False)
    with pytest.raises(AssertionError):
        same(np.float64(1e-12), np.float64(-1e-12), terms=1.0)
    with pytest.raises(AssertionError):
        same(np.float64(INF), np.float64(-INF), is_zero_signed=False)


def test_identical_compares_bits():
    identical(np.float64(NAN), np.float64(NAN))
    with pytest.raises(AssertionError):
        identical(np.float64(1.0), np.nextafter(1.0, 2.0))
