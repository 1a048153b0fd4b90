"""Options of JAX: they mean the same here, or the error says what to write."""

from __future__ import annotations

import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import _jax_options

GRADIENTS = ("grad", "value_and_grad", "jacobian", "hessian", "hvp", "jvp")


def product(a, b):
    return jnp.sum(a**2 * b)


def refused(text):
    return pytest.raises(TypeError, match=re.escape(text))


# --- each option that JAX has ---------------------------------------------------------------------

OF_JAX = {
    "incremental": (jax.jit, jax.vmap),
    "grad": (jax.grad,),
    "value_and_grad": (jax.value_and_grad,),
    "jacobian": (jax.jacrev, jax.jacfwd),
    "hessian": (jax.hessian,),
    "guarded": (jax.jit,),
}


def options(functions):
    found = {name for f in functions for name in inspect.signature(f).parameters}
    return sorted(found - {"fun"})


CASES = [(ours, option) for ours, theirs in OF_JAX.items() for option in options(theirs)]


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "option"), CASES)
def test_an_option_of_jax_is_one_of_ours_or_the_error_says_what_to_write(name, option):
    transform = getattr(incrax, name)
    if option in inspect.signature(transform).parameters:
        return
    with refused(f"`incrax.{name}` has no `{option}`, which is an option of JAX. "):
        transform(product, **{option: 1})


# --- what is written instead does the same --------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENTS[:4])
@pytest.mark.parametrize("numbers", [1, (0, 1)])
def test_wrt_is_what_argnums_is(name, numbers):
    a, b = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    theirs = {"jacobian": "jacrev"}.get(name, name)
    with refused(f"Write `wrt={numbers!r}`; names"):
        getattr(incrax, name)(product, argnums=numbers)
    with refused(f"Write `wrt={numbers!r}`; names"):
        getattr(incrax, name)(product, numbers)
    got = getattr(incrax, name)(product, wrt=numbers)(a, b)
    expected = getattr(jax, theirs)(product, argnums=numbers)(a, b)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got, expected)


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacobian"])
def test_has_aux_is_that_of_jax(name):
    def with_aux(a, b):
        return product(a, b), {"sum": a + b}

    theirs = {"jacobian": "jacrev"}.get(name, name)
    got = getattr(incrax, name)(with_aux, has_aux=True)(2.0, 3.0)
    expected = getattr(jax, theirs)(with_aux, has_aux=True)(2.0, 3.0)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got, expected)


def test_text_is_static_by_itself():
    def chosen(x, word):
        return jnp.sin(x) if word == "sine" else jnp.cos(x)

    with refused("are static by themselves. Bind a number"):
        incrax.incremental(chosen, static_argnums=1)
    f = incrax.incremental(chosen)
    assert float(f(0.0, "sine")) == 0.0
    assert float(f(0.0, "cosine")) == 1.0


def test_a_mapped_function_is_mapped_first():
    rows = np.ones((3, 2))
    with refused("`incremental(jax.vmap(f, in_axes=(0, None)))`; a row"):
        incrax.incremental(product, in_axes=(0, None))
    f = incrax.incremental(jax.vmap(product, in_axes=(0, None)))
    np.testing.assert_allclose(f(rows, np.ones(2)), np.full(3, 2.0))


def test_static_arguments_of_a_guarded_function_have_our_name():
    with refused("Write `static=1`"):
        incrax.guarded(product, static_argnums=1)
    with refused("`incrax.guarded` has no `static_argnames`"):
        incrax.guarded(static_argnames="b")


def test_decorators_say_it_as_well():
    with refused("nothing is donated"):
        incrax.incremental(donate_argnums=0)


def test_what_is_no_option_anywhere_is_an_error_of_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        incrax.incremental(product, colour=1)


def test_an_option_that_a_function_has_is_passed_on():
    step = incrax.structured(lambda x: x + 1.0, donate_argnums=0)
    np.testing.assert_array_equal(step(jnp.ones(2)), [2.0, 2.0])
    with refused("`incrax.structured` has no `static_argnums`"):
        incrax.structured(product, static_argnums=0)


def test_signatures_are_shown_as_they_were_written():
    assert "wrt" in inspect.signature(incrax.grad).parameters
    assert set(_jax_options.ADVICE) >= {option for _, option in _jax_options.ADVICE_OF_ONE}
