"""What a kernel meets: the products of the elements that meet add up to what JAX makes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from incrax._program import trace
from incrax.primitives.entry import View
from incrax.primitives.products import multiply_adds
from incrax.primitives.table import entry_of

CASES = {
    "padded": {"padding": [(0, 0), (1, 2)]},
    "cut": {"padding": [(-1, 0), (0, -2)]},
    "strides": {"window_strides": (2, 3)},
    "holes": {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "padding": [(0, 0), (0, 0)]},
    "groups of features": {"feature_group_count": 2},
    "groups of the batch": {"batch_group_count": 2},
    "other layouts": {"dimension_numbers": ("NHWC", "HWIO", "HWNC"), "window_strides": (1, 2)},
}
OPTIONS = {
    "window_strides": (1, 1),
    "padding": "VALID",
    "dimension_numbers": ("NCHW", "OIHW", "NCHW"),
}


class Zeros(View):
    """Where derivatives are asked for."""

    zeros = True


@pytest.mark.parametrize("name", CASES)
def test_elements_that_meet_make_the_convolution(name):
    options = OPTIONS | CASES[name]
    image = {"N": 4, "C": 4, "H": 6, "W": 5}
    kernel = {"O": 4, "I": 4 // options.get("feature_group_count", 1), "H": 3, "W": 2}
    layouts = zip((image, kernel), options["dimension_numbers"], strict=False)
    shapes = [[sizes[letter] for letter in layout] for sizes, layout in layouts]
    x, k = (np.random.default_rng(3).uniform(1.0, 2.0, shape) for shape in shapes)
    fun = lambda x, k: jax.lax.conv_general_dilated(x, k, **options)
    (eqn,) = trace(fun, x, k).eqns
    (reads,) = entry_of(eqn).index(eqn, Zeros())
    (targets, pixels), (also, weights) = (read.pairs() for read in reads.operands)
    np.testing.assert_array_equal(targets, also)
    found = np.zeros(eqn.outvars[0].aval.size)
    np.add.at(found, targets, x.ravel()[pixels] * k.ravel()[weights])
    np.testing.assert_allclose(found, np.ravel(fun(x, k)), rtol=1e-13)
    assert len(targets) == multiply_adds(eqn)
