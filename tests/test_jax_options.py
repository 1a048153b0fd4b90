"""Options of JAX: they mean the same here, or the error says what to write."""

from __future__ import annotations

import importlib
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
    "jvp": (jax.jvp,),
    "vjp": (jax.vjp,),
    "prepare": (jax.value_and_grad,),
    "hold": (jax.vjp,),
    "guarded": (jax.jit,),
    "bucketed": (jax.jit,),
    "scan": (jax.lax.scan,),
}


def options(functions):
    """Names of the keywords; private ones are nobody's habit."""
    found = [each for f in functions for each in inspect.signature(f).parameters.values()]
    names = {each.name for each in found if each.kind is not each.VAR_POSITIONAL}
    return sorted(name for name in names - {"fun"} if not name.startswith("_"))


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


@pytest.mark.parametrize("name", ["grad", "value_and_grad"])
def test_has_aux_is_that_of_jax(name):
    def with_aux(a, b):
        return product(a, b), {"sum": a + b}

    got = getattr(incrax, name)(with_aux, has_aux=True)(2.0, 3.0)
    expected = getattr(jax, name)(with_aux, has_aux=True)(2.0, 3.0)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got, expected)


@pytest.mark.parametrize("name", GRADIENTS[:4])
def test_a_holomorphic_derivative_is_taken_by_jax(name):
    theirs = getattr(jax, {"jacobian": "jacrev"}.get(name, name))
    cubed = lambda z: z**3
    with refused("`incremental(jax.grad(f, holomorphic=True))`"):
        getattr(incrax, name)(cubed, holomorphic=True)
    got = incrax.incremental(theirs(cubed, holomorphic=True))(1 + 2j)
    expected = theirs(cubed, holomorphic=True)(1 + 2j)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got, expected)


@pytest.mark.parametrize("name", GRADIENTS[:4])
def test_integers_have_none_in_their_place(name):
    with refused("integers have no derivative, and None stands in their place"):
        getattr(incrax, name)(product, allow_int=True)
    found = getattr(incrax, name)(lambda p: p["x"] * p["n"])({"x": 2.0, "n": 3})
    outer = found[1] if name == "value_and_grad" else found
    assert outer["n"] is None
    assert outer["x"] is not None


def test_a_keyword_of_the_function_itself_is_no_option():
    value, pullback = incrax.vjp(lambda x, device: x * device, 2.0, device=3.0)
    assert (float(value), float(pullback(1.0)[0])) == (6.0, 3.0)
    value, _ = incrax.vjp(lambda x, **others: x * others["unroll"], 2.0, unroll=3.0)
    assert float(value) == 6.0
    with refused("`incrax.vjp` has no `argnums`, which is an option of JAX. Write `wrt=1`"):
        incrax.vjp(product, 1.0, 2.0, argnums=1)


@pytest.mark.parametrize("name", ["jvp", "hvp"])
def test_products_with_tangents_are_functions(name):
    text = f"`incrax.{name}` has no `primals`, which is an option of JAX. Write `incrax.{name}(f)("
    with refused(text):
        getattr(incrax, name)(product, (1.0, 2.0), (1.0, 0.0))


@pytest.mark.parametrize(("name", "option"), _jax_options.SPELLED)
def test_an_option_of_iminuit_or_numpyro_says_ours(name, option):
    function = getattr(incrax.samplers if name == "gibbs" else incrax.fit, name)
    ours = _jax_options.SPELLED[name, option]
    assert ours in inspect.signature(function).parameters
    with refused(f"`{name}` has no `{option}`. Write `{ours}=10`."):
        function(product, **{option: 10})


@pytest.mark.parametrize("name", sorted(_jax_options.FUNCTIONS))
def test_a_function_of_others_says_what_has_its_place(name):
    module, _, last = f"incrax.{name}".rpartition(".")
    text = f"module '{module}' has no attribute '{last}'; write {_jax_options.FUNCTIONS[name]}"
    with pytest.raises(AttributeError, match=re.escape(text)):
        getattr(importlib.import_module(module), last)
    named = re.findall(r"incrax\.([\w.]+)", text)
    assert all(hasattr(incrax, each.partition(".")[0]) for each in named)


def test_methods_of_a_jitted_function_are_ours_or_say_what_has_their_place():
    ours, theirs = incrax.incremental(product), jax.jit(product)
    public = {each for each in dir(theirs) if not each.startswith("_")}
    assert public - set(dir(ours)) <= set(_jax_options.METHODS)
    for name, advice in _jax_options.METHODS.items():
        text = f"'Incremental' object has no attribute '{name}'; write {advice}"
        with pytest.raises(AttributeError, match=re.escape(text)):
            getattr(ours, name)
    text = jax.jit(ours).lower(1.0, 2.0).as_text()
    assert "multiply" in text
    assert jax.eval_shape(ours, 1.0, 2.0) == jax.eval_shape(product, 1.0, 2.0)
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        _ = ours.nothing


def test_a_number_that_python_reads_is_static_by_a_guarded_function():
    def powers(x, n):
        return sum(x**i for i in range(n))

    with refused("`incremental(guarded(f, static=1))`"):
        incrax.incremental(powers, static_argnums=1)
    f = incrax.incremental(incrax.guarded(powers, static=1))
    assert [float(f(2.0, n)) for n in (1, 3, 1)] == [1.0, 7.0, 1.0]


def test_text_is_static_by_itself():
    def chosen(x, word):
        return jnp.sin(x) if word == "sine" else jnp.cos(x)

    with refused("are static by themselves. A number"):
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
    outer = jax.vmap(lambda a, b: a * b, in_axes=(0, None), out_axes=1)
    f = incrax.incremental(outer)
    np.testing.assert_array_equal(f(rows, np.arange(2.0)), outer(rows, np.arange(2.0)))
    assert f(rows, np.ones(2)).shape == (2, 3)


def test_static_arguments_of_a_guarded_function_have_our_name():
    with refused("Write `static=1`"):
        incrax.guarded(product, static_argnums=1)
    with refused("`incrax.guarded` has no `static_argnames`"):
        incrax.guarded(static_argnames="b")


def test_static_and_donated_arguments_of_a_step_by_what_it_has():
    with refused("Write `structured(functools.partial(step, ...))`"):
        incrax.structured(product, static_argnames="b")
    with refused("Write `donate_argnums=`"):
        incrax.structured(product, donate_argnames="a")


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
