"""What the log says: traces with their reasons, plans, choices, evictions, rests; and nothing when
nobody listens.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax
from incrax.engine.inputs.signature import differences, make_signature
from incrax.engine.policy import ledger
from incrax.engine.policy.ledger import Ledger
from incrax.engine.policy.verdict import BYPASS_S, together

X = np.linspace(0.1, 2.0, 50)


def model(mu, x, mode="sum"):
    y = jnp.exp(mu * x)
    return jnp.sum(y) if mode == "sum" else jnp.max(y)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, logger="incrax")
    return lambda: [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "incrax"
    ]


def retrace(log):
    """The last line on a trace."""
    return [text for _, text in log() if "traced again" in text][-1]


def test_the_first_trace_is_a_line(log):
    incrax.incremental(model, tuning=MINIMAL)(1.0, X)
    assert ("INFO", "model: traced for the first time, with 2 inputs") in log()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((1.0, X[:20]), "`x` is float64[20], was float64[50]"),
        ((1.0, X.astype(np.float32)), "`x` is float32[50], was float64[50]"),
        ((1.0, X, "max"), "`mode` is new"),
        (
            (np.float64(1.0), X),
            "`mu` is float64[], was float64[] as a Python number (of weak type), "
            "and an array or number of NumPy now",
        ),
    ],
)
def test_a_retrace_says_which_leaf_is_another(log, args, why):
    f = incrax.incremental(model, tuning=MINIMAL)
    f(1.0, X)
    f(*args)
    line = f"model: traced again, traces kept: 2; {why}, compared with the most similar one"
    assert ("INFO", line) in log()


def test_a_retrace_is_compared_with_the_most_similar_trace(log):
    f = incrax.incremental(lambda a, b: jnp.sum(a) + jnp.sum(b), tuning=MINIMAL)
    f(np.ones(2), np.ones(2))
    f(np.ones(3), np.ones(3))
    f(np.ones(2), np.ones(4))
    assert "`b` is float64[4], was float64[2], compared" in retrace(log)


def test_a_static_value_that_is_another(log):
    f = incrax.incremental(model, tuning=MINIMAL)
    f(1.0, X, "sum")
    f(1.0, X, "max")
    assert "`mode` is 'max', was 'sum'" in retrace(log)


def test_a_function_that_is_made_anew(log):
    f = incrax.incremental(lambda fun, x: fun(x), tuning=MINIMAL)
    for _ in range(2):
        f(lambda x: x, X)
    assert re.search(
        r"`fun` is <function .*, was <function .* \(another object\), compared", retrace(log)
    )


def test_nested_or_passed_by_name_otherwise():
    fun = lambda tree: tree
    first, *others = (
        make_signature(fun, args, kwargs)
        for args, kwargs in ((((1.0,),), {}), (([1.0],), {}), ((), {"tree": (1.0,)}))
    )
    text = {"the arguments": "are nested, or passed by name, otherwise"}
    assert [differences(first, other) for other in others] == [text, text]


def test_another_configuration_is_a_reason(log):
    f = incrax.incremental(model, tuning=MINIMAL)
    f(1.0, X)
    with jax.default_matmul_precision("float32"):
        f(1.0, X)
    assert "JAX's configuration or a switch of incrax is another" in retrace(log)


def test_a_forgotten_trace_is_a_line(log, monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 1)
    f = incrax.incremental(model, tuning=MINIMAL)
    f(1.0, X)
    f(1.0, X[:3])
    assert any("made room for another: 1 are kept" in text for _, text in log())


def test_a_new_plan_names_the_inputs_and_what_it_runs(log):
    f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(a)) * b, tuning=MINIMAL)
    f(X, 1.0)
    f(X, 2.0)
    line = [text for level, text in log() if "new plan" in text and level == "INFO"][-1]
    assert (
        "new plan for changes of `b`, which came up once: runs 2 equations of a function of 4, "
        "loads 1 saved" in line
    )
    assert "the whole function takes" not in line  # which was not timed


def test_a_decided_race_is_a_debug_line(log):
    patient = incrax.Tuning(compile_s=10.0)
    f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(jnp.sin(a))) * b, tuning=patient)
    for k in range(40):
        f(np.ones(200_000), float(k))
    assert any(level == "DEBUG" and "changes of `b` are served by" in text for level, text in log())


def test_evictions_are_a_line_with_the_budget(log):
    f = incrax.incremental(
        lambda a, b, c: jnp.sum(jnp.exp(a) * b) + jnp.sum(jnp.sin(a) * c),
        tuning=MINIMAL,
        memory=500,
    )
    for k in range(4):
        f(X + k, float(k), 1.0)
        f(X + k, float(k) + 0.5, 1.0)
    assert f.stats.evicted
    assert any(
        level == "INFO" and "more than the budget of 0.0005 MB" in text for level, text in log()
    )


def test_a_bypass_says_what_saving_has_cost(log, monkeypatch):
    monkeypatch.setattr(ledger, "LOOK_SHARE", 1e-4)
    f = incrax.incremental(lambda a, b: a + b)
    for k in range(40):
        f(float(k), float(k) + 1.0)
    lines = [text for level, text in log() if level == "INFO" and "are those of jax.jit" in text]
    assert lines
    assert re.match(
        r"<lambda>: the next \d+ calls are those of jax.jit, as saving did not", lines[0]
    )


def test_rows_and_fresh_calls_are_traces_too(log, monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 1)
    f = incrax.incremental(model, tuning=MINIMAL)
    f.fresh(1.0, X)
    f(1.0, incrax.Rows(X, chunk_rows=16))
    f(1.0, incrax.Rows(X.astype(np.float32), chunk_rows=16))
    texts = [text for _, text in log()]
    assert texts.count("model: traced for the first time, with 2 inputs") == 1
    assert any("traces kept: 1; " in text for text in texts)
    assert any("made room for another" in text for text in texts)


def test_a_function_that_cannot_be_traced_is_not_a_trace(log):
    f = incrax.incremental(lambda x: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        f(X)
    assert not log()


class Broken:
    def __repr__(self):
        raise RuntimeError("no words")


class Long:
    def __repr__(self):
        return "two\nlines" + "." * 100


def test_static_values_that_cannot_say_what_they_are(log):
    f = incrax.incremental(lambda x, how: jnp.sum(x), tuning=MINIMAL)
    for how in map(incrax.frozen, (Broken(), Broken(), Long(), Long())):
        f(X, how)
    assert (
        "`how` is a Broken, was a Broken (another object)"
        in [text for _, text in log() if "again" in text][0]
    )
    assert "`how` is two lines....." in retrace(log)


def test_nothing_is_written_where_nobody_listens(caplog):
    caplog.set_level(logging.WARNING, logger="incrax")
    f = incrax.incremental(model)
    for k in range(20):
        f(float(k), X)
    assert not caplog.records


# --- is it worth it -------------------------------------------------------------------------------


NUM_CALLS = 64


def weighed(spent_s, number=NUM_CALLS):
    ledger = Ledger()
    for _ in range(number):
        ledger.note_call(spent_s, 1e-3, 0.0)
    return replace(ledger.verdict, compile_s=0.1)


def test_a_gain_in_words():
    assert replace(weighed(5e-4), compile_s=0.0).gain == pytest.approx(2.0)
    assert weighed(5e-4).sentence == (
        "yes: 64 calls took 132 ms, with 100 ms compiling first; `jax.jit` would have taken 164 ms"
    )


def test_the_seconds_gained_are_those_of_the_sentence():
    assert weighed(5e-4).ahead_s == pytest.approx(0.164 - 0.132)
    assert weighed(2e-3).ahead_s == pytest.approx(0.164 - 0.228)
    assert math.isnan(weighed(1.0, 0).ahead_s)


@pytest.mark.parametrize("tuning", [None, incrax.Tuning(timed=False)])
def test_counters_have_the_seconds_gained_where_times_are_taken(tuning):
    f = incrax.incremental(model, tuning=tuning)
    f(1.0, X)
    assert math.isnan(f.stats.gained_s)
    for step in range(8):
        f(2.0 + step, X)
    assert math.isnan(f.stats.gained_s) is (tuning is not None)
    assert (f.explain().worth == f.stats.verdict == "") is (tuning is not None)
    verdict = f._traces.verdict
    assert tuning is not None or f.stats.gained_s == verdict.jit_s - verdict.ours_s
    assert "gained_s" not in f.stats.as_dict()


def test_learning_counts_and_the_call_since_which_it_has_paid_is_named():
    ledger = Ledger()
    ledger.note_call(1e-3, 1e-3, 0.0)
    ledger.note_learning(10.2e-3)
    for _ in range(10):
        ledger.note_call(5e-4, 1e-3, 0.0)
    sentence = ledger.verdict.sentence
    assert sentence == (
        "not yet: 11 calls took 16.2 ms, with 0 s compiling first and 10.2 ms learning; `jax.jit` "
        "would have taken 11 ms; ahead from call 23 on if calls go on like this"
    )
    for _ in range(20):
        ledger.note_call(5e-4, 1e-3, 0.0)
    assert ledger.verdict.sentence.startswith("yes: 31 calls took 26.2 ms")
    assert ledger.verdict.sentence.endswith("would have taken 31 ms; ahead since call 22")


def test_no_call_is_named_where_only_calls_with_nothing_changed_have_paid():
    ledger = Ledger()
    ledger.note_call(1.1e-3, 1e-3, 0.0)
    ledger.note_learning(1e-3)
    ledger.unchanged += 10
    assert ledger.verdict.sentence == (
        "yes: 11 calls took 2.2 ms, with 0 s compiling first and 1 ms learning; `jax.jit` would "
        "have taken 11 ms"
    )


def test_while_plans_are_earned_it_says_so():
    ledger = Ledger()
    ledger.note_call(1.1e-3, 1e-3, 0.0, is_learning=True)
    assert ledger.verdict.sentence == (
        "learning: 1 calls took 1.1 ms, with 0 s compiling first; `jax.jit` would have taken 1 "
        "ms; a plan is made when the calls so far would have repaid it"
    )


def test_calls_that_bypass_cost_a_little_more_than_under_jit():
    ledger = Ledger()
    for _ in range(NUM_CALLS):
        ledger.note_call(2e-3, 1e-3, 1e-3)
    ledger.grant(200)
    for _ in range(199):
        next(ledger.turns)
    ledger.note_turn(9e-4 + BYPASS_S, 1e-3)
    verdict = ledger.verdict
    assert verdict.num_calls == NUM_CALLS + 200
    assert verdict.jit_s == pytest.approx(0.064 + 200 * 9e-4)
    assert verdict.ours_s == pytest.approx(0.128 + 200 * (9e-4 + BYPASS_S))


def test_a_function_with_several_types_has_one_verdict():
    one = weighed(5e-4)
    assert together([one]) is one
    both = together([one, weighed(2e-3)])
    assert both.num_calls == 2 * one.num_calls
    assert both.gain < 1.0 < one.gain
    assert (both.is_learning, both.is_put_off) == (False, False)
    for flag in ("is_learning", "is_put_off"):
        marked = dataclasses.replace(one, **{flag: True})
        assert getattr(together([one, marked, marked]), flag) is True
    f = incrax.incremental(model)
    for x in (X, X[:3]):
        f(1.0, x)
    assert f.stats.verdict == "not known yet: the first calls tell how long the function takes"
    assert str(f.stats).startswith(f"{f.stats.verdict}\n\n")
    assert repr(f.stats) == "Stats(calls=2, ran=8, compiles=2, traces=2)"


def test_a_loss_says_what_to_do():
    assert weighed(2e-3).sentence == (
        "no: 64 calls took 228 ms, with 100 ms compiling first; `jax.jit` would have taken 164 ms; "
        "the function is too cheap, or too much of its 1 ms changes at every call; call it under "
        "`jax.jit` instead, or change fewer inputs at a time"
    )


def test_a_loss_of_long_calls_does_not_say_that_the_function_is_cheap():
    ledger = Ledger()
    for _ in range(NUM_CALLS):
        ledger.note_call(0.6, 0.5, 0.0)
    assert ledger.verdict.sentence.endswith(
        "would have taken 32 s; too much of its 500 ms changes at every call; call it under "
        "`jax.jit` instead, or change fewer inputs at a time"
    )


def test_of_a_function_that_calls_code_outside_of_jax_it_says_why_nothing_is_known():
    cosine = lambda x: jax.pure_callback(np.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    f = incrax.incremental(lambda a, x: a * jnp.sum(cosine(x)))
    for step in range(5):
        f(1.0 + step, X)
    assert f.stats.verdict.startswith("not known: it calls code outside of JAX")


def test_before_any_call_nothing_is_known():
    assert (
        weighed(1.0, 0).sentence
        == "not known yet: the first calls tell how long the function takes"
    )


def test_the_ledger_is_kept_over_windows():
    assert weighed(5e-4, 10 * NUM_CALLS + 7).calls == 10 * NUM_CALLS + 7


def test_calls_with_nothing_changed_count_as_gained():
    ledger = Ledger()
    for _ in range(NUM_CALLS):
        ledger.note_call(1.1e-3, 1e-3, 0.0)
    assert ledger.verdict.gain < 1.0
    ledger.unchanged += NUM_CALLS
    assert ledger.verdict.gain == pytest.approx(2.0 / 1.11)
    assert ledger.verdict.sentence.startswith("yes: 128 calls took 71 ms")


def test_explain_has_the_line_where_times_decide():
    f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(a)) * b)
    for k in range(30):
        f(np.ones(100_000), float(k))
    assert (
        f.explain()
        .as_dict()["worth"]
        .startswith(("yes: ", "no: ", "not known yet", "not yet: ", "learning: "))
    )
    assert "is it worth it" in str(f.explain())
    exact = incrax.incremental(model, policy="exact")
    exact(1.0, X)
    assert exact.explain().as_dict()["worth"] == ""
    assert "is it worth it" not in str(exact.explain())
