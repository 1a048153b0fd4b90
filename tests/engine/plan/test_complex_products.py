"""Products of complex vectors and matrices in real arithmetic: the same values, of matrices that stay
and that nothing else reads.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same, same_array

import incrax
from incrax import _jax
from incrax._program import trace
from incrax.engine.program.simplify import inline
from incrax.engine.rewrites.complex_products import MIN_SIZE, in_real_arithmetic
from incrax.engine.rewrites.derived import DerivedTable

RNG = np.random.default_rng(5)
LONG = MIN_SIZE // 4


def numbers(*shape):
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


def rewritten(fun, *args):
    """A program of a vector and a matrix that stays, its new equations, and the table of recipes."""
    program = inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args))
    table = DerivedTable()
    steady = {program.invars[1]}
    eqns, guards = in_real_arithmetic(program.eqns, table, steady.__contains__, program.outvars)
    return program, eqns, guards, table


def has_complex_product(eqns):
    products = [eqn for eqn in eqns if eqn.primitive.name == "dot_general"]
    return any(jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating) for eqn in products)


ein = lambda text: functools.partial(jnp.einsum, text)

SPLIT = {
    "v A": (ein("k,kn->n"), numbers(4), numbers(4, LONG)),
    "A v": (ein("n,kn->k"), numbers(LONG), numbers(4, LONG)),
    "matrix first": (lambda v, a: a @ v, numbers(LONG), numbers(4, LONG)),
    "columns of three axes": (ein("k,kcn->cn"), numbers(4), numbers(4, 2, LONG)),
    "rows of three axes": (ein("n,kcn->kc"), numbers(LONG), numbers(4, 2, LONG)),
    "over two axes": (ein("cn,kcn->k"), numbers(2, LONG), numbers(4, 2, LONG)),
    "over two in another order": (ein("nc,kcn->k"), numbers(LONG, 2), numbers(4, 2, LONG)),
    "single precision": (
        ein("k,kn->n"),
        np.complex64(numbers(4)),
        np.complex64(numbers(4, LONG)),
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_the_product_is_the_same_in_real_arithmetic(name):
    fun, vector, matrix = SPLIT[name]
    program, eqns, (guard,), table = rewritten(fun, vector, matrix)
    assert has_complex_product(program.eqns)
    assert not has_complex_product(eqns)
    known = dict(zip(program.invars, map(jnp.asarray, (vector, matrix)), strict=True))
    (parts,) = table.recipes
    _jax.evaluate([*table.recipe([parts]), *eqns], known)
    (result,) = program.outvars
    same_array(known[result], fun(vector, matrix), 8 * LONG)
    assert known[result].dtype == vector.dtype
    assert bool(known[guard])


LEFT = {
    "real": (ein("k,kn->n"), numbers(4).real, numbers(4, LONG).real),
    "small": (ein("k,kn->n"), numbers(2), numbers(2, 8)),
    "two matrices": (ein("jk,kn->jn"), numbers(3, 4), numbers(4, LONG)),
    "axes apart": (ein("kn,kcn->c"), numbers(4, LONG), numbers(4, 2, LONG)),
    "batches": (ein("ck,ckn->cn"), numbers(2, 4), numbers(2, 4, LONG)),
    "summed in more digits": (
        functools.partial(jnp.matmul, preferred_element_type=np.complex128),
        np.complex64(numbers(4)),
        np.complex64(numbers(4, LONG)),
    ),
    "read by others": (lambda v, a: (v @ a, jnp.abs(a)), numbers(4), numbers(4, LONG)),
    "returned": (lambda v, a: (v @ a, a), numbers(4), numbers(4, LONG)),
    "two vectors": (lambda v, a: jnp.sum(v * a), numbers(4 * LONG), numbers(4 * LONG)),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_left_alone(name):
    fun, *args = LEFT[name]
    program, eqns, guards, table = rewritten(fun, *args)
    assert (eqns, guards) == (tuple(program.eqns), [])
    assert not table.recipes


def test_what_moves_is_left_alone():
    program = inline(trace(lambda v, a: [v @ a], numbers(4), numbers(4, LONG)))
    table = DerivedTable()
    found = in_real_arithmetic(program.eqns, table, lambda _: False, program.outvars)
    assert found == (tuple(program.eqns), [])


# --- in calls -------------------------------------------------------------------------------------


def intensity(couplings, width, mass):
    waves = jnp.stack([1.0 / (k - mass**2 - 1j * width) for k in range(1, 5)])
    return jnp.sum(jnp.log(jnp.abs(couplings @ waves) ** 2))


MASS = np.linspace(0.5, 2.0, MIN_SIZE)


def loads_of(changes):
    """What the plan for new couplings loads after these changes, "c" or "w"; checks each call."""
    ours = incrax.incremental(jax.value_and_grad(intensity), tuning=incrax.Tuning(compile_s=60.0))
    couplings, width = numbers(4), 0.3
    for change in changes:
        couplings = couplings + 0.01 * (change == "c")
        width += 0.01 * (change == "w")
        expected = jax.value_and_grad(intensity)(couplings, width, MASS)
        same(ours(couplings, width, MASS), expected, factor=4096.0, terms=1e3)
    chooser = ours._traces.latest.engine.chooser
    is_of_couplings = lambda dirty: not dirty & ~chooser.facts.layout.leaf_mask(0)
    (entry,) = (x for dirty, x in chooser.entries.items() if is_of_couplings(dirty))
    return [str(var.aval.dtype) for var in entry.program.plan.loads]


BAD = [complex(np.inf, 0.5), complex(0.5, -np.inf), complex(np.nan, 1.0), np.inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", ["vector", "matrix"])
def test_numbers_that_are_not_finite_are_so_in_the_parts_of_plain_jax(place, bad):
    # XLA's kernels make other parts NaN than the equation does: it differs from shape to shape.
    def amplitude(couplings, shift, waves):
        return couplings @ jnp.where(jnp.isfinite(waves), waves * jnp.exp(1j * shift), waves)

    ours = incrax.incremental(amplitude, tuning=incrax.Tuning(compile_s=60.0))
    plain = jax.jit(amplitude)
    waves = numbers(4, MIN_SIZE)
    waves[1, 7] = bad if place == "matrix" else waves[1, 7]
    for number in range(9):
        couplings = numbers(4)
        couplings[2] = bad if place == "vector" and number > 6 else couplings[2]
        args = couplings, 0.3, waves
        same(ours(*args), plain(*args), factor=4096.0, terms=10.0)


def test_a_matrix_is_loaded_in_parts_where_it_stays():
    assert loads_of("ccccccccc") == ["float64"]


def test_what_changes_as_often_is_loaded_as_it_is():
    assert loads_of("cwcwcwcwcwcwc") == ["complex128"]
