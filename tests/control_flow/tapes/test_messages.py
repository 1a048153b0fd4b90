"""The exact text of every error and warning of tapes."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

UNTOUCHED = "Nothing was recorded; paths recorded before are as they were."


def text_of(error, fun, *args):
    with pytest.raises(error) as caught:
        fun(*args)
    assert type(caught.value) is error
    assert isinstance(caught.value, incrax.errors.TapeError)
    assert isinstance(caught.value, incrax.IncraxError)
    return str(caught.value)


def line_of(fun, offset=1):
    return fun.__code__.co_firstlineno + offset


def test_a_float_as_a_python_value():
    def f(x):
        return x * float(x)

    assert text_of(incrax.errors.FloatGuardError, incrax.guarded(f), 2.0) == (
        "`guarded(f)` saw floats turned into Python or NumPy values, or text: "
        f"test_messages.py:{line_of(f)}: "
        "float(x). A compiled path holds for one value of what Python read, so that each new float "
        "would be recorded "
        f"and compiled again, and no derivative would pass through it. {UNTOUCHED} Compare the "
        "array itself (`if x > "
        "0:` records only the side), compute with `jax.numpy`, print with `jax.debug.print`; or "
        "pass the float as `static=` if it takes few values."
    )


def test_a_branch_on_an_effect():
    def f(x):
        y = jax.experimental.io_callback(
            lambda v: np.asarray(v), jax.ShapeDtypeStruct((), jnp.float64), x
        )
        return y if y > 0 else x

    text = text_of(incrax.errors.GuardOnEffectError, incrax.guarded(f), 2.0)
    assert text.startswith("Python asked for a value that `io_callback` made (")
    assert text.endswith(
        "). That is an effect: to find out which path is right, it would have to run before it is "
        "known that it "
        f"should. {UNTOUCHED} Branch on values that need no effect, use `jax.pure_callback` if the "
        "function on the "
        "host is pure, or `jax.lax.cond` for this branch."
    )


def test_what_cannot_be_compared():
    values = iter([1.0])
    assert text_of(
        incrax.errors.CapturedStateError, incrax.guarded(lambda x: x * next(values)), 2.0
    ) == (
        "`guarded(<lambda>)` captures `values`, of type list_iterator, whose content cannot be "
        "compared. If it "
        f"changed, a path recorded before would go on answering as if it had not. {UNTOUCHED} Pass "
        "what the function "
        "reads of it as an argument, or list it in `constant=` if it never changes."
    )


def test_a_traced_value_that_was_stored():
    history = []
    f = incrax.guarded(lambda x: (history.append(x), x)[1])
    f(1.0)
    assert text_of(incrax.errors.CapturedStateError, f, 1.0) == (
        "`guarded(<lambda>)` captures `history[0]`, which holds a traced value that an earlier "
        "call put there. "
        "Functions are recorded with traced values in place of arrays; outside of that call they "
        "have no value. "
        f"{UNTOUCHED} Remove it there, and return what is to be kept as a result instead."
    )
    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        float(history[0])
    assert str(caught.value).startswith(
        "A traced value of a guarded function was read after the call that made it. Functions are "
        "recorded with "
        "traced values in place of arrays, and later calls do not run them, so that it would be "
        "out of date. "
        "Return it as a result instead of storing it."
    )


def test_a_result_that_is_no_array():
    assert text_of(incrax.errors.TapeError, incrax.guarded(lambda x: (x, "large")), 1.0) == (
        "`guarded(<lambda>)` returned 'large', of type str. What a compiled path returns are "
        "arrays and numbers, in "
        f"any pytree. {UNTOUCHED} Return a number that stands for it, or compute it outside."
    )


def test_another_way(request):
    def f(x):
        if not gc.isenabled():
            return x if x > 1 else -x
        return x if x > 0 else -x

    guarded = incrax.guarded(f)
    guarded(2.0)
    gc.disable()
    request.addfinalizer(gc.enable)
    assert text_of(incrax.errors.NotReproducibleError, guarded, -2.0) == (
        "`guarded(f)` went another way than before although all it had read was the same: at "
        f"test_messages.py:{line_of(f, 2)}: x > 1. It depends on something that is no argument and "
        "was not seen to be "
        f"captured: a file, an iterator, an object inside an installed package. {UNTOUCHED} Pass "
        "it as an argument, "
        "or as `static=`."
    )


def branching(x):
    return x if x > 0 else -x


def test_a_branch_where_no_value_is_known():
    assert text_of(incrax.errors.PythonBranchError, jax.jit(incrax.guarded(branching)), 2.0) == (
        "`guarded(branching)` was called inside `jit`, `vmap`, `scan` or another transformation "
        "that knows no "
        f"values, and Python asks for one: test_messages.py:{line_of(branching)}: x > 0. Which "
        "path is right cannot "
        "be known there; under `vmap`, rows may need different ones. Use `jax.lax.cond` (or "
        "`jnp.where`) for this "
        "branch, call it outside the transformation, or put `guarded` outside: "
        "`guarded(jax.grad(f))`, and a loop "
        "over rows instead of `vmap`."
    )


def test_a_branch_of_code_without_a_file_is_named_by_its_line():
    namespace = {}
    exec(compile("def typed(x):\n    return x if x > 0 else -x", "typed.py", "exec"), namespace)
    text = text_of(
        incrax.errors.PythonBranchError, jax.jit(incrax.guarded(namespace["typed"])), 2.0
    )
    assert "Python asks for one: typed.py:2. Which path" in text


def test_a_branch_in_a_part_that_jax_traces():
    assert text_of(
        incrax.errors.PythonBranchError, incrax.guarded(lambda x: jax.jit(branching)(x)), 2.0
    ) == (
        "`guarded(<lambda>)` found Python control flow in a part that JAX traces without values (a "
        "function under "
        "`jax.jit` or `vmap`, a body of `scan`, a function with a derivative rule of its own): "
        f"test_messages.py:{line_of(branching)}: x > 0. {UNTOUCHED} Use `jax.lax.cond` or "
        "`jnp.where` there, or move "
        "the branch out of that part."
    )


def test_numpy_in_an_incremental_function():
    def by_numpy(x):
        return np.sin(x)

    assert text_of(incrax.errors.PythonBranchError, incrax.incremental(by_numpy), 2.0) == (
        "`incremental(by_numpy)` found NumPy, or another library, on a traced value: "
        f"test_messages.py:{line_of(by_numpy)}: np.sin(x). It wants numbers, and JAX traces "
        "without any. Nothing was evaluated or stored. Write `jax.numpy` in place of `numpy` "
        "there, or put what is outside of JAX into `jax.pure_callback`."
    )


def test_a_branch_in_an_incremental_function():
    assert text_of(incrax.errors.PythonBranchError, incrax.incremental(branching), 2.0) == (
        "`incremental(branching)` found Python control flow on a traced value: "
        f"test_messages.py:{line_of(branching)}: x > 0. Tracing sees one side only, and would be "
        "wrong on the other. "
        "Nothing was evaluated or stored. Write `incremental(guarded(f))`, which records each path "
        "and keeps values "
        "for each (`incrax.guarded`; derivatives inside: `incremental(guarded(jax.grad(f)))`), or "
        "`jax.lax.cond` for "
        "this branch."
    )


def by_integer(n, x):
    return x * int(n)


def test_too_many_paths():
    f = incrax.guarded(by_integer, max_paths=1, fallback="error")
    f(0, 2.0)
    explosion = (
        "`guarded(by_integer)` has met more than 1 paths. Outcomes seen, by guard: "
        f"test_messages.py:{line_of(by_integer)}: int(n): 1. The usual cause is a branch inside a "
        "loop over elements, "
        "or a Python integer that takes many values. Use `jnp.where` or `jax.lax.cond` for the "
        "first of these guards."
    )
    text = text_of(incrax.errors.TooManyPathsError, f, 1, 2.0)
    assert text == f'{explosion} Raise `max_paths`, or pass `fallback="eager"`.'
    g = incrax.guarded(by_integer, max_paths=1)
    g(0, 2.0)
    with pytest.warns(UserWarning, match="has met more than 1 paths") as caught:
        g(1, 2.0)
    assert str(caught[0].message) == (
        f"{explosion} Recorded paths stay compiled; on any other the function is called as it is, "
        "operation by "
        "operation."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fallback": "jit"}, '`guarded(fallback=...)` got \'jit\'; use "eager" or "error".'),
        (
            {"fallback": "cond"},
            '`guarded(fallback=...)` got \'cond\'; use "eager" or "error". "cond" was removed: '
            "write branches that "
            "have too many paths as `jax.lax.cond` by hand.",
        ),
    ],
)
def test_options_of_wrong_values(options, text):
    with pytest.raises(ValueError, match="guarded") as caught:
        incrax.guarded(branching, **options)
    assert str(caught.value) == text


@pytest.mark.parametrize("options", [{"guard": 3}])
def test_options_of_wrong_types(options):
    with pytest.raises(TypeError, match="guarded"):
        incrax.guarded(branching, **options)
    with pytest.raises(TypeError, match="a function"):
        incrax.guarded(3)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("floats", "Pass the float as `static=`, or compute with `jax.numpy`."),
        ("dynamic", "Pass an `incrax.Padded(rows, length)`, or use `incrax.bucketed`."),
    ],
)
def test_options_that_went(option, instead):
    with pytest.raises(TypeError) as caught:
        incrax.guarded(branching, **{option: "x"})
    assert str(caught.value) == f"`incrax.guarded` has no `{option}` since version 0.2. {instead}"
