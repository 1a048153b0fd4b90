"""Costs of bound models: of their functions at the inputs that they hold."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

N = 50
X = np.linspace(0.1, 2.0, N)
PARAMS = {"mu": 0.5, "w": np.ones(3)}


def nll(params, x):
    z = jnp.exp(x - params["mu"])
    return jnp.sum(z * (params["w"][0] + params["w"][1]) + params["w"][2])


def model(**options):
    return incrax.bind(nll, params=PARAMS, x=X, **{"roles": {"x": "data"}, **options})


def totals(report):
    return [(each.name, each.total, each.again, each.avoided) for each in report.passes]


@pytest.mark.parametrize("changing", [None, "params['mu']", "x"])
def test_a_model_costs_what_its_function_does_at_its_inputs(changing):
    plain = incrax.cost(incrax.incremental(nll), PARAMS, X, wrt="params", changing=changing)
    m = model()
    assert totals(incrax.cost(m, changing=changing)) == totals(plain)
    assert totals(incrax.cost(m.value, changing=changing)) == totals(plain)
    assert plain.hvp is not None
    assert incrax.cost(m).arguments == (
        "params['mu']: float64[]",
        "params['w']: float64[3]",
        f"x: float64[{N}]",
    )


def test_counting_by_hand():
    """x - mu, an exponential, w[0] + w[1], a product, + w[2], a sum of N; backward: one more
    product and three sums.
    """
    report = incrax.cost(model())
    assert report.forward.total[:2] == (N + 1 + N + N + (N - 1), N)
    assert incrax.cost(
        model(roles={"x": "data", "params": "fixed", "mu": "trainable"})
    ).backward.total.flops == (
        2 * N + (N - 1) + 1  # of the product, exp' and the sum; its sign
    )


def test_short_names_and_elements_stand_for_what_they_stand_for_in_the_model():
    m = model()
    short, long = incrax.cost(m, changing="mu"), incrax.cost(m, changing=["params['mu']"])
    assert totals(short) == totals(long)
    assert short.forward.again.transcendentals == N
    element = incrax.cost(m, changing="w[1]")
    assert element.changing == ("params['w'][1]",)
    assert element.forward.again.flops == 1 + N + N + (N - 1)
    plain = incrax.cost(incrax.incremental(nll), PARAMS, X, wrt="params['mu']")
    assert incrax.cost(m, wrt="mu").backward.total == plain.backward.total
    assert incrax.cost(m, wrt=("mu", "w")).backward.total == incrax.cost(m).backward.total
    with pytest.raises(
        incrax.errors.UnknownInputError, match="`sigma` names no input of this model"
    ):
        incrax.cost(m, changing="sigma")
    with pytest.raises(
        incrax.errors.UnknownInputError, match=r"`sigma\[0\]` names no input of this model"
    ):
        incrax.cost(m, changing="sigma[0]")


def test_a_derivative_of_a_model_costs_what_that_of_its_function_does():
    ours = incrax.cost(model().value_and_grad, passes="forward").forward.total
    plain = incrax.cost(
        incrax.value_and_grad(nll, wrt="params"), PARAMS, X, passes="forward"
    ).forward.total
    assert ours == plain
    for method in ("grad", "hessian"):
        assert (
            incrax.cost(getattr(model(), method), changing="w").forward.avoided.transcendentals == N
        )


def test_only_what_is_trainable_is_differentiated():
    m = model(roles={"params": "fixed", "x": "data"})
    report = incrax.cost(m)
    assert (report.backward, report.hvp) == (None, None)
    assert (
        "No derivatives: no input of the model is trainable. Name others by `wrt=`." in report.notes
    )
    assert incrax.cost(m, wrt="params").backward.total == incrax.cost(model()).backward.total


def test_inputs_may_be_others_than_those_that_are_set():
    m = model()
    many = incrax.cost(m, x=jax.ShapeDtypeStruct((2**40,), float))
    assert many.forward.total.transcendentals == 2**40
    single = incrax.cost(m, x=X.astype(np.float32), mu=np.float32(0.5), w=np.ones(3, np.float32))
    assert single.arguments == (
        "params['mu']: float32[]",
        "params['w']: float32[3]",
        f"x: float32[{N}]",
    )
    m.set(x=X[:10])
    assert incrax.cost(m).forward.total.transcendentals == 10


def test_a_model_is_as_it_was():
    m = model()
    seen = []
    m.on_change(seen.append)
    incrax.cost(m, measure=True, changing="mu", x=X[:5])
    incrax.cost(m.grad)
    assert (m.stats, m.functions, seen) == ({}, {}, [])
    assert m["x"].shape == (N,)


def test_state_is_an_input_and_its_update_no_part_of_the_value():
    def loss(scale, mean, x):
        return jnp.sum(scale * x), {"mean": mean * 0.9 + jnp.sum(jnp.exp(x))}

    m = incrax.bind(loss, scale=2.0, mean=0.0, x=X, roles={"mean": "state", "x": "data"})
    assert incrax.cost(m).forward.total[:2] == (N + N - 1, 0)


def test_modules_are_opened():
    net = eqx.nn.MLP(3, "scalar", 8, 1, activation=jnp.exp, key=jax.random.key(0))
    m = incrax.bind(
        lambda net, x: jnp.sum(jax.vmap(net)(x)), net=net, x=np.ones((10, 3)), roles={"x": "data"}
    )
    products = 2 * 10 * (3 * 8 + 8)
    assert incrax.cost(m).forward.macs == products / 2
    wider = eqx.nn.MLP(3, "scalar", 16, 1, activation=jnp.exp, key=jax.random.key(0))
    assert incrax.cost(m, net=wider).forward.macs == products
    report = incrax.cost(m, changing="net.layers[1]")
    assert (report.forward.again.transcendentals, report.forward.avoided.transcendentals) == (
        0,
        10 * 8,
    )


def test_rows_are_arrays_here():
    m = incrax.bind(
        lambda mu, x: jnp.sum(jnp.exp(x - mu)), mu=1.0, x=incrax.Rows(X), roles={"x": "data"}
    )
    assert incrax.cost(m).forward.total.transcendentals == N
