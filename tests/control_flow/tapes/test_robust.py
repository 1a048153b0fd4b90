"""Awkward users of guarded functions: profilers, bare `except`, programs that do not compile, JAX's
own questions.
"""

from __future__ import annotations

import contextlib
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax


def branching(x):
    return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2


# --- exceptions -----------------------------------------------------------------------------------


def bare_except(x):
    try:
        return x * 2.0 if x > 1 else x * 3.0
    except:  # noqa: E722
        return x * 100.0


def suppressed(x):
    with contextlib.suppress(BaseException):
        return x * 2.0 if x > 1 else x * 3.0
    return x * 100.0


def returned_by_finally(x):
    y = x
    try:
        y = x * 2.0 if x > 1 else x * 3.0
    finally:
        return y  # noqa: B012


def raised_instead(x):
    try:
        return x * 2.0 if x > 1 else x * 3.0
    except BaseException:
        raise ValueError("instead") from None


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("fun", [bare_except, suppressed, returned_by_finally, raised_instead])
def test_code_that_catches_everything_does_not_hide_a_branch(fun):
    f = incrax.guarded(fun)
    assert [float(f(x)) for x in (0.5, 2.0, 0.25)] == [1.5, 4.0, 0.75]
    assert f.stats.recordings == 2


def as_integer(x):
    try:
        return x * 0 + int(x)
    except (ValueError, OverflowError):
        return jnp.nan_to_num(x, nan=7.0, posinf=8.0, neginf=9.0)


@pytest.mark.parametrize(
    "values", [(2.5, np.nan, np.inf, -np.inf, 3.5), (np.inf, 2.5, np.nan, -np.inf, 3.5)]
)
def test_an_integer_of_what_is_not_finite_is_an_outcome_of_its_own(values):
    f = incrax.guarded(as_integer)
    for x in map(np.float64, values * 2):
        assert float(f(x)) == float(as_integer(jnp.asarray(x)))
    assert f.stats.recordings == 5


def test_a_function_without_arguments_may_branch():
    f = incrax.guarded(lambda: jnp.ones(2) if jnp.sum(jnp.ones(3)) > 1 else 0.0)
    assert [float(jnp.sum(f())) for _ in range(2)] == [2.0, 2.0]
    assert f.stats.recordings == 1


# --- paths ----------------------------------------------------------------------------------------


def test_a_path_whose_program_does_not_compile_stands_in_no_other_call_s_way():
    def fun(x, n):
        return jax.random.normal(jax.random.key(0), (n,)) * x

    f = incrax.guarded(fun)
    assert f(1.0, 2).shape == (2,)
    with pytest.raises(Exception, match=r".") as caught:
        f(1.0, -1)
    assert not isinstance(caught.value, incrax.errors.TapeError)
    assert [f(1.0, n).shape for n in (3, 2, 3)] == [(3,), (2,), (3,)]
    assert (f.stats.recordings, f.stats.hits) == (3, 0)


def test_a_search_ends_where_paths_send_a_call_to_one_another():
    f = incrax.guarded(branching)
    f(np.zeros(3)), f(np.ones(3))
    tape = f._latest
    tried = []
    assert (
        tape.search(tape.likely, lambda path: (tried.append(path), (0, None))[1], [np.zeros(3)])
        is None
    )
    assert len(tried) == 2


# --- text -----------------------------------------------------------------------------------------


def test_names_that_jax_makes_of_traced_values_are_no_guards():
    f = incrax.guarded(jax.jacrev(branching))
    for x in (np.full(3, 0.1), np.ones(3), np.full(3, 0.2)):
        np.testing.assert_allclose(f(x), jax.grad(branching)(jnp.asarray(x)))
    assert f.stats.recordings == 2
    assert all(len(path["guards"]) == 1 for path in f.explain().as_dict()["paths"])


def test_what_is_printed_to_a_file_is_a_guard():
    def fun(n):
        out = io.StringIO()
        print(n, file=out)
        return n * len(out.getvalue())

    f = incrax.guarded(fun)
    assert [int(f(n)) for n in (5, 500, 5)] == [10, 2000, 10]


# --- static arguments -----------------------------------------------------------------------------


def test_static_twins_are_told_apart_inside_tuples_and_by_sign():
    f = incrax.guarded(lambda x, s: jnp.copysign(x, s[0]), static="s")
    g = incrax.guarded(lambda x, s: jnp.asarray(s[0]), static="s")
    assert [float(f(1.0, (s,))) for s in (0.0, -0.0)] == [1.0, -1.0]
    assert [g(1.0, s=(s,)).dtype.kind for s in (1, 1.0, True)] == ["i", "f", "b"]
    assert (f.stats.recordings, g.stats.recordings) == (2, 3)
