"""Sums of many terms: which additions make one chain, and which do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax._program import trace
from incrax.engine.program.chains import find_chains
from incrax.engine.program.simplify import inline

N = 300
X = [np.linspace(k, k + 1, N) for k in range(6)]


def chains_of(fun, *args):
    program = inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args))
    return program, find_chains(program.eqns, program.outvars)


def only_chain(fun, *args):
    program, (chain,) = chains_of(fun, *args)
    return program, chain


def check_sum(program, chain, args):
    """The sum of a chain's terms, in order, is what its last equation writes."""
    values = dict(zip(program.invars, args, strict=True))
    (number,) = [
        i for i, var in enumerate(program.outvars) if var is program.eqns[chain.last].outvars[0]
    ]
    assert number == 0
    total = sum(values[var] for var in chain.terms)
    np.testing.assert_allclose(total, sum(values[var] for var in program.invars), rtol=1e-15)


ORDERS = {
    "from the left": lambda a, b, c, d: ((a + b) + c) + d,
    "from the right": lambda a, b, c, d: a + (b + (c + d)),
    "as a tree": lambda a, b, c, d: (a + b) + (c + d),
    "in another order": lambda a, b, c, d: (d + (b + a)) + c,
}


@pytest.mark.parametrize("name", ORDERS)
def test_additions_in_any_order_make_one_chain(name):
    program, chain = only_chain(ORDERS[name], *X[:4])
    assert set(chain.terms) == set(program.invars)
    assert len(chain.terms) == 4
    assert chain.eqns == (0, 1, 2)
    assert chain.last == 2
    check_sum(program, chain, X[:4])


def test_terms_are_in_program_order():
    program, chain = only_chain(lambda a, b, c, d: ((a + b) + c) + d, *X[:4])
    assert chain.terms == program.invars


def test_a_term_added_twice_is_two_terms():
    program, chain = only_chain(lambda a, b: ((a + b) + a) + b, *X[:2])
    assert [chain.terms.count(var) for var in program.invars] == [2, 2]


def test_a_sum_added_to_itself_is_not_counted_once():
    program, chains = chains_of(lambda a, b, c: (lambda s: s + s)(a + b + c), *X[:3])
    assert [chain.terms for chain in chains] == [program.invars]


def test_two_terms_are_no_chain():
    assert chains_of(lambda a, b: a + b, *X[:2])[1] == ()


def test_two_sums_are_two_chains():
    program, chains = chains_of(lambda a, b, c, d: (a + b + c, (d + b) + c), *X[:4])
    assert [chain.eqns for chain in chains] == [(0, 1), (2, 3)]
    assert len({chain.last for chain in chains}) == 2


def test_a_sum_that_something_else_reads_starts_a_chain_of_its_own():
    def fun(a, b, c, d, e):
        inner = a + b + c
        return inner + d + e, jnp.sin(inner)

    program, chains = chains_of(fun, *X[:5])
    inner, outer = chains
    assert inner.terms == program.invars[:3]
    assert outer.terms == (program.eqns[inner.last].outvars[0], *program.invars[3:])


def test_a_sum_that_is_an_output_starts_a_chain_of_its_own():
    def fun(a, b, c, d, e):
        inner = a + b + c
        return inner + d + e, inner

    _, chains = chains_of(fun, *X[:5])
    assert [len(chain.terms) for chain in chains] == [3, 3]


def test_other_arithmetic_ends_a_chain():
    program, chain = only_chain(lambda a, b, c, d: (a * b + c) - d + (a + b), *X[:4])
    assert len(chain.terms) == 3
    assert not set(chain.terms) & {program.invars[2]}


NO_CHAINS = {
    "integers": (lambda a, b, c: a + b + c, [x.astype(int) for x in X[:3]]),
    "literals": (lambda a, b: a + 1.0 + b + 2.0, X[:2]),
    "differences": (lambda a, b, c: a - b - c, X[:3]),
    "no equation": (lambda a: a, X[:1]),
}


@pytest.mark.parametrize("name", NO_CHAINS)
def test_what_is_no_chain(name):
    fun, args = NO_CHAINS[name]
    assert chains_of(fun, *args)[1] == ()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_sums_of_inexact_numbers_are_chains(dtype):
    _, chain = only_chain(lambda a, b, c: a + b + c, *[x.astype(dtype) for x in X[:3]])
    assert len(chain.terms) == 3


@pytest.mark.parametrize("size", [1, N - 1, N])
def test_a_chain_says_how_many_elements_its_sum_has(size):
    _, chain = only_chain(lambda a, b, c: a + b + c, *[x[:size] for x in X[:3]])
    assert chain.size == size


def test_numbers_are_terms():
    _, chain = only_chain(lambda a, b, c: a + b + c, 1.0, 2.0, 3.0)
    assert (len(chain.terms), chain.size) == (3, 1)


def test_the_sums_of_a_gradient_are_chains():
    fun = jax.grad(
        lambda x: jnp.sum(jnp.sin(x)) + jnp.sum(x**2) + jnp.sum(jnp.exp(x)) + jnp.sum(jnp.cos(x))
    )
    program, chains = chains_of(fun, X[0])
    (chain,) = [chain for chain in chains if chain.size == N]
    assert {program.eqns[number].primitive.name for number in chain.eqns} == {"add_any"}
    assert len(chain.terms) == 4
