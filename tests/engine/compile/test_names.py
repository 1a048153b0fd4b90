"""Names of compiled programs: short, and the same in every process, so that JAX's persistent cache
finds them.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax._names import name_of

PROGRAM = """
import functools, sys, warnings
import jax, jax.numpy as jnp, numpy as np
import incrax

warnings.simplefilter("error")
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Model:
    def __init__(self, x):
        self.x = x

    def __call__(self, mu, sigma):
        return jnp.sum(jnp.exp(-0.5 * ((self.x - mu) / sigma) ** 2))


def likelihood(x, mu, sigma):
    return Model(x)(mu, sigma)


X = np.linspace(0.0, 1.0, 500)
named = functools.wraps(likelihood)(lambda mu, sigma: likelihood(X, mu, sigma))
named.__name__ = "a_name_" * 40
kinds = [Model(X), functools.partial(likelihood, X), named]
for fun in [*kinds, *map(incrax.value_and_grad, kinds)]:
    f = incrax.incremental(fun, policy="exact")
    for sigma in (1.0, 2.0):
        f(0.1, sigma)
"""


def test_a_second_process_finds_every_program_in_the_cache(tmp_path):
    """Other addresses and another hash seed; warnings that nothing is stored are errors."""
    names = []
    for number in range(2):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(number),
            "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "true",
        }
        command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        names.append({path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")})
    assert any("Model_plan" in name for name in names[0])
    assert any("likelihood_plan" in name for name in names[0])
    assert names[1] == names[0]


class Callable:
    def __call__(self, x):
        return jnp.sum(x)


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        (jnp.sin, "sin"),
        (functools.partial(np.add, np.ones(1000)), "add"),
        (functools.partial(functools.partial(Callable(), 1)), "Callable"),
        (Callable(), "Callable"),
        (Callable().__call__, "__call__"),
    ],
)
def test_name_of_a_function_has_no_address_and_no_value(fun, name):
    assert name_of(fun) == name


def test_a_name_of_other_letters_is_short_in_bytes():
    fun = lambda x: jnp.sum(x)
    fun.__name__ = "\N{GREEK SMALL LETTER MU}" * 200
    f = incrax.incremental(fun)
    f(np.ones(3))
    (traced,) = f._traces.table.values()
    assert len(traced.engine.chooser.compiler.compiler.name.encode()) <= 80
