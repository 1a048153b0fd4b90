"""Pullbacks: plain JAX is the oracle; what is computed and held is counted."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import aligned, same

import incrax
from incrax import _jax
from incrax.derivatives import linear_maps


def scalar(x):
    """An array without weak type, which would add conversions to the operations counted."""
    return jnp.array(x, float)


P = {"a": scalar(1.5), "b": jnp.arange(3.0), "n": 2}
X = jnp.array([0.3, 0.7, 1.1])


def model(p, x, power=2):
    """Two outputs, one of them with integers beside it."""
    y = jnp.exp(p["a"] * x) * p["b"]
    return {"y": y**power, "sum": jnp.sum(jnp.sin(y)), "count": jnp.array(p["n"])}


COTANGENT = {"y": jnp.array([1.0, 2.0, 3.0]), "sum": scalar(0.5), "count": None}
FLOAT0 = np.zeros((), jax.dtypes.float0)


def by_jax(p, x):
    """Cotangents of p["a"], p["b"] and x."""
    _, pullback = jax.vjp(lambda a, b, x: model({"a": a, "b": b, "n": 2}, x), p["a"], p["b"], x)
    return pullback({**COTANGENT, "count": FLOAT0})


def chain(*factors):
    """As many products as factors."""
    y = jnp.ones(())
    for factor in factors:
        y = y * factor
    return jnp.sin(y)


FACTORS = [scalar(1.0 + k / 10) for k in range(10)]

compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: (
        compilations.append(event) if event.endswith("backend_compile_duration") else None
    )
)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        float,
        lambda c: np.asarray(c).item(),
        lambda c: range(9)[c],
        lambda c: X[jnp.array([c > 1] * 3)].sum(),
    ],
)
def test_a_function_may_read_what_is_not_differentiated(read):
    value, pullback = incrax.vjp(lambda p, c: p * float(read(c)), 3.0, jnp.array(2), wrt="p")
    assert float(pullback(1.0)) == float(value) / 3.0 == float(read(jnp.array(2)))


def test_all_cotangents_come_in_the_shape_of_the_arguments():
    value, pullback = incrax.vjp(model, P, X)
    same(value, model(P, X))
    of_p, of_x = pullback(COTANGENT)
    a, b, x = by_jax(P, X)
    same(of_p, {"a": a, "b": b, "n": None})
    same(of_x, x)


@pytest.mark.parametrize(
    ("wrt", "pick"),
    [
        ("x", lambda a, b, x: x),
        ("p['a']", lambda a, b, x: a),
        ("p", lambda a, b, x: {"a": a, "b": b, "n": None}),
        (("x", "p['b']"), lambda a, b, x: (x, b)),
        (1, lambda a, b, x: x),
        ((1, 0), lambda a, b, x: (x, {"a": a, "b": b, "n": None})),
        ({"a": False, "b": True, "n": False}, lambda a, b, x: {"a": None, "b": b, "n": None}),
        (["p['b']", "x"], lambda a, b, x: [b, x]),
    ],
)
def test_a_subset_is_the_same_part_of_all(wrt, pick):
    _, pullback = incrax.vjp(model, P, X)
    same(pullback(COTANGENT, wrt=wrt), pick(*by_jax(P, X)))


def test_calling_twice_gives_the_same_numbers():
    _, pullback = incrax.vjp(model, P, X)
    first = pullback(COTANGENT)
    pullback(COTANGENT, wrt="x")
    same(pullback(COTANGENT), first)
    same(pullback(jax.tree.map(lambda x: 2 * x, COTANGENT), wrt="x"), 2 * first[1])


def test_an_argument_named_twice_has_its_cotangent_twice():
    _, pullback = incrax.vjp(model, P, X)
    x = by_jax(P, X)[2]
    same(pullback(COTANGENT, wrt=("x", "x")), (x, x))


def test_wrt_of_vjp_leaves_the_others_out():
    value, pullback = incrax.vjp(model, P, X, wrt="x")
    same(value, model(P, X))
    same(pullback(COTANGENT), by_jax(P, X)[2])


def test_keyword_arguments_are_passed_on_and_can_be_named():
    f = lambda x, *, scale, mode: scale * x**2 if mode == "square" else x
    value, pullback = incrax.vjp(f, 3.0, scale=scalar(2.0), mode="square", wrt=("x", "scale"))
    assert float(value) == 18.0
    assert [float(part) for part in pullback(1.0)] == [12.0, 9.0]


def test_what_is_cut_has_no_cotangent():
    f = lambda p: p["a"] * jnp.sum(p["b"])
    _, pullback = incrax.vjp(f, {"a": scalar(2.0), "b": incrax.cut(jnp.ones(3))})
    assert float(pullback(1.0)[0]["a"]) == 3.0
    assert pullback(1.0)[0]["b"] is None
    assert pullback.paths == ("p['a']",)


def test_complex_numbers_follow_the_conventions_of_jax():
    f = lambda z, w: z**2 * jnp.conj(w)
    z, w, ct = (jnp.array(z, complex) for z in (1.0 + 2.0j, 0.5 - 1.0j, 0.3 + 0.1j))
    value, pullback = incrax.vjp(f, z, w)
    expected, by_jax = jax.vjp(f, z, w)
    same(value, expected)
    same(pullback(ct), by_jax(ct))
    same(incrax.vjp(jnp.abs, z)[1](1.0), jax.vjp(jnp.abs, z)[1](1.0))


@jax.custom_vjp
def hundredfold(x, y):
    return x * y


hundredfold.defvjp(
    lambda x, y: (x * y, (x, y)), lambda res, ct: (100 * ct * res[1], 10 * ct * res[0])
)


@jax.custom_jvp
def rounded(x):
    return jnp.round(x)


rounded.defjvp(lambda primals, tangents: (jnp.round(primals[0]), 3 * tangents[0]))

RULED = {
    "custom_vjp": lambda x, y: hundredfold(x, jnp.sin(y)),
    "custom_jvp": lambda x, y: rounded(x) * y,
    "stop_gradient": lambda x, y: jax.lax.stop_gradient(x * y) * y,
    "jit": lambda x, y: jax.jit(lambda x, y: jnp.sin(x) * y)(x, y),
    "scan": lambda x, y: jax.lax.scan(lambda c, _: (jnp.sin(c) * y, c), x, None, length=4),
    "cond": lambda x, y: jax.lax.cond(x > 0, lambda: x * y, lambda: y),
    "checkpoint": lambda x, y: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)) * y)(x),
    "while": lambda x, y: (
        y * jax.lax.stop_gradient(jax.lax.while_loop(lambda c: c < 9, lambda c: c * 2, x))
    ),
    "unused": lambda x, y: y * 2.0,
    "constant": lambda x, y: (y * 2.0, 3.0),
    "identity": lambda x, y: (x, y, x),
}


@pytest.mark.parametrize("name", RULED)
def test_rules_and_control_flow_are_those_of_jax(name):
    f, x, y = RULED[name], scalar(1.3), scalar(0.4)
    expected, by_jax = jax.vjp(f, x, y)
    value, pullback = incrax.vjp(f, x, y)
    same(value, jax.tree.map(jnp.asarray, expected))
    ct = jax.tree.map(jnp.ones_like, expected)
    same(pullback(ct), by_jax(ct))
    for number, part in enumerate(by_jax(ct)):
        same(pullback(ct, wrt=number), part)


def test_integers_and_keys_among_the_arguments_have_no_cotangent():
    f = lambda key, i, x: (jax.random.normal(key, (3,)) @ x * x[i], i)
    key, i = jax.random.key(0), 1
    value, pullback = incrax.vjp(f, key, i, X)
    expected, by_jax = jax.vjp(lambda x: f(key, i, x)[0], X)
    same(value[0], expected)
    of_key, of_i, of_x = pullback((1.0, None))
    assert of_key is of_i is None
    same(of_x, by_jax(jnp.ones(()))[0])
    same(pullback((1.0, FLOAT0), wrt="x"), of_x)


@pytest.mark.parametrize(
    "f", [lambda x: x * 2.0, lambda x: x * jnp.ones(2), jnp.exp], ids=["weak", "strong", "exp"]
)
def test_python_numbers_give_the_types_of_jax(f):
    value, pullback = incrax.vjp(f, 3.0)
    expected, by_jax = jax.vjp(f, 3.0)
    same(value, expected)
    ct = jnp.ones(expected.shape)
    same(pullback(ct), by_jax(ct))


def test_types_of_arguments_are_kept():
    f = lambda x, y: x.astype(jnp.float32) * y
    x, y = jnp.ones(3, jnp.float16), np.ones(3, np.float32)
    _, pullback = incrax.vjp(f, x, y)
    same(pullback(np.ones(3)), jax.vjp(f, x, y)[1](jnp.ones(3, jnp.float32)))


# --- what is computed -----------------------------------------------------------------------------


def test_of_a_chain_one_cotangent_needs_the_operations_behind_it_only():
    """sin(1 * f0 * f1 * ...): cos, then for factor k the products behind it and one with those
    before it.
    """
    _, pullback = incrax.vjp(chain, *FACTORS)
    assert pullback.num_operations(wrt="factors[9]") == 2
    for number in range(1, 10):
        assert pullback.num_operations(wrt=number) == 1 + (9 - number) + 1
    assert pullback.num_operations() == 1 + 10 + 9
    expected = jax.vjp(chain, *FACTORS)[1](jnp.ones(()))
    for number in range(10):
        same(pullback(1.0, wrt=number), expected[number])


@pytest.mark.parametrize("wrt", [0, 4, 9])
def test_without_compilation_only_what_is_needed_runs(wrt):
    with jax.disable_jit():
        _, pullback = incrax.vjp(chain, *FACTORS)
        pullback(jnp.ones(()), wrt=wrt)  # JAX binds an operation once more when it meets new types
        bound = []
        original = jax.lax.mul_p.bind
        try:
            jax.lax.mul_p.bind = lambda *args, **params: (
                bound.append(1) or original(*args, **params)
            )
            cotangent = pullback(jnp.ones(()), wrt=wrt)
        finally:
            del jax.lax.mul_p.bind
    assert len(bound) == pullback.num_operations(wrt=wrt) == 2 + (9 - wrt)
    same(cotangent, jax.vjp(chain, *FACTORS)[1](jnp.ones(()))[wrt])


def test_a_loop_is_pruned_inside():
    def f(x, y):
        body = lambda c, _: ((jnp.sin(c[0]) * x, jnp.exp(c[1]) * y), None)
        return sum(jax.lax.scan(body, (x, y), None, length=3)[0])

    x, y = scalar(0.5), scalar(0.2)
    _, pullback = incrax.vjp(f, x, y)

    def num_inside(wrt):
        eqns = pullback._part(pullback._asked(wrt).numbers).program.eqns
        (loop,) = (eqn for eqn in eqns if eqn.primitive.name == "scan")
        return len(_jax.sub_bodies(loop)[0].eqns)

    assert num_inside("x") == num_inside("y") == num_inside(None) / 2
    same(pullback(1.0, wrt="x"), jax.grad(f)(x, y))


def test_inner_compiled_functions_are_pruned_too():
    inner = jax.jit(lambda x, y: jnp.sin(x) * jnp.exp(y))
    _, pullback = incrax.vjp(lambda x, y: inner(x, y), scalar(0.5), scalar(0.2))
    assert pullback.num_operations(wrt="y") < pullback.num_operations()
    assert pullback._part(pullback._asked("y").numbers).program.eqns[0].primitive.name == "mul"


def test_another_call_at_other_values_compiles_nothing():
    traced = []

    def f(x, y):
        traced.append(1)
        return jnp.sin(x) * y

    _, pullback = incrax.vjp(f, scalar(1.0), scalar(2.0))
    pullback(1.0), pullback(1.0, wrt="y")
    traced.clear(), compilations.clear()
    value, pullback = incrax.vjp(f, scalar(1.5), scalar(2.5))
    cotangents, one = pullback(1.0), pullback(1.0, wrt="y")
    assert traced == []
    assert compilations == []
    expected, by_jax = jax.vjp(f, scalar(1.5), scalar(2.5))
    same(value, expected)
    same((cotangents, one), (by_jax(jnp.ones(())), by_jax(jnp.ones(()))[1]))


def test_another_type_is_traced_anew():
    f = lambda x: x**2
    assert incrax.vjp(f, jnp.ones(3))[1](jnp.ones(3))[0].shape == (3,)
    assert incrax.vjp(f, jnp.ones(4))[1](jnp.ones(4))[0].shape == (4,)
    assert incrax.vjp(f, jnp.ones(4, jnp.float32))[1](jnp.ones(4))[0].dtype == jnp.float32


def test_programs_of_a_function_that_is_gone_are_dropped():
    constant = jnp.ones(7)
    f = lambda x: x * jnp.sum(constant)
    _, pullback = incrax.vjp(f, 2.0)
    watched, before = weakref.ref(f), len(linear_maps._primals)
    del f, pullback
    gc.collect()
    assert watched() is None
    assert len(linear_maps._primals) == before - 1


LATE = """
import ctypes, sys, types
early = types.ModuleType("early")
sys.modules["early"] = early
import incrax
early.fun = lambda x: x * 2.0
incrax.vjp(early.fun, 2.0)
for module in (early, sys.modules["incrax._tables"], sys.modules["incrax.derivatives.linear_maps"]):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))  # as an extension may hold them
"""


def test_a_function_may_go_when_names_of_modules_are_gone():
    """When Python ends, it clears modules before what some of them hold."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_number_of_programs_is_bounded():
    f = lambda x: x * 2.0
    for size in range(1, linear_maps.MAX_PRIMALS + 3):
        incrax.vjp(f, jnp.ones(size))
    assert len(linear_maps._primals) == linear_maps.MAX_PRIMALS


# --- large constants ------------------------------------------------------------------------------

SIZES = (10**3, 10**5, 10**7)


def closed_over(n):
    c, proj = jnp.ones(n), jnp.zeros(n).at[0].set(1.0)
    return {"one element": lambda p: c[1] * p, "a product": lambda p: (c @ proj) * p}


TOUCHES = {
    "one element": lambda p, c, proj: c[1] * p,
    "a product": lambda p, c, proj: (c @ proj) * p,
}


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_constant_that_is_touched_costs_nothing_backward(touch, is_compiled):
    seen = set()
    for n in SIZES:
        with jax.disable_jit(not is_compiled):
            value, pullback = incrax.vjp(closed_over(n)[touch], scalar(2.0))
            assert float(value) == 2.0
            assert float(pullback(1.0)[0]) == 1.0
        seen.add((pullback.num_operations(), pullback.residual_bytes))
    assert seen == {(1, 8)}


@pytest.mark.parametrize("touch", TOUCHES)
def test_an_argument_that_is_not_asked_for_costs_nothing_backward(touch):
    seen = set()
    for n in SIZES:
        args = scalar(2.0), jnp.ones(n), jnp.zeros(n).at[0].set(1.0)
        _, pullback = incrax.vjp(TOUCHES[touch], *args, wrt="p")
        assert float(pullback(1.0)) == 1.0
        seen.add((pullback.num_operations(), pullback.residual_bytes))
        _, pullback = incrax.vjp(TOUCHES[touch], *args)
        assert float(pullback(1.0, wrt="p")) == 1.0
        seen.add((pullback.num_operations(wrt="p"), 8))
        pullback.keep("p")
        seen.add((1, pullback.residual_bytes))
    assert seen == {(1, 8)}


# --- residuals ------------------------------------------------------------------------------------


def test_keep_frees_what_other_cotangents_need_and_says_how_much():
    c, proj = jnp.ones(1000), jnp.ones(1000)
    _, pullback = incrax.vjp(TOUCHES["a product"], scalar(2.0), c, proj)
    assert pullback.residual_bytes == 2 * 8000 + 8 + 8
    assert pullback.keep(wrt="p") == 2 * 8000 + 8
    assert pullback.residual_bytes == 8
    assert float(pullback(1.0, wrt="p")) == 1000.0
    assert pullback.keep(wrt="p") == 0
    assert pullback.paths == ("p",)


def test_what_is_freed_is_really_gone():
    x = jnp.ones(50)
    _, pullback = incrax.vjp(lambda x, y: jnp.sum(x * y), x, jnp.ones(50))
    watched = weakref.ref(x)
    del x
    gc.collect()
    assert watched() is not None
    pullback.keep(wrt="x")
    gc.collect()
    assert watched() is None


def test_arguments_that_are_no_residuals_are_not_held():
    x = jnp.ones(50)
    _, pullback = incrax.vjp(lambda x: jnp.sum(3.0 * x), x)
    watched = weakref.ref(x)
    del x
    gc.collect()
    assert watched() is None
    same(pullback(1.0), (3.0 * jnp.ones(50),))


def test_residuals_that_are_arguments_are_not_copied():
    x, y = jnp.ones(50), jnp.ones(50)
    value, pullback = incrax.vjp(lambda x, y: (x * y, y), x, y)
    held = {id(r) for r in pullback._residuals}
    assert held == {id(x), id(y)}
    assert value[1] is y


def test_a_residual_that_is_a_result_is_held_once():
    value, pullback = incrax.vjp(jnp.exp, X)
    assert any(r is value for r in pullback._residuals)
    assert pullback.residual_bytes == X.nbytes


def test_an_array_that_is_two_residuals_is_counted_once():
    _, pullback = incrax.vjp(lambda x, y: x * y, X, X)
    assert len(pullback._residuals) == 2
    assert pullback.residual_bytes == X.nbytes


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_numpy_argument_may_be_changed_in_place_afterwards(size, is_compiled):
    x = aligned(size, 1.0)
    with jax.disable_jit(not is_compiled):
        _, pullback = incrax.vjp(lambda x: jnp.sum(jax.lax.mul(x, x)), x)
        x[:] = 7.0
        same(pullback(1.0), (2.0 * jnp.ones(size),))


# --- items ----------------------------------------------------------------------------------------


def test_items_are_computed_when_they_are_read_and_once():
    _, pullback = incrax.vjp(model, P, X)
    ran = []
    computed = pullback._computed
    pullback._computed = lambda cts, numbers: ran.append(len(numbers)) or computed(cts, numbers)
    items = pullback.lazy(COTANGENT)
    assert list(items) == ["p['a']", "p['b']", "x"]
    assert len(items) == 3
    assert ran == []
    a, b, x = by_jax(P, X)
    same(items["x"], x)
    assert ran == [1]
    same(items["x"], x)
    assert ran == [1]
    assert "p['a']" in items
    assert "z" not in items
    assert ran == [1]
    same(items["p"], {"a": a, "b": b, "n": None})
    assert ran == [1, 2]
    same(dict(items), {"p['a']": a, "p['b']": b, "x": x})
    assert ran == [1, 2]


# --- other ways to call ---------------------------------------------------------------------------


def test_under_transformations_it_is_the_same_pullback():
    def of_x(x):
        return incrax.vjp(model, P, x)[1](COTANGENT, wrt="x")

    plain = lambda x: by_jax(P, x)[2]
    same(jax.jit(of_x)(X), plain(X))
    xs = jnp.stack([X, 2 * X])
    same(jax.vmap(of_x)(xs), jax.vmap(plain)(xs))
    same(jax.jacobian(of_x)(X), jax.jacobian(plain)(X), factor=1024)


def test_a_pullback_can_be_mapped_over_cotangents():
    f = lambda x: jnp.stack([jnp.sum(x**2), jnp.prod(x)])
    _, pullback = incrax.vjp(f, X)
    same(jax.vmap(pullback)(jnp.eye(2))[0], jax.jacobian(f)(X))


def test_a_python_branch_runs_as_it_is_and_only_what_is_needed():
    calls = []

    def f(x, y):
        calls.append(1)
        return x**2 * y if x > 0 else -x * y

    for x, expected in ((3.0, 6.0), (-3.0, -1.0), (2.0, 4.0)):
        _, pullback = incrax.vjp(f, scalar(x), scalar(1.0))
        assert float(pullback(1.0, wrt="x")) == expected
    assert len(calls) == 4  # once in vain, under tracing
    assert pullback.num_operations(wrt="y") == 1


def test_a_boolean_index_runs_as_it_is():
    x = jnp.array([-1.0, 2.0, 3.0])
    same(incrax.vjp(lambda x: jnp.sum(x[x > 0] ** 2), x)[1](1.0), (jnp.array([0.0, 4.0, 6.0]),))


def test_switched_off_it_is_evaluated_by_jax(monkeypatch):
    traced = []

    def f(x):
        traced.append(1)
        return x**2

    monkeypatch.setenv("INCRAX_DISABLE", "1")
    for x in (1.0, 2.0):
        assert float(incrax.vjp(f, x)[1](1.0)[0]) == 2 * x
    assert len(traced) == 2


def test_the_order_in_which_cotangents_are_asked_for_makes_no_other_program():
    _, pullback = incrax.vjp(lambda p, x: model(p, x), P, X)
    x, b = pullback(COTANGENT, wrt=("x", "p['b']"))
    same(pullback(COTANGENT, wrt=("p['b']", "x")), (b, x))
    assert len(pullback._linear.parts) == 1


def test_a_function_without_hash_is_differentiated():
    class Scale:
        __hash__ = None

        def __call__(self, x):
            return 2 * x**2

    assert float(incrax.vjp(Scale(), 3.0)[1](1.0)[0]) == 12.0


def test_a_method_is_compiled_once():
    traced = []

    class Model:
        def loss(self, x):
            traced.append(1)
            return x**2

    m = Model()
    assert [float(incrax.vjp(m.loss, x)[1](1.0)[0]) for x in (1.0, 2.0)] == [2.0, 4.0]
    assert len(traced) == 1


def test_an_incremental_function_is_differentiated_as_the_function_behind_it():
    f = incrax.incremental(lambda x: jnp.sum(x**2))
    same(incrax.vjp(f, X)[1](1.0), (2 * X,))
    assert f.stats.calls == 0


def test_effects_of_the_function_happen_once_per_call():
    seen = []

    def f(x):
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return x**2

    for x in (1.0, 2.0):
        _, pullback = incrax.vjp(f, x)
        pullback(1.0)
    jax.effects_barrier()
    assert seen == [1.0, 2.0]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cotangent", "seen", "expected"),
    [
        ({**COTANGENT, "sum": jnp.ones(2)}, "float64[2]", "the output['sum'], float64[]"),
        ({**COTANGENT, "sum": 1j}, "~complex128[]", "the output['sum'], float64[]"),
        ({**COTANGENT, "y": None}, "None", "the output['y'], float64[3]"),
        ({**COTANGENT, "y": "ones"}, "str", "the output['y'], float64[3]"),
        (jnp.ones(()), "of another structure", "{'count': '*', 'sum': '*', 'y': '*'}"),
    ],
)
def test_a_cotangent_that_does_not_fit_is_an_error(cotangent, seen, expected):
    _, pullback = incrax.vjp(model, P, X)
    with pytest.raises(incrax.errors.TangentError) as caught:
        pullback(cotangent)
    assert f"`pullback` got a cotangent that is {seen}" in str(caught.value)
    assert f"belongs to {expected}." in str(caught.value)


def test_a_cotangent_that_vjp_leaves_out_is_an_error():
    _, pullback = incrax.vjp(model, P, X, wrt="x")
    with pytest.raises(incrax.errors.SelectionError) as caught:
        pullback(COTANGENT, wrt="p['a']")
    assert str(caught.value) == (
        "The pullback was asked for the cotangent of `p['a']`, and it has those of `x`. This is "
        "usually an argument "
        "that the `wrt` of `vjp` leaves out. Nothing was evaluated. Name it there."
    )


def test_a_cotangent_that_keep_gave_up_is_an_error():
    _, pullback = incrax.vjp(model, P, X)
    pullback.keep(wrt="x")
    for ask in (pullback, pullback.keep, pullback.num_operations):
        with pytest.raises(incrax.errors.FreedResidualError) as caught:
            ask(COTANGENT, wrt="p") if ask is pullback else ask(wrt="p")
    assert str(caught.value) == (
        "The pullback was asked for the cotangent of `p['a']`, `p['b']` after `keep(wrt=...)`, "
        "which kept what `x` "
        "needs and freed the rest. Nothing was evaluated. Keep these as well, or call `vjp` again."
    )
    same(pullback(COTANGENT, wrt="x"), by_jax(P, X)[2])


def test_an_unknown_path_is_an_error():
    _, pullback = incrax.vjp(model, P, X)
    with pytest.raises(incrax.errors.UnknownInputError, match="names no input"):
        pullback(COTANGENT, wrt="p['c']")


def test_nothing_to_differentiate_is_an_error():
    with pytest.raises(incrax.errors.SelectionError, match="`vjp` has nothing to differentiate"):
        incrax.vjp(lambda n: n, 3)
    with pytest.raises(TypeError, match=r"`vjp\(fun\)` got 3"):
        incrax.vjp(3, 1.0)


@pytest.mark.parametrize("first", [(0, 1), (False, True)])
def test_a_mask_and_numbers_of_arguments_are_two_selections(first):
    """Python takes (0, 1) and (False, True) for equal; a mask is one of the first argument."""
    _, pullback = incrax.vjp(lambda p, x: 2.0 * p[0] + 3.0 * p[1] + 5.0 * x, (1.0, 1.0), 1.0)
    pullback(1.0, wrt=first)
    assert jax.tree.leaves(pullback(1.0, wrt=(0, 1))) == [2.0, 3.0, 5.0]
    assert jax.tree.leaves(pullback(1.0, wrt=(False, True))) == [3.0]
