"""Paths: what is recorded, what runs, what is refused, and under which transformations the right
path is taken.
"""

from __future__ import annotations

import copy
import pickle
import re
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax

X = np.float64(2.0)
LOW, HIGH = np.array([0.1, 0.2, 0.3]), np.array([1.1, 1.2, 1.3])


def branching(x):
    return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2


def check(f, fun, *calls):
    for args in calls:
        same(f(*args), jax.tree.map(jnp.asarray, fun(*map(jnp.asarray, args))), factor=256.0)


# --- what is recorded and what runs ---------------------------------------------------------------


def test_a_known_path_neither_records_nor_compiles_again():
    f = incrax.guarded(branching)
    check(f, branching, (LOW,), (HIGH,))
    before = (f.stats.recordings, f.stats.compiles)
    check(f, branching, (LOW,), (HIGH,), (LOW,), (HIGH,))
    assert (f.stats.recordings, f.stats.compiles) == before == (2, 2)


def test_the_usual_path_costs_one_program_and_no_lookup():
    f = incrax.guarded(branching)
    f(LOW), f(HIGH), f(LOW), f(LOW)
    hits = f.stats.hits
    for _ in range(5):
        f(LOW)
    assert f.stats.hits == hits + 5


def test_paths_that_alternate_are_expected_after_a_few_calls():
    f = incrax.guarded(branching)
    for _ in range(4):
        f(LOW), f(HIGH)
    misses = f.stats.misses
    for _ in range(5):
        f(LOW), f(HIGH)
    assert f.stats.misses == misses


def test_the_function_itself_does_not_run_on_a_known_path():
    runs = []
    f = incrax.guarded(lambda x: (runs.append(1), x)[1] if x > 0 else x, constant="runs")
    f(1.0), f(2.0), f(3.0)
    assert len(runs) == 1


def test_a_function_without_branches_has_one_path_and_no_guards():
    f = incrax.guarded(lambda x: 2.0 * x)
    f(1.0), f(-1.0)
    assert f.explain().as_dict()["paths"][0]["guards"] == []
    assert f.stats.recordings == 1


def test_a_guard_names_line_and_expression():
    f = incrax.guarded(branching)
    f(LOW), f(HIGH)
    guards = [path["guards"] for path in f.explain().as_dict()["paths"]]
    line = branching.__code__.co_firstlineno + 1
    assert guards == [
        [f"test_guarded.py:{line}: jnp.sum(x) > 1 is {side}"] for side in (False, True)
    ]


def test_explain_counts_calls_of_each_path_and_the_seconds_it_took():
    f = incrax.guarded(branching)
    f(LOW), f(HIGH), f(LOW)
    low, high = f.explain().as_dict()["paths"]
    assert (low["hits"], high["hits"]) == (2, 1)
    assert low["record_s"] > 0
    assert low["compile_s"] > 0
    assert "jnp.sum(x) > 1" in str(f.explain())
    assert f.explain().as_dict()["guards"][0]["outcomes"] == ["False", "True"]


def test_one_value_asked_twice_is_one_guard():
    def fun(n, x):
        return x * int(n) if int(n) > 1 else x + n.item()

    f = incrax.guarded(fun)
    f(2, 1.5)
    kinds = [guard for guard in f.explain().as_dict()["paths"][0]["guards"] if "int(n)" in guard]
    assert len(kinds) == 1


def test_types_and_structures_have_paths_of_their_own():
    f = incrax.guarded(branching)
    for dtype in (np.float64, np.float32):
        for n in (2, 3):
            check(f, branching, (np.full(n, 0.1, dtype),), (np.full(n, 2.0, dtype),))
    assert f.stats.recordings == 8


def test_weak_types_are_those_of_jit():
    f = incrax.guarded(lambda x: x * 2 if x > 0 else x)
    for x in (1.0, np.float64(1.0), 1, np.float32(1.0), True):
        same(f(x), jax.jit(lambda x: x * 2)(x))


def test_an_argument_that_is_no_array_is_static():
    f = incrax.guarded(lambda mode, x: x if mode == "same" else -x)
    assert [float(f(mode, 2.0)) for mode in ("same", "other", "same")] == [2.0, -2.0, 2.0]
    assert f.stats.recordings == 2


def test_a_masked_array_is_refused_on_a_known_path_too():
    f = incrax.guarded(branching)
    f(LOW)
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="masked"):
        f(np.ma.array(LOW, mask=[0, 0, 1]))


def test_clear_forgets_paths():
    f = incrax.guarded(branching)
    f(LOW)
    f.clear()
    assert f.explain().paths == ()
    check(f, branching, (LOW,), (HIGH,))


def test_an_exception_is_that_of_the_function_and_nothing_is_recorded():
    def fun(x):
        assert x < 1.0, f"{x} is too large"
        return x

    f = incrax.guarded(fun)
    f(0.5)
    for _ in range(2):
        with pytest.raises(AssertionError, match="2.0 is too large"):
            f(2.0)
    assert (f.stats.recordings, f.stats.aborted) == (1, 2)
    assert float(f(0.25)) == 0.25


def test_nan_and_signed_zero_take_their_own_side():
    def fun(x):
        return jnp.float64(1.0) if x > 0 else (jnp.float64(2.0) if x <= 0 else jnp.float64(3.0))

    check(
        incrax.guarded(fun),
        fun,
        *[(np.float64(v),) for v in (1.0, np.nan, -0.0, 0.0, -np.nan, np.inf, -np.inf)],
    )


def test_a_value_next_to_the_threshold_takes_its_own_side():
    fun = lambda x: x * 2 if x > 1 else x * 3
    check(
        incrax.guarded(fun),
        fun,
        *[(v,) for v in (np.float64(1.0), np.nextafter(1.0, 2.0), np.nextafter(1.0, 0.0))],
    )


def test_keys_may_decide():
    def fun(key):
        return jax.random.normal(key) if jax.random.bernoulli(key) else jnp.zeros(())

    f = incrax.guarded(fun)
    for seed in range(6):
        same(f(jax.random.key(seed)), fun(jax.random.key(seed)))
    assert f.stats.recordings == 2


def test_large_constants_are_handed_in_and_not_embedded():
    big = jnp.arange(100_000.0)
    f = incrax.guarded(lambda x: jnp.sum(big * x) if x > 0 else x)
    same(f(2.0), jax.jit(lambda x: jnp.sum(big * x))(2.0))
    assert len(f._latest.paths[0].consts) == 1


def test_a_callable_object_is_a_function():
    class Model:
        scale = 2.0

        def __call__(self, x):
            return x * self.scale if x > 0 else x

    model = Model()
    f = incrax.guarded(model)
    assert float(f(X)) == 4.0
    model.scale = 3.0
    assert float(f(X)) == 6.0


def test_turned_off_it_is_the_function(monkeypatch):
    monkeypatch.setenv("INCRAX_DISABLE", "1")
    f = incrax.guarded(branching)
    same(f(jnp.asarray(LOW)), branching(jnp.asarray(LOW)))
    assert (f.stats.recordings, f.stats.transparent) == (0, 1)


@incrax.guarded
def decorated(x):
    return x if x > 0 else -x


def test_pickles_and_copies_hold_the_function_without_paths():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    guarded = incrax.guarded(branching, max_paths=3)
    for f in (guarded, incrax.incremental(guarded, tuning=MINIMAL)):
        other = pickle.loads(pickle.dumps(f))
        assert other.explain().paths == ()
        same(other(LOW), branching(jnp.asarray(LOW)))
        same(copy.deepcopy(other)(HIGH), branching(jnp.asarray(HIGH)))


def test_a_hundred_branches_in_a_loop_are_one_path():
    def fun(x):
        for n in range(100):
            if x < n:
                x = x + 0.5
        return x

    f = incrax.guarded(fun)
    check(f, fun, (np.float64(-1.0),), (np.float64(-2.0),), (np.float64(50.0),))
    assert f.explain().paths[0]["guards"][0].endswith("x < n is True")
    assert len(f.explain().paths[0]["guards"]) == 100


# --- prints, text, floats -------------------------------------------------------------------------


def test_printing_happens_when_a_path_is_recorded(capsys):
    f = incrax.guarded(lambda n, x: (print("n is", n, file=sys.stderr), n * x)[1])
    assert [float(f(n, 2.0)) for n in (3, 4, 3)] == [6.0, 8.0, 6.0]
    assert capsys.readouterr().err == "n is 3\nn is 4\n"
    with pytest.raises(incrax.errors.FloatGuardError, match=r"print with `jax.debug.print`"):
        incrax.guarded(lambda x: (print(x), x)[1])(1.5)


FLOATS = {
    "float": lambda x: x * float(x),
    "item": lambda x: x * x.item(),
    "numpy": lambda x: x * np.asarray(x),
    "numpy function": lambda x: x * np.sin(np.asarray(x)),
    "text": lambda x: x * len(f"{x}"),
    "str": lambda x: x * len(str(x)),
    "math": lambda x: x * float(x) ** 2,
    "tolist": lambda x: x * x.tolist(),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats_as_python_values_are_refused(name):
    f = incrax.guarded(FLOATS[name])
    with pytest.raises(incrax.errors.FloatGuardError, match="test_guarded.py"):
        f(1.5)
    assert f.stats.recordings == 0
    with pytest.raises(incrax.errors.FloatGuardError):
        jax.grad(f)(1.5)


# --- too many paths -------------------------------------------------------------------------------


def by_integer(n, x):
    return x * int(n) if x > 0 else x


def test_beyond_max_paths_calls_are_eager_and_the_guard_that_exploded_is_named():
    f = incrax.guarded(by_integer, max_paths=3)
    for n in range(3):
        f(n, 2.0)
    with pytest.warns(UserWarning, match=r"more than 3 paths.*int\(n\): 3"):
        assert float(f(3, 2.0)) == 6.0
    assert float(f(4, 2.0)) == 8.0
    assert float(f(1, 3.0)) == 3.0
    assert (f.stats.eager, f.stats.recordings) == (2, 3)


def test_beyond_max_paths_derivatives_are_eager_and_right():
    f = incrax.guarded(lambda x, n: x**2 * int(n), max_paths=1)
    assert float(jax.grad(f)(3.0, 1)) == 6.0
    with pytest.warns(UserWarning, match="more than 1 paths"):
        assert float(jax.grad(f)(3.0, 2)) == 12.0


def test_beyond_max_paths_an_error_if_asked_for():
    f = incrax.guarded(by_integer, max_paths=2, fallback="error")
    f(0, 2.0), f(1, 2.0)
    with pytest.raises(incrax.errors.TooManyPathsError, match=r"int\(n\): 2"):
        f(2, 2.0)
    assert float(f(1, 2.0)) == 2.0


# --- guards of the user, static arguments ---------------------------------------------------------


def test_a_guard_of_the_user_selects_the_path():
    f = incrax.guarded(lambda x: 2.0 * x, guard=lambda x: x[0] > 1)
    f(np.array([0.0])), f(np.array([2.0])), f(np.array([0.5]))
    assert f.stats.recordings == 2


def test_a_guard_of_the_user_gets_static_arguments_too():
    f = incrax.guarded(lambda x, n: n * x, guard=lambda x, n: x > n, static="n")
    assert [float(f(x, n)) for x, n in ((1.0, 2), (3.0, 2), (1.5, 2), (3.0, 4))] == [2, 6, 3, 12]
    assert f.stats.recordings == 3


def test_static_arguments_by_name_and_position():
    def fun(x, n, mode="a"):
        return sum([x] * n) if mode == "a" else x

    f = incrax.guarded(fun, static=("n", "mode"))
    g = incrax.guarded(fun, static=(1, 2))
    for call in ((1.5, 2), (1.5, 3), (1.5, 2, "b"), (2.5, 2)):
        assert float(f(*call)) == float(g(*call)) == float(fun(*call))
    assert f.stats.recordings == g.stats.recordings == 3
    assert float(f(1.5, n=2, mode="b")) == 1.5
    with pytest.raises(ValueError, match="'other'"):
        incrax.guarded(fun, static="other")
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="hash"):
        f(1.5, [2])


def test_equal_static_values_of_other_types_are_told_apart():
    f = incrax.guarded(lambda x, n: x * n, static="n")
    same(f(1, 1), jnp.asarray(1))
    same(f(1, 1.0), jnp.asarray(1.0))


# --- transformations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform", [jax.grad, jax.jacfwd, jax.jacrev, jax.hessian], ids=lambda t: t.__name__
)
def test_derivatives_outside_take_the_right_path(transform):
    f = incrax.guarded(branching)
    for x in (LOW, HIGH, LOW):
        same(transform(f)(x), transform(branching)(x), factor=256.0)
    assert f.stats.recordings == 2


def test_third_derivatives_forward_and_reverse():
    fun = lambda x: x**4 if x > 1 else x**5
    f = incrax.guarded(fun)
    for x in (0.5, 2.0):
        same(jax.grad(jax.jacfwd(jax.grad(f)))(x), jax.grad(jax.jacfwd(jax.grad(fun)))(x))
        same(jax.jvp(f, (x,), (1.0,)), jax.jvp(fun, (x,), (1.0,)))


def test_derivatives_inside_are_compiled_on_the_right_path():
    f = incrax.guarded(jax.hessian(branching))
    for x in (LOW, HIGH, LOW):
        same(f(x), jax.hessian(branching)(x))
    assert f.stats.recordings == 2


@pytest.mark.parametrize("outer", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_where_no_value_is_known_a_branch_is_an_error_that_names_cond(outer):
    f = incrax.guarded(branching)
    with pytest.raises(incrax.errors.PythonBranchError, match=r"jax\.lax\.cond.*") as caught:
        outer(f)(np.stack([LOW, HIGH]))
    assert "jnp.sum(x) > 1" in str(caught.value)
    f(LOW)
    with pytest.raises(incrax.errors.PythonBranchError):
        outer(f)(np.stack([LOW, HIGH]))


@pytest.mark.parametrize("outer", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_where_no_value_is_known_a_function_without_branches_works(outer):
    f = incrax.guarded(lambda x: jnp.sum(x**2))
    same(outer(f)(np.stack([LOW, HIGH])), outer(lambda x: jnp.sum(x**2))(np.stack([LOW, HIGH])))


def test_vmap_inside_with_a_branch_on_what_is_not_mapped():
    fun = lambda s, xs: jax.vmap(lambda x: x * 2)(xs) if s > 0 else jax.vmap(jnp.sin)(xs)
    check(incrax.guarded(fun), fun, (1.0, LOW), (-1.0, LOW))


def test_guarded_inside_guarded_is_part_of_the_outer_path():
    inner = incrax.guarded(lambda x: x * 2 if x > 1 else x * 3)
    fun = lambda x: inner(x) + 1.0 if inner(x) > 4 else inner(x)
    plain = lambda x: (
        (x * 2 if x > 1 else x * 3) + (1.0 if (x * 2 if x > 1 else x * 3) > 4 else 0.0)
    )
    f = incrax.guarded(fun)
    check(f, plain, (0.5,), (1.5,), (3.0,), (0.5,))
    assert (f.stats.recordings, inner.stats.recordings) == (3, 0)
    same(jax.grad(f)(3.0), jax.grad(plain)(3.0))


def test_guarded_inside_plain_python_and_gradients():
    inner = incrax.guarded(branching)
    outer = lambda x: 2 * inner(x)
    for x in (LOW, HIGH):
        same(jax.grad(outer)(x), 2 * jax.grad(branching)(x))
        same(outer(x), 2 * branching(jnp.asarray(x)))


def test_a_function_that_closes_over_a_traced_value():
    def outer(a):
        return incrax.guarded(lambda x: x * a if x > 1 else x + a)(2.0)

    same(jax.grad(outer)(3.0), jax.grad(lambda a: 2.0 * a)(3.0))


def test_a_guarded_function_calls_itself():
    @incrax.guarded
    def factorial(n):
        return n * factorial(n - 1) if n > 1 else n

    assert int(factorial(5)) == 120
    assert int(factorial(3)) == 6


def test_with_jit_disabled_it_is_the_function():
    f = incrax.guarded(branching)
    with jax.disable_jit():
        same(f(LOW), branching(jnp.asarray(LOW)))
    assert f.stats.recordings == 0


def test_settings_of_jax_that_change_programs_have_paths_of_their_own():
    f = incrax.guarded(lambda x: x @ x if x[0, 0] > 0 else x)
    x = np.eye(3, dtype=np.float32)
    f(x)
    with jax.default_matmul_precision("float32"):
        f(x)
    assert f.stats.recordings == 2
    with jax.enable_x64(False):
        assert incrax.guarded(lambda x: x * 2 if x > 0 else x)(1.5).dtype == np.float32


# --- incremental ----------------------------------------------------------------------------------


def model(a, b, x):
    core = jnp.sum(jnp.exp(b * x))
    return a * core if a > 1 else a**2 * core


@pytest.mark.parametrize("order", ["incremental(guarded)", "guarded(incremental)"])
def test_values_are_saved_on_each_path(order):
    if order == "incremental(guarded)":
        f = incrax.incremental(incrax.guarded(model), tuning=MINIMAL)
    else:
        f = incrax.guarded(incrax.incremental(model, tuning=MINIMAL))
    x = np.linspace(0.0, 1.0, 7)
    for a in (0.5, 0.75, 2.0, 3.0):
        same(f(a, 0.3, x), jax.jit(model, static_argnums=0)(a, 0.3, x), factor=256.0)
    low, high = [path.incremental for path in f._latest.paths]
    assert f.stats.recordings == 2
    for path in (low, high):
        ran = [row["primitive"] for row in path.explain().as_dict()["ran"]]
        assert "exp" not in ran
        assert path.stats.calls == 2


def test_an_incremental_function_inside_is_part_of_the_path():
    inner = incrax.incremental(lambda x: x**2)
    check(
        incrax.guarded(lambda x: inner(x) if x > 0 else -inner(x)),
        lambda x: x**2 if x > 0 else -(x**2),
        (X,),
        (-X,),
    )
    assert inner.stats.traces == 0


def test_incremental_says_how_to_use_guarded_on_a_python_branch():
    f = incrax.incremental(model)
    with pytest.raises(incrax.errors.PythonBranchError, match=r"incremental\(guarded\(f\)\)"):
        f(2.0, 0.3, LOW)


# --- effects, loops, NaN --------------------------------------------------------------------------


def test_an_effect_runs_once_per_call_on_its_own_path_only():
    seen = []

    def fun(x):
        if x > 0:
            jax.debug.callback(lambda v: seen.append(float(v)), x)
            return x * 2
        return -x

    f = incrax.guarded(fun, constant="seen")
    for x in (1.0, -1.0, 2.0, -2.0, 3.0, 4.0):
        f(x)
        jax.effects_barrier()
    assert seen == [1.0, 2.0, 3.0, 4.0]
    assert f.stats.checks > 0


def test_an_effect_inside_jit_before_a_branch_runs_once():
    seen = []

    @jax.jit
    def noted(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x * 2

    f = incrax.guarded(lambda x: noted(x) if noted(x) > 2 else x, constant=("seen", "noted"))
    for x in (3.0, 4.0):
        f(x)
        jax.effects_barrier()
    assert seen == [3.0, 3.0, 4.0, 4.0]


def test_a_branch_on_the_result_of_an_effect_is_refused():
    def fun(x):
        y = jax.experimental.io_callback(
            lambda v: np.asarray(v), jax.ShapeDtypeStruct((), x.dtype), x
        )
        return y if y > 0 else -y

    with pytest.raises(incrax.errors.GuardOnEffectError, match="io_callback"):
        incrax.guarded(fun)(1.0)


def test_a_branch_on_an_effect_is_refused_even_if_the_function_catches_the_error():
    def fun(x):
        y = jax.experimental.io_callback(
            lambda v: np.asarray(v), jax.ShapeDtypeStruct((), x.dtype), x
        )
        try:
            return y if y > 0 else -y
        except Exception:
            return x

    with pytest.raises(incrax.errors.GuardOnEffectError):
        incrax.guarded(fun)(1.0)


def test_a_branch_inside_a_part_that_jax_traces_is_an_error_that_names_it():
    @jax.custom_jvp
    def ruled(x):
        return x if x > 0 else -x

    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0]))
    for part in (ruled, jax.jit(lambda x: x if x > 0 else -x)):
        with pytest.raises(incrax.errors.PythonBranchError, match="x > 0"):
            incrax.guarded(lambda x, part=part: part(x) if x > -1 else x)(1.0)


def test_a_branch_on_a_pure_callback_works():
    def fun(x):
        y = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct((), jnp.float64), x)
        return y if y > 2 else -y

    check(incrax.guarded(fun), lambda x: 2 * x if 2 * x > 2 else -2 * x, (X,), (X / 4,), (2 * X,))


def halve_until(x, stop):
    """Never ends where `stop` is negative."""
    return jax.lax.while_loop(lambda v: v > stop, lambda v: v / 2, x)


def test_a_function_on_the_host_is_not_called_on_a_wrong_path():
    seen = []

    def host(v):
        seen.append(float(v))
        return np.sqrt(v)

    def fun(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float64), x) if x > 0 else -x

    f = incrax.guarded(fun, constant=("seen", "host"))
    for x in (4.0, -1.0, 9.0, -4.0, -9.0):
        f(np.float64(x)).block_until_ready()
    assert set(seen) == {4.0, 9.0}


def test_a_loop_that_would_not_end_is_not_started_on_a_wrong_path():
    def fun(x, stop):
        if stop > 0:
            return halve_until(x, stop)
        return x

    f = incrax.guarded(fun)
    check(f, fun, (8.0, 1.0), (8.0, 2.0), (8.0, -1.0), (8.0, 1.0), (4.0, -2.0))
    assert f.stats.recordings == 2


def test_a_loop_that_a_later_guard_needs_starts_after_the_guards_before_it():
    def fun(x, stop):
        if stop > 0:
            y = halve_until(x, stop)
            return y * 3 if y > 0.75 else y
        return x

    f = incrax.guarded(fun)
    check(f, fun, (8.0, 1.0), (8.0, 0.7), (8.0, -1.0), (8.0, 1.0), (4.0, -2.0), (8.0, 0.6))
    assert f.stats.recordings == 3


@pytest.mark.parametrize("inside", [False, True], ids=["value", "gradient"])
def test_debug_nans_does_not_fire_for_a_path_that_is_not_taken(inside):
    fun = lambda x: jnp.log(x) if x > 0 else -x
    f = incrax.guarded(jax.grad(fun) if inside else fun)
    with jax.debug_nans(True):
        for x in (1.0, 2.0, -1.0, 3.0, -2.0):
            f(x)
        with pytest.raises(FloatingPointError):
            incrax.guarded(lambda x: jnp.log(x) if x < 0 else x)(-1.0)


# --- threads --------------------------------------------------------------------------------------


def test_eight_threads_get_right_results_and_each_path_is_recorded_once():
    def fun(n, x):
        return x * int(n) if x > 0 else x - int(n)

    f = incrax.guarded(fun)
    errors = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            n, x = int(rng.integers(4)), float(rng.normal())
            if abs(float(f(n, x)) - (x * n if x > 0 else x - n)) > 1e-12:
                errors.append((n, x))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert f.stats.recordings == 8


# --- check_tape -----------------------------------------------------------------------------------


def test_check_tape_lists_branches_that_depend_on_values():
    report = incrax.check_tape(branching, LOW)
    assert not report
    assert [guard.expression for guard in report.branches] == ["jnp.sum(x) > 1"]
    assert "jnp.sum(x) > 1" in str(report)
    assert incrax.check_tape(lambda x: jnp.where(x > 0, x, 0.0), LOW)


def test_the_table_of_check_tape_tells_which_way_each_branch_went():
    def f(x, n, flag=None):
        y = 2 * x if jnp.sum(x) > (1 if flag is None else 2) else x
        return y * int(n)

    cells = lambda line: re.split("  +", line)[1:]
    told = lambda x, n: [
        cells(line)
        for line in str(incrax.check_tape(f, x, n)).splitlines()
        if "test_guarded" in line
    ]
    assert told(HIGH, np.int64(3)) == [
        ["jnp.sum(x) > (1 if flag is None else 2)", "True"],
        ["int(n)", "3"],
    ]
    assert told(LOW, np.int64(4)) == [
        ["jnp.sum(x) > (1 if flag is None else 2)", "False"],
        ["int(n)", "4"],
    ]


def test_check_tape_names_what_can_change_in_place():
    weights = [1.0]
    report = incrax.check_tape(lambda x: x * weights[0], 1.0)
    assert report
    assert "weights" in report.mutable
