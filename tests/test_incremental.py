"""What a user sees of `incremental`: equal results, and that clean work does not run."""

from __future__ import annotations

import copy
import itertools
import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL, check, check_calls, primitives_run, ran_by, same

import incrax

pytestmark = pytest.mark.optimized

X = jnp.linspace(0.1, 2.0, 2000)


def mixture(params, x):
    first = jnp.exp(-0.5 * ((x - params["mu"]) / params["sigma"]) ** 2) / params["sigma"]
    second = params["rate"] * jnp.exp(-params["rate"] * x)
    return -jnp.sum(jnp.log(params["f"] * first + (1 - params["f"]) * second))


PARAMS = {"mu": 1.0, "sigma": 0.3, "rate": 0.8, "f": 0.4}
TRANSFORMS = {
    "value": lambda f: f,
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "hessian": jax.hessian,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "grad of grad": lambda f: jax.grad(lambda p, x: jax.grad(f)(p, x)["mu"]),
}
TUNINGS = {"minimal": MINIMAL, "cost": FAST, "eager": EAGER}


def one_by_one(params=PARAMS, rounds=3):
    calls = [(dict(params), X)]
    for k in range(rounds):
        calls += [({**params, name: value * (1.01 + k)}, X) for name, value in params.items()]
        calls.append(({name: value * (1.1 + k) for name, value in params.items()}, X))
    return calls


@pytest.mark.parametrize(
    ("transform", "tuning"),
    [
        *((name, "minimal") for name in TRANSFORMS),
        *zip(TRANSFORMS, itertools.cycle(["cost", "eager"])),
    ],  # noqa: B905
)
def test_every_transformation_equals_jit_over_a_sequence_of_changes(transform, tuning):
    # Plans may multiply and add in another order; second derivatives are sums of 1e9 that cancel.
    check_calls(TRANSFORMS[transform](mixture), one_by_one(), tuning=TUNINGS[tuning], factor=1024)


def test_races_leave_results_right():
    f = check_calls(
        jax.value_and_grad(mixture), one_by_one(rounds=12), tuning=incrax.Tuning(), factor=1024
    )
    assert f.stats.calls == 12 * 5 + 1


def test_vmapped_functions_are_incremental():
    f = jax.vmap(lambda a, x: jnp.sum(jnp.exp(a) * jnp.sin(x)), in_axes=(0, None))
    ours = check_calls(f, [(jnp.arange(3.0) + k, X) for k in range(4)], tuning=MINIMAL)
    assert "sin" not in primitives_run(ours)


def test_a_call_with_nothing_changed_runs_no_equation_and_compiles_nothing():
    f = incrax.incremental(mixture, tuning=MINIMAL)
    first = f(PARAMS, X)
    compiles = f.stats.compiles
    assert ran_by(f, PARAMS, X) == 0
    assert ran_by(f, dict(PARAMS), jnp.array(X)) == 0
    assert f(PARAMS, X) is first
    assert f.stats.unchanged == 3
    assert f.stats.compiles == compiles


def test_a_change_that_reaches_no_result_runs_nothing():
    f = incrax.incremental(
        lambda a, x: {"sum": jnp.sum(x**2), "shape": 0.0 * x[:0]} if a is not None else x
    )
    x = np.arange(4.0)
    saved = f(1.0, x)
    for a in (2.0, 3.0, 1.0):
        assert f(a, x)["sum"] is saved["sum"]
    assert f.stats.unchanged == 3
    assert f.stats.compiles == 1
    f(5.0, x)
    assert list(f.explain().as_dict()["changed"]) == ["a"]
    same(f(5.0, x + 1.0), jax.jit(f)(5.0, x + 1.0))


def test_only_equations_that_the_change_reaches_run():
    f = incrax.incremental(mixture, tuning=MINIMAL)
    f(PARAMS, X)
    f({**PARAMS, "f": 0.5}, X)
    assert "exp" not in primitives_run(f)
    f({**PARAMS, "f": 0.5, "rate": 2.0}, X)
    assert primitives_run(f).count("exp") == 1


def test_an_element_of_a_small_vector_is_an_input_of_its_own():
    def f(theta, x):
        a, b, c = theta
        return jnp.sum(jnp.exp(a * x)) + jnp.sum(jnp.sin(b * x)) + c

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(np.array([1.0, 2.0, 3.0]), X)
    ours(np.array([1.0, 2.5, 3.0]), X)
    assert primitives_run(ours).count("sin") == 1
    assert "exp" not in primitives_run(ours)
    ours(np.array([1.0, 2.5, 4.0]), X)
    assert not {"sin", "exp"} & set(primitives_run(ours))
    assert ours.explain().as_dict()["changed"] == {
        "theta[2]": "its bits differ from those at the baseline"
    }


def test_a_numeric_gradient_finds_its_baseline_again():
    f = incrax.incremental(
        lambda t, x: jnp.sum(jnp.exp(t[0] * x) + jnp.sin(t[1] * x)), tuning=MINIMAL
    )
    base = np.array([1.0, 2.0])
    f(base, X)
    for index in (0, 1, 0, 1):
        for sign in (1, -1):
            probe = base.copy()
            probe[index] += sign * 1e-3
            f(probe, X)
            assert len(f.explain().as_dict()["changed"]) == 1


def test_a_rejected_step_comes_back_to_saved_outputs():
    f = incrax.incremental(mixture, tuning=MINIMAL)
    f(PARAMS, X)
    f({**PARAMS, "mu": 2.0}, X)
    assert ran_by(f, PARAMS, X) == 0


def test_saved_values_follow_the_inputs_they_depend_on():
    """mu changes, then rate changes: the exponential of mu is that of the new mu."""
    f = incrax.incremental(mixture, tuning=MINIMAL)
    params = dict(PARAMS)
    f(params, X)
    for name, value in [("mu", 1.2), ("rate", 0.9), ("mu", 0.7), ("f", 0.1), ("rate", 1.1)]:
        params[name] = value
        same(f(params, X), jax.jit(mixture)(params, X))
        assert primitives_run(f).count("exp") == (name != "f")


def test_keyword_arguments_and_static_leaves():
    def f(x, *, mode, scale=None, fn=jnp.sin):
        y = fn(x) if mode == "wave" else x
        return jnp.sum(y) * (1.0 if scale is None else scale)

    ours = incrax.incremental(f, tuning=MINIMAL)
    for kwargs in (
        {"mode": "wave"},
        {"mode": "line"},
        {"mode": "wave", "scale": 3.0},
        {"mode": "wave", "fn": jnp.cos},
    ):
        for x in (X, X + 1):
            same(ours(x, **kwargs), jax.jit(f, static_argnames=("mode", "fn"))(x, **kwargs))
    assert ours.stats.traces == 4


def test_a_static_one_and_true_have_traces_of_their_own():
    f = incrax.incremental(lambda x, box: x * box.value, tuning=MINIMAL)

    class Box:
        def __init__(self, value):
            self.value = value

        def __hash__(self):
            return hash(self.value)

        def __eq__(self, other):
            return self.value == other.value and type(self.value) is type(other.value)

    assert f(jnp.int32(2), Box(1)).dtype == jnp.int32
    assert f(jnp.int32(2), Box(1.0)).dtype == jnp.float64


def test_python_scalar_types_have_traces_of_their_own():
    f = incrax.incremental(lambda x: x + 1, tuning=MINIMAL)
    for value in (1, 1.0, True, 1 + 0j, np.float32(1), np.float64(1)):
        same(f(value), jax.jit(lambda x: x + 1)(value))
    assert f.stats.traces == 6


@pytest.mark.parametrize("tuning", TUNINGS)
def test_complex_integer_and_key_leaves(tuning):
    def f(key, z, n, x):
        noise = jax.random.normal(key, (5,))
        return jnp.abs(z) ** 2 + jnp.sum(noise) + n, jnp.exp(z) * jnp.sum(x), jax.random.split(key)

    calls = [
        (jax.random.key(seed), z, n, X)
        for seed, z, n in [
            (0, 1j, 1),
            (0, 2j, 1),
            (1, 2j, 1),
            (1, 2j, 7),
            (1, 2j, 7),
            (0, 1 + 1j, 2),
        ]
    ]
    check_calls(f, calls, tuning=TUNINGS[tuning])


def test_outputs_that_are_inputs_literals_or_twice_the_same():
    def f(a, b):
        y = a * b
        return a, y, y, 3.0, jnp.ones(2), b

    calls = [(1.0, 2.0), (1.5, 2.0), (1.5, 2.5), (1.5, 2.5), (1.0, 2.0)]
    for tuning in (MINIMAL, FAST, EAGER):
        check_calls(f, calls, tuning=tuning)


def test_functions_without_array_inputs_or_with_constant_outputs():
    for tuning in (MINIMAL, FAST):
        f = incrax.incremental(lambda: jnp.arange(3.0) * 2, tuning=tuning)
        same(f(), jnp.arange(3.0) * 2)
        assert ran_by(f) == 0


# --- transparency ---------------------------------------------------------------------------------


def test_under_other_transformations_it_is_the_plain_function():
    f = incrax.incremental(mixture, tuning=MINIMAL)
    f(PARAMS, X)
    before = f.stats.ran
    same(jax.grad(f)(PARAMS, X), jax.grad(mixture)(PARAMS, X))
    same(jax.jit(f)(PARAMS, X), jax.jit(mixture)(PARAMS, X))
    stacked = {name: jnp.full(3, value) for name, value in PARAMS.items()}
    same(jax.vmap(f, (0, None))(stacked, X), jax.vmap(mixture, (0, None))(stacked, X))
    total, _ = jax.lax.scan(
        lambda c, mu: (c + f({**PARAMS, "mu": mu}, X), None), 0.0, jnp.arange(1.0, 3.0)
    )
    same(
        total,
        jax.lax.scan(
            lambda c, mu: (c + mixture({**PARAMS, "mu": mu}, X), None), 0.0, jnp.arange(1.0, 3.0)
        )[0],
    )
    same(jax.jacfwd(f)(PARAMS, X), jax.jacfwd(mixture)(PARAMS, X))
    assert f.stats.ran == before
    assert f.stats.transparent >= 5


def test_concrete_arguments_inside_a_trace_store_no_tracer():
    f = incrax.incremental(lambda x: x * 2.0, tuning=MINIMAL)

    @jax.jit
    def outer(y):
        return f(3.0) * y

    assert float(outer(2.0)) == 12.0
    assert float(f(3.0)) == 6.0
    assert f.stats.traces == 1


# --- control --------------------------------------------------------------------------------------


def test_fresh_neither_reads_nor_writes():
    f = incrax.incremental(mixture, tuning=MINIMAL)
    f(PARAMS, X)
    before = f.stats.as_dict()
    same(f.fresh({**PARAMS, "mu": 5.0}, X), jax.jit(mixture)({**PARAMS, "mu": 5.0}, X))
    assert f.stats.as_dict() == before
    assert ran_by(f, PARAMS, X) == 0


def test_clear_drops_values_but_neither_traces_nor_programs():
    f = incrax.incremental(mixture, tuning=MINIMAL)
    f(PARAMS, X)
    f.clear()
    assert f.stats.saved_bytes == 0
    assert ran_by(f, PARAMS, X) > 0
    assert (f.stats.traces, f.stats.compiles) == (1, 1)


def test_warm_up_compiles_and_fills_what_is_named():
    f = incrax.incremental(mixture, tuning=EAGER)
    f.warm_up(PARAMS, X, changing=["params['f']", ("params['mu']", "params['sigma']"), "x"])
    compiles = f.stats.compiles
    f({**PARAMS, "f": 0.2}, X)
    f({**PARAMS, "mu": 0.2, "sigma": 1.0}, X)
    assert f.stats.compiles == compiles


def test_warm_up_knows_elements_and_prefixes():
    f = incrax.incremental(lambda theta, p: theta[0] * theta[1] + p["a"] + p["b"], tuning=MINIMAL)
    f.warm_up(np.ones(2), {"a": 1.0, "b": 2.0}, changing=["theta[1]", "p", "theta"])
    with pytest.raises(incrax.errors.UnknownInputError):
        f.warm_up(np.ones(2), {"a": 1.0, "b": 2.0}, changing=["theta[2]"])


def test_names_of_changes_may_be_the_ends_of_paths():
    f = incrax.incremental(lambda p, q: p["a"] * jnp.sum(p["t"]) + q["a"], tuning=MINIMAL)
    given = {"a": 1.0, "b": 2.0, "t": np.ones(3)}, {"a": 1.0}
    f.warm_up(*given, changing=["t[1]", "b"])
    assert float(f(*given)) == 4.0
    with pytest.raises(
        incrax.errors.AmbiguousInputError, match="may be `p\\['a'\\]`, `q\\['a'\\]`"
    ):
        f.warm_up(*given, changing=["a"])


def test_the_decorator_takes_options():
    @incrax.incremental(versions=3, tuning=MINIMAL)
    def f(x):
        """Doubles."""
        return 2 * x

    assert f.__doc__ == "Doubles."
    assert f.__name__ == "f"
    f(1.0), f(2.0), f(3.0)
    assert ran_by(f, 1.0) == ran_by(f, 2.0) == ran_by(f, 3.0) == 0


def test_threads_get_right_results():
    f = incrax.incremental(mixture, tuning=FAST)
    expected = {mu: float(jax.jit(mixture)({**PARAMS, "mu": mu}, X)) for mu in (0.5, 1.0, 1.5, 2.0)}
    wrong = []

    def work(mu):
        for _ in range(50):
            if not np.isclose(float(f({**PARAMS, "mu": mu}, X)), expected[mu], rtol=1e-12):
                wrong.append(mu)

    threads = [threading.Thread(target=work, args=(mu,)) for mu in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copies_of_arguments_are_not_kept_alive():
    f = incrax.incremental(lambda x: jnp.sum(x), tuning=FAST)
    for k in range(20):
        jax.block_until_ready(f(np.full(1000, float(k))))  # a result that is awaited is kept
    before = len(jax.live_arrays())
    for k in range(200):
        jax.block_until_ready(f(np.full(1000, float(k))))
    assert len(jax.live_arrays()) <= before + 2


def test_the_plan_table_is_bounded(monkeypatch):
    """Each element has a program of its own here; those that share one count once."""
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_PLANS", 4)
    model = lambda t, x: sum(t[k] ** (k + 2) for k in range(12)) * jnp.sum(x)
    f = incrax.incremental(model, tuning=MINIMAL)
    whole = jax.jit(model)
    base = np.arange(12.0)
    for k in range(3):
        for index in range(12):
            probe = base.copy()
            probe[index] += k + 1
            same(f(probe, X), whole(probe, X))
    engine = next(iter(f._traces.table.values())).engine
    assert sum(e.program is not None for e in engine.chooser.entries.values()) <= 4


def test_deep_copies_of_results_are_plain_arrays():
    f = incrax.incremental(lambda x: x * 2, tuning=MINIMAL)
    assert float(copy.deepcopy(f(2.0))) == 4.0


def test_warm_up_inside_a_trace_stores_nothing():
    f = incrax.incremental(lambda x, y: jnp.sum(jnp.sin(x)) * y, tuning=MINIMAL)
    x = np.linspace(0, 1, 9)
    f(x, 1.0)

    @jax.jit
    def inside(y):
        f.warm_up(x, 2.0, changing=["y"])
        return y

    inside(1.0)
    check(f)
    compiles = f.stats.compiles
    with jax.disable_jit():
        f.warm_up(x, 3.0, changing=["y"])
    assert f.stats.compiles == compiles
    for y in (7.0, 8.0):
        same(f(x, y), jnp.sum(jnp.sin(x)) * y)


def test_fresh_leaves_reports_and_other_signatures_alone(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 1)
    f = incrax.incremental(jnp.sin, tuning=MINIMAL)
    f(1.0)
    same(f.fresh(np.ones(3)), jnp.sin(np.ones(3)))
    assert list(f.explain().as_dict()["changed"]) == ["x"]
    assert f.explain().as_dict()["served_by"] != "saved outputs"
    before = f.stats.unchanged
    f(1.0)
    assert f.stats.unchanged == before + 1


def test_as_a_method():
    class Model:
        def __init__(self, scale):
            self.scale = scale
            incrax.frozen(self)  # a promise: `self` is a static value

        @incrax.incremental(tuning=MINIMAL)
        def value(self, x):
            return self.scale * jnp.sin(x)

    one, two = Model(1.0), Model(2.0)
    for x in (0.5, 0.7, 0.5):
        same(one.value(x), 1.0 * jnp.sin(x))
        same(two.value(x), 2.0 * jnp.sin(x))
    assert Model.value.stats.calls == one.value.stats.calls == 6


@pytest.mark.parametrize("warm", [True, False])
def test_programs_are_bounded_whoever_asks_for_them(warm, monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_PLANS", 2)
    tuning = incrax.Tuning(timed=False, compile_s=math.inf)
    x = np.linspace(0.1, 2, 20_000)
    f = incrax.incremental(
        lambda t, x: sum(jnp.sum(jnp.exp(-t[k] * x)) for k in range(6)), tuning=tuning
    )
    t = np.ones(6)
    if warm:
        f.warm_up(t, x, changing=[f"t[{k}]" for k in range(6)])
    for _ in range(3):
        for k in range(6):
            t = t + 0.1 * np.eye(6)[k]
            f(t, x)
    assert f._traces.latest.engine.planner.num_programs <= 2


def test_a_program_that_several_share_makes_room_with_all_of_them(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.planner.MAX_PLANS", 2)
    others = (jnp.sin, jnp.cos, jnp.tanh)
    x = jnp.linspace(0.1, 1.0, 3_000)

    def model(p, q):
        alike = sum(jnp.sum(jnp.exp(p[k] * x)) for k in range(4))
        return alike + sum(jnp.sum(g(v * x) * x) for g, v in zip(others, q, strict=True))

    f = incrax.incremental(model, tuning=incrax.Tuning(timed=False, compile_s=math.inf))
    p, q = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0]
    f(p, q)
    f.warm_up(p, q, changing=[f"p[{k}]" for k in range(4)])
    planner = f._traces.latest.engine.planner
    sharing = [entry for entry in planner.entries.values() if entry.program is not None]
    assert len(sharing) > planner.num_programs == 1
    for entry in sharing:
        entry.count = 0
    for k in range(3):
        f.warm_up(p, q, changing=[f"q[{k}]"])
        assert planner.num_programs <= 2
    assert not any(entry.program for entry in sharing)


def test_values_that_no_program_loads_any_more_are_dropped():
    tuning = incrax.Tuning(timed=False, compile_s=math.inf, hot_after=1)
    x = np.linspace(0.1, 2, 20_000)
    f = incrax.incremental(
        jax.value_and_grad(
            lambda t, x: jnp.sum(jnp.log(t[0] * jnp.exp(-x * x) + t[1] * jnp.arctan2(x, 1.0)))
        ),
        tuning=tuning,
    )
    for a in range(2, 9):
        f(np.array([1.0, a]), x)
    engine = f._traces.latest.engine
    chooser, store = engine.chooser, engine.store
    entry = next(e for e in chooser.entries.values() if e.program is not None)
    derived = [
        var for state in store.states for var in state.saved if var in engine.facts.derived.recipes
    ]
    assert derived
    chooser.planner.bar(entry)
    for a in range(2, 9):
        f(np.array([1.0, -a]), x)
    assert all(var in chooser.savable for state in store.states for var in state.saved)
