"""A slow code outside JAX in the middle of a model runs only when its own inputs change, wherever
it stands.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL, check, primitives_run, same
from jax import lax

import incrax

ROOT = Path(__file__).parent.parent
N = 40
Y = np.linspace(-1.0, 1.0, N)
P = np.array([1.0, 2.0, 3.0, 1.5, 0.2, -0.1])
"""Three parameters of the code, three nuisances."""
MEMORY = 10**9

WAYS = {
    "default": {},
    "minimal": {"tuning": MINIMAL},
    "eager": {"tuning": EAGER},
    "exact": {"policy": "exact"},
}
every_way = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


def spectrum(p):
    p = np.asarray(p)
    return np.sin(np.arange(1, N + 1) * p[..., :1]) + p[..., 1:2] * p[..., 2:3]


def jacobian(p):
    k = np.arange(1, N + 1)
    return np.stack([k * np.cos(k * p[0]), np.full(N, p[2]), np.full(N, p[1])], -1)


def second(p):
    k = np.arange(1, N + 1)
    result = np.zeros((N, 3, 3))
    result[:, 0, 0] = -(k**2) * np.sin(k * p[0])
    result[:, 1, 2] = result[:, 2, 1] = 1.0
    return result


class Code:
    """The code and its derivatives, which count their runs; one run can be told to fail."""

    def __init__(self, vmap_method="sequential"):
        self.vmap_method = vmap_method
        self.runs = {"value": 0, "jacobian": 0, "second": 0}
        self.seen = []
        self.fails_at = 0

    def call(self, name, function, p):
        self.runs[name] += 1
        self.seen.append(np.asarray(p))
        if sum(self.runs.values()) == self.fails_at:
            raise ArithmeticError("the code failed")
        return function(np.asarray(p))

    def value(self, p):
        return self.call("value", spectrum, p)

    def jacobian(self, p):
        return self.call("jacobian", jacobian, p)

    def second(self, p):
        return self.call("second", second, p)

    def since(self, before):
        return tuple(self.runs[name] - before[name] for name in self.runs)

    def make(self):
        """The code as a JAX function, with two derivatives."""

        def outside(function, *shape):
            return lambda p: jax.pure_callback(
                function,
                jax.ShapeDtypeStruct(p.shape[:-1] + shape, np.float64),
                p,
                vmap_method=self.vmap_method,
            )

        theory = jax.custom_jvp(outside(self.value, N))
        derivative = jax.custom_jvp(outside(self.jacobian, N, 3))
        curvature = outside(self.second, N, 3, 3)
        theory.defjvp(lambda p, dp: (theory(*p), derivative(*p) @ dp[0]))
        derivative.defjvp(lambda p, dp: (derivative(*p), curvature(*p) @ dp[0]))
        return theory


def nll(spectrum, nuisance):
    return jnp.sum((nuisance[0] * spectrum + nuisance[1] - Y) ** 2) * jnp.exp(-nuisance[2])


def model(theory):
    return lambda p: nll(theory(p[:3]), p[3:])


def at(**changes):
    """The parameters with elements `_k` replaced."""
    p = P.copy()
    for name, value in changes.items():
        p[int(name[1:])] = value
    return p


A, B = P, at(_0=1.3)


def runs_at(f, code, points, plain=None):
    """How often the code runs in each call; results are those of the plain function, evaluated by
    another code.
    """
    counts = []
    for p in points:
        before = dict(code.runs)
        result = f(p)
        counts.append(code.since(before))
        if plain is not None:
            same(result, plain(p), factor=4096)
        check(f)
    return counts


def values_at(f, code, points, plain=None):
    return [count[0] for count in runs_at(f, code, points, plain)]


def pair(build, derive=lambda f: f, **options):
    """An incremental function, its code, and the plain function on a code of its own."""
    code = Code()
    return (
        incrax.incremental(derive(build(code.make())), **options),
        code,
        jax.jit(derive(build(Code().make()))),
    )


NUISANCES = [
    at(_3=1.1),
    at(_4=0.3),
    at(_5=0.3),
    at(_3=2.0, _4=3.0, _5=0.1),
    at(_4=-1.0),
    at(_4=-2.0),
]
DERIVE = {
    "value": (lambda f: f, (1, 0, 0)),
    "gradient": (jax.grad, (1, 1, 0)),
    "value and gradient": (jax.value_and_grad, (1, 1, 0)),
    "value, then gradient": (lambda f: lambda p: (f(p), jax.grad(f)(p)), (1, 1, 0)),
    "checkpointed": (lambda f: jax.value_and_grad(jax.checkpoint(f)), (1, 1, 0)),
    "jitted inside": (lambda f: lambda p: jax.value_and_grad(jax.jit(f))(p), (1, 1, 0)),
    "jacfwd": (jax.jacfwd, (1, 1, 0)),
    "hessian": (jax.hessian, (1, 1, 1)),
}


@every_way
@pytest.mark.parametrize(("derive", "once"), DERIVE.values(), ids=DERIVE)
def test_value_and_derivatives_run_each_code_once_per_change_of_its_inputs(derive, once, options):
    f, code, plain = pair(model, derive, **options)
    none = (0, 0, 0)
    points = [A, *NUISANCES, B, at(_0=1.3, _3=0.5), A, A]
    assert runs_at(f, code, points, plain) == [once, *[none] * 6, once, none, none, none]


@every_way
def test_going_back_and_forth_between_two_theories_runs_the_code_twice(options):
    f, code, plain = pair(model, **options)
    points = [at(_0=p[0], _4=0.1 * k) for k in range(6) for p in (A, B)]
    assert values_at(f, code, points, plain) == [1, 1] + [0] * 10


def test_only_elements_that_the_code_reads_make_it_run():
    f, code, plain = pair(
        lambda theory: lambda p: nll(theory(jnp.stack([p[4], p[1], p[0]])), p[3:]), tuning=MINIMAL
    )
    points = [
        A,
        at(_2=9.0),
        at(_3=9.0),
        at(_5=1.0),
        at(_4=9.0),
        at(_4=9.0, _1=1.0),
        at(_4=9.0, _1=1.0, _0=0.0),
    ]
    assert values_at(f, code, points, plain) == [1, 0, 0, 0, 1, 1, 1]


def test_a_call_that_does_not_reach_the_code_does_not_reach_its_callback():
    f, code, _ = pair(model, tuning=MINIMAL)
    f(A)
    f(at(_3=9.0))
    assert "pure_callback" not in primitives_run(f)


def in_branch(theory):
    return lambda p: lax.cond(p[3] > 0, lambda p: nll(theory(p[:3]), p[3:]), lambda p: p[4], p)


def in_both(theory):
    other = lambda p: jnp.sum(theory(p[1:4]))
    return lambda p: lax.cond(p[3] > 0, lambda p: nll(theory(p[:3]), p[3:]), other, p)


@every_way
def test_an_input_of_the_code_that_keeps_its_bits_is_no_change(options):
    f, code, plain = pair(
        lambda theory: lambda p: nll(theory(jnp.clip(p[:3], 0.0, 2.0)), p[3:]), **options
    )
    assert values_at(f, code, [A, at(_2=5.0), at(_2=2.5, _3=0.0), at(_2=1.5)], plain) == [
        1,
        0,
        0,
        1,
    ]


# --- inside other things --------------------------------------------------------------------------


def in_scan(theory):
    return lambda p: jnp.sum(
        lax.scan(lambda c, x: (c * 0.5 + nll(theory(p[:3] + x), p[3:]), c), 0.0, Y[:3])[1]
    )


def in_scan_unchanged(theory):
    return lambda p: lax.scan(lambda c, x: (c + x * nll(theory(p[:3]), p[3:]), None), 0.0, Y[:3])[0]


def in_while(theory):
    step = lambda p: lambda c: (c[0] + 1, c[1] + nll(theory(p[:3]), p[3:]))
    return lambda p: lax.while_loop(lambda c: c[0] < 2, step(p), (0, p[5]))


def while_any(theory):
    return lambda p: in_while(theory)(p)[1]


def in_vmap(theory):
    return lambda p: jnp.sum(jax.vmap(lambda x: nll(theory(p[:3] + x), p[3:]))(Y[:3]))


def in_inner_jit(theory):
    inner = jax.jit(lambda q: nll(jax.jit(theory)(q[:3]), q[3:]))
    return lambda p: inner(p) + jax.jit(lambda q: jnp.sum(theory(q)))(p[:3])


PLACES = {in_branch: 1, in_scan: 3, in_scan_unchanged: 1, in_while: 1, in_vmap: 3, in_inner_jit: 1}


@every_way
@pytest.mark.parametrize(
    ("build", "runs"), PLACES.items(), ids=[build.__name__ for build in PLACES]
)
def test_the_code_runs_inside_other_things_as_often_as_it_has_new_operands(build, runs, options):
    f, code, plain = pair(build, **options)
    points = [A, *NUISANCES, B, at(_0=1.3, _3=0.5), A]
    assert values_at(f, code, points, plain) == [runs, *[0] * 6, runs, 0, 0]


@pytest.mark.parametrize(
    ("other", "memory"),
    [(in_both, 10**5), (in_branch, 1000), (while_any, MEMORY)],
    ids=["both", "forgotten", "any number"],
)
def test_results_that_may_be_forgotten_are_saved_from_the_first_call_on(other, memory):
    """Unless results of many evaluations are remembered, of one branch where another does without."""
    f, _, _ = pair(
        lambda theory: lambda p, b: other(theory)(p) + jnp.sum(jnp.exp(b * Y)),
        tuning=FAST,
        memory=memory,
    )
    f(A, 1.0)
    f(A, 2.0)
    assert {"cond", "while"}.isdisjoint(primitives_run(f))


def test_a_branch_that_is_not_taken_runs_nothing():
    f, code, plain = pair(in_branch)
    assert values_at(f, code, [at(_3=-1.0), at(_3=-1.0, _0=5.0), at(_3=1.0, _0=5.0)], plain) == [
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    "method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"]
)
def test_a_batch_runs_again_where_it_changed(method):
    """One after the other, a row is a call; all at once, the batch is."""
    code, plain = Code(method), jax.jit(jax.vmap(model(Code(method).make())))
    f = incrax.incremental(jax.vmap(model(code.make())))
    rows = np.stack([at(_0=float(k)) for k in range(4)])
    moved, other = rows.copy(), rows.copy()
    moved[:, 3:] += 1.0
    other[2, 0] = 9.0
    by_row = method.startswith("sequential")
    assert values_at(f, code, [rows, moved, other], plain) == ([4, 0, 1] if by_row else [1, 0, 1])


def test_nuisances_in_a_batch_share_one_run():
    def build(theory):
        return lambda rows: jax.vmap(lambda row: nll(theory(P[:3] + 0 * rows[0, 0]), row))(rows)

    f, code, plain = pair(build)
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 1.0, 0.5]])
    assert values_at(f, code, [rows, rows + 1], plain) == [1, 0]


# --- several codes, other types -------------------------------------------------------------------


@every_way
def test_several_codes_run_independently(options):
    codes, plains = [Code(), Code()], [Code(), Code()]

    def build(first, second):
        return lambda p: nll(first(p[:3]) + second(p[2:5]), p[3:])

    f = incrax.incremental(build(*[code.make() for code in codes]), **options)
    plain = jax.jit(build(*[code.make() for code in plains]))
    counts = []
    for p in (A, at(_0=9.0), at(_4=9.0), at(_2=9.0), at(_5=9.0), at(_5=8.0, _0=9.0)):
        before = [code.runs["value"] for code in codes]
        same(f(p), plain(p), factor=4096)
        counts.append([code.runs["value"] - n for code, n in zip(codes, before, strict=True)])
    assert counts == [[1, 1], [1, 0], [0, 1], [1, 1], [0, 0], [0, 0]]


@every_way
def test_a_code_may_take_and_return_trees(options):
    runs = []

    def host(shape, *, scale):
        runs.append(shape)
        return {
            "line": np.asarray(shape["a"]) * np.arange(3.0),
            "flag": np.asarray(scale) > 1,
            "total": np.int32(7),
        }

    types = {
        "line": jax.ShapeDtypeStruct((3,), np.float64),
        "flag": jax.ShapeDtypeStruct((), np.bool_),
        "total": jax.ShapeDtypeStruct((), np.int32),
    }

    def fun(a, b, c):
        out = jax.pure_callback(host, types, {"a": a, "b": (b,)}, scale=b)
        return jnp.sum(jnp.where(out["flag"], out["line"], c)) * c, out["total"]

    f, plain = incrax.incremental(fun, **options), jax.jit(fun)
    points = [(1.0, 2.0, 3.0), (1.0, 2.0, 4.0), (1.0, 0.5, 4.0), (1.0, 2.0, 5.0)]
    expected = [plain(*p) for p in points]
    runs.clear()
    for p, y in zip(points, expected, strict=True):
        same(f(*p), y)
    assert len(runs) == 2


def test_a_code_that_returns_one_buffer_each_time_spoils_nothing():
    buffer = np.zeros(3)

    def host(a):
        buffer[:] = np.asarray(a)
        return buffer

    fun = lambda a, b: jax.pure_callback(host, jax.ShapeDtypeStruct((3,), np.float64), a) * b
    f = incrax.incremental(fun)
    for a, b in itertools.product((1.0, 2.0, 1.0), (1.0, 2.0, 3.0)):
        assert np.array_equal(f(a, b), [a * b] * 3)


# --- errors, verification, switches ---------------------------------------------------------------


@every_way
@pytest.mark.parametrize("fails_at", [1, 2, 3, 6])
def test_a_code_that_fails_leaves_everything_as_it_was(fails_at, options):
    f, code, plain = pair(model, jax.value_and_grad, **options)
    code.fails_at = fails_at
    messages = []
    for p in (A, NUISANCES[0], B, at(_0=1.3, _3=0.5), at(_0=1.4), A):
        try:
            result = f(p)
        except Exception as error:
            messages.append(str(error))
            check(f)
            result = f(p)
        same(result, plain(p), factor=4096)
    assert f.stats.aborted == len(messages) == 1
    assert "the code failed" in messages[0]
    assert code.runs["value"] + code.runs["jacobian"] == 7


def test_verification_finds_nothing_and_leaves_what_is_remembered():
    f, code, _ = pair(model, jax.value_and_grad)
    with incrax.verify(every=1):
        fresh = runs_at(f, code, [A, *NUISANCES, B, A])
    assert fresh == [(2, 2, 0), *[(1, 1, 0)] * 6, (2, 2, 0), (1, 1, 0)]
    assert runs_at(f, code, [at(_3=7.0), at(_0=1.3, _3=7.0)]) == [(0, 0, 0), (0, 0, 0)]


def test_verification_finds_a_code_that_became_another():
    scale = [1.0]

    def host(a):
        return np.asarray(a) * scale[0]

    f = incrax.incremental(
        lambda a, b: jax.pure_callback(host, jax.ShapeDtypeStruct((), np.float64), a) * b
    )
    f(1.0, 1.0)
    scale[0] = 2.0
    assert f(1.0, 3.0) == 3.0
    with (
        pytest.raises(incrax.StaleResultError, match="a `pure_callback` that is not pure"),
        incrax.verify(),
    ):
        f(1.0, 4.0)
    assert f(1.0, 5.0) == 10.0


def test_fresh_runs_the_code_and_clear_forgets_it():
    f, code, _ = pair(model)
    f(A)
    assert [runs_of(code, f.fresh, A) for _ in range(2)] == [1, 1]
    assert runs_of(code, f, A) == 0
    f.clear()
    assert runs_of(code, f, A) == 1


def runs_of(code, function, *args, **kwargs):
    before = code.runs["value"]
    jax.block_until_ready(function(*args, **kwargs))
    return code.runs["value"] - before


def test_a_function_that_is_turned_off_runs_the_code_each_time(monkeypatch):
    monkeypatch.setenv("INCRAX_DISABLE", "1")
    f, code, _ = pair(model)
    state, step = f.pure(A)
    assert [runs_of(code, f, A) for _ in range(3)] == [1, 1, 1]
    assert [runs_of(code, step, state, A) for _ in range(2)] == [1, 1]


def test_a_budget_of_nothing_remembers_nothing():
    f, code, plain = pair(model, memory=0)
    assert values_at(f, code, [A, at(_3=9.0), at(_3=8.0)], plain) == [1, 1, 1]
    assert f.stats.saved_bytes == 0


def test_warming_up_runs_the_code_once():
    f, code, _ = pair(model)
    f.warm_up(A, changing=["p[0]", "p[3]"])
    assert code.runs["value"] == 1


def test_other_traces_know_what_the_code_returned():
    code = Code()
    theory = code.make()
    f = incrax.incremental(lambda p, kind: nll(theory(p[:3]), p[3:]))
    f(A, "first")
    assert runs_of(code, f, A, "second") == 0


# --- compiled loops, threads ----------------------------------------------------------------------


def test_a_chain_inside_a_compiled_loop_runs_the_code_for_each_new_theory():
    """A rejected theory is given up by the next step, which goes back to one that was known."""
    f, code, plain = pair(model)
    f(A)
    assert runs_of(code, f.pure, A) == 0
    state, step = f.pure(A)

    def move(state, p):
        state, value = step(state, p)
        return state, value

    points = np.stack([A, at(_3=1.0), B, at(_3=2.0), at(_0=1.3, _5=1.0), at(_0=1.4), at(_4=1.0)])
    before = dict(code.runs)
    _, values = lax.scan(move, state, points)
    assert code.since(before)[0] == 2
    np.testing.assert_allclose(values, [plain(p) for p in points], rtol=1e-12)


def test_a_step_is_differentiated_through_the_rule_of_the_code():
    f, _, plain = pair(model)
    state, step = f.pure(A)
    same(
        jax.grad(lambda p: step(state, p)[1])(B),
        jax.jit(jax.grad(model(Code().make())))(B),
        factor=4096,
    )


def test_threads_that_move_nuisances_share_one_run():
    f, code, plain = pair(model, jax.value_and_grad)
    f(A)
    expected = {k: plain(at(_3=float(k))) for k in range(24)}
    errors = []

    def work(first):
        for k in range(first, 24, 4):
            try:
                same(f(at(_3=float(k))), expected[k], factor=4096)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert code.runs == {"value": 1, "jacobian": 1, "second": 0}


# --- a code that calls back -----------------------------------------------------------------------


def calling_back(inner, use=1):
    """A model whose code calls `inner` at one of its uses; on large inputs XLA runs it in a thread
    of its own.
    """
    uses = []

    def host(a):
        uses.append(threading.get_ident())
        return np.asarray(inner(float(a)) if len(uses) == use else 1.0)

    def fun(a, x):
        for _ in range(3):
            x = jnp.sin(x @ x) / 1000
        return jax.pure_callback(
            host, jax.ShapeDtypeStruct((), np.float64), a + 0 * x[0, 0]
        ), jnp.sum(x)

    return fun, uses


@pytest.mark.parametrize("size", [1, 500], ids=["small", "large"])
def test_a_code_that_calls_its_own_function_is_an_error_instead_of_a_deadlock(size):
    x = jnp.ones((size, size))
    fun, uses = calling_back(lambda a: f(a + 1, x)[0])
    f = incrax.incremental(fun)
    with pytest.raises(Exception, match="waits for"):
        f(1.0, x)
    assert len(uses) == 1
    assert float(f(1.0, x)[0]) == 1.0
    check(f)


@pytest.mark.parametrize("method", ["explain", "deps", "clear"])
def test_no_method_of_its_function_works_inside_a_code(method):
    x = jnp.ones((1, 1))
    fun, _ = calling_back(lambda a: getattr(f, method)() and 1.0, use=2)
    f = incrax.incremental(fun)
    f(1.0, x)
    with pytest.raises(Exception, match="waits for"):
        f(2.0, x)
    assert float(f(2.0, x)[0]) == 1.0


@pytest.mark.parametrize("size", [1, 500], ids=["small", "large"])
def test_a_code_may_call_other_functions(size):
    x = jnp.ones((size, size))
    other = incrax.incremental(lambda a: jnp.exp(a))
    fun, uses = calling_back(other)
    f = incrax.incremental(fun)
    assert float(f(1.0, x)[0]) == pytest.approx(np.e)
    assert len(uses) == 1


def test_a_code_may_call_the_plain_function():
    x = jnp.ones((1, 1))
    fun, uses = calling_back(lambda a: jax.jit(f.__wrapped__)(a + 1, x)[0])
    f = incrax.incremental(fun)
    assert float(f(1.0, x)[0]) == 1.0
    assert len(uses) == 2


# --- the page and the example ---------------------------------------------------------------------


def test_the_page_prints_what_it_shows():
    page = (ROOT / "docs" / "external_code.md").read_text(encoding="utf-8")
    pieces = re.findall(r"^```(python|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    namespace, printed, shown = {}, io.StringIO(), ""
    for language, text in pieces:
        if language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "external_code.md", "exec"), namespace)
        else:
            shown += text
    assert printed.getvalue() == shown != ""


def test_the_code_of_the_example_is_the_same_in_c_and_in_numpy(tmp_path):
    spec = importlib.util.spec_from_file_location(
        "external_code", ROOT / "examples" / "external_code.py"
    )
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    compiled = example.compiled_code(tmp_path)
    if compiled is None:
        pytest.skip("no C compiler here")
    np.testing.assert_allclose(
        compiled(example.TRUTH[0]), example.numpy_code(example.TRUTH[0]), rtol=1e-12
    )
    assert example.Counted(compiled).jacobian(example.TRUTH[0]).shape == (example.NUM_BINS, 3)
