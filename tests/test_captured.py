"""What drivers compile themselves holds no data: read in the modules given to XLA."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import incrax
from incrax import fit, samplers
from incrax.engine.policy.compile_budget import Credit

NUM_ROWS = 20_000
MOST_BYTES = 4096
RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 3.0, NUM_ROWS)
Y = 2.0 * np.exp(-0.7 * X) + 0.1 * RNG.normal(size=NUM_ROWS)
START = {"a": jnp.array(1.5), "k": jnp.array(0.5)}


def loss(p, x, y):
    return 50.0 * jnp.sum((y - p["a"] * jnp.exp(-p["k"] * jnp.cumsum(x) / jnp.sum(x))) ** 2)


def minus_loss(p, x, y):
    return -loss(p, x, y)


class Modules:
    """The modules that are compiled from now on, by name, as text."""

    def __init__(self, folder):
        self.folder = folder
        self.seen = set()

    def new(self):
        texts = {path.name: path.read_text() for path in self.folder.iterdir()}
        found = {name: texts[name] for name in texts if name not in self.seen}
        self.seen |= set(found)
        return found


@pytest.fixture
def modules(tmp_path):
    jax.config.update("jax_dump_ir_to", str(tmp_path))
    yield Modules(tmp_path)
    jax.config.update("jax_dump_ir_to", "")


def embedded_bytes(text):
    """Of the largest constant in a module."""
    return max((len(found) // 2 for found in re.findall(r'dense<"0x([0-9A-F]+)"', text)), default=0)


def check_empty(texts):
    assert texts
    assert {
        name: size for name in texts if (size := embedded_bytes(texts[name])) > MOST_BYTES
    } == {}


def steps_of(texts):
    """Without the engine's programs of the whole function, which are `jax.jit` of it as it was
    written.
    """
    return {name: text for name, text in texts.items() if "_whole" not in name}


def test_a_constant_is_found(modules):
    jax.block_until_ready(jax.jit(lambda p: loss(p, jnp.asarray(X), Y))(START))
    assert max(map(embedded_bytes, modules.new().values())) == X.nbytes


METHODS = {
    "optax.adam": lambda: {"method": optax.adam(0.01), "max_steps": 3},
    "optax.lbfgs": lambda: {"method": optax.lbfgs(), "max_steps": 3},
}


@pytest.mark.parametrize("method", METHODS)
def test_arguments_of_a_fit_are_no_constants_of_its_steps(modules, method):
    for data in ((X, Y), incrax.frozen((X, Y))):
        fit.minimize(loss, START, *data, **METHODS[method]())
        check_empty(modules.new())


@pytest.mark.parametrize("method", METHODS)
def test_what_a_function_closes_over_is_no_constant_of_a_fits_steps(modules, method):
    x, y = jnp.asarray(X), jnp.asarray(Y)
    for closed in (lambda p: loss(p, x, y), jax.jit(lambda p: loss(p, x, y))):
        fit.minimize(closed, START, **METHODS[method]())
        check_empty(steps_of(modules.new()))


@pytest.mark.parametrize("method", METHODS)
def test_a_second_data_set_of_a_model_compiles_nothing(modules, method, monkeypatch):
    # What pays is decided by a clock, on a busy machine in favour of a plan.
    monkeypatch.setattr(Credit, "allows_planning", lambda *_, **__: False)
    start = {"a": 1.5, "k": 0.5}
    model = incrax.bind(loss, p=start, x=X, y=Y, roles={"x": "data", "y": "data"})
    options = METHODS[method]()
    first = fit.minimize(model, **options)
    check_empty(modules.new())
    model.set(p=start, x=X[::-1].copy(), y=2.0 * Y)
    second = fit.minimize(model, **options)
    assert list(modules.new()) == []
    alone = fit.minimize(loss, start, X[::-1].copy(), 2.0 * Y, **METHODS[method]())
    assert not np.allclose(first.values, second.values)
    np.testing.assert_allclose(second.values, alone.values, rtol=1e-10)


def test_what_a_function_closes_over_may_change_between_fits():
    scale = jnp.array(1.0)
    closed = lambda p: (p - scale) ** 2
    for wanted in (1.0, 3.0):
        scale = jnp.array(wanted)
        found = fit.minimize(closed, 0.0, method=optax.adam(0.1))
        assert float(found.params) == pytest.approx(wanted, abs=1e-3)


# --- samplers -------------------------------------------------------------------------------------

MAKERS = {"logdensity": samplers.logdensity, "numpyro_potential": samplers.numpyro_potential}


def closed_over(p):
    return minus_loss(p, jnp.asarray(X), jnp.asarray(Y))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("given", [(minus_loss, X, Y), (closed_over,)], ids=["args", "closure"])
def test_a_log_density_that_is_an_argument_of_a_loop_brings_its_data_as_arguments(
    modules, maker, given
):
    function, *data = given
    density = MAKERS[maker](function, START, *data)
    modules.new()
    run = jax.jit(lambda density, p: jax.value_and_grad(density)(p))
    value, gradient = run(density, START)
    check_empty(modules.new())
    sign = 1.0 if maker == "logdensity" else -1.0
    expected = jax.value_and_grad(minus_loss)(START, X, Y)
    np.testing.assert_allclose(sign * value, expected[0], rtol=1e-10)
    np.testing.assert_allclose(sign * gradient["k"], expected[1]["k"], rtol=1e-9)


def barriers(jaxpr):
    """Inputs of the barriers in a jaxpr, with those of inner ones."""
    found = []
    for eqn in jaxpr.eqns:
        found += eqn.invars if eqn.primitive.name == "optimization_barrier" else []
        for value in eqn.params.values():
            body = getattr(value, "jaxpr", value)
            found += barriers(body) if isinstance(getattr(body, "eqns", None), list) else []
    return found


def check_unfolded(function, *args):
    """All large constants are behind barriers."""
    closed = jax.make_jaxpr(function)(*args)
    large = {v for v in closed.jaxpr.constvars if v.aval.size * v.aval.dtype.itemsize > MOST_BYTES}
    assert large
    read = [atom for eqn in closed.jaxpr.eqns for atom in eqn.invars if not hasattr(atom, "val")]
    assert sum(var in large for var in read) == len(large)
    assert large <= {var for var in barriers(closed.jaxpr) if not hasattr(var, "val")}


@pytest.mark.parametrize("maker", MAKERS)
def test_xla_folds_nothing_over_data_that_a_log_density_closes_over(maker):
    density = MAKERS[maker](minus_loss, START, X, Y)
    check_unfolded(density, START)
    check_unfolded(jax.vmap(density), jax.tree.map(lambda x: jnp.stack([x, x]), START))


def test_what_no_sampled_leaf_reaches_is_no_part_of_a_log_density():
    density = samplers.logdensity(minus_loss, START, X, Y)
    arrays = jax.tree.leaves(density)
    assert sorted(x.shape for x in arrays if x.size > 1) == [(NUM_ROWS,), (NUM_ROWS,)]
    assert "cumsum" not in str(jax.make_jaxpr(jax.grad(density))(START))


def test_a_log_density_of_keys_and_small_arrays():
    function = lambda p, key, x: -jnp.sum((x + jax.random.normal(key) - p) ** 2)
    key = jax.random.key(3)
    density = samplers.logdensity(function, 0.5, key, jnp.arange(3.0))
    expected = function(0.5, key, jnp.arange(3.0))
    assert float(jax.jit(density)(0.5)) == pytest.approx(float(expected))
    assert float(jax.jit(lambda d, p: d(p))(density, 0.5)) == pytest.approx(float(expected))


@pytest.mark.parametrize("method", METHODS)
def test_a_model_with_fewer_free_parameters_has_programs_of_its_own(method):
    start = {"a": 1.5, "k": 0.5}
    model = incrax.bind(loss, p=start, x=X, y=Y, roles={"x": "data", "y": "data"})
    fit.minimize(model, **METHODS[method]())
    model.set(p=start)
    model.fix("p['k']")
    held = fit.minimize(model, **METHODS[method]())
    alone = fit.minimize(lambda a: loss({"a": a, "k": 0.5}, X, Y), 1.5, **METHODS[method]())
    np.testing.assert_allclose(held.values, alone.values, rtol=1e-8)
