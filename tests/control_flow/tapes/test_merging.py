"""`fallback="cond"`: sides that only assign variables become one `lax.cond`; what cannot be merged is never wrong."""

from __future__ import annotations

import collections
import itertools
import linecache
import operator
import threading
import time
import types
import warnings
from operator import is_ as same_object

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.experimental import io_callback

import incrax
from incrax.control_flow.tapes import making, oracle
from incrax.control_flow.tapes.mechanism import recorded_by
from incrax.control_flow.tapes.rewriting import rewritten_code
from incrax.control_flow.tapes.syntax import Refused
from incrax.engine.inputs.signature import make_signature

RNG = np.random.default_rng(3)


def rows(num, count=20):
    return [RNG.normal(size=count) for _ in range(num)]


def check(fun, calls, **options):
    """Values are those of eager Python; returns the guarded function."""
    f = incrax.guarded(fun, fallback="cond", **{"max_paths": 2, **options})
    for x in calls:
        same(f(x), jax.tree.map(jnp.asarray, fun(jnp.asarray(x))), factor=1024.0)
    return f


def merged_places(f):
    return [b["place"].partition(": ")[2] for b in f.explain().as_dict()["branches"] if b["is_merged"]]


def reasons(f):
    return [f"{b['place']}: {b['reason']}" for b in f.explain().as_dict()["branches"] if b["reason"]]


def total(xs):
    s = jnp.zeros(())
    for x in xs:
        if x > 0:
            s = s + jnp.log(x)
        else:
            s = s - x
    return s


# --- what is recorded and what runs -----------------------------------------------------------------------------------


def test_twenty_branches_become_one_program():
    f = check(total, rows(12))
    assert (f.stats.recordings, f.stats.compiles, f.stats.eager) == (2 + 1, 2 + 1, 0)
    assert merged_places(f) == ["x > 0"]
    before = f.stats.as_dict()
    for x in rows(10):
        same(f(x), total(jnp.asarray(x)), factor=1024.0)
    after = f.stats.as_dict()
    assert after["hits"] == before["hits"] + 10
    assert [after[k] - before[k] for k in ("merged", "recordings", "compiles", "misses")] == [0, 0, 0, 0]


def test_every_combination_of_outcomes_is_right():
    def fun(xs):
        s, best = jnp.zeros(()), xs[0]
        for x in xs:
            if x > best:
                best = x
            s = s * 1.5 + x if s < 0.4 else s - best
        return s, best

    calls = [np.array(signs) * np.array([0.3, 0.5, 0.4]) for signs in itertools.product([-1.0, 1.0, 2.0], repeat=3)]
    f = check(fun, calls)
    assert f.stats.eager == 0
    assert f.stats.recordings <= 4


def test_a_side_that_is_not_taken_is_not_executed():
    seen = []

    def host(v):
        seen.append(float(v))
        return np.sqrt(v)

    def fun(xs):
        s = jnp.zeros(())
        for x in xs:
            if x > 0:
                s = s + jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float64), x)
        return s

    f = check(fun, rows(4, 6), constant=("seen", "host"))
    assert merged_places(f) == ["x > 0"]
    assert min(seen) > 0


def test_no_nan_of_a_side_that_is_not_taken_reaches_value_or_gradient():
    f = check(total, rows(3, 5))
    x = jnp.array([0.5, -1.0, 0.0, 2.0, -3.0])
    same(jax.grad(f)(x), jax.grad(total)(x), factor=64.0)
    assert not jnp.isnan(jax.grad(f)(x)).any()
    with jax.debug_nans(True):
        same(f(x), total(x), factor=64.0)


def test_paths_that_are_few_are_not_merged():
    f = incrax.guarded(total, fallback="cond", max_paths=8)
    for signs in itertools.product([-1.0, 1.0], repeat=3):
        f(np.array(signs))
    assert (f.stats.recordings, f.stats.merged) == (8, 0)


def test_an_integer_that_python_reads_stays_a_guard():
    def fun(xs):
        s = jnp.zeros(())
        for _ in range(int(jnp.sum(xs > 5))):
            s = s + 1.0
        for x in xs:
            if x > 0:
                s = s + x
        return s

    f = check(fun, [*rows(4, 5), *(x + 10 for x in rows(4, 5))])
    assert len(f.explain().as_dict()["paths"]) == 2
    assert f.stats.eager == 0


# --- forms of branches ------------------------------------------------------------------------------------------------


def helper(x):
    if x > 0:
        return 2.0 * x
    return jnp.exp(x)


def in_helper(xs):
    s = jnp.zeros(())
    for x in xs:
        y = helper(x)
        s = s + y
    return s


def in_expression(xs):
    s = jnp.zeros(())
    for x in xs:
        s += x if x > 0 else 0.1 * x
    return s


def with_continue(xs):
    s = jnp.ones(())
    for x in xs:
        if x < 0:
            continue
        s = s * jnp.sin(x)
    return s


def with_lists(xs):
    kept = []
    for x in xs:
        if x > 0:
            y = x * 2
        else:
            y = jnp.sin(x)
        kept.append(y)
    return jnp.stack(kept)


def in_while(xs):
    n, s = 0, jnp.zeros(())
    while n < 6:
        if s < xs[n]:
            s = s + 1.0
        n += 1
    return s


def at_the_end(xs):
    s = jnp.sum(xs)
    for x in xs[:3]:
        if x > 0:
            s = s * x
    if s > 0:
        return {"s": s, "n": 3}
    return {"s": -s, "n": 3}


def inner_loops(xs):
    s = jnp.zeros(())
    for x in xs:
        if x > 0:
            for _ in range(3):
                s = s + jnp.cos(s + x)
        else:
            for k in range(2):
                s = s - k * x
    return s


class Model:
    """What a method reads and calls on a side."""

    def __init__(self):
        self.scale, self.offsets = 2.0, {"a": jnp.ones(())}

    def low(self, x):
        shifted = x + self.offsets["a"]
        return jnp.sin(shifted) * self.scale

    def __call__(self, xs):
        s = jnp.zeros(())
        for x in xs:
            y = self.scale * x if x > 0 else self.low(x)
            s = s + y
        return s


def in_method(xs):
    return Model()(xs)


def with_temporaries(xs):
    """What only one side needs, in each turn anew."""
    s, t = jnp.zeros(()), 0
    for x in xs:
        if x > 0:
            t = jnp.sin(x)
            u = t * t
            s += u + t
        elif -1 < x < 0 and not s > 2:
            for k in range(2):
                s = s - k * x
        else:
            pair = (x, 2 * x)
            a, b = pair
            s = s + sum([y * y for y in (a, b)])
    return s


def after_another_function(xs):
    """A side reads a variable that an earlier turn's other side has left."""
    s, t = jnp.zeros(()), jnp.ones(())
    for x in xs:
        if x > 0:
            t = jnp.sin(x)
        else:
            s = s + t
    return s


def nested(xs):
    s = jnp.zeros(())
    for x in xs:
        if x > 0:
            if x > 1:
                s = s + 1.0
            else:
                s = s + helper(x - 0.5)
        elif x > -1 or s > 0:
            s = s - 1.0
    return s


def shared_twice(xs):
    a, b = xs[0], xs[1]
    for x in xs:
        if x > a:
            a, b = x, a
        elif x > b:
            b = x
    return a, b


FORMS = [in_helper, in_expression, with_continue, with_lists, in_while, at_the_end, inner_loops, in_method]
FORMS += [with_temporaries, after_another_function, nested, shared_twice, jax.value_and_grad(nested)]


@pytest.mark.parametrize("fun", FORMS)
def test_forms_of_branches_are_merged(fun):
    f = check(fun, rows(10, 8))
    assert f.stats.eager == 0
    assert f.stats.recordings <= 4
    assert f.stats.merged >= 8 or fun is at_the_end


def test_an_accumulator_that_begins_as_a_python_number_is_merged_from_the_first_array_on():
    def fun(xs):
        s = 0.0
        for x in xs:
            if x > 0:
                s = s + x
        return s

    calls = [abs(x) * np.array([-1.0] * n + [1.0] * (6 - n)) for n in range(6) for x in rows(2, 6)]
    f = check(fun, [*calls, *rows(20, 6)], max_paths=6)
    assert f.stats.eager == 0
    assert f.stats.recordings <= 6 + 6
    assert merged_places(f) == ["x > 0"]
    assert any("`s` is an array float64[] on one side and 0.0 on the other" in why for why in reasons(f))


# --- what may not be merged -------------------------------------------------------------------------------------------


def refused(fun, calls, match):
    """Right for every call, and the reason why branches stay guards is in the report."""
    f = incrax.guarded(fun, fallback="cond", max_paths=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in [*calls, *calls]:
            same(f(x), jax.tree.map(jnp.asarray, fun(jnp.asarray(x))), factor=1024.0)
    assert any(match in why for why in reasons(f)), reasons(f)
    return f


def with_maximum(xs):
    s = xs[0]
    for x in xs:
        s = max(x, s * 0.5)
    return s


def with_dictionary(xs):
    state = {"a": jnp.zeros(()), "b": [jnp.ones(())]}
    for x in xs:
        if x > 0:
            state["a"] = state["a"] + x
        else:
            state["b"][0] = state["b"][0] * x
    return state


def flagged(xs):
    """The second branch sees what the first has left in a Python variable."""
    flag, s = False, jnp.zeros(())
    if xs[0] > 0:
        flag = True
    if xs[1] > 0:
        if flag:
            s = s + 1000.0
        s = s + 1.0
    return s


def counted(xs):
    """A third thing happens after three of the first."""
    num, s = 0, jnp.zeros(())
    for x in xs:
        if x > 0:
            num += 1
        if num == 3:
            s = s + 100.0
    return s


def listed(xs):
    found = []
    for x in xs:
        if x > 0:
            found.append(x)
    return sum(found, jnp.zeros(()))


def in_attribute(xs):
    class Holder:
        flag = False

    holder, s = Holder(), jnp.zeros(())
    if xs[0] > 0:
        holder.flag = True
    if xs[1] > 0:
        s = s + (1000.0 if holder.flag else 1.0)
    return s


def in_closure(xs):
    n = 0

    def note():
        nonlocal n
        n += 1

    s = jnp.zeros(())
    if xs[0] > 0:
        note()
    if xs[1] > 0:
        s = s + (1000.0 if n else 1.0)
    return s


def on_the_stack(xs):
    one_or_two = (1 if xs[0] > 0 else 2, 1 if xs[1] > 0 else 2, 1 if xs[2] > 0 else 2)
    return jnp.sum(xs) + (1000.0 if one_or_two == (2, 2, 2) else 0.0)


def hidden_iterator(xs):
    s = jnp.zeros(())
    for k in (10, 20) if xs[0] > 0 else (10, 40):
        s = s + (k if xs[1] > 0 else -k)
    return s


def named_iterator(xs):
    items, s = iter([1.0, 2.0, 3.0, 4.0]), jnp.zeros(())
    for x in xs[:2]:
        if x > 0:
            next(items)
    return s + next(items)


def generated(xs):
    def twice():
        for x in xs[:3]:
            yield x * 2 if x > 0 else x

    return sum(twice(), jnp.zeros(()))


def boxes():
    box = []
    return [box] * 4


def left_in_a_hidden_list(xs):
    s = jnp.zeros(())
    for k, box in enumerate(boxes()):
        if len(box) == 2:
            s = s + 100.0
        if xs[k] > 0:
            box.append(1)
    return s


def made_again(xs):
    """The inner iterator is another one after a flag that is down again."""
    s, flag = jnp.zeros(()), False
    for x in xs[:2]:
        for k in (1, 2) if flag else (1, 3):
            flag = False
            s = s + k * 10.0
            if k > 1 and x > 0:
                flag = True
    return s


def identical(xs):
    a, b, s = xs[0] * 1.0, xs[1] * 1.0, jnp.zeros(())
    c = a if xs[2] > 0 else b
    if xs[3] > 0:
        s = s + (100.0 if c is a else 10.0)
    return s


def identical_to_another(xs):
    a, b, s = xs[0] * 1.0, xs[1] * 1.0, jnp.zeros(())
    c = a if xs[2] > 0 else b
    if xs[3] > 0:
        s = s + (100.0 if c is b else 10.0)
    return s


def compared_in_tuples(xs):
    best, s = (xs[0], 3), jnp.zeros(())
    top, n = xs[0], 0
    if xs[1] > top:
        top = xs[1]
    if xs[2] > 0:
        n = 5
        s = s + 1.0
    t = top
    if (t, 4) > best:
        s = s + 100.0
    return s + 0 * n


def other_types(xs):
    y = jnp.zeros(3)
    if xs[0] > 0:
        y = jnp.zeros(2)
    return jnp.sum(y) + jnp.sum(jnp.ones_like(y)) * (1.0 if xs[1] > 0 else 2.0)


def filtered(xs):
    """How far the hidden iterator goes depends on what a side leaves until then."""
    skip, s = [0], jnp.zeros(())

    def keeps(_):
        is_kept = not skip[0]
        skip[0] = 0
        return is_kept

    for k in filter(keeps, [1.0] * 6):
        s = s + k
        if xs[0] > 0:
            skip[0] = 1
    return s


def one_turn_less(xs):
    """A side skips a turn of a loop whose turns look alike."""
    s, is_first = jnp.zeros(()), True
    for _ in [0, 0, 0]:
        if is_first:
            is_first = False
            if xs[0] > 0:
                continue
        s = s + 1.0
        s = s * 2.0 if xs[1] > 0 else s * 3.0
    return s


def shared_with_an_inner_function(xs):
    a, s = xs[0], jnp.zeros(())

    def get():
        return a

    for x in xs:
        if x > 0:
            a = x
            s = s + get()
    return s


def left_unbound(xs):
    """A variable that only one side assigns is there or not."""
    s = jnp.zeros(())
    for x in xs:
        if x > 0:
            t = x
        try:
            s = s + t
        except UnboundLocalError:
            s = s + 10.0
    return s


def views(xs):
    rows = np.zeros(2)
    part = rows[:] if xs[0] > 0 else rows.copy()
    s = jnp.sum(xs)
    if xs[1] > 0:
        part[0] = 100.0
    return s + rows[0]


def other_context(xs):
    def open_or_not(is_open):
        return jax.enable_x64(True) if is_open else jax.enable_x64(True)

    with open_or_not(bool(xs[0] > 0)):
        s = jnp.sum(xs)
    return s if xs[1] > 0 else -s


PAIR = (1, 2)


def identical_tuple(xs):
    """A tuple that both sides leave is the tuple that it was."""
    s = PAIR
    if xs[0] > 0:
        s = PAIR
    return jnp.sum(xs) * (2.0 if s is PAIR else 3.0)


def identical_new_tuple(xs):
    """A tuple of arrays that are the same on both sides is another one on each."""
    a = xs[0] * 1.0
    pair = (a, a)
    new = pair
    if xs[0] > 0:
        new = (a, a)
    return a * (2.0 if new is pair else 3.0)


def identical_by_another_name(xs):
    a, b = xs[0] + 1.0, xs[0] + 2.0
    s = a if xs[0] > 0 else b
    return s * (10.0 if same_object(s, a) else 1.0)


def identical_in_a_table(xs):
    """What compares is found by no name."""
    a, b = xs[0] + 1.0, xs[0] + 2.0
    s = a if xs[0] > 0 else b
    return s * (10.0 if COMPARISONS[0](s, a) else 1.0)


def identical_inside_a_map(xs):
    a, b = xs[0] + 1.0, xs[0] + 2.0
    s = a if xs[0] > 0 else b
    return s * (10.0 if any(map(same_object, [s], [a])) else 1.0)


COMPARISONS = [operator.is_]
SIGNS = [np.array(signs) * np.array([0.5, 1.0, 1.5, 2.0]) for signs in itertools.product([-1.0, 1.0], repeat=4)]
SHUFFLED = [SIGNS[n] for n in (0, 15, 5, 10, 3, 12, 9, 6, 1, 14, 7, 8)]
CARRIERS = [
    *(flagged, counted, listed, in_attribute, in_closure, on_the_stack, hidden_iterator, named_iterator, generated),
    *(left_in_a_hidden_list, other_types, other_context, filtered, views, made_again, one_turn_less),
    *(shared_with_an_inner_function, left_unbound),
    *(identical, identical_to_another, compared_in_tuples),
]
COMPARING = [
    identical_tuple,
    identical_new_tuple,
    identical_by_another_name,
    identical_in_a_table,
    identical_inside_a_map,
]


@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
@pytest.mark.parametrize("fun", CARRIERS)
def test_what_a_side_leaves_in_python_is_never_mistaken(fun, order):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(fun, SIGNS[::order] * 2, max_paths=3)


@pytest.mark.parametrize("fun", COMPARING)
def test_objects_that_are_compared_by_identity_are_those_of_eager_python(fun):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(fun, SIGNS[::-1] + SIGNS, max_paths=1)


def test_identity_in_what_is_constant_is_seen_when_it_is_called():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(identical_in_a_table, SIGNS * 2, max_paths=1, constant=("COMPARISONS",))
        check(identical_by_another_name, SIGNS * 2, max_paths=1, constant=("same_object",))


def test_questions_that_are_no_branches_are_named():
    refused(with_maximum, SIGNS, "max(x, s * 0.5): it is no `if`")


def test_sides_that_change_objects_are_named():
    refused(with_dictionary, SIGNS, "a side changes an object")
    refused(listed, SIGNS, "a side calls something and drops the result")


def test_sides_of_other_types_are_named_as_the_reason():
    refused(other_types, SIGNS, "`y` is an array float64[2] on one side and an array float64[3] on the other")


def test_an_effect_is_named_as_the_reason():
    def fun(xs):
        s = jnp.zeros(())
        for x in xs:
            if x > 0:
                s = io_callback(host, jax.ShapeDtypeStruct((), s.dtype), s + x)
        return s

    def host(v):
        return np.asarray(v)

    f = incrax.guarded(fun, fallback="cond", max_paths=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in SIGNS:
            same(f(x), jnp.maximum(x, 0).sum())
    assert any("`io_callback` on a side is an effect" in why for why in reasons(f))
    assert f.stats.eager > 0


def reads(side, scope):
    """A function whose side evaluates an expression."""
    lines = ["def fun(xs):", "    s = jnp.sum(xs)", "    for x in xs:", "        if x > 0:"]
    lines += [f"            s = s + {side}", "    return s"]
    return written_function(lines, scope)


class Watched:
    def __init__(self):
        self.count, self.rows = 0, iter([1.0] * 100)

    @property
    def counted(self):
        self.count += 1
        return 1.0

    def count_up(self):
        self.count += 1
        return 1.0

    def __add__(self, other):
        self.count += 1
        return other

    __radd__ = __add__

    def __eq__(self, other):
        self.count += 1
        return True

    __hash__ = object.__hash__


COUNTS = {"n": 0}


def lazy_module():
    """A module that computes an attribute when it is read (PEP 562)."""
    module = types.ModuleType("lazy")
    module.__getattr__ = lambda name: count_up()
    return module


def count_up():
    COUNTS["n"] += 1
    return 1.0


def counting(x):
    COUNTS["n"] += 1
    return 1.0 * x


def with_rule():
    fun = jax.custom_jvp(counting)
    fun.defjvp(lambda primals, tangents: (counting(*primals), tangents[0]))
    return fun


PARTIAL, JITTED, RULED = jax.tree_util.Partial(counting), jax.jit(counting), with_rule()
MAPPED, UFUNC = jax.vmap(JITTED), jnp.frompyfunc(counting, nin=1, nout=1)
CONFIG, UPDATE = jax.config, jax.config.update
EFFECTS = {
    "PARTIAL(x)": "a side reads a `Partial`",
    "JITTED(x)": "a side reads a `counting`",
    "RULED(x)": "a side reads a `counting`",
    "MAPPED(xs)[0]": "which runs a function of yours that cannot be watched",
    "UFUNC(x)": "a side reads a `counting`",
    "jax.lax.switch(0, functions, x)": "a side reads a `counting`",
    "sum(watches)": "a side reads a `Watched`",
    "sum(table.values())": "a side reads a `Watched`",
    "(1.0 if watches == others else 2.0)": "a side reads a `Watched`",
    "watches.count(1)": "a side reads a `Watched`",
    "sum([a for a, b in zip(*iterators)])": "a side reads a `list_iterator`",
    "lazy.k": "`lazy.k` is computed when it is read",
    "(CONFIG.jax_enable_x64 * 1.0)": "a side reads a `Config`",
    "(UPDATE('jax_enable_x64', True) or 0)": "a side ",
    "w.counted": "`counted` is computed when it is read",
    "w.count_up()": "a side changes an object",
    "w": "a side reads a `Watched`",
    "count_up()": "a side changes an object",
    "items.pop()": "a side calls `pop` of a list",
    "jax.vmap(lambda v: v + count_up())(xs)[0]": "a side changes an object",
    "next(w.rows)": "a side reads a `next`",
    "sum(w.rows)": "a side reads a `list_iterator`",
    "time.time() * 0": "a side reads a `time`",
    "np.add(1.0, 1.0)": "a side uses `numpy.add`",
    "np.random.normal() * 0": "a side uses `numpy.random",
    "float(x)": "Python asks for a value on a side",
    "int(s)": "Python asks for a value on a side",
    "jnp.zeros((2,))[jnp.zeros(3)]": "TypeError is raised on a side",
    "unknown": "NameError is raised on a side",
    "getattr(w, 'counted')": "a side reads a `getattr`",
    "collections.Counter()['a']": "a side reads a `Counter`",
}


@pytest.mark.parametrize("side", EFFECTS)
def test_a_side_that_could_change_something_is_never_run_beside_the_other(side):
    watched, items = Watched(), [1.0] * 100
    scope = {"w": watched, "items": items, "count_up": count_up, "time": time, "np": np, "collections": collections}
    scope |= {"watches": [watched], "others": [Watched()], "table": {"a": watched}, "lazy": lazy_module()}
    scope |= {"functions": [counting, counting], "iterators": [iter(items)] * 2, "CONFIG": CONFIG, "UPDATE": UPDATE}
    scope |= {"PARTIAL": PARTIAL, "JITTED": JITTED, "RULED": RULED, "MAPPED": MAPPED, "UFUNC": UFUNC}
    fun = reads(side, scope)
    f = incrax.guarded(fun, fallback="cond", max_paths=1, constant=tuple(scope))
    f(-np.ones(3))
    COUNTS["n"] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (-np.ones(3), -2 * np.ones(3)):
            same(f(x), jnp.sum(jnp.asarray(x)))
        subject, why, _ = making.merging(f._subject, *signature_of(fun, np.array([-1.0, -2.0])), f.stats)
    assert subject is None
    assert any(EFFECTS[side] in reason for reason in why.values()), why
    assert (watched.count, COUNTS["n"], len(items), len(list(scope["iterators"][0]))) == (0, 0, 100, 100)


def signature_of(fun, *args):
    signature = make_signature(fun, args, {})
    return signature, signature.dynamic_leaves(jax.tree.leaves(args))


def test_a_function_that_changes_what_it_captures_is_not_merged():
    counts = {"positive": 0}

    def fun(xs):
        s = jnp.zeros(())
        for x in xs:
            if x > 0:
                s = s + x
        counts["positive"] += 1
        for x in xs:
            s = s * 2.0 if x > 1 else s
        return s

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(fun, SIGNS, max_paths=1)


def test_a_side_that_raises_stays_a_guard():
    def fun(xs):
        s = jnp.zeros(())
        for x in xs:
            if x > 1.9:
                raise ValueError("too large")
            s = s + x if x > 0 else s
        return s

    f = incrax.guarded(fun, fallback="cond", max_paths=2)
    for x in SIGNS * 2:
        if x.max() > 1.9:
            with pytest.raises(ValueError, match="too large"):
                f(x)
        else:
            same(f(x), fun(jnp.asarray(x)))
    assert f.stats.eager <= 1
    assert "x > 0" in merged_places(f)


def test_the_other_way_of_recording_merges_too():
    with recorded_by(oracle.record):
        f = check(total, SIGNS)
    assert (f.stats.recordings, f.stats.eager) == (3, 0)
    assert merged_places(f) == ["x > 0"]


def test_attempts_end_after_a_few_that_were_in_vain():
    f = incrax.guarded(counted, fallback="cond", max_paths=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in SIGNS:
            f(x)
    assert len(caught) == 1
    line = counted.__code__.co_firstlineno + 4
    assert f"test_merging.py:{line}: x > 0: `num` is 1 on one side and 0 on the other" in str(caught[0].message)
    assert f.stats.recordings == 1
    assert f.stats.eager == len(SIGNS) - 1


def summed_down(n):
    """It calls itself by its global name."""
    if n <= 0:
        return jnp.zeros(())
    return n + summed_down(n - 1)


def fibonacci(n):
    return 1.0 * n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def fibonacci_on_a_side(x):
    s = jnp.zeros(())
    for shift in range(3):
        if x + shift > 3:
            s = s + fibonacci(x)
        else:
            s = s - x
    return s


@pytest.mark.parametrize("fun", [summed_down, fibonacci, fibonacci_on_a_side])
def test_functions_that_call_themselves_stay_right(fun):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = check(fun, [jnp.asarray(x) for x in (3.0, 1.0, 4.0, 0.0)], max_paths=1)
    assert any("more than 8 calls inside one another on a side" in why for why in reasons(f)), reasons(f)


def test_a_copy_has_the_name_of_the_function():
    code = rewritten_code(summed_down, is_side=False)
    assert (code.co_name, code.co_qualname) == ("summed_down", "summed_down")


def chain(first, rest, last, num=40):
    """A function of many branches, one after another."""
    lines = ["def fun(xs):", "    s = jnp.zeros(())", "    for x in xs:", *first]
    lines += [f"{line.format(n=n)}" for n in range(num) for line in rest]
    return written_function([*lines, *last], {})


CHAINS = {
    "elif": (["        if x < -1: s = s - x"], ["        elif x < {n}: s = s + {n}.0 * x"], ["    return s"]),
    "continue": ([], ["        if x < {n}:", "            s = s + {n}.0", "            continue"], ["    return s"]),
    "return": (["        s = s + x"], ["    if s < {n}: return s * {n}.0"], ["    return s"]),
    "and": ([], ["        if x < {n} and " + " and ".join(["s < 9"] * 20) + ": s = s + x"], ["    return s"], 1),
    "value": ([], ["        s = s + (" + "x if x < 1 else (" * 20 + "s" + ")" * 21], ["    return s"], 1),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_long_chains_of_branches_are_not_copied_again_and_again(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = check(chain(*CHAINS[kind]), SIGNS[:4], max_paths=1)
    assert any("of `fun` are inside one another, or follow exits; at most 16" in why for why in reasons(f)), reasons(f)
    assert f.stats.merged == 0


def test_a_function_that_is_too_deep_for_the_interpreter_is_refused():
    with pytest.raises(Refused, match="too deep"):
        rewritten_code(chain(*CHAINS["return"], num=600), is_side=False)


# --- derivatives, incremental, threads --------------------------------------------------------------------------------


def test_derivatives_outside_are_those_of_eager_python():
    f = incrax.guarded(total, fallback="cond", max_paths=1)
    for x in map(jnp.asarray, SIGNS):
        same(jax.grad(f)(x), jax.grad(total)(x), factor=256.0)
        same(jax.hessian(f)(x), jax.hessian(total)(x), factor=256.0)
    assert f.stats.recordings == 2


def test_values_are_saved_on_a_merged_path():
    def fun(a, xs):
        core, s = jnp.exp(xs), jnp.zeros(())
        for x in core:
            if x > a:
                s = s + x
        return s

    f = incrax.incremental(incrax.guarded(fun, fallback="cond", max_paths=1), tuning=MINIMAL)
    xs = RNG.normal(size=6)
    for a in (0.1, 0.5, 1.0, 1.5, 0.2):
        same(f(a, xs), fun(a, jnp.asarray(xs)), factor=256.0)
    assert f.stats.recordings == 2


def test_captured_values_that_change_have_merged_paths_of_their_own():
    scale = [1.0]

    def fun(xs):
        s = jnp.zeros(())
        for x in xs:
            s = s + scale[0] * x if x > 0 else s
        return s

    f = check(fun, SIGNS)
    scale[0] = 2.0
    for x in SIGNS:
        same(f(x), fun(jnp.asarray(x)))
    assert f.stats.eager == 0


def test_threads_record_a_merged_path_once():
    f = incrax.guarded(total, fallback="cond", max_paths=1)
    calls, errors = rows(12, 6), []

    def work():
        for x in calls:
            if abs(float(f(x)) - float(total(jnp.asarray(x)))) > 1e-9:
                errors.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert f.stats.recordings == 2


# --- random programs --------------------------------------------------------------------------------------------------


CONDITIONS = ["x > 0", "a > b", "b < 0.5", "k == 2", "len(out) > 2", "not a > x", "0 < x < 1", "a > 0 and b > x or k"]


def statements():
    name, other = st.sampled_from("abcnt"), st.sampled_from("abxt")
    leaf = st.one_of(
        st.tuples(st.just("set"), name, other),
        st.tuples(st.just("add"), st.sampled_from("abct"), other),
        st.tuples(st.just("sin"), st.sampled_from("abct"), other),
        st.tuples(st.just("choose"), st.sampled_from("abct"), st.sampled_from(CONDITIONS), other),
        st.tuples(st.just("call"), st.sampled_from("abc"), other),
        st.tuples(st.just("count"), st.sampled_from("kl")),
        st.tuples(st.just("append"), other),
        st.tuples(st.just("leave"), other),
        st.tuples(st.just("pass")),
    )
    body = st.lists(leaf, min_size=1, max_size=2)
    inner = st.tuples(st.just("if"), st.sampled_from(CONDITIONS), body, body)
    deep = st.lists(st.one_of(leaf, inner), min_size=1, max_size=2)
    branch = st.tuples(st.just("if"), st.sampled_from(CONDITIONS), deep, body)
    return st.lists(st.one_of(leaf, branch, branch), min_size=1, max_size=4)


LINES = {
    "set": lambda name, other: f"{name if name != 'n' else 'c'} = {other}",
    "add": lambda name, other: f"{name} = {name} + {other}",
    "sin": lambda name, other: f"{name} = 0.5 * jnp.sin({other})",
    "choose": lambda name, condition, other: f"{name} = {name} if {condition} else {other}",
    "call": lambda name, other: f"{name} = helper({other})",
    "count": lambda name: f"{name} += 1",
    "append": lambda other: f"out.append({other})",
    "leave": lambda other: f"if {other} > 1: continue",
    "pass": lambda: "pass",
}


def written(body, depth):
    for kind, *rest in body:
        if kind == "leave" and depth < 2:
            continue
        if kind != "if":
            yield "    " * depth + LINES[kind](*rest)
            continue
        condition, yes, no = rest
        yield "    " * depth + f"if {condition}:"
        yield from [*written(yes, depth + 1), "    " * (depth + 1) + "pass"]
        yield "    " * depth + "else:"
        yield from [*written(no, depth + 1), "    " * (depth + 1) + "pass"]


def compiled(body, tail):
    tail = [line.replace("continue", "pass") for line in written(tail, 1)]
    lines = ["def fun(xs):", "    a, b, c, t, k, l, out = xs[0] * 1.0, xs[1] * 1.0, xs[0] + 1.0, xs[2] * 2.0, 0, 0, []"]
    lines += ["    for x in xs:", *written(body, 2), *tail]
    lines += ["    return a + 3.0 * b + 7.0 * c + 0.1 * k + 0.01 * l + sum(out, jnp.zeros(()))"]
    return written_function(lines, {"helper": helper})


NUMBERS = itertools.count()


def written_function(lines, scope):
    """A function of the user whose source is known, as in an interactive shell."""
    filename = f"<program {next(NUMBERS)}>"
    linecache.cache[filename] = (0, None, [f"{line}\n" for line in lines], filename)
    scope.update(jnp=jnp, jax=jax, __name__="random_program")
    exec(compile("\n".join(lines) + "\n", filename, "exec", dont_inherit=True), scope)
    return scope["fun"]


COUNTING = [("if", "x > 0", [("count", "k")], [("pass",)]), ("if", "k == 2", [("add", "a", "x")], [("pass",)])]
STALE = [("if", "x > 0", [("set", "t", "x")], [("add", "c", "t")])]
BEST = [("if", "a > b", [("set", "a", "x")], [("sin", "b", "x")])]


@given(body=statements(), tail=statements())
@example(body=COUNTING, tail=BEST)
@example(body=BEST, tail=COUNTING)
@example(body=STALE, tail=STALE)
@settings(max_examples=max(settings.default.max_examples // 2, 1))
def test_random_programs_equal_eager_python_in_value_and_gradient(body, tail):
    fun = compiled(body, tail)
    f = incrax.guarded(fun, fallback="cond", max_paths=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in map(jnp.asarray, SHUFFLED):
            same(f(x), fun(x), factor=4096.0)
            same(jax.grad(f)(x), jax.grad(fun)(x), factor=4096.0)
