"""Rows that are appended, replaced and joined: results of plain JAX, and counters of the chunks
that did not run.
"""

from __future__ import annotations

import copy
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL, aligned, examples, identical, same
from hypothesis import example, given
from hypothesis import strategies as st
from slice_cases import divide_into_blocks, serve_by_rows

import incrax
from incrax.engine.inputs import chunks
from incrax.rows import engine

CHUNK = 8


def make(num, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(size=(num, 2)),
        "y": rng.uniform(0.5, 2.0, num),
        "g": rng.integers(0, 3, num),
    }


def loss(t, d):
    return jnp.mean(jnp.log(jnp.exp(t["w"])[d["g"]] + (d["a"] @ t["b"]) ** 2) * d["y"])


T = {"w": np.array([0.1, -0.3, 0.2]), "b": np.array([1.0, 2.0])}


@pytest.fixture(scope="module", autouse=True)
def _short_runs():
    """Runs of two chunks, so that a few of them are runs already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "RUN", 2)
        yield


@pytest.fixture
def f():
    return incrax.incremental(loss, tuning=MINIMAL)


def rows_of(num, seed=0, chunk_rows=CHUNK):
    return incrax.Rows(make(num, seed), chunk_rows=chunk_rows)


def chunks_by(function, *args):
    """(run, reused, joined) of one call."""
    before = function.stats
    start = before.chunks_run, before.chunks_reused, before.chunks_joined
    function(*args)
    stats = function.stats
    return (
        stats.chunks_run - start[0],
        stats.chunks_reused - start[1],
        stats.chunks_joined - start[2],
    )


# --- the container --------------------------------------------------------------------------------


def test_rows_give_back_what_was_put_in():
    same(rows_of(21).tree(), jax.tree.map(jnp.asarray, make(21)))
    assert len(rows_of(21)) == 21


def test_appended_and_replaced_rows_are_those_of_the_arrays():
    rows = rows_of(21).append(make(5, 1)).replace(18, make(6, 2))
    expected = [np.concatenate([make(21)[k], make(5, 1)[k]]) for k in ("a", "g", "y")]
    for x, new in zip(expected, (make(6, 2)[k] for k in ("a", "g", "y")), strict=True):
        x[18:24] = new
    same([rows.tree()[k] for k in ("a", "g", "y")], list(map(jnp.asarray, expected)))


def test_new_rows_leave_old_ones_as_they_were():
    rows = rows_of(21)
    rows.append(make(5, 1))
    rows.replace(3, make(5, 1))
    same(rows.tree(), jax.tree.map(jnp.asarray, make(21)))


def test_rows_own_their_data():
    data = make(21)
    rows = incrax.Rows(data, chunk_rows=CHUNK)
    data["y"][:] = 0.0
    assert float(rows.tree()["y"].min()) > 0


def test_chunks_that_nothing_touched_are_the_same_objects():
    rows = rows_of(40)
    replaced = rows.replace(17, make(2, 1))
    assert [x is y for x, y in zip(rows._chunks, replaced._chunks, strict=True)] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert rows.append(make(3))._chunks[:5] == rows._chunks


def test_nothing_appended_or_replaced_changes_nothing():
    rows = rows_of(21)
    assert rows.append(make(0)) is rows
    assert all(rows.replace(start, make(0)) is rows for start in (0, 5, 21))
    with pytest.raises(incrax.errors.RowsError):
        rows.replace(22, make(0))


def test_capacities_are_powers_of_two_between_the_bounds():
    sizes = {1: 1024, 1024: 1024, 1025: 2048, 5000: 8192}
    for num, capacity in sizes.items():
        assert [c.capacity for c in incrax.Rows(np.zeros(num))._chunks] == [capacity]
    assert [c.capacity for c in incrax.Rows(np.zeros(300_000))._chunks] == [131072, 131072, 65536]


def test_copies_and_pickles_hold_the_same_rows():
    rows = rows_of(21)
    for other in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        same(other.tree(), rows.tree())
        assert not {c.number for c in other._chunks} & {c.number for c in rows._chunks}


# --- what runs ------------------------------------------------------------------------------------


def test_only_appended_chunks_run(f):
    rows = rows_of(40)
    assert chunks_by(f, T, rows) == (5, 0, 0)
    assert chunks_by(f, T, rows.append(make(3, 1))) == (1, 5, 0)


def test_only_replaced_chunks_run(f):
    rows = rows_of(40)
    f(T, rows)
    assert chunks_by(f, T, rows.replace(7, make(2, 1))) == (2, 3, 0)


def test_equations_run_in_proportion_to_chunks(f):
    rows = rows_of(40)
    f(T, rows)
    first = f.stats.ran
    f(T, rows.replace(0, make(8, 1)))
    assert 0 < f.stats.ran - first <= first // 5


@pytest.mark.parametrize("start", [0, 30, 62], ids=["first", "inside", "last, padded"])
def test_of_a_chunk_of_which_rows_are_replaced_only_these_run(start, monkeypatch):
    """A chunk is a leaf whose rows change: programs for slices serve it, also at earlier rows."""
    serve_by_rows(monkeypatch)
    fun = jax.value_and_grad(loss)
    f, rows = incrax.incremental(fun, tuning=EAGER), rows_of(63, chunk_rows=64)
    for seed in range(6):
        rows = rows.replace(start, make(1, seed))
        same(f(T, rows), jax.jit(fun)(T, rows.tree()), factor=1024)
    capacity = 4 if start == 62 else 1  # two: the padding repeats the last row
    where = f"at most {capacity} of 64 along the first axis of d['a'], d['g']"
    assert f.explain().as_dict()["rows"].startswith(where)
    assert chunks_by(f, T, rows.append(make(3, 1))) == (1, 1, 0)
    same(f(T, rows), jax.jit(fun)(T, rows.tree()), factor=1024)


def test_with_nothing_changed_nothing_runs_and_outputs_are_the_same(f):
    rows = rows_of(40)
    saved, ran = f(T, rows), f.stats.ran
    assert f({**T, "w": T["w"].copy()}, rows) is saved
    assert f.stats.ran == ran
    assert f.stats.unchanged == 1


def test_changed_parameters_run_every_chunk_but_only_what_they_reach(f):
    rows = rows_of(40)
    f(T, rows)
    first = f.stats.ran
    assert chunks_by(f, {**T, "w": T["w"] + 1}, rows) == (5, 0, 0)
    assert 0 < f.stats.ran - first < first
    assert "dot_general" not in [step["primitive"] for step in f.explain().as_dict()["ran"]]


def test_going_back_to_the_parameters_or_rows_before_runs_nothing(f):
    rows, more = rows_of(40), rows_of(40).append(make(3, 1))
    f(T, rows)
    f({**T, "w": T["w"] + 1}, rows)
    assert chunks_by(f, T, rows) == (0, 5, 0)
    more = rows.append(make(3, 1))
    f(T, more)
    assert chunks_by(f, T, rows) == (0, 5, 0)
    assert chunks_by(f, T, more) == (0, 6, 0)


def test_an_append_looks_up_totals_of_runs_and_not_their_chunks(f, monkeypatch):
    rows = rows_of(12 * CHUNK)
    f(T, rows)
    seen = []
    look_up = engine._PassEvaluation._of
    monkeypatch.setattr(
        engine._PassEvaluation, "_of", lambda self, run: seen.append(run) or look_up(self, run)
    )
    added = rows.append(make(1, 5))
    assert chunks_by(f, T, added) == (1, 12, 0)
    assert [len(run) for run in seen] == [8, 4, 1]
    assert seen[-1] == added._chunks[-1:]


def test_totals_are_of_their_version_and_their_chunks(f):
    rows, other = rows_of(12 * CHUNK), {**T, "b": np.array([-1.0, 0.5])}
    for number in range(12):
        for t in (T, other):
            same(f(t, rows), jax.jit(loss)(t, rows.tree()))
        rows = rows.replace(number * CHUNK, make(2, number + 7))


@pytest.mark.parametrize("num_versions", [1, 20])
def test_totals_of_chunks_and_versions_out_of_use_are_forgotten(f, num_versions):
    rows = rows_of(12 * CHUNK)
    for number in range(20):
        f({**T, "b": np.array([float(number % num_versions), 1.0])}, rows)
        rows = rows.replace(0, make(12 * CHUNK, number))
    row_engine = f._traces.latest
    kept = frozenset().union(*row_engine.uses)
    versions = row_engine.passes[0].results.values()
    assert len(versions) == min(num_versions, row_engine.options.versions)
    assert len(kept) == 12 * len(row_engine.uses)
    assert all(kept.issuperset(run) for known in versions for run in known)


def test_a_deleted_total_is_made_again(f):
    rows = rows_of(12 * CHUNK)
    f(T, rows)
    (known,) = f._traces.latest.passes[0].results.values()
    for run, total in known.items():
        for x in total if len(run) > 1 else ():
            x.delete()
    rows = rows.append(make(1, 5))
    same(f(T, rows), jax.jit(loss)(T, rows.tree()))


@pytest.mark.parametrize(
    "transform", [jax.value_and_grad, jax.hessian], ids=["gradient", "hessian"]
)
def test_derivatives_run_only_appended_chunks_although_a_mean_depends_on_the_number_of_rows(
    transform,
):
    f = incrax.incremental(transform(loss), tuning=MINIMAL)
    rows = rows_of(40)
    f(T, rows)
    more = rows.append(make(3, 1))
    assert chunks_by(f, T, more) == (1, 5, 0)
    same(f(T, more), jax.jit(transform(loss))(T, more.tree()), factor=1024)


@pytest.mark.parametrize(
    "scaled",
    [
        lambda t, d: -loss(t, d),
        lambda t, d: t["b"][0] * loss(t, d),
        lambda t, d: loss(t, d) + jnp.mean(d["y"] * t["b"][1]),
    ],
    ids=["negated", "scaled", "two means"],
)
def test_gradients_of_means_survive_new_rows_in_every_form(scaled):
    f = incrax.incremental(jax.value_and_grad(scaled), tuning=MINIMAL)
    rows = rows_of(40)
    f(T, rows)
    more = rows.append(make(3, 1))
    assert chunks_by(f, T, more) == (1, 5, 0)
    same(f(T, more), jax.jit(jax.value_and_grad(scaled))(T, more.tree()), factor=1024)


def test_a_second_pass_runs_again_where_what_it_reads_changed():
    f = incrax.incremental(lambda s, y: jnp.sum(jnp.exp(s * (y - jnp.max(y)))), tuning=MINIMAL)
    rows = incrax.Rows(np.linspace(0.0, 1.0, 40), chunk_rows=CHUNK)
    f(0.5, rows)
    assert chunks_by(f, 0.5, rows.append(np.array([0.5]))) == (2, 10, 0)
    assert chunks_by(f, 0.5, rows.append(np.array([2.0]))) == (7, 5, 0)


def test_rows_that_depend_on_their_number_run_again():
    fun = lambda s, y: jnp.sum(jnp.sin(s * y * len(y)))
    f, rows = (
        incrax.incremental(fun, tuning=MINIMAL),
        incrax.Rows(np.linspace(0.0, 1.0, 40), chunk_rows=CHUNK),
    )
    f(0.5, rows)
    more = rows.append(np.array([0.5]))
    assert chunks_by(f, 0.5, more) == (6, 0, 0)
    same(f(0.5, more), jax.jit(fun)(0.5, more.tree()))


def test_no_program_is_compiled_for_another_number_of_rows(f):
    rows = rows_of(37)
    f(T, rows)
    f(T, rows.append(make(3, 1)))
    compiles, traces = f.stats.compiles, f.stats.traces
    for num in (1, 2, 7):
        f(T, rows.append(make(num, num)))
    assert (f.stats.compiles, f.stats.traces) == (compiles, traces)


# --- joining --------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(chunks, "MAX_CHUNKS", 4)


@pytest.mark.usefixtures("few")
def test_joined_chunks_are_not_evaluated():
    f = incrax.incremental(jax.value_and_grad(loss), tuning=MINIMAL)
    rows = rows_of(3, chunk_rows=64)
    for seed in range(1, 4):
        rows = rows.append(make(3, seed))
        f(T, rows)
    run = f.stats.chunks_run
    joined = rows.append(make(3, 9))
    assert len(joined._chunks) == 1
    f(T, rows)
    rows = rows.append(make(2, 8))
    assert len(rows._chunks) == 1
    value = f(T, rows)
    assert f.stats.chunks_joined == 0
    assert f.stats.chunks_run == run + 1
    same(value, jax.jit(jax.value_and_grad(loss))(T, rows.tree()))


@pytest.mark.usefixtures("few")
def test_chunks_joined_after_a_call_take_over_its_results():
    f = incrax.incremental(jax.value_and_grad(loss), tuning=MINIMAL)
    parts = [make(3, seed) for seed in range(5)]
    rows = rows_of(3, chunk_rows=64)
    for part in parts[1:4]:
        rows = rows.append(part)
    f(T, rows)
    last = rows._with([*rows._chunks, *incrax.Rows(parts[4], chunk_rows=64)._chunks])
    f(T, last)
    joined = last._with(chunks.joined(list(last._chunks), 64))
    assert len(joined._chunks) == 1
    assert chunks_by(f, T, joined) == (0, 0, 1)
    same(f(T, joined), jax.jit(f.__wrapped__)(T, joined.tree()))
    assert chunks_by(f, {**T, "b": 2 * T["b"]}, joined) == (1, 0, 0)


@pytest.mark.usefixtures("few")
def test_full_chunks_are_never_joined():
    rows = rows_of(64)
    assert len(rows.append(make(8, 1))._chunks) == 9


@pytest.mark.usefixtures("few")
def test_the_exact_policy_evaluates_joined_chunks():
    f = incrax.incremental(loss, policy="exact")
    rows = rows_of(3, chunk_rows=64)
    for seed in range(1, 6):
        rows = rows.append(make(3, seed))
        f(T, rows)
    assert f.stats.chunks_joined == 0


# --- against plain JAX ----------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "replace", "w", "b", "back", "none"]), st.sampled_from([2, 8])
    ),
    max_size=7,
)
few_examples = examples(1 / 5)
"""Plain JAX compiles for every number of rows."""


def run_timeline(fun, actions, **options):
    f, plain = incrax.incremental(fun, **options), jax.jit(fun)
    rows, t = rows_of(21), T
    history = [(t, rows)]
    for number, (action, size) in enumerate(actions):
        if action == "append":
            rows = rows.append(make(size, number))
        elif action == "replace":
            rows = rows.replace((size * 3) % (len(rows) - size), make(size, number))
        elif action == "back":
            t, rows = history[-size % len(history)]
        elif action != "none":
            t = {**t, action: t[action] + 0.1 * size}
        history.append((t, rows))
        same(f(t, rows), plain(t, rows.tree()), factor=1024)
    return f


def several(t, d):
    scaled = d["a"] @ t["b"]
    total = jax.scipy.special.logsumexp(scaled)
    return (
        loss(t, d),
        total,
        jax.ops.segment_sum(scaled, d["g"], 3),
        jnp.max(d["y"]),
        jnp.exp(scaled - total),
    )


def several_sums(t, d):
    return sum(jnp.sum(jnp.cos(x)) for x in jax.tree.leaves(several(t, d)))


@few_examples
@given(ACTIONS)
@example([("append", 2), ("w", 2), ("back", 2), ("append", 8), ("replace", 2)])
def test_any_timeline_gives_the_results_of_plain_jax(actions):
    run_timeline(several, actions, tuning=MINIMAL)


@few_examples
@given(ACTIONS)
def test_any_timeline_gives_the_gradients_of_plain_jax(actions):
    run_timeline(jax.value_and_grad(loss), actions, tuning=FAST)


@few_examples
@given(st.lists(st.tuples(st.integers(0, 70), st.sampled_from([1, 1, 3, 9])), max_size=12))
def test_any_rows_replaced_one_by_one_give_the_gradients_of_plain_jax(places):
    """In three chunks, the last one padded; from the latest rows, or every third time from older
    ones.
    """
    fun = jax.value_and_grad(several_sums)
    with pytest.MonkeyPatch.context() as patch:
        serve_by_rows(patch)
        f, plain = incrax.incremental(fun, tuning=EAGER), jax.jit(fun)
        history = [rows_of(80, chunk_rows=32)]
        for number, (start, size) in enumerate(places):
            old = history[-1 if number % 3 else number // 2]
            history.append(old.replace(start, make(size, number)))
            same(f(T, history[-1]), plain(T, history[-1].tree()), factor=1024, terms=30.0)


@few_examples
@given(ACTIONS)
def test_the_exact_policy_gives_the_bits_of_a_new_function(actions):
    fun = jax.value_and_grad(loss)
    f = incrax.incremental(fun, policy="exact")
    rows, t = rows_of(21), T
    for number, (action, size) in enumerate(actions):
        if action in ("append", "replace"):
            rows = (
                rows.append(make(size, number))
                if action == "append"
                else rows.replace(0, make(size, number))
            )
        elif action in t:
            t = {**t, action: t[action] + 0.1 * size}
        found = f(t, rows)
    if actions:
        identical(found, incrax.incremental(fun, policy="exact")(t, rows))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0])
def test_padding_never_leaks(value):
    """The last row is repeated in the padding: what it gives must count once."""
    y = np.array([*np.linspace(0.5, 1.0, 9), value])
    fun = lambda s, y: (
        jnp.sum(s / y),
        jnp.max(y),
        jnp.min(y),
        jnp.prod(y),
        jnp.dot(y, y),
        jnp.sum(jnp.isnan(y)),
    )
    same(incrax.incremental(fun)(2.0, incrax.Rows(y, chunk_rows=CHUNK)), jax.jit(fun)(2.0, y))


def test_padding_of_a_row_with_an_infinite_derivative_never_leaks():
    y = np.array([*np.linspace(0.5, 1.0, 9), 0.0])
    fun = jax.value_and_grad(lambda s, y: jnp.sum(jnp.where(y > 0, jnp.sqrt(s * y), 0.0)))
    same(incrax.incremental(fun)(2.0, incrax.Rows(y, chunk_rows=CHUNK)), jax.jit(fun)(2.0, y))


def test_hundreds_of_chunks_are_combined_in_groups(f):
    rows = rows_of(8 * 150 + 3)
    same(f(T, rows), jax.jit(loss)(T, rows.tree()))
    assert f.stats.chunks_run == 151


def test_weak_python_numbers_and_flat_vectors_are_parameters():
    fun = lambda theta, scale, y: scale * jnp.sum(jnp.exp(theta[1] * y) + theta[0])
    f = incrax.incremental(fun, tuning=MINIMAL)
    rows = incrax.Rows(np.linspace(0, 1, 20), chunk_rows=CHUNK)
    for theta, scale in [
        (np.array([1.0, 2.0]), 2.0),
        (np.array([1.5, 2.0]), 2.0),
        (np.array([1.5, 2.0]), 3.0),
    ]:
        same(f(theta, scale, rows), jax.jit(fun)(theta, scale, rows.tree()))
    assert f.stats.chunks_run == 6
    assert "exp" not in [step["primitive"] for step in f.explain().as_dict()["ran"]]


def test_rows_may_be_a_keyword_and_stand_beside_static_values():
    def fun(t, *, d, mode):
        return loss(t, d) if mode == "mean" else jnp.sum(d["y"]) * t["b"][0]

    f, rows = incrax.incremental(fun), rows_of(21)
    same(f(T, d=rows, mode="mean"), jax.jit(loss)(T, rows.tree()))
    same(f(T, d=rows, mode="sum"), jax.jit(lambda t, d: fun(t, d=d, mode="sum"))(T, rows.tree()))


def test_single_rows_replaced_have_the_bits_of_a_new_function(monkeypatch):
    divide_into_blocks(monkeypatch, 8)
    fun = jax.value_and_grad(loss)
    f, other = (incrax.incremental(fun, policy="exact") for _ in range(2))
    rows, ran = rows_of(100, chunk_rows=64), []
    for number in range(8):
        rows = rows.replace(number * 12, make(1, number))
        before = f.stats.ran
        found = f(T, rows)
        ran.append(f.stats.ran - before)
        other.clear()
        identical(found, other(T, incrax.Rows(rows.tree(), chunk_rows=64)))
    assert max(ran[1:]) < ran[0]


# --- the object -----------------------------------------------------------------------------------


def test_under_another_transformation_it_is_the_plain_function(f):
    rows = rows_of(21)
    same(jax.jit(lambda t: f(t, rows))(T), jax.jit(loss)(T, rows.tree()))
    same(jax.grad(lambda t: f(t, rows))(T), jax.jit(jax.grad(loss))(T, rows.tree()))
    assert f.stats.chunks_run == 0


def test_fresh_reads_and_writes_nothing(f):
    rows = rows_of(21)
    saved = f(T, rows)
    same(f.fresh(T, rows), saved)
    assert f(T, rows) is saved


def test_verification_compares_with_all_rows_at_once(f):
    rows = rows_of(21)
    with incrax.verify():
        f(T, rows)
        (known,) = f._traces.latest.passes[0].results.values()
        known.update({chunk: [x + 1.0 for x in found] for chunk, found in known.items()})
        with pytest.raises(incrax.StaleResultError, match="differs from a fresh evaluation"):
            f(T, rows.append(make(3, 1)))
    same(f(T, rows), jax.jit(loss)(T, rows.tree()))


def test_clear_drops_all_results(f):
    rows = rows_of(21)
    f(T, rows)
    assert f.stats.saved_bytes > 0
    f.clear()
    assert f.stats.saved_bytes == 0
    assert chunks_by(f, T, rows) == (3, 0, 0)


def test_explain_counts_chunks(f):
    rows = rows_of(21)
    f(T, rows)
    f(T, rows.append(make(3, 1)))
    assert f.explain().as_dict()["chunks"] == {"run": 1, "reused": 3, "joined": 0}
    assert str(f.explain()).startswith("chunks: 1 run, 3 reused, 0 joined\n")
    assert f.explain().why == "first evaluation of this chunk"
    assert f.explain().worth == f.stats.verdict == ""  # one chunk is no measure of all


def test_explain_says_what_a_call_would_do(f):
    rows = rows_of(21)
    f(T, rows)
    before = f.stats.as_dict()
    found = f.explain(T, rows.append(make(3, 1))).as_dict()
    assert found["is_dry_run"]
    assert found["chunks"] == {"run": 1, "reused": 3, "joined": 0}
    assert f.explain({**T, "w": T["w"] + 1}, rows).as_dict()["chunks"]["run"] == 3
    assert f.stats.as_dict() == before


def test_explain_says_that_nothing_ran_where_no_chunk_changed(f):
    """And nothing of what the call before it did with a chunk."""
    rows = rows_of(21)
    f(T, rows)
    for found in (f.explain(T, rows).as_dict(), (f(T, rows), f.explain().as_dict())[1]):
        assert (found["served_by"], found["why"]) == ("saved outputs", "no chunk changed")
        assert (found["num_ran"], found["flops_ran"], found["changed"]) == (0, 0.0, {})
        assert found["flops_avoided"] > 0


def test_plain_calls_and_calls_with_rows_take_turns(f):
    rows, data = rows_of(21), make(21)
    same(f(T, rows), f(T, data))
    assert f.explain().as_dict()["chunks"] == {}
    f(T, rows)
    assert f.explain().as_dict()["chunks"] == {"run": 0, "reused": 3, "joined": 0}


def test_calls_with_rows_and_without_share_one_table_of_signatures(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 2)
    f, rows = incrax.incremental(loss, tuning=MINIMAL), rows_of(21)
    f(T, make(5))
    f(T, rows)
    assert f.stats.traces == 2
    f(T, make(6))
    assert len(f._traces.table) == 2
    assert chunks_by(f, T, rows) == (0, 3, 0)
    f(T, make(7))
    f(T, make(8))
    assert chunks_by(f, T, rows) == (3, 0, 0)


def test_a_failure_in_the_middle_leaves_what_was_right(f, monkeypatch):
    rows = rows_of(40)
    saved = f(T, rows)
    from incrax.engine.call.engine import Engine

    whole, calls = Engine.call, []

    def failing(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(Engine, "call", failing)
    moved = {**T, "w": T["w"] + 1}
    with pytest.raises(KeyboardInterrupt):
        f(moved, rows)
    assert f.stats.aborted == 1
    assert f(T, rows) is saved
    assert chunks_by(f, moved, rows) == (3, 2, 0)
    same(f(moved, rows), jax.jit(loss)(moved, rows.tree()))


def test_threads_get_their_own_results(f):
    rows = [rows_of(21, seed) for seed in range(4)]
    expected = [jax.jit(loss)(T, r.tree()) for r in rows]
    found = [None] * 4

    def work(number):
        for _ in range(5):
            found[number] = f(T, rows[number])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(found, expected)


def test_a_deleted_result_is_computed_again(f):
    rows = rows_of(21)
    expected = float(f(T, rows))
    f(T, rows).delete()
    assert float(f(T, rows)) == expected


def test_a_deleted_parameter_is_named(f):
    t = jax.tree.map(jnp.array, T)
    rows = rows_of(21)
    f(t, rows)
    t["w"].delete()
    with pytest.raises(incrax.errors.DeletedInputError, match=r"t\['w'\]"):
        f(t, rows)


def test_old_chunks_are_forgotten(f):
    rows = rows_of(40)
    for seed in range(5):
        f(T, rows_of(40, seed))
    assert len({place for place, _ in f._traces.latest.by_chunk}) == 10
    for seed in range(5):
        rows = rows.replace(0, make(40, seed))
        f(T, rows)
    assert len({place for place, _ in f._traces.latest.by_chunk}) == 5


def test_the_budget_is_shared_by_the_chunks():
    f = incrax.incremental(loss, tuning=MINIMAL, memory=1000)
    rows = rows_of(800)
    f(T, rows)
    assert f.stats.saved_bytes <= 1000


def test_disabled_everything_is_fresh(monkeypatch):
    monkeypatch.setenv("INCRAX_DISABLE", "1")
    f, rows = incrax.incremental(loss), rows_of(21)
    same(f(T, rows), jax.jit(loss)(T, rows.tree()))
    assert f.stats.chunks_run == 0


def test_warm_up_prepares_the_chunks():
    f = incrax.incremental(loss, tuning=MINIMAL)
    rows = rows_of(40)
    f.warm_up(T, rows, changing=["t['w']"])
    compiles = f.stats.compiles
    f({**T, "w": T["w"] + 1}, rows)
    assert f.stats.compiles == compiles
    with pytest.raises(incrax.errors.UnknownInputError):
        f.warm_up(T, rows, changing=["nothing"])


def test_deps_are_those_of_a_chunk(f):
    rows = rows_of(40)
    paths = [row["path"] for row in f.deps(T, rows).as_dict()["leaves"]]
    assert paths[:3] == ["d['a']", "d['g']", "d['y']"]
    assert {"t['w']", "t['b']"} <= set(paths)


def test_sites_take_all_rows(f):
    rows = rows_of(21)
    state, sites = f.sites(T, rows, moves=["t['w']"])
    w = 2.0 * T["w"]
    out = sites.look(state, {"t['w']": w})[1]
    same(out, jax.jit(loss)({**T, "w": w}, rows.tree()))


def test_the_pure_form_takes_all_rows(f):
    rows = rows_of(21)
    state, step = f.pure(T, rows)
    same(step(state, T, rows.tree())[1], jax.jit(loss)(T, rows.tree()))


@pytest.mark.parametrize("size", [3, 5000])
def test_what_the_owner_of_a_closed_over_array_writes_later_is_never_seen(size):
    array = aligned(size, 1.0)
    fun = lambda a, x: jnp.sum(jnp.exp(a * x) * array) + a * jnp.sum(array)
    f = incrax.incremental(fun, tuning=MINIMAL)
    x = np.linspace(0.0, 1.0, 40 * size).reshape(40, size)
    rows = incrax.Rows(x)
    f(1.0, rows)
    array[:] = 5.0
    for a in (2.0, 3.0):
        assert float(f(a, rows)) == pytest.approx(np.sum(np.exp(a * x)) + a * size, rel=1e-12)
