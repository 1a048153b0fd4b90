"""Inputs of a bound model: names, roles, values, changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import incrax

X = np.linspace(-1.0, 2.0, 50)


def nll(params, scale, x, offset=0.25):
    return (
        jnp.sum(((x - params["mu"]) / params["sigma"]) ** 2) * scale + jnp.sum(params["w"]) + offset
    )


def model(**options):
    params = {"mu": 0.5, "sigma": 1.5, "w": np.array([1.0, 2.0])}
    return incrax.bind(nll, params=params, scale=2.0, x=X, **{"roles": {"x": "data"}, **options})


def test_floating_leaves_and_integers_of_python_are_trainable_by_default_and_others_are_data():
    values = {"a": 1.0, "b": 2, "n": np.array(3), "flag": True, "name": "text"}
    m = incrax.bind(lambda a, b, n, flag, name: a * b * n, **values)
    assert m.roles == {
        "a": "trainable",
        "b": "trainable",
        "n": "data",
        "flag": "data",
        "name": "data",
    }


def test_the_innermost_path_decides_on_a_role():
    m = model(roles={"params": "fixed", "params['mu']": "trainable", "x": "data", "scale": "fixed"})
    assert m.trainable_paths == ("params['mu']",)
    assert m.roles["params['w']"] == "fixed"


def test_inputs_with_defaults_may_be_left_out():
    assert "offset" not in model().inputs
    assert model(offset=3.0)["offset"] == 3.0


def test_names_are_inputs_paths_or_their_ends():
    m = model()
    m.set({"params['mu']": 1.0}, sigma=2.0)
    assert m["mu"] == m["params['mu']"] == m["params"]["mu"] == 1.0
    assert m["sigma"] == 2.0
    m.set(params={"mu": 3.0, "sigma": 1.0, "w": np.array([0.0, 1.0])})
    assert m["mu"] == 3.0


def test_an_end_of_a_path_may_have_several_keys():
    layers = {"first": {"w": [1.0, 2.0]}, "last": {"w": [3.0, 4.0]}}
    m = incrax.bind(lambda p: sum(jax.tree.leaves(p)), p=layers)
    m.set({"last.w[1]": 5.0, "p['first']['w'][0]": 0.0})
    assert (m["last.w[1]"], m["first.w[0]"], float(m.value())) == (5.0, 0.0, 10.0)
    with pytest.raises(incrax.errors.AmbiguousInputError, match="w"):
        m.set({"w[0]": 1.0})


def test_values_take_the_type_of_what_they_replace():
    m = model()
    m.set(mu=np.float32(0.1), w=np.array([3, 4]), sigma=jnp.asarray(2))
    assert type(m["mu"]) is float
    assert m["w"].dtype == np.float64
    assert type(m["sigma"]) is float
    m.value()
    m.set(mu=2)
    m.value()
    assert m.stats["value"].traces == 1


def test_data_may_change_their_shape_and_structure():
    m = incrax.bind(
        lambda a, data: a * jnp.sum(data["x"]), a=2.0, data={"x": X}, roles={"data": "data"}
    )
    m.set(data={"x": X[:3], "y": X})
    np.testing.assert_allclose(m.value(), 2.0 * X[:3].sum())
    m.set({"data['x']": X[:3] * 2}, a=1.0)
    np.testing.assert_allclose(m.value(), 2.0 * X[:3].sum())
    assert m.roles == {"a": "trainable", "data['x']": "data", "data['y']": "data"}


def test_leaves_that_follow_replaced_data_stay_what_they_were():
    m = incrax.bind(
        lambda data, a, b: a + b + sum(data),
        data=[1, 2],
        a=1.0,
        b=2.0,
        roles={"data": "data", "b": "fixed"},
    )
    m.set(data=[1, 2, 3, 4], b=5.0)
    assert (m["a"], m["b"]) == (1.0, 5.0)
    assert m.roles["b"] == "fixed"
    assert m.value() == 16.0


def test_at_restores_what_it_changed_even_after_an_error():
    m = model()
    before = m.value()
    with m.at(mu=0.75, scale=1.0) as inside:
        assert inside is m
        assert m.value() != before
        with m.at(mu=1.0):
            pass
        assert m["mu"] == 0.75
    with pytest.raises(ZeroDivisionError), m.at(x=X[:4], mu=3.0):
        1 / 0  # noqa: B018
    assert m["mu"] == 0.5
    assert m["x"].shape == X.shape
    assert m.value() == before


def test_what_is_refused_changes_nothing():
    m = model(bounds={"sigma": (0.1, None)})
    told = []
    m.on_change(told.append)
    before = {**m.inputs, "params": dict(m["params"])}
    for values in (
        {"mu": 1.0, "sigma": -1.0},
        {"x": X[:3], "w": np.zeros(3)},
        {"mu": 1.0, "nothing": 2.0},
    ):
        with pytest.raises(incrax.IncraxError):
            m.set(values)
    assert not told
    jax.tree.map(np.testing.assert_array_equal, m.inputs, before)


def test_watchers_are_told_what_was_set_until_they_end_it():
    m = model()
    told = []
    end = m.on_change(told.append)
    m.set(mu=1.0, scale=3.0)
    with m.at(sigma=2.0):
        pass
    end()
    m.set(mu=2.0)
    end()
    assert told == [("params['mu']", "scale"), ("params['sigma']",), ("params['sigma']",)]


def test_what_the_caller_does_with_arrays_later_is_not_seen():
    w, x = np.array([1.0, 2.0]), X.copy()
    m = incrax.bind(
        nll, params={"mu": 0.5, "sigma": 1.5, "w": w}, scale=2.0, x=x, roles={"x": "data"}
    )
    value = m.value()
    w[:], x[:] = 7.0, 0.0
    assert m.value() == value
    m.set(scale=3.0)
    np.testing.assert_allclose(
        m.value(), jax.jit(nll)({"mu": 0.5, "sigma": 1.5, "w": np.array([1.0, 2.0])}, 3.0, X)
    )


def test_the_table_shows_roles_values_and_bounds():
    text = str(model(bounds={"sigma": (0.1, None), "w": ([-1.0, -2.0], 5.0)}))
    for shown in (
        "params['sigma']",
        "trainable",
        "0.1 to inf",
        "float64[50]",
        "(-2 ... -1) to 5",
        "0.5",
    ):
        assert shown in text


def test_functions_without_names_and_with_any_names_are_bound():
    m = incrax.bind(lambda a, /, b, *, c, **rest: a - b * c + rest["d"], a=1.0, b=2.0, c=3.0, d=4.0)
    assert m.value() == -1.0
    assert incrax.bind(jnp.arctan2, x1=0.0, x2=1.0).value() == 0.0


VALUES = st.sampled_from([0.5, 1.0, 1.5])
CHANGES = st.dictionaries(st.sampled_from(["mu", "sigma", "scale", "x"]), VALUES, min_size=1)


@given(
    st.lists(
        st.tuples(
            CHANGES, st.sampled_from(["set", "at", "fix"]), st.sampled_from(["value", "grad"])
        ),
        max_size=8,
    )
)
def test_any_changes_give_the_values_of_plain_jax(changes):
    m = model()
    now = {"mu": 0.5, "sigma": 1.5, "scale": 2.0, "x": X}
    for change, way, method in changes:
        new = {name: value * X if name == "x" else value for name, value in change.items()}
        if way == "fix" and "scale" in m.trainable:
            m.set_role("scale", "fixed")
        if way == "at":
            with m.at(new):
                check(m, {**now, **new}, method)
        else:
            m.set(new)
            now.update(new)
        check(m, now, method)


def check(m, now, method):
    params = {"mu": now["mu"], "sigma": now["sigma"], "w": np.array([1.0, 2.0])}
    if method == "value":
        np.testing.assert_allclose(m.value(), nll(params, now["scale"], now["x"]), rtol=1e-12)
        return
    expected = dict(
        zip(("params", "scale"), jax.grad(nll, (0, 1))(params, now["scale"], now["x"]), strict=True)
    )
    found = m.grad()
    assert set(found) == set(m.trainable)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-9),
        found,
        {k: expected[k] for k in found},
    )
