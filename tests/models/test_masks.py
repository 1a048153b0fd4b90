"""What is fixed is a mask: derivatives of plain JAX by what is free, and nothing traced or compiled
again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.models.bound import differentiated, prepared_of

X = np.linspace(0.1, 2.0, 30)
NOT_TIMED = incrax.Tuning(timed=False)
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
)
traced = []


def loss(mu, theta, x):
    traced.append(1)
    shape = jnp.sin(mu * x) + jnp.tanh(theta[0] * x) * jnp.cos(theta[1] - x) + theta[2] ** 2 * x
    return jnp.sum(shape**2) + jnp.sum(theta**4)


def bound(**options):
    return incrax.bind(
        incrax.incremental(loss, tuning=NOT_TIMED),
        mu=0.75,
        theta=np.array([0.5, -0.25, 1.5]),
        x=X,
        **{"roles": {"x": "data"}, **options},
    )


NAMES = ("mu", "theta[0]", "theta[1]", "theta[2]")


def of_vector(v, x=X):
    return loss(v[0], v[1:], x)


def check_against_jax(m, free):
    """All that a model says by a vector, and in its own shape, of these elements."""
    numbers = [NAMES.index(name) for name in free]
    v = jnp.concatenate([jnp.ravel(m["mu"]), m["theta"]])
    x = np.asarray(m["x"])
    gradient = np.asarray(jax.grad(of_vector)(v, x))
    hessian = np.asarray(jax.hessian(of_vector)(v, x))
    flat = m.flat()
    assert m.names == flat.names == free
    np.testing.assert_array_equal(flat.x0, v[np.array(numbers)])
    np.testing.assert_allclose(flat.gradient(flat.x0), gradient[numbers], rtol=1e-10, atol=1e-12)
    expected = hessian[np.ix_(numbers, numbers)]
    np.testing.assert_allclose(flat.hessian(flat.x0), expected, rtol=1e-10, atol=1e-12)
    along = np.arange(1.0, 1 + len(free))
    np.testing.assert_allclose(flat.hvp(flat.x0, along), expected @ along, rtol=1e-10, atol=1e-12)
    is_free = np.isin(np.arange(4), numbers)
    found = m.grad()
    assert set(found) == {name.partition("[")[0] for name in free}
    for name, part in (("mu", slice(0, 1)), ("theta", slice(1, 4))):
        if name in found:
            shown = np.where(is_free, gradient, 0)[part]
            np.testing.assert_allclose(np.ravel(found[name]), shown, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("fixed", "free"),
    [
        (["mu"], ["theta[0]", "theta[1]", "theta[2]"]),
        (["theta"], ["mu"]),
        (["theta[1]"], ["mu", "theta[0]", "theta[2]"]),
        (["theta[0]", "theta[2]"], ["mu", "theta[1]"]),
        (["mu", "theta[-1]"], ["theta[0]", "theta[1]"]),
    ],
)
def test_derivatives_are_those_by_what_is_free(fixed, free):
    m = bound()
    m.grad(), m.flat().hessian(m.flat().x0)
    m.fix(*fixed)
    check_against_jax(m, tuple(free))


def test_second_derivatives_in_the_shape_of_the_gradient_have_zeros_for_what_is_fixed():
    m = bound()
    m.fix("theta[1]")
    whole = np.array(jax.hessian(of_vector)(jnp.array([0.75, 0.5, -0.25, 1.5])))
    whole[2] = whole[:, 2] = 0
    found = m.hessian()
    np.testing.assert_allclose(found["theta"]["theta"], whole[1:, 1:], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["theta"]["mu"], whole[1:, 0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["mu"]["theta"], whole[0, 1:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["mu", "theta", "theta[1]"])
def test_nothing_is_traced_or_compiled_again(name):
    m = bound()

    def evaluated():
        flat = m.flat()
        return (
            m.value(),
            flat.value_and_gradient(flat.x0),
            flat.hessian(flat.x0),
            flat.hvp(flat.x0, flat.x0),
        )

    evaluated()
    traced.clear()
    compiled.clear()
    for _ in range(2):
        m.fix(name)
        m.set(theta=m["theta"] + 0.125)
        evaluated()
        m.free(name)
        evaluated()
        m.fix(name)
        evaluated()
        with m.restored():
            m.free(name)
            evaluated()
        m.free(name)
    assert not traced
    assert not compiled


def test_what_gets_the_role_fixed_is_left_out_of_derivatives():
    m = bound()
    m.grad()
    m.fix("mu")
    assert "mu" in differentiated(m).paths
    m.set_role("mu", "fixed")
    assert "mu" not in differentiated(m).paths
    m.grad()
    assert "mu" not in differentiated(m).paths


def test_one_model_has_one_program_for_each_derivative_whatever_is_fixed():
    m = bound()
    m.grad(), m.flat().hessian(m.flat().x0)
    for name in NAMES:
        m.fix(name)
        m.grad(), m.flat().hessian(m.flat().x0)
        m.free(name)
    assert m.stats["value_and_grad"].traces == 1
    assert prepared_of(m).methods["hessian"].stats.traces == 1


def test_what_was_never_free_is_not_differentiated():
    m = bound(roles={"x": "data", "theta": "fixed"})
    m.grad()
    assert differentiated(m).paths == ("mu",)
    assert prepared_of(m).paths == ("mu",)
    m.free("theta[1]")
    check_against_jax(m, ("mu", "theta[1]"))
    assert differentiated(m).paths == ("mu", "theta")


def test_what_is_fixed_before_the_first_derivative_is_not_differentiated():
    """It may have no derivative."""
    count = lambda n, a: jax.lax.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * a), (0.0, a)
    )
    m = incrax.bind(lambda n, a: count(jnp.floor(n), a)[0] + a**2, n=3.0, a=2.0)
    m.value()
    m.fix("n")
    assert m.grad() == {"a": 4.0}
    assert differentiated(m).paths == ("a",)
    m = incrax.bind(lambda z, a: jnp.abs(z) * a**2, z=1.0 + 0.0j, a=2.0)
    m.grad()
    m.fix("z")  # no vector has complex elements
    assert m.flat().names == ("a",)


def test_a_parameter_that_becomes_data_is_no_part_of_derivatives():
    m = bound()
    m.grad()
    m.set_role("theta", "data")
    assert differentiated(m).paths == ("mu",)
    m.set_role("theta", "fixed")
    assert differentiated(m).paths == ("mu",)


def test_roles_tell_of_elements_and_can_be_given_for_them():
    m = bound(roles={"x": "data", "theta[0]": "fixed"})
    assert m.names == ("mu", "theta[1]", "theta[2]")
    m.fix("theta[2]")
    expected = {"mu": "trainable", "theta": "trainable", "x": "data"}
    assert m.roles == {**expected, "theta[0]": "fixed", "theta[2]": "fixed"}
    assert bound(roles=m.roles).names == m.names
    assert "trainable (1 of 3)" in str(m)
    m.fix("theta[1]")
    assert m.roles == {**expected, "theta": "fixed"}
    m.free("theta[2]")
    assert m.names == ("mu", "theta[2]")
    m.free("theta")
    assert m.roles == expected


def test_rows_of_matrices_and_parts_of_pytrees():
    m = incrax.bind(lambda p: jnp.sum(p["w"] ** 2) + jnp.sum(p["b"][0] ** 2) + p["b"][1],
                    p={"w": np.ones((2, 2)), "b": [np.ones(2), 1.0]})  # fmt: skip
    m.fix("w[1]", "p['b'][0][1]", "p['b'][1]")
    assert m.names == ("p['b'][0][0]", "p['w'][0, 0]", "p['w'][0, 1]")
    m.free("w[1, 0]")
    assert m.names[-1] == "p['w'][1, 0]"


def test_vectors_set_what_is_free():
    m = bound()
    m.fix("theta[1]", "mu")
    m.set_vector([3.0, 4.0])
    assert m["theta"].tolist() == [3.0, -0.25, 4.0]
    with pytest.raises(incrax.errors.InputValueError, match="for 2 trainable elements"):
        m.set_vector([1.0, 2.0, 3.0])
    assert m.flat().unflatten([5.0, 6.0])[0].tolist() == [5.0, -0.25, 6.0]


def test_an_array_that_is_fixed_is_passed_on_as_it_is():
    """So that no call compares its elements."""
    m = bound()
    m.grad()
    m.fix("theta")
    flat = m.flat()
    assert flat.arguments([1.0])[1] is flat.arguments([2.0])[1]


def test_steps_of_an_optimiser_leave_elements_alone():
    optax = pytest.importorskip("optax", reason="optax is not installed")
    m = bound()
    m.fix("theta[1]")
    step = m.training(optax.adamw(0.1, weight_decay=0.5))
    step(), step()
    assert m["theta"][1] == -0.25
    assert m["theta"][0] != 0.5
    m.free("theta[1]")
    with pytest.raises(incrax.errors.BindError, match="Roles of the model changed"):
        step()


def test_names_of_elements_that_are_none():
    m = bound()
    cases = {
        "theta[3]": "`theta[3]` names no element: `theta` is of shape [3]. This is usually an "
        "index that counts from 1. The model is as it was. Indices count from 0, one for each "
        "axis.",
        "mu[0]": "`mu[0]` names no element: `mu` is no array. The model is as it was. Write `mu`.",
    }
    for name, text in cases.items():
        with pytest.raises(incrax.errors.UnknownInputError) as caught:
            m.fix(name)
        assert str(caught.value) == text
    with pytest.raises(incrax.errors.BindError) as caught:
        m.fix("x[0]")
    assert str(caught.value) == (
        "`x[0]` was to have the role 'fixed', and `x` has the role 'data'. Elements of one array "
        'differ only in being "trainable" or "fixed": the others are roles of whole arrays. The '
        "model is as it was. Give the array itself one of these two roles first, or pass two "
        "arrays."
    )


def test_several_names_are_fixed_together_or_not_at_all():
    m = bound()
    with pytest.raises(incrax.errors.UnknownInputError):
        m.fix("mu", "theta[0]", "nothing")
    assert m.names == NAMES


CHANGES = st.one_of(
    st.tuples(st.just("fix"), st.sampled_from([*NAMES, "theta"])),
    st.tuples(st.just("free"), st.sampled_from([*NAMES, "theta"])),
    st.tuples(st.just("set"), st.floats(-1.0, 1.0)),
    st.tuples(st.just("data"), st.integers(1, 2)),
)


@given(st.lists(CHANGES, max_size=8))
def test_any_changes_give_the_derivatives_of_plain_jax(changes):
    m = bound()
    free = set(NAMES)
    for kind, what in changes:
        if kind == "set":
            m.set(theta=np.array([what, 0.5, -what]))
        elif kind == "data":
            m.set(x=X[::what])
        else:
            getattr(m, kind)(what)
            named = {name for name in NAMES if name == what or name.startswith(f"{what}[")}
            free = free - named if kind == "fix" else free | named
        if free:
            check_against_jax(m, tuple(name for name in NAMES if name in free))
        else:
            with pytest.raises(incrax.errors.BindError, match="needs something trainable"):
                m.grad()
