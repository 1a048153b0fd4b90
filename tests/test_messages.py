"""The exact text of every error, and that an error leaves the saved values as they were."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check, check_text, same

import incrax
from incrax import _tuning, bijectors, fit, samplers

X = np.linspace(0.1, 2.0, 5)
PARAMS = {"mu": 1.5, "scale": np.array([1.0, 2.0])}
COUNTS_OF_CALLS = ("calls", "unchanged", "aborted")
DELETED = (
    "Array has been deleted: `incremental(f)` got `{}` whose buffer was donated to another "
    "computation or deleted. "
    "The saved values are untouched and the next call works. Pass a copy, or do not donate this "
    "array."
)
UNSUPPORTED = (
    "`incremental(f)` got `{}` as an array of dtype {}, which JAX has no type for. This is usually "
    "a ragged list, "
    "strings or dates in an array. Nothing was evaluated or stored. Convert it to a numeric array, "
    "or pass it as a "
    "static Python value (str, tuple) instead."
)
UNHASHABLE = (
    "`incremental(f)` got `{}` of type {}, which is no array and cannot be hashed, so it can be "
    "neither traced nor "
    "used as a static value. This is usually a set, a mutable object or a data frame. Nothing was "
    "evaluated or "
    "stored. Pass its arrays, or make the type hashable or a registered pytree."
)
UNKNOWN = (
    "`{}` names no input of this function; its inputs are: {}. Use a path as `explain()` prints "
    "it, a prefix of one "
    "(all leaves below it), or `path[i]` for an element of a small array."
)
NOT_CALLED = (
    "`{0}` needs a call to report on, and this function has not been called yet. Call it once, or "
    "give `{0}` "
    "example arguments."
)


def loss(params, x, mode="sum"):
    y = jnp.exp(params["mu"] * x) * params["scale"][0]
    return jnp.sum(y) if mode == "sum" else jnp.max(y)


@contextmanager
def unharmed(f, *args):
    """A call saved before is answered by the same object after what fails inside, and no other
    counter moved.
    """
    saved = f(*args)
    before = others(f)
    yield
    assert others(f) == before
    assert f(*args) is saved
    check(f)


def others(f):
    return {name: count for name, count in f.stats.as_dict().items() if name not in COUNTS_OF_CALLS}


# --- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (incrax.errors.UnsupportedLeafError, TypeError),
        (incrax.errors.UnknownInputError, KeyError),
        (incrax.NotCalledError, RuntimeError),
        (incrax.errors.DeletedInputError, RuntimeError),
        (incrax.errors.ReentrantCallError, RuntimeError),
    ],
)
def test_errors_are_of_incrax_and_of_a_builtin_class(error, builtin):
    assert issubclass(error, incrax.IncraxError)
    assert issubclass(error, builtin)


# --- leaves ---------------------------------------------------------------------------------------

WITHOUT_JAX_TYPE = {
    "object": (np.array([1, "a"], object), "object"),
    "ragged": (np.array([[1.0], [1.0, 2.0]], object), "object"),
    "text": (np.array(["early", "late"]), "<U5"),
    "bytes": (np.array([b"a"]), "|S1"),
    "dates": (np.array(["2013-01-01"], "datetime64[D]"), "datetime64[D]"),
    "times": (np.array([3], "timedelta64[s]"), "timedelta64[s]"),
    "date": (np.datetime64("2013-01-01"), "datetime64[D]"),
    "numpy text": (np.str_("late"), "<U4"),
    "record": (np.zeros(1, [("a", float)])[0], "[('a', '<f8')]"),
}


@pytest.mark.parametrize("name", WITHOUT_JAX_TYPE)
def test_array_of_a_dtype_without_jax_type(name):
    leaf, dtype = WITHOUT_JAX_TYPE[name]
    f = incrax.incremental(loss, tuning=MINIMAL)
    check_text(incrax.errors.UnsupportedLeafError, UNSUPPORTED.format("x", dtype), f, PARAMS, leaf)
    with unharmed(f, PARAMS, X):
        check_text(
            incrax.errors.UnsupportedLeafError, UNSUPPORTED.format("x", dtype), f, PARAMS, leaf
        )
        text = UNSUPPORTED.format("params['mu']", dtype)
        check_text(incrax.errors.UnsupportedLeafError, text, f, {**PARAMS, "mu": leaf}, X)


@pytest.mark.parametrize(
    "dtype", [[("a", float)], np.longdouble, np.clongdouble], ids=["records", "long", "complex"]
)
def test_array_of_a_rarer_dtype_without_jax_type(dtype):
    leaf = np.zeros(5, dtype)
    f = incrax.incremental(loss, tuning=MINIMAL)
    check_text(
        incrax.errors.UnsupportedLeafError, UNSUPPORTED.format("x", leaf.dtype), f, PARAMS, leaf
    )


def test_static_leaf_without_a_hash():
    f = incrax.incremental(loss, tuning=MINIMAL)
    with unharmed(f, PARAMS, X):
        check_text(
            incrax.errors.UnsupportedLeafError,
            UNHASHABLE.format("mode", "set"),
            f,
            PARAMS,
            X,
            {"sum"},
        )
        check_text(
            incrax.errors.UnsupportedLeafError,
            UNHASHABLE.format("mode", "bytearray"),
            f,
            PARAMS,
            X,
            mode=bytearray(1),
        )
        nested = {**PARAMS, "tags": [1.0, ({"a"},)]}
        text = UNHASHABLE.format("params['tags'][1][0]", "set")
        check_text(incrax.errors.UnsupportedLeafError, text, f, nested, X)
        check_text(incrax.errors.UnsupportedLeafError, text, f.fresh, nested, X)
        check_text(incrax.errors.UnsupportedLeafError, text, f.explain, nested, X)


def test_leaves_of_variadic_functions_have_names():
    f = incrax.incremental(lambda *args, **kwargs: args[0], tuning=MINIMAL)
    check_text(incrax.errors.UnsupportedLeafError, UNHASHABLE.format("args[1]", "set"), f, 1.0, {2})
    check_text(
        incrax.errors.UnsupportedLeafError,
        UNHASHABLE.format("tags['a']", "set"),
        f,
        1.0,
        tags={"a": {2}},
    )


def test_deleted_input():
    f = incrax.incremental(loss, tuning=MINIMAL)
    x, scale = jnp.array(X), jnp.array(PARAMS["scale"])
    f({"mu": 1.5, "scale": scale}, x)
    x.delete()
    check_text(
        incrax.errors.DeletedInputError, DELETED.format("x"), f, {"mu": 1.5, "scale": scale}, x
    )
    assert f.stats.aborted == 1


def test_deleted_input_at_the_first_call():
    f = incrax.incremental(loss, tuning=MINIMAL)
    x, scale = jnp.array(X), jnp.array(PARAMS["scale"])
    scale.delete()
    check_text(
        incrax.errors.DeletedInputError,
        DELETED.format("params['scale']"),
        f,
        {"mu": 1.5, "scale": scale},
        x,
    )
    same(f({"mu": 1.5, "scale": PARAMS["scale"]}, x), jax.jit(loss)(PARAMS, X))


def test_donated_input_names_the_argument():
    f = incrax.incremental(loss, tuning=MINIMAL)
    x = jnp.array(X)
    f(PARAMS, x)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    check_text(incrax.errors.DeletedInputError, DELETED.format("x"), f, PARAMS, x)


def test_deleted_input_that_was_not_seen_before():
    f = incrax.incremental(loss, tuning=MINIMAL)
    x = jnp.array(X) + 1
    x.delete()
    with unharmed(f, PARAMS, X):
        check_text(incrax.errors.DeletedInputError, DELETED.format("x"), f, PARAMS, x)


@pytest.mark.parametrize("method", ["fresh", "explain", "warm_up"])
def test_deleted_input_of_a_method(method):
    f = incrax.incremental(loss, tuning=MINIMAL)
    x = jnp.array(X) + 1
    x.delete()
    with unharmed(f, PARAMS, X):
        check_text(
            incrax.errors.DeletedInputError, DELETED.format("x"), getattr(f, method), PARAMS, x
        )


# --- names and reports ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nu", ""),
        ("params['nu']", "params['mu']"),
        ("param", "params"),
        ("x[5]", ""),
        ("x[-1]", ""),
        ("x[a]", ""),
        ("params['mu'][0][0]", "params['mu']"),
        ("params['scale'][2]", "params['scale']"),
        ("", ""),
    ],
)
def test_path_that_names_no_input(name, meant):
    f = incrax.incremental(loss, tuning=MINIMAL)
    text = UNKNOWN.format(name, "`params['mu']`, `params['scale']`, `x`")
    text += f" Did you mean `{meant}`?" * bool(meant)
    with unharmed(f, PARAMS, X):
        check_text(
            incrax.errors.UnknownInputError, text, f.warm_up, PARAMS, X, changing=["x", name]
        )
        check_text(
            incrax.errors.UnknownInputError, text, f.warm_up, PARAMS, X, changing=[("x", name)]
        )


def test_static_leaf_is_no_input_that_changes():
    f = incrax.incremental(loss, tuning=MINIMAL)
    text = UNKNOWN.format("mode", "`params['mu']`, `params['scale']`, `x`")
    check_text(
        incrax.errors.UnknownInputError, text, f.warm_up, PARAMS, X, "sum", changing=["mode"]
    )


def test_element_of_an_array_too_large_to_be_tracked_by_elements(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.analysis.MAX_LEAF_ELEMENTS", 4)
    f = incrax.incremental(lambda x: jnp.sum(x), tuning=MINIMAL)
    check_text(
        incrax.errors.UnknownInputError,
        UNKNOWN.format("x[1]", "`x`"),
        f.warm_up,
        X,
        changing=["x[1]"],
    )


@pytest.mark.parametrize("name", ["x[0]", "params['mu'][0]"])
def test_first_element_of_a_leaf_tracked_as_a_whole(name, monkeypatch):
    monkeypatch.setattr("incrax.engine.call.analysis.MAX_LEAF_ELEMENTS", 4)
    f = incrax.incremental(loss, tuning=MINIMAL)
    near = " Did you mean `params['mu']`?" if name != "x[0]" else ""
    text = UNKNOWN.format(name, "`params['mu']`, `params['scale']`, `x`") + near
    check_text(incrax.errors.UnknownInputError, text, f.warm_up, PARAMS, X, changing=[name])


def test_long_list_of_inputs_is_cut():
    f = incrax.incremental(lambda *values: sum(values), tuning=MINIMAL)
    shown = ", ".join(f"`values[{k}]`" for k in range(8))
    check_text(
        incrax.errors.UnknownInputError,
        UNKNOWN.format("nu", shown),
        f.warm_up,
        *[1.0] * 8,
        changing=["nu"],
    )
    check_text(
        incrax.errors.UnknownInputError,
        UNKNOWN.format("nu", shown + ", and 1 more"),
        f.warm_up,
        *[1.0] * 9,
        changing=["nu"],
    )


def test_function_without_inputs_is_said_to_have_none():
    f = incrax.incremental(lambda: jnp.ones(3), tuning=MINIMAL)
    with pytest.raises(incrax.errors.UnknownInputError) as caught:
        f.warm_up(changing=["mu"])
    assert "its inputs are: ." not in str(caught.value)


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_report_before_the_first_call(method):
    f = incrax.incremental(loss, tuning=MINIMAL)
    check_text(incrax.NotCalledError, NOT_CALLED.format(f"{method}()"), getattr(f, method))
    assert f.stats == incrax.Stats()
    getattr(f, method)(PARAMS, X)
    f(PARAMS, X)
    getattr(f, method)()


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_report_after_calls_under_jit_alone_says_that_nothing_is_saved_there(method):
    f = incrax.incremental(loss, tuning=MINIMAL)
    jax.jit(lambda params, x: f(params, x))(PARAMS, X)
    check_text(
        incrax.NotCalledError,
        f"`{method}()` needs a call to report on, and this function was called only where it is the "
        "plain function and nothing is saved: inside `jax.jit`, `grad`, `vmap` or `scan`, with a "
        "mutable array (`jax.Ref`), or switched off. Call it once outside, or give "
        f"`{method}()` example arguments; in a compiled loop, carry saved values by `f.pure`.",
        getattr(f, method),
    )


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_report_of_a_call_with_a_mutable_array_says_why_there_is_none(method):
    f = incrax.incremental(lambda ref: ref[...] * 2, tuning=MINIMAL)
    ref = jax.new_ref(jnp.ones(2))
    f(ref)
    with pytest.raises(incrax.NotCalledError) as caught:
        getattr(f, method)(ref)
    assert "has not been called yet" not in str(caught.value)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"policy": "precise"},
            '`incremental(policy=...)` got \'precise\'; use "fast" or "exact".',
        ),
        ({"policy": None}, '`incremental(policy=...)` got None; use "fast" or "exact".'),
    ],
)
def test_options_of_incremental(options, text):
    check_text(ValueError, text, incrax.incremental, loss, **options)
    check_text(ValueError, text, incrax.incremental, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"planner": "greedy"}, '`Tuning(planner=...)` got \'greedy\'; use "cost" or "minimal".'),
        ({"planner": None}, '`Tuning(planner=...)` got None; use "cost" or "minimal".'),
        *[
            (
                {"compile_s": value},
                f"`Tuning(compile_s=...)` got {value}; it is a number of seconds, at least 0.",
            )
            for value in (-1.0, float("nan"))
        ],
    ],
)
def test_options_of_tuning(options, text):
    check_text(ValueError, text, incrax.Tuning, **options)


@pytest.mark.parametrize(("name", "advice"), _tuning.GONE.items())
def test_options_of_tuning_that_went_say_what_to_do(name, advice):
    text = f"`Tuning({name}=...)` went with version 0.2: {advice}."
    check_text(TypeError, text, incrax.Tuning, **{name: 1})


def test_smallest_allowed_options_work():
    tuning = incrax.Tuning(hot_after=1, compile_s=0)
    f = incrax.incremental(loss, memory=0, versions=1, tuning=tuning)
    for mu in (1.0, 2.0, 1.0):
        same(f({**PARAMS, "mu": mu}, X), jax.jit(loss)({**PARAMS, "mu": mu}, X))


@pytest.mark.parametrize(
    "options", [{"memory": "2 GB"}, {"versions": 2.5}, {"versions": "two"}, {"tuning": {}}], ids=str
)
def test_option_of_a_wrong_type_is_refused_by_name(options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        incrax.incremental(loss, **options)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="incremental"):
        incrax.incremental(3)


def test_text_for_a_masked_array():
    text = (
        "`incremental(f)` got `x` as a masked array; masked arrays are not supported. JAX has no "
        "masks, so what is "
        "masked would count as data. Nothing was evaluated or stored. Fill it, or pass data and "
        "mask as two arrays."
    )
    f = incrax.incremental(loss, tuning=MINIMAL)
    with unharmed(f, PARAMS, X):
        check_text(
            incrax.errors.UnsupportedLeafError,
            text,
            f,
            PARAMS,
            np.ma.masked_array(np.asarray(X), False),
        )


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_text_of_a_report_on_what_is_not_saved(method):
    text = (
        f"`{method}()` has nothing to report on: these arguments contain a mutable array "
        "(`jax.Ref`) or a tracer, or "
        "the function closes over a mutable array. Then it is called as it is and nothing is "
        "saved. Give arguments "
        "without one, or pass the array's value."
    )
    f = incrax.incremental(lambda ref: ref[...] * 2, tuning=MINIMAL)
    check_text(incrax.NotCalledError, text, getattr(f, method), jax.new_ref(jnp.ones(2)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"tuning": {}},
            "`incremental(tuning=...)` got {} of type dict; it must be an incrax.Tuning, or None.",
        ),
        ({"f": 3}, "`incremental(f)` got 3 of type int; it must be a function."),
    ],
)
def test_text_of_an_option_of_a_wrong_type(options, text):
    check_text(TypeError, text, incrax.incremental, **{"f": loss, **options})


STATE, SITES = incrax.incremental(lambda th: -jnp.sum(th**2)).sites(np.zeros(3), moves=["th[*]"])
WALKS = {"mu": samplers.Walk(1.0)}
COUNTS = {
    "incremental(memory=bytes)": (0, lambda n: incrax.incremental(loss, memory=n)),
    "incremental(versions=...)": (1, lambda n: incrax.incremental(loss, versions=n)),
    "Tuning(calls=...)": (1, lambda n: incrax.incremental(loss, calls=n)),
    "Tuning(hot_after=...)": (1, lambda n: incrax.Tuning(hot_after=n)),
    "expect(calls)": (0, lambda n: incrax.incremental(loss).expect(n)),
    "verify(every=...)": (1, lambda n: incrax.verify(every=n)),
    "guarded(max_paths=...)": (1, lambda n: incrax.guarded(loss, max_paths=n)),
    "hold(chunk_rows)": (1, lambda n: incrax.hold(loss, chunk_rows=n)),
    "look(max_rows=...)": (0, lambda n: SITES.look(STATE, {"th": np.ones(3)}, n)),
    "minimize(max_calls=...)": (1, lambda n: fit.minimize(lambda mu: mu**2, 1.0, max_calls=n)),
    "levenberg_marquardt(max_steps=...)": (
        1,
        lambda n: fit.levenberg_marquardt(lambda mu: mu - X, 1.0, max_steps=n),
    ),
    "gibbs(num_sweeps=...)": (1, lambda n: walked(num_sweeps=n)),
    "gibbs(num_warmup=...)": (0, lambda n: walked(num_warmup=n)),
    "gibbs(chains=...)": (1, lambda n: walked(chains=n)),
    "Walk(times=...)": (1, lambda n: walked({"mu": samplers.Walk(1.0, times=n)})),
    "Hamiltonian(num_steps=...)": (1, lambda n: walked({"mu": samplers.Hamiltonian(0.5, n)})),
}


def walked(updates=WALKS, **options):
    asked = {"num_sweeps": 3, **options}
    return samplers.gibbs(lambda mu: -(mu**2), 0.0, updates=updates, key=1, **asked)


@pytest.mark.parametrize("option", COUNTS)
@pytest.mark.every_case
def test_what_counts_is_an_integer_of_any_type_and_no_boolean(option):
    least, make = COUNTS[option]
    for wrong in (True, 2.5, "3"):
        text = (
            f"`{option}` got {wrong!r} of type {type(wrong).__name__}; it must be an integer of "
            f"{least} or more."
        )
        check_text(TypeError, text, make, wrong)
    text = f"`{option}` got {least - 1}; it must be an integer of {least} or more."
    check_text(ValueError, text, make, least - 1)
    for right in (np.int64(3), np.array(3), jnp.array(3)):
        make(right)


NAMES = {
    "Tuning(changing=...)": lambda names: incrax.incremental(loss, changing=names),
    "warm_up(changing=...)": lambda names: incrax.incremental(loss).warm_up(
        PARAMS, X, changing=names
    ),
    "cached(deps=...)": lambda names: incrax.cached(loss, deps=names),
    "cost(changing=...)": lambda names: incrax.cost(loss, PARAMS, X, changing=names),
    "simultaneous(shared=...)": lambda names: fit.simultaneous(
        {"one": incrax.bind(loss, params=PARAMS, x=X)}, shared=names
    ),
    "gaussian_constraint(name)": lambda names: fit.gaussian_constraint(names, 0.0, 1.0),
}


@pytest.mark.parametrize("option", NAMES)
@pytest.mark.every_case
def test_names_are_text(option):
    for wrong in (3, [1.5]):
        seen = f"{wrong!r} of type {type(wrong).__name__}"
        text = f"`{option}` got {seen}; it must be a name, or several."
        check_text(TypeError, text, NAMES[option], wrong)


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("cached(f)", lambda: incrax.cached(3)),
        ("check_tape(f)", lambda: incrax.check_tape(3, 1.0)),
        ("Kernel(make)", lambda: samplers.Kernel(3)),
        ("on_change(callback)", lambda: incrax.bind(loss, params=PARAMS, x=X).on_change(3)),
    ],
)
def test_functions_are_functions(option, call):
    check_text(TypeError, f"`{option}` got 3 of type int; it must be a function.", call)


def test_text_of_the_warning_of_functions_made_anew(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 2)
    text = (
        "`incremental(f)` was traced for more than 2 signatures and forgets the oldest. A function "
        "is among its "
        "arguments (`fun`), compared by identity: a lambda made anew at each call is another "
        "function each time, and "
        "each call traces and compiles again. Pass the same function object."
    )
    f = incrax.incremental(lambda x, fun: fun(x), tuning=MINIMAL)
    with pytest.warns(UserWarning, match="forgets") as caught:
        assert [float(f(2.0, lambda x, k=k: x + k)) for k in range(5)] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert [str(warning.message) for warning in caught] == [text]


def test_text_of_the_note_on_calls_that_save_nothing(caplog):
    text = (
        "`loss` was called with a tracer (inside jit, grad, vmap or scan), with a mutable array, "
        "or with `jax.jit` "
        "disabled. It is the plain function there: right values and derivatives, nothing saved. "
        "This is said once. In "
        "a compiled loop, carry saved values by `loss.pure`."
    )
    f = incrax.incremental(loss, tuning=MINIMAL)
    with caplog.at_level("DEBUG", logger="incrax"):
        f(PARAMS, X)
        caplog.clear()
        for _ in range(2):
            jax.grad(f)(PARAMS, X)
            jax.jit(f)(PARAMS, X)
    assert caplog.messages == [text]


def test_text_of_the_error_of_a_callback_that_calls_its_function():
    text = (
        "`model` was called from a callback (`pure_callback`, `io_callback`, `debug.callback`) "
        "that a call of `model` waits for. One call at a time holds the saved values, so that the two "
        "would wait for one "
        "another. Nothing was evaluated or stored. Call the plain function there, "
        "`model.__wrapped__`, under `jax.jit`."
    )

    def model(a):
        return jax.pure_callback(lambda a: f(a), jax.ShapeDtypeStruct((), np.float64), a)

    for options in ({"tuning": MINIMAL}, {"policy": "exact"}):
        f = incrax.incremental(model, **options)
        for evaluate in (f, f.fresh):
            with pytest.raises(Exception, match="ReentrantCallError") as caught:
                evaluate(1.0)
            assert text in str(caught.value)


def test_without_the_engine_a_callback_may_call_its_function(monkeypatch):
    monkeypatch.setenv("INCRAX_DISABLE", "1")
    whole = lambda a: np.asarray(f(2), a.dtype) if a.dtype == float else a
    f = incrax.incremental(lambda a: jax.pure_callback(whole, jax.typeof(a), a))
    assert f(1.5) == 2.0
    assert f.fresh(1.5) == 2.0


# --- errors of others -----------------------------------------------------------------------------


def test_error_of_the_function_passes_unchanged():
    error = ArithmeticError("no such model")

    def fun(params, x, fails=None):
        if fails:
            raise error
        return loss(params, x)

    f = incrax.incremental(fun, tuning=MINIMAL)
    with unharmed(f, PARAMS, X), pytest.raises(ArithmeticError) as caught:
        f(PARAMS, X, fails="yes")
    assert caught.value is error


def test_wrong_arguments_are_refused_as_by_the_function():
    f = incrax.incremental(loss, tuning=MINIMAL)
    with unharmed(f, PARAMS, X):
        check_text(TypeError, "loss() missing 1 required positional argument: 'x'", f, PARAMS)
        check_text(TypeError, "loss() got an unexpected keyword argument 'y'", f, PARAMS, X, y=1.0)


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_reports_have_no_options(method):
    f = incrax.incremental(loss, tuning=MINIMAL)
    with unharmed(f, PARAMS, X):
        text = (
            f"`{method}()` got arguments that `loss` does not take: missing a required argument: "
            "'params'. This is usually an option, and it has none: what it is given are the arguments of "
            "a call to report on. Nothing was evaluated or stored. Give it those, or nothing for the "
            "last call; what it returns prints, and `as_dict()` has all of it."
        )
        check_text(TypeError, text, getattr(f, method), verbose=True)


@pytest.mark.parametrize("mu", [None, "1.5", jax.ShapeDtypeStruct((), float)], ids=type)
def test_an_error_inside_says_which_inputs_are_no_arrays(mu):
    params = {"mu": mu, "scale": X}
    bound = incrax.bind(loss, params=params, x=X)
    for call in (bound.value, lambda: incrax.incremental(loss)(params, X)):
        with pytest.raises(TypeError) as caught:
            call()
        assert caught.value.__notes__[-1] == (
            "`loss` was traced with inputs that are no arrays, which it gets as they are: "
            f"`params['mu']` of type {type(mu).__name__}. If one of these was to be a number, that "
            "is why. Nothing was evaluated or stored."
        )


@jax.tree_util.register_dataclass
@dataclass
class Layers:
    """As modules of Equinox are: what is no array is not marked as static."""

    weights: object
    depth: int


@pytest.mark.parametrize(
    ("read", "error"),
    [(range, incrax.errors.PythonBranchError), (lambda depth: {}[depth], TypeError)],
)
def test_an_error_inside_says_which_numbers_of_a_module_are_traced(read, error):
    def deep(net, x):
        read(net.depth)
        return jnp.sum(net.weights @ x)

    with pytest.raises(error) as caught:
        incrax.incremental(deep)(Layers(np.eye(5), 3), X)
    assert caught.value.__notes__[-1] == (
        "`deep` was traced with whole numbers of Python inside an object: `net.depth`. They are "
        "traced like arrays, so that Python cannot read them as a shape, a length or a switch. If "
        "that is why, pass the object's arrays and close over the rest: `arrays, rest = "
        "equinox.partition(module, equinox.is_inexact_array)`, and `equinox.combine(arrays, rest)` "
        "inside the function."
    )


@pytest.mark.parametrize("read", [range, jnp.zeros])
@pytest.mark.parametrize("method", ["value", "grad"])
def test_an_error_in_a_bound_model_says_which_numbers_of_a_module_are_traced(read, method):
    """They are floats there, and trainable."""

    def deep(net, x):
        read(net.depth)
        return jnp.sum(net.weights @ x)

    model = incrax.bind(deep, net=Layers(np.eye(5), 3), x=X, roles={"x": "data"})
    with pytest.raises(TypeError) as caught:
        getattr(model, method)()
    notes = "".join(caught.value.__notes__)
    assert "deep` was traced with whole numbers of Python inside an object: `net.depth`. " in notes


def test_errors_of_tracing_name_the_users_function_and_argument():
    def branchy(x, limit):
        return x if limit > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as expected:
        jax.jit(branchy)(1.0, 2.0)
    assert "branchy" in str(expected.value)
    assert "argument limit" in str(expected.value)
    with pytest.raises(
        incrax.errors.PythonBranchError, match=r"`incremental\(branchy\)`.*limit > 0"
    ) as caught:
        incrax.incremental(branchy, tuning=MINIMAL)(1.0, 2.0)
    assert "branchy" in str(caught.value.__cause__)
    assert "argument limit" in str(caught.value.__cause__)


def test_no_warnings_in_a_sequence_of_ordinary_calls(recwarn):
    f = incrax.incremental(loss)
    for k in range(30):
        f({**PARAMS, "mu": 1.0 + k % 3}, X + k % 2, "sum" if k % 5 else "max")
    assert not recwarn.list


# --- rows -----------------------------------------------------------------------------------------

ROWS = {"x": np.linspace(0.0, 1.0, 20), "y": np.ones(20)}
ROWS_CURE = (
    "Nothing was evaluated or stored. A function of `Rows` may map over rows and reduce over them "
    "(sum, mean, max, "
    "min, "
    "prod, all, any, matrix products), in any number of rounds. Write it so, or pass plain arrays: "
    "`rows.tree()`."
)


@contextmanager
def refused(error, text):
    with pytest.raises(error) as caught:
        yield
    assert str(caught.value) == text


def refused_call(function, text, rows=None):
    f = incrax.incremental(function)
    with refused(incrax.errors.MixedRowsError, text):
        f(2.0, incrax.Rows(ROWS, chunk_rows=8) if rows is None else rows)
    assert f.stats.ran == f.stats.chunks_run == 0


def test_rows_that_are_mixed():
    f = incrax.incremental(lambda s, d: s * jnp.sum(jnp.cumsum(d["x"])))
    with pytest.raises(incrax.errors.MixedRowsError) as caught:
        f(2.0, incrax.Rows(ROWS, chunk_rows=8))
    before, _, after = str(caught.value).partition(" at ")
    assert (
        before
        == "`incremental(f)` got `Rows`, which are evaluated chunk by chunk, and f mixes rows: `cumsum`"
    )
    assert "test_messages.py:" in after
    assert after.endswith(f"<lambda>), of f64[20], accumulates along the rows. {ROWS_CURE}")


def test_a_function_that_branches_on_the_number_of_rows():
    refused_call(
        lambda s, d: s * jnp.sum(d["x"] if len(d["x"]) > 10 else jnp.sin(d["x"])),
        "`incremental(f)` got `Rows`, and f is another function for another number of rows: two "
        "traces differ by 3 "
        "and 4 "
        "equations. This is usually a Python branch on the number of rows, or a loop over them. "
        + ROWS_CURE,
    )


def test_a_function_with_rows_from_elsewhere():
    refused_call(
        lambda s, d: s * jnp.sum(d["x"] * X20),
        "`incremental(f)` got `Rows`, and f cannot be traced for 8 rows: TypeError: mul got "
        "incompatible shapes for "
        "broadcasting: (8,), (20,). This is usually an array with one entry a row that f takes "
        "from elsewhere: a "
        "closed-over constant or another argument. Put it into the same `Rows`. " + ROWS_CURE,
    )


X20 = np.ones(20)


def test_per_row_results_of_streamed_rows():
    refused_call(
        lambda s, d: s * d["x"],
        "`incremental(f)` got `Rows` that are read from a file, and f returns f64[20], with an "
        "entry for each row: "
        "that may "
        "be more than memory holds. Nothing was stored. Reduce over the rows, or evaluate slices: "
        "`Rows(tree)` of a "
        "part "
        "that fits.",
        incrax.Rows.from_memmap(ROWS, chunk_rows=8),
    )


def test_rows_in_two_places():
    f, rows = incrax.incremental(lambda a, b: a + b), incrax.Rows(ROWS)
    text = (
        "`incremental(f)` got `Rows` in 2 places: `a`, `b`. They may be cut into chunks "
        "differently. Nothing was "
        "evaluated "
        "or stored. Put all columns into one: `Rows({'x': x, 'y': y})`."
    )
    with refused(incrax.errors.RowsError, text):
        f(rows, rows)


@pytest.mark.parametrize("make", [lambda: incrax.Rows(np.ones((0, 3))), lambda: incrax.Rows({})])
def test_no_rows(make):
    text = (
        "`Rows` got no rows. This is usually an empty selection or file. Nothing was made. Pass at "
        "least one row."
    )
    with refused(incrax.errors.RowsError, text):
        make()


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [(3.0, "float"), (np.float64(3.0), "float64"), (np.ones(()), "ndarray"), ("a", "str")],
)
def test_rows_of_what_is_no_array(leaf, kind):
    text = (
        f"`Rows` got `rows['x']` of type {kind}; every leaf must be a NumPy or JAX array with rows "
        "along its first "
        "axis. "
        "This is usually a list, a number, or an array inside a function that is being compiled. "
        "Nothing was made. "
        "Convert it: `np.asarray(...)`."
    )
    with refused(incrax.errors.UnsupportedLeafError, text):
        incrax.Rows({"x": leaf})


@pytest.mark.parametrize("make", [incrax.Rows, incrax.Rows.from_memmap])
def test_rows_of_different_lengths(make):
    text = (
        "`Rows` got arrays with different numbers of rows: `rows['x']` has 3, `rows['y']` has 4. "
        "This is usually a "
        "transposed array, or a selection of some columns only. Nothing was made. Rows are the "
        "first axis of every "
        "array."
    )
    with refused(incrax.errors.RowsError, text):
        make({"x": np.ones(3), "y": np.ones(4)})


@pytest.mark.parametrize(
    ("new", "seen"),
    [
        (np.ones(3, np.float32), "float32[n]"),
        (np.ones((3, 2)), "float64[n,2]"),
        ({"x": np.ones(3)}, "{'x': 'float64[n]'}"),
    ],
)
@pytest.mark.parametrize("method", ["append", "replace"])
def test_new_rows_of_another_type(method, new, seen):
    rows = incrax.Rows(np.ones(20))
    text = (
        f"`rows.{method}` got {seen}; the rows there are have float64[n]. Nothing was changed. "
        "Give arrays of the same "
        "structure, dtypes and trailing shapes, or make new `Rows`."
    )
    with refused(incrax.errors.RowsError, text):
        rows.append(new) if method == "append" else rows.replace(0, new)


class Source:
    """Reads what it is told to."""

    num_rows = 20

    def __init__(self, read):
        self.read = read


@pytest.mark.parametrize(
    ("read", "start", "stop", "seen"),
    [
        (lambda start, stop: np.ones(min(stop, 15) - start), 8, 16, "7 rows of float64[n]"),
        (
            lambda start, stop: np.ones(stop - start, np.float64 if stop < 16 else np.float32),
            8,
            16,
            "8 rows of float32[n]",
        ),
        (
            lambda start, stop: np.ones((stop - start, *[2] * (start // 16))),
            16,
            20,
            "4 rows of float64[n,2]",
        ),
        (lambda start, stop: np.ones(9), 0, 1, "9 rows of float64[n]"),
    ],
    ids=["short", "dtype", "shape", "long"],
)
def test_a_source_that_gives_other_rows(read, start, stop, seen):
    text = (
        f"`Rows` asked its source for rows {start} to {stop} and got {seen}; it needs "
        f"{stop - start} rows of "
        "float64[n]. This is usually a file that is shorter than `num_rows` says, or whose types "
        "differ from part to "
        "part. Nothing of these rows was kept. `read(start, stop)` must return all of the rows, of "
        "the type of the "
        "first one."
    )
    with refused(incrax.errors.RowsError, text):
        incrax.incremental(jnp.sum)(incrax.Rows.from_source(Source(read), chunk_rows=8))


def test_rows_replaced_at_a_place_that_is_no_integer():
    text = (
        "`rows.replace` got 5.0 as the first row to replace; rows are counted by integers from 0. "
        "Nothing was changed. "
        "Write `rows.replace(start, tree)`."
    )
    with refused(TypeError, text):
        incrax.Rows(np.ones(20)).replace(5.0, np.ones(3))


@pytest.mark.parametrize("start", [-1, 18])
def test_rows_replaced_outside(start):
    text = (
        f"`rows.replace` got rows {start} to {start + 3}; there are rows 0 to 20. Nothing was "
        "changed. Use `append` "
        "for "
        "rows after the last."
    )
    with refused(incrax.errors.RowsError, text):
        incrax.Rows(np.ones(20)).replace(start, np.ones(3))


@pytest.mark.parametrize("value", [1000, 0, True, 1024.0])
def test_chunks_of_a_number_of_rows_that_is_no_power_of_two(value):
    text = (
        f"`Rows(chunk_rows=...)` got {value!r}; it must be a power of two, so that few programs "
        "serve all numbers of "
        "rows. "
        "Nothing was made. Leave it out, or give 65536, 131072, ..."
    )
    with refused(incrax.errors.RowsError, text):
        incrax.Rows(np.ones(20), chunk_rows=value)


def test_rows_of_dates():
    dates = np.array(["2020-01-01"], "datetime64[D]")
    with refused(
        incrax.errors.UnsupportedLeafError, UNSUPPORTED.format("rows['x']", "datetime64[D]")
    ):
        incrax.Rows({"x": dates})


# --- derivatives ----------------------------------------------------------------------------------


def test_a_cotangent_that_does_not_fit():
    _, pullback = incrax.vjp(lambda x: {"a": x**2}, jnp.ones(3))
    rest = (
        "Nothing was evaluated or stored. Pass a pytree like what it belongs to, with arrays of "
        "the same shapes and "
        "dtypes; None for leaves that are not selected."
    )
    text = (
        "`pullback` got a cotangent that is float64[2], and it belongs to the output['a'], "
        "float64[3]. "
    )
    check_text(incrax.errors.TangentError, text + rest, pullback, {"a": jnp.ones(2)})
    text = (
        "`pullback` got a cotangent that is None, and it belongs to the output['a'], float64[3]. "
    )
    check_text(incrax.errors.TangentError, text + rest, pullback, {"a": None})


def test_a_cotangent_that_was_given_up():
    _, pullback = incrax.vjp(lambda x, y: x * y, 1.0, 2.0)
    pullback.keep("x")
    text = (
        "The pullback was asked for the cotangent of `y` after `keep(wrt=...)`, which kept what "
        "`x` needs and freed "
        "the rest. Nothing was evaluated. Keep these as well, or call `vjp` again."
    )
    check_text(incrax.errors.FreedResidualError, text, pullback, 1.0, wrt="y")


@pytest.mark.parametrize("name", ["hvp", "jvp"])
def test_a_direction_that_is_missing_or_by_position(name):
    text = (
        f"`{name}` got no `tangent`, the direction in which it differentiates. Arguments by position "
        "are those of the function alone. Nothing was evaluated or stored. Write "
        f"`incrax.{name}(f)(*args, tangent=v)`."
    )
    along = getattr(incrax, name)(lambda x: jnp.sum(x**3))
    for args in ((X,), (X, X)):
        check_text(incrax.errors.TangentError, text, along, *args)


def test_a_parameter_of_the_name_that_a_derivative_takes_for_itself():
    def loss(x, *, tangent):
        return x * tangent

    text = (
        "`jvp` takes `tangent=` for itself, and `loss` has a parameter of that name, which the "
        "call leaves out. "
        "Nothing was evaluated or stored. Pass that one by position; if it is keyword-only, give "
        "it another name: "
        "`lambda x, t: f(x, tangent=t)`."
    )
    check_text(incrax.errors.TangentError, text, incrax.jvp(loss), 1.0, tangent=1.0)


def test_an_argument_of_a_prepared_function_of_another_type():
    p = incrax.prepare(lambda x: x**2, 1.0)
    text = (
        "`prepare(f).value` got `x` as float64[2]; it was prepared for float64[]. Nothing was "
        "evaluated or stored. "
        "Convert it, or prepare the function for this type."
    )
    check_text(incrax.errors.PreparedTypeError, text, p.value, np.ones(2))


# --- row-sparse arrays ----------------------------------------------------------------------------


def test_parts_of_a_row_sparse_array_that_do_not_fit():
    text = (
        "`RowSparse(indices, values, shape)` got indices int32[2], values float32[2, 4] and the "
        "shape (9, 3); it needs "
        "k integer indices, values of the shape (k, *shape[1:]), and at least one axis. This is "
        "usually one index "
        "without an axis, or a shape without its first axis. Nothing was made. Give one index and "
        "one whole row for "
        "each stored row."
    )
    parts = jnp.zeros(2, jnp.int32), jnp.zeros((2, 4), jnp.float32), (9, 3)
    check_text(incrax.errors.RowShapeError, text, incrax.RowSparse, *parts)


def test_arrays_of_other_shapes_added_to_a_row_sparse_array():
    text = (
        "`add_to` of a `RowSparse` of the shape (9, 3) got an array of the shape (3,); nothing is "
        "broadcast, because "
        "rows would then stand for others. Use arrays of the same shape."
    )
    rows = incrax.RowSparse(jnp.zeros(2, jnp.int32), jnp.zeros((2, 3)), (9, 3))
    check_text(incrax.errors.RowShapeError, text, rows.add_to, jnp.zeros(3))


def test_row_sparse_arrays_multiplied_by_arrays():
    text = (
        "`*` of a `RowSparse` got ndarray; rows are multiplied by scalars, and other operands would "
        "give other rows than the stored ones a value. Use `todense()`, or apply the operation to "
        "`values` after `coalesce()`."
    )
    rows = incrax.RowSparse(jnp.zeros(2, jnp.int32), jnp.zeros((2, 3)), (9, 3))
    check_text(TypeError, text, lambda: rows * np.ones(3))


# --- loops ----------------------------------------------------------------------------------------


def test_a_turn_that_changes_the_type_of_its_carry():
    text = (
        "The function of `scan` got `carry['a']` as f64[2] and returned it as f64[3,2]. This is "
        "usually an `init` of "
        "integers that becomes floating-point, of float32 beside float64, or of one shape that is "
        "broadcast to "
        "another. A loop's carry has one type for all turns. Nothing was evaluated. Give `init` "
        "the type that a turn "
        "returns."
    )
    turn = lambda c, x: ({"a": c["a"] + jnp.ones((3, 1))}, None)
    check_text(incrax.errors.LoopTypeError, text, incrax.scan, turn, {"a": np.ones(2)}, X)


def test_a_turn_that_changes_the_structure_of_its_carry():
    text = (
        "The function of `while_loop` got a carry of the structure PyTreeDef((*, *)) and returned "
        "one of PyTreeDef(*). "
        "A loop's carry has one type for all turns. Nothing was evaluated. Return a carry like "
        "`init`."
    )
    check_text(
        incrax.errors.LoopTypeError,
        text,
        incrax.while_loop,
        lambda c: c[0] < 3,
        lambda c: c[0],
        (0, 1),
    )


@pytest.mark.parametrize(("returned", "seen"), [(1.0, "a float"), ((1, 2, 3), "3 things")])
def test_a_turn_that_returns_no_pair(returned, seen):
    text = (
        "The function of `scan` must return a pair, the carry and a row of results, and returned "
        f"{seen}. Nothing was "
        "evaluated. Return `(carry, y)`, with None for y where there is nothing to stack."
    )
    check_text(incrax.errors.LoopTypeError, text, incrax.scan, lambda c, x: returned, 0.0, X)


def test_a_condition_that_is_no_boolean():
    text = (
        "The condition of `while_loop` must return one boolean, and returned bool[2]. Nothing was "
        "evaluated. Reduce "
        "it, for example by `jnp.any`, or compare it with a number."
    )
    check_text(
        incrax.errors.LoopTypeError,
        text,
        incrax.while_loop,
        lambda x: x < 3,
        lambda x: x,
        np.ones(2),
    )


def test_a_loop_without_a_length():
    text = (
        "`scan` got neither arrays in `xs` nor a `length`, so that the number of turns is unknown. "
        "Nothing was "
        "evaluated. Pass one of them."
    )
    check_text(incrax.errors.LoopTypeError, text, incrax.scan, lambda c, x: (c, x), 0.0)


def test_a_traced_length_without_a_capacity():
    text = (
        "`scan` got a traced `length` and no arrays in `xs`. What it stacks, and what its "
        "derivatives store, needs a "
        "size that is known while tracing. Nothing was evaluated. Pass `capacity=`, the largest "
        "length that may come."
    )
    f = jax.jit(lambda n: incrax.scan(lambda c, x: (c, x), 0.0, None, n))
    check_text(incrax.errors.LoopTypeError, text, f, 3)


def test_arrays_of_different_lengths_in_a_loop():
    text = (
        "`scan` goes through its arrays row by row, and they have different numbers of rows: "
        "`xs['a']` 5, `xs['b']` 3. "
        "Nothing was evaluated. Pass arrays with equal first axes."
    )
    check_text(
        incrax.errors.LoopTypeError,
        text,
        incrax.scan,
        lambda c, x: (c, x),
        0.0,
        {"a": X, "b": np.ones(3)},
    )


@pytest.mark.parametrize(
    ("length", "seen"),
    [
        (2.5, "2.5 of type float"),
        (True, "True of type bool"),
        (-1, "-1"),
        (np.ones(2), "float64[2]"),
    ],
)
def test_a_length_that_is_no_integer(length, seen):
    text = (
        f"`scan(length=...)` got {seen}; it must be one integer, at least 0. Nothing was evaluated."
    )
    check_text(incrax.errors.LoopTypeError, text, incrax.scan, lambda c, x: (c, x), 0.0, X, length)


def test_a_length_of_more_rows_than_there_are():
    text = (
        "`scan` was asked for 9 rows or turns, and there is room for 5. Rows are never dropped "
        "silently. Pass arrays "
        "with more rows, or a larger `capacity=`; of `while_loop`, a larger `max_steps=`."
    )
    check_text(incrax.errors.CapacityError, text, incrax.scan, lambda c, x: (c, x), 0.0, X, 9)


def test_a_loop_with_too_little_memory():
    text = (
        "A loop of up to 64 turns was given 50 bytes for the residuals of its derivative, and "
        "needs 96 even with as "
        "few checkpoints as can be. Nothing was evaluated. Pass more: `memory=96`."
    )
    f = lambda x: incrax.scan(lambda c, _: (jnp.sin(c), None), x, None, 64, memory=50)[0]
    check_text(incrax.errors.MemoryBudgetError, text, jax.grad(f), 1.0)


def test_a_ragged_argument_that_is_not_there():
    text = (
        "`bucketed(ragged=...)` names `y`, and this call has no such argument, or one without "
        "arrays in it. Nothing "
        "was evaluated. Name arguments as in the function's signature, or by position."
    )
    check_text(incrax.errors.LoopTypeError, text, incrax.bucketed(lambda x: x, ragged="y"), X)


def test_the_length_of_padded_rows_inside_a_traced_function():
    text = (
        "`len()` of a `Padded` with room for 64 rows was asked for inside a traced function (jit, "
        "grad, vmap), where "
        "the number of rows is unknown. Nothing was evaluated. Use `length`, which is traced, or "
        "`capacity`, which is "
        "not; in a function of `incrax.guarded`, outside of transformations, `len` is a guard."
    )
    check_text(incrax.errors.LoopTypeError, text, incrax.bucketed(len, ragged=0), X)


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda n: incrax.scan(lambda c, x: (c, x), 0.0, None, 3, capacity=n), "scan(capacity)"),
        (lambda n: incrax.scan(lambda c, x: (c, x), 0.0, X, memory=n), "scan(memory)"),
        (
            lambda n: incrax.while_loop(lambda c: c < 3, lambda c: c + 1, 0, max_steps=n),
            "while_loop(max_steps)",
        ),
    ],
)
def test_a_size_that_is_traced(call, where):
    seen = []

    def traced(n):
        seen.append(f"{n!r} of type {type(n).__name__}")
        return call(n)

    with pytest.raises(TypeError) as caught:
        jax.jit(traced)(3)
    assert (
        str(caught.value)
        == f"`{where}` got {seen[0]}; it must be an integer that is known while tracing."
    )


def test_exact_rows_inside_a_traced_function():
    text = (
        "`Padded.exact()` was called inside a traced function (jit, grad, vmap), where the number "
        "of rows is unknown "
        "and a shape must be known. Use `values` with `mask`, `filled(...)` or `incrax.scan`."
    )
    check_text(TypeError, text, jax.jit(lambda x: incrax.Padded(x, jnp.sum(x > 1)).exact()), X)


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: incrax.scan(None, 0.0, X), "scan(f)"),
        (lambda: incrax.while_loop(None, lambda x: x, 0), "while_loop(cond)"),
        (lambda: incrax.while_loop(lambda x: x, None, 0), "while_loop(body)"),
        (lambda: incrax.bucketed(None), "bucketed(fun)"),
    ],
)
def test_loops_of_what_is_no_function(call, where):
    check_text(TypeError, f"`{where}` got None of type NoneType; it must be a function.", call)


def test_what_is_no_bijection():
    text = (
        "`remember` got <class 'float'>, which has none of the forms of a bijection that are "
        "known. This is usually a "
        "plain function, a distribution, or the class in place of an instance. Nothing is "
        "remembered. Pass a bijection "
        "of FlowJAX, a transform of NumPyro, or an object with the methods `transform_and_log_det` "
        "(or "
        "`forward_and_log_det`) and `inverse_and_log_det`."
    )
    check_text(bijectors.NotABijectionError, text, bijectors.remember, 1.0)


def test_a_compiled_function_of_what_is_no_function():
    check_text(
        TypeError,
        "`bijectors.jit(f)` got None of type NoneType; it must be a function.",
        bijectors.jit,
        None,
    )


BOUND = incrax.bind(lambda mu, x: jnp.sum((x - mu) ** 2), mu=0.0, x=np.ones(2), roles={"x": "data"})
NAMELY = "it must be"
WRONG = {
    "shape of rows": (
        lambda: incrax.RowSparse(np.array([0]), np.ones((1, 2)), 3),
        f"`RowSparse(shape=...)` got 3 of type int; {NAMELY} a tuple of integers.",
    ),
    "shape with parts": (
        lambda: incrax.RowSparse(np.array([0]), np.ones((1, 2)), (3.5, 2)),
        f"`RowSparse(shape=...)` got (3.5, 2) of type tuple; {NAMELY} a tuple of integers.",
    ),
    "indices of text": (
        lambda: incrax.RowSparse("ab", np.ones((2, 2)), (3, 2)),
        f"`RowSparse(indices=...)` got 'ab' of type str; {NAMELY} an array of integers.",
    ),
    "an array of text as indices": (
        lambda: incrax.RowSparse(np.array([], str), np.ones((0, 2)), (3, 2)),
        "`RowSparse(indices=...)` got array([], dtype='<U1') of type ndarray; "
        f"{NAMELY} an array of integers.",
    ),
    "rows that are uneven": (
        lambda: incrax.RowSparse(np.array([0]), [[1.0], [2.0, 3.0]], (3, 2)),
        "`RowSparse(values=...)` got [[1.0], [2.0, 3.0]] of type list; "
        f"{NAMELY} an array of numbers.",
    ),
    "rules of text": (
        lambda: incrax.cost(jnp.sin, 1.0, rules="text"),
        f"`cost(rules=...)` got 'text' of type str; {NAMELY} a mapping of primitives to functions.",
    ),
    "rules of numbers": (
        lambda: incrax.cost(jnp.sin, 1.0, rules={"sin": 1}),
        "`cost(rules=...)` got {'sin': 1} of type dict; "
        f"{NAMELY} a mapping of primitives to functions.",
    ),
    "constraints": (
        lambda: fit.simultaneous({"a": BOUND}, constraints=3),
        f"`simultaneous(constraints=...)` got 3 of type int; {NAMELY} a list of `Constraint`s.",
    ),
    "data sets": (
        lambda: fit.toys(BOUND, 3),
        f"`toys(model, data_sets)` got 3 of type int; {NAMELY} a list of mappings, or an iterator.",
    ),
    "path": (
        lambda: BOUND.path(None),
        f"`name` got None of type NoneType; {NAMELY} a name of one input, part, leaf or element.",
    ),
    "rows that count, to mask": (
        lambda: incrax.Padded(jnp.ones(4), "text").mask,
        f"`Padded(values, length)` got 'text' of type str; {NAMELY} an integer.",
    ),
    "rows that count, to cut": (
        lambda: incrax.Padded(jnp.ones(4), 2.5).exact(),
        f"`Padded(values, length)` got 2.5 of type float; {NAMELY} an integer.",
    ),
    "constants by number": (
        lambda: incrax.guarded(jnp.sin, constant=1),
        f"`guarded(constant=...)` got 1 of type int; {NAMELY} a name, or several.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_a_wrong_type_is_named(name):
    call, text = WRONG[name]
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == text


def test_what_is_said_to_be_constant_and_is_not_captured():
    offset = jnp.ones(2)
    f = incrax.guarded(lambda x: x + offset if x[0] > 0 else x, constant=("offest",))
    with pytest.raises(ValueError, match="got `offest`, which .* capture; it captures `offset`"):
        f(jnp.ones(2))


def test_a_wrong_name_beside_a_right_one_that_cannot_be_compared():
    rows = iter("abc")
    scale = jnp.ones(2)
    f = incrax.guarded(lambda x: (rows, x * scale)[1], constant=("rows", "row", "scales"))
    with pytest.raises(ValueError, match="got `row`, `scales`, .*; it captures `scale`, `rows`[.]"):
        f(jnp.ones(2))
