"""What earlier processes and users say of the calls to come: plans are made at once where that
pays, and results never depend on it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.engine.plan.plan import RowKind
from incrax.engine.policy import compile_budget, expectations, learning_costs, ledger
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.expectations import HINTED_CALLS, Known, fingerprint
from incrax.engine.policy.ledger import NUM_TELLING

X = np.linspace(0.1, 2.0, 5000)


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x))


def chooser(ours):
    return ours._traces.latest.engine.chooser


@pytest.fixture
def folder(monkeypatch, tmp_path):
    gc.collect()  # functions of other tests have learned as well
    monkeypatch.delenv("INCRAX_REMEMBER")
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(expectations, "_living", {})
    monkeypatch.setattr(expectations, "_pending", {})
    return tmp_path


def experienced(calls=1000, plan_s=1.0, whole_s=10.0, number=float):
    """A function of which so many calls changed `a` alone, and took so long."""
    ours = incrax.incremental(model, tuning=incrax.Tuning(hot_after=10))  # plans nothing itself
    for a in (1.0, 2.0, 3.0):
        ours(number(a), 0.5, X)
    chooser(ours).whole.seconds = whole_s
    (dirty,) = (d for d in chooser(ours).entries if d != chooser(ours).facts.layout.full)
    chooser(ours).entries[dirty].uses = calls
    chooser(ours).entries[dirty].promise_s = plan_s
    return ours


def learned(folder, calls=1000, plan_s=1.0, whole_s=10.0):
    """The file of a process in which so many calls changed `a` alone, and took so long."""
    _alive = experienced(calls, plan_s, whole_s)
    expectations.write()
    (file,) = (path for path in folder.iterdir() if path.name.startswith("function"))
    return file


def called(num=3, **options):
    """A new function after so many calls, another `a` in each."""
    ours = incrax.incremental(model, **options)
    for a in range(num):
        same(ours(float(a), 0.5, X), model(float(a), 0.5, X))
    return ours


@pytest.mark.parametrize(("written", "known"), [(True, True), (False, False), ("yes", False)])
def test_that_segments_served_a_large_function_is_known_to_the_next_process(folder, written, known):
    file = learned(folder)
    data = json.loads(file.read_text())
    assert data["divided"] is False
    file.write_text(json.dumps({**data, "divided": written}))
    ours = called(2)
    assert chooser(ours).expectations.is_divided is known
    chooser(ours).whole.seconds = 10.0
    expectations.write()
    assert json.loads(file.read_text())["divided"] is known


def test_calls_that_bypassed_count_for_a_file(folder):
    """Of a job of 400 calls of 0.1 ms a few were looked at, which come to no file's worth."""
    ours = called()
    chooser(ours).whole.seconds = 1e-4
    chooser(ours).ledger.bypassed = 400
    expectations.write()
    (file,) = (path for path in folder.iterdir() if path.name.startswith("function"))
    assert json.loads(file.read_text())["calls"] >= 400


def test_a_kind_of_change_that_paid_gets_its_plan_when_it_first_comes(folder):
    assert called().stats.compiles == 1
    learned(folder)
    assert chooser(called(1)).planner.num_programs == 0
    ours = called(2)
    assert chooser(ours).planner.num_programs == 1
    assert chooser(ours).race.expectations.whole_s == 10.0


@pytest.mark.parametrize(
    ("first", "second", "num_programs"),
    [(float, np.float64, 1), (np.float64, float, 1), (float, np.float32, 0)],
)
def test_numbers_of_python_and_of_numpy_share_what_was_learned(first, second, num_programs):
    """Without files; the program is another one, as under `jax.jit`."""
    ours = experienced(number=first)
    for a in (1.0, 2.0):
        ours(second(a), 0.5, X)
    assert ours.stats.traces == 2
    assert chooser(ours).planner.num_programs == num_programs


def test_like_functions_that_were_not_timed_tell_nothing():
    """The last one of several says no more than those before."""
    ours = experienced()
    chooser(ours).expectations.is_divided = True
    for _ in range(2):
        ours(np.float64(1.0), 0.5, X)  # nothing changes
    assert chooser(ours).whole.seconds is None
    for b in (0.5, 0.6):
        ours(1.0, np.float64(b), X)
    found = chooser(ours).expectations
    assert (found.whole_s, found.is_divided) == (10.0, True)
    assert found.kinds


def test_hints_are_those_of_functions_with_effects_too():
    def shown(a, b):
        jax.debug.callback(lambda _: None, b)
        return jnp.sin(a) + jnp.sum(jnp.exp(b))

    for fun in (shown, lambda a, b: jnp.sin(a) + jnp.sum(jnp.exp(b))):
        ours = incrax.incremental(fun, calls=1000, changing=["a"])
        for a in (1.0, 2.0, 3.0):
            ours(a, X)
        entries = chooser(ours).entries
        (entry,) = (entry for entry in entries.values() if entry.count == 2)
        assert entry.num_expected == 1000
        assert not chooser(ours).expectations.moving() & chooser(ours).facts.layout.leaf_mask(1)


def test_a_kind_that_is_hinted_and_known_is_one_kind(folder):
    """Two would come in turns."""
    learned(folder)
    known = chooser(called(2, changing=["a"])).expectations
    assert len(known.kinds) == 1
    assert known.num_families == 1.0


@pytest.mark.parametrize(
    ("calls", "plan_s"), [(1000, 10.0), (1000, 20.0), (1, 9.9999)], ids=["same", "slower", "few"]
)
def test_one_that_did_not_pay_gets_none(calls, plan_s, folder):
    learned(folder, calls, plan_s)
    ours = called(2)
    assert chooser(ours).expectations.kinds
    assert chooser(ours).planner.num_programs == 0


def test_functions_that_are_gone_have_learned_as_well(folder):
    ours = called()
    chooser(ours).whole.seconds = 1.0
    del ours
    gc.collect()
    expectations.write()
    assert any(path.name.startswith("function") for path in folder.iterdir())


def test_few_of_many_programs_are_written(folder, monkeypatch):
    monkeypatch.setattr(expectations, "MAX_WRITTEN", 3)
    kept = []
    for size in range(2, 8):
        kept.append(incrax.incremental(model))
        for a in (1.0, 2.0):
            kept[-1](a, 0.5, X[:size])
        chooser(kept[-1]).whole.seconds = 1.0
    del kept[1:5]  # what is gone waits for the end of the process
    gc.collect()
    assert len(expectations._pending) == 3
    expectations.write()
    assert len(list(folder.iterdir())) == 3
    expectations.write()
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("num_looks", [NUM_TELLING, 3])
def test_calls_that_bypassed_last_are_expected_as_those_that_were_seen(num_looks, folder):
    """A job that bypassed since its 170th call had 2,500."""
    ours = experienced(calls=500)
    ledger = chooser(ours).ledger
    ledger.calls, ledger.bypassed, ledger.unchanged = num_looks, 500 - num_looks, 0
    ledger._waiting = 0
    ledger.grant(1501)
    for _ in ledger.turns:
        pass
    expectations.write()
    (path,) = folder.glob("function*.json")
    (known,) = json.loads(path.read_text())["kinds"].values()
    assert known[0] == (2000 if num_looks == NUM_TELLING else 500)


def test_a_short_job_leaves_no_file(folder):
    ours = called()
    chooser(ours).whole.seconds = 1e-4
    expectations.write()
    assert not list(folder.iterdir())


def test_a_job_that_was_cut_short_is_no_new_habit(folder, monkeypatch):

    file = learned(folder, calls=1000)
    (kind,) = json.loads(file.read_text())["kinds"].values()
    assert kind[0] == 1000
    ours = called(2)
    chooser(ours).whole.seconds = 10.0
    expectations.write()
    (kind,) = json.loads(file.read_text())["kinds"].values()
    assert kind[0] == 500


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("whole_s"),
        lambda data: data.update(whole_s="text"),
        lambda data: data.update(whole_s=-1.0),
        lambda data: data.update(compile_s=math.nan),
        lambda data: data.update(kinds=[1, 2]),
        lambda data: data.update(kinds={"not a number": [1, 0.5]}),
        lambda data: data.update(kinds={"1": [1]}),
        lambda data: data.update(kinds={"1": 3}),
        lambda data: data.update(kinds={"1": [math.inf, 0.5, True, 0]}),
        lambda data: data.update(kinds={"1": [1, 10**400, True, 0]}),
        lambda data: data.update(kinds=dict.fromkeys(("-2", "0", "f" * 40), [1000, 0.5, True, 0])),
    ],
)
def test_a_file_that_means_nothing_is_as_if_it_were_not_there(change, folder):
    file = learned(folder)
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    ours = called(2)
    assert chooser(ours).expectations.kinds == []
    assert chooser(ours).planner.num_programs == 0


@pytest.mark.parametrize(
    "options",
    [
        {"tuning": incrax.Tuning(remember=False)},
        {"tuning": incrax.Tuning(timed=False)},
        {"tuning": incrax.Tuning(planner="minimal")},
        {"policy": "exact"},
    ],
)
def test_nothing_is_read_where_results_or_choices_must_not_depend_on_it(options, folder):
    learned(folder)
    ours = called(2, **options)
    assert chooser(ours).expectations.kinds == []
    assert chooser(ours).expectations._key == ""


def test_where_it_is_off_nothing_is_collected(folder, monkeypatch):
    monkeypatch.setenv("INCRAX_REMEMBER", "0")
    ours = called()
    chooser(ours).whole.seconds = 10.0
    monkeypatch.setenv("INCRAX_REMEMBER", "1")
    expectations.write()
    assert chooser(ours).expectations._key == ""
    assert list(folder.iterdir()) == []


# --- looks that are put off -----------------------------------------------------------------------


def analysed_at(folder, monkeypatch, num=60, tuning=None, **changes):
    """The call, counted from 1, at which a function is analysed, whose file says so."""
    file = learned(folder)
    about = {"pays": False, "calls": 10, "lost_s": 1.0, "whole_s": 1e-3}
    file.write_text(json.dumps({**json.loads(file.read_text()), **about, **changes}))
    monkeypatch.setattr(ledger, "LOOK_SHARE", 0.005)
    ours = incrax.incremental(model, tuning=tuning)
    for k in range(num):
        same(ours(float(k), 0.5, X), model(float(k), 0.5, X))
        if ours._traces.latest._engine is not None:
            return k + 1
    return None


@pytest.mark.parametrize(
    ("changes", "call"),
    [
        ({}, 22),  # twice as many calls, after the first
        ({"calls": 1000}, None),
        ({"calls": 1000, "lost_s": 5e-5}, 12),  # ten calls, of which a share is as much
        ({"calls": 1000, "lost_s": 1e-9}, 2),
        ({"calls": 0}, 2),
        ({"calls": -3}, 2),
        ({"pays": True}, 2),
        ({"pays": 0}, 2),
        ({"pays": None}, 2),
        ({"calls": "many"}, 2),
        ({"calls": 1e400}, 2),
        ({"lost_s": -1.0}, 2),
        ({"lost_s": None}, 2),
        ({"whole_s": 0.0}, 2),
    ],
)
@pytest.mark.every_case
def test_a_function_of_which_nothing_came_is_analysed_when_the_job_is_another(
    changes, call, folder, monkeypatch
):
    assert analysed_at(folder, monkeypatch, **changes) == call


def test_seconds_for_compiling_at_once_are_spent_though_nothing_came_of_it_before(
    folder, monkeypatch
):
    assert analysed_at(folder, monkeypatch, tuning=incrax.Tuning(compile_s=60.0)) == 2


def told(folder):
    """Whether the file of this process says that looking pays."""
    expectations.write()
    (file,) = (path for path in folder.iterdir() if path.name.startswith("function"))
    return json.loads(file.read_text())["pays"]


@pytest.mark.parametrize("candidate", ["plan", "whole"])
def test_a_plan_that_serves_is_a_reason_to_look(candidate, folder):
    ours = called(3, tuning=incrax.Tuning(compile_s=1e9))
    (entry,) = (entry for entry in chooser(ours).entries.values() if entry.program is not None)
    entry.candidate = candidate
    chooser(ours).whole.seconds = 1.0
    assert told(folder) == (candidate == "plan")


@pytest.mark.parametrize(("calls", "pays"), [(10, False), (10**7, True)])
def test_one_that_expected_calls_would_have_got_is_one(calls, pays, folder, monkeypatch):
    monkeypatch.setattr(learning_costs, "MIN_COMPILE_S", 60.0)
    monkeypatch.setattr(compile_budget, "COMPILE_SHARE", 0.0)
    ours = incrax.incremental(heavy, tuning=incrax.Tuning(compile_s=0.0))
    x = np.linspace(0.1, 2.0, 200_000)
    for a in range(6):
        ours(float(a), 0.5, x)
    assert chooser(ours).planner.num_programs == 0
    for entry in chooser(ours).entries.values():
        if entry.num_paying < math.inf:
            entry.count = calls
    chooser(ours).whole.seconds = 1.0
    assert told(folder) == pays


def test_calls_in_which_nothing_changed_are_one(folder):
    ours = called(2)
    for _ in range(3):
        ours(1.0, 0.5, X.copy())
    chooser(ours).whole.seconds = 100.0
    assert told(folder)


def test_a_job_in_which_everything_changes_says_so(folder):
    ours = incrax.incremental(model)
    for a in (1.0, 2.0, 3.0):
        ours(a, a, X * a)
    chooser(ours).whole.seconds = 1.0
    assert not told(folder)


def test_another_program_with_the_same_digest_is_another(folder, monkeypatch):
    learned(folder)
    monkeypatch.setattr(expectations, "fingerprint", lambda facts: "another")
    ours = called(2)
    assert chooser(ours).expectations.kinds == []


def test_where_a_plan_had_nothing_to_win_none_is_made(folder):
    learned(folder, plan_s=9.9)
    ours = called(4)
    assert chooser(ours).planner.num_planned == chooser(ours).planner.num_programs == 0


# --- fingerprints ---------------------------------------------------------------------------------

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, incrax
from incrax.engine.policy.candidates import Entry
from incrax.engine.policy.expectations import fingerprint
jax.config.update("jax_enable_x64", True)
def f(p, x):
    y = jnp.linalg.solve(jnp.eye(3) * p["a"] + 1.0, x)
    return jax.lax.scan(lambda c, t: (c * t, c + p["b"]), y.sum(), x)[0], jnp.sort(x)
ours = incrax.incremental(jax.value_and_grad(lambda p, x: f(p, x)[0]))
ours({"a": 1.0, "b": 2.0}, np.arange(3.0))
print(fingerprint(ours._traces.latest.engine.facts))
"""


def test_a_program_has_one_fingerprint_in_all_processes():
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM]
        ended = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        found.add(ended.stdout)
    assert len(found) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda a, b, x: a * jnp.sum(jnp.exp(b * x)),
        lambda a, b, x: b * jnp.sum(jnp.exp(-a * x)),
        lambda a, b, x: a * jnp.sum(jnp.exp(-b * x[:40])),
        lambda a, b, x: jnp.sum(jnp.exp(-b * x)),
    ],
)
def test_other_programs_have_other_fingerprints(other):
    found = []
    for fun in (model, other):
        ours = incrax.incremental(fun)
        ours(1.0, 0.5, X)
        found.append(fingerprint(ours._traces.latest.engine.facts))
    assert found[0] != found[1]


# --- hints ----------------------------------------------------------------------------------------


def hints(fun, *args, **options):
    ours = incrax.incremental(fun, **options)
    ours(*args)
    engine = ours._traces.latest.engine
    mask = engine.layout.leaf_mask
    return chooser(ours).expectations, mask, engine.layout.offsets


def test_each_name_changes_alone_and_names_in_a_tuple_together():
    found, mask, _ = hints(model, 1.0, 0.5, X, changing=["a", ("a", "b")])
    assert found.of(mask(0)) == found.of(mask(0) | mask(1)) == Known(HINTED_CALLS)
    assert found.of(mask(1)) == Known(0)


def test_calls_are_shared_by_the_kinds_of_change():
    found, mask, _ = hints(model, 1.0, 0.5, X, calls=300, changing=["a", "b"])
    assert [found.of(mask(k)).calls for k in range(3)] == [150, 150, 0]


def test_a_star_stands_for_each_element_or_item():
    theta = lambda theta, scale: jnp.sum(theta) * scale
    found, _, offsets = hints(theta, np.arange(4.0), 1.0, changing=["theta[*]"])
    assert [found.of(1 << (offsets[0] + k)).calls > 0 for k in range(5)] == [True] * 4 + [False]
    items = lambda items: sum(jnp.sum(item["x"] * item["y"]) for item in items)
    found, mask, _ = hints(items, [{"x": 1.0, "y": 2.0}] * 2, changing="items[*]['x']")
    assert [found.of(mask(k)).calls > 0 for k in range(4)] == [True, False, True, False]
    found, mask, _ = hints(items, [{"x": 1.0, "y": 2.0}] * 2, changing="items[*]")
    assert found.of(mask(0) | mask(1)).calls == found.of(mask(2) | mask(3)).calls == HINTED_CALLS


@pytest.mark.parametrize("name", ["c", "c[*]", "a[*]"])
def test_a_name_of_no_input_is_refused_at_the_first_call(name):
    ours = incrax.incremental(model, changing=[name])
    with pytest.raises(incrax.errors.UnknownInputError, match=name.replace("[*]", r"\[\*\]")):
        ours(1.0, 0.5, X)


def heavy(a, b, x):
    """A millisecond or so of work that `a` does not reach."""
    return a * jnp.sum(jnp.exp(-b * x) ** 1.5)


@pytest.mark.parametrize(
    ("options", "num_programs"),
    [({}, 0), ({"calls": 5, "changing": ["a"]}, 0), ({"calls": 10**9, "changing": ["a"]}, 1)],
    ids=["no hint", "few calls", "very many calls"],
)
def test_a_plan_is_made_at_once_where_the_calls_to_come_repay_it(options, num_programs):
    ours = incrax.incremental(heavy, **options)
    x = np.linspace(0.1, 2.0, 200_000)
    for a in (1.0, 2.0):
        same(ours(a, 0.5, x), heavy(a, 0.5, x))
    assert chooser(ours).planner.num_programs == num_programs


def test_a_number_of_calls_alone_is_enough_when_a_change_comes_back():
    ours = incrax.incremental(heavy, calls=10**9)
    x = np.linspace(0.1, 2.0, 200_000)
    ours(1.0, 0.5, x)
    ours(2.0, 0.5, x)
    assert chooser(ours).planner.num_programs == 0
    ours(3.0, 0.5, x)
    assert chooser(ours).planner.num_programs == 1


@pytest.mark.parametrize(("options", "is_put_off"), [({}, True), ({"calls": 10**9}, False)])
def test_one_slow_look_puts_nothing_off_where_many_calls_are_said_to_come(
    options, is_put_off, monkeypatch
):
    ours = called(3, **options)
    found = chooser(ours)
    found.whole.is_measured = True
    found.whole.seconds = 1.0
    found.ledger.grant(0)

    def slow(self, *_, **__):
        self.grant(100)
        return True

    monkeypatch.setattr(ledger.Ledger, "note_call", slow)
    found.note_call(Entry(1, count=1, is_decided=True), "whole", 1.0, 1.0)
    assert (found.ledger.left > 0) is is_put_off


def test_calls_that_are_announced_later_count_as_much(monkeypatch):
    monkeypatch.setattr(learning_costs, "MIN_COMPILE_S", 60.0)
    ours = incrax.incremental(heavy)
    ours.expect(10**9)  # nothing was called yet
    x = np.linspace(0.1, 2.0, 200_000)
    ours(1.0, 0.5, x)
    ours(2.0, 0.5, x)
    ours(3.0, 0.5, x)
    assert chooser(ours).planner.num_programs == 0
    ours.expect(10**9)
    ours.expect(10**9)
    ours(4.0, 0.5, x)
    assert chooser(ours).planner.num_programs == 1


def test_a_short_job_takes_nothing_from_what_the_function_was_made_for():
    ours = incrax.incremental(heavy, calls=10**9)
    x = np.linspace(0.1, 2.0, 200_000)
    ours(1.0, 0.5, x)
    ours(2.0, 0.5, x)
    ours.expect(3)
    ours(3.0, 0.5, x)
    assert chooser(ours).planner.num_programs == 1


def test_few_calls_to_come_repay_nothing(monkeypatch):
    monkeypatch.setattr(learning_costs, "MIN_COMPILE_S", 60.0)
    ours = incrax.incremental(heavy)
    x = np.linspace(0.1, 2.0, 200_000)
    for a in (1.0, 2.0, 3.0):
        ours(a, 0.5, x)
        ours.expect(3)
    assert chooser(ours).planner.num_programs == 0


@pytest.mark.parametrize(
    ("was_compiled", "first_s", "is_cheap"),
    [(True, 1.0, True), (False, 1.0, False), (True, 6.0, False)],
)
def test_what_jax_kept_need_not_be_compiled_again(was_compiled, first_s, is_cheap, monkeypatch):
    """The whole program took ten seconds in an earlier process: if less now, it was kept."""
    monkeypatch.setenv("INCRAX_BACKGROUND", "0")
    credit = chooser(called()).credit
    credit.costs.whole.first_s = first_s
    credit.costs.expectations.compile_s = 10.0
    price_s = credit.costs.plan_price_s(Entry(1, was_compiled=was_compiled))
    assert price_s == (first_s if is_cheap else 10.0)


def test_the_next_process_knows_what_was_compiled(folder):
    learned(folder)
    compiled = called(2)
    assert chooser(compiled).planner.num_programs == 1
    chooser(compiled).whole.seconds = 10.0
    for entry in chooser(compiled).entries.values():
        entry.uses = 1000
    expectations.write()
    ours = called(2)
    (dirty,) = (d for d in chooser(ours).entries if d != chooser(ours).facts.layout.full)
    assert chooser(ours).entries[dirty].was_compiled


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_program_that_was_timed_too_seldom_is_known_by_its_promise(is_measured):
    """Its one run took longer than the whole function, since something else ran on the machine."""
    program = SimpleNamespace(seconds=3.0, is_measured=is_measured)
    entry = Entry(1, count=7, program=program, is_decided=True, promise_s=0.5, candidate="whole")
    assert expectations._learned(entry, 1.0) == Known(7, 3.0 if is_measured else 0.5, True)


def test_calls_of_a_family_are_expected_of_each_of_its_kinds():
    entries = {k: Entry(k, count=k, family=7 if k > 1 else None) for k in (1, 2, 3)}
    entries[3].program = SimpleNamespace(seconds=3.0, is_measured=True)
    found = expectations._learned_of(entries, 10.0)
    assert [known.kin_calls for known in found.values()] == [0, 5, 5]
    assert [known.was_compiled for known in found.values()] == [False, True, True]


def test_what_segments_serve_was_compiled_but_tells_no_price_of_a_program():
    segments = Entry(1, family=1, count=30, candidate="segments", learning_s=0.7)
    segments.seconds["segments"] = 0.3
    whole = Entry(2, family=2, count=9)
    found = expectations._learned_of({1: segments, 2: whole}, 1.0)
    assert [known.was_compiled for known in found.values()] == [True, False]
    assert [known.learning_s for known in found.values()] == [0.0, 0.0]


def test_calls_of_all_that_had_programs_are_expected_together_before_the_first(folder):
    """Of 30 calls each of two kinds, one of which leaves half as much clean as the other."""
    ours = called()
    accounts = chooser(ours).accounts
    own = accounts.expectations
    full = own.facts.layout.full
    own._known = {1: Known(30, 0.1, True), 2: Known(30, 0.1, True), 4: Known(99, 0.1, False)}
    shares = {1: 0.8, 2: 0.4, 4: 0.9, full: 0.0}
    own.facts.__dict__["clean_share"] = shares.__getitem__
    accounts.families.clear()
    entry = Entry(1, family=1, clean_share=0.8, num_expected=30)
    accounts.note_kind(entry)
    accounts.note_calls(entry, 10)
    assert accounts.num_expected(entry) == 45
    assert accounts.num_expected(Entry(4, family=3, clean_share=0.9)) == 0  # it never came
    accounts.has_learned = True
    assert accounts.num_expected(entry) == 30


def test_what_programs_took_is_known_to_the_next_process():
    """Of a family together; where none was made this time, what was known stays."""
    made = SimpleNamespace(seconds=0.5, is_measured=True)
    entries = {
        1: Entry(1, count=9, family=7, learning_s=0.25, program=made),
        2: Entry(2, count=9, family=7, learning_s=0.5),
        4: Entry(4, count=9, learning_s=0.3, program=made, known_price_s=0.4),
        8: Entry(8, count=9, learning_s=0.3),
        16: Entry(16, count=9, known_price_s=0.6),
    }
    found = expectations._learned_of(entries, 1.0)
    assert [known.learning_s for known in found.values()] == [0.75, 0.75, 0.4, 0.0, 0.6]


@pytest.mark.parametrize(
    ("promise_s", "program", "num_expected"), [(0.5, None, 20), (2.0, None, 100), (0.5, "one", 100)]
)
def test_calls_that_rows_will_serve_are_not_expected_of_their_dirty_set(
    promise_s, program, num_expected
):
    """The next process would compile for both; not where rows promise nothing, or where the dirty
    set has a program.
    """
    rows = Entry(6, count=90, uses=10, fixed_s=0.1, promise_s=promise_s)
    entries = {RowKind((0,), 1): rows, 2: Entry(2, count=100), 8: Entry(8, count=7)}
    if program is not None:
        entries[2] = Entry(2, count=100, family=1)
        entries[2].program = SimpleNamespace(seconds=0.5, is_measured=True)
    found = expectations._learned_of(entries, 1.0)
    assert [known.calls for known in found.values()] == [90, num_expected, 7]


PARTS = [np.linspace(0.1, 2.0, 5000) * (1 + k / 7) for k in range(6)]


def total(*theta):
    return sum(a * jnp.sum(jnp.exp(-b * x)) for (a, b), x in zip(theta, PARTS, strict=True))


def test_the_next_process_expects_what_a_family_did_when_its_first_kind_comes(folder):
    """Each kind came seldom, and all of them together as often as pays."""
    theta = [(1.0, 0.5)] * 6

    def of_process(num):
        ours = incrax.incremental(total, tuning=incrax.Tuning(hot_after=1000))
        ours(*theta)
        for k in range(num):
            ours(*theta[:k], (2.0, 0.5), *theta[k + 1 :])
        return ours

    ours = of_process(6)
    chooser(ours).whole.seconds = 10.0
    for entry in chooser(ours).entries.values():
        entry.count = 7
    expectations.write()
    again = of_process(2)
    entry = max(chooser(again).entries.values(), key=lambda entry: entry.num_kin_expected)
    assert entry.num_expected == 7
    assert chooser(again).accounts.of(entry).num_expected == 5 * 7  # the first is added to zero


# --- processes ------------------------------------------------------------------------------------

JOB = """
import jax, jax.numpy as jnp, numpy as np, incrax
def slow(b, x):
    return jax.lax.fori_loop(0, 3000, lambda _, y: jnp.tanh(y * b) + x, x)
f = incrax.incremental(lambda a, b, x: jnp.sum(jnp.abs(slow(b, x) - a)))
x = np.linspace(0.1, 2.0, 10_000)
plain = jax.jit(f.__wrapped__)
for number in range(5000):  # of 20 ms: many times what compiling takes, however busy the machine is
    result = f(float(number), 0.5, x)
    assert number % 500 or abs(result / plain(float(number), 0.5, x) - 1) < 1e-5
    if number == 1:
        print(f._traces.latest.engine.planner.num_programs)
"""


def test_a_second_process_has_the_plan_at_the_first_change(tmp_path):
    env = {**os.environ, "INCRAX_CACHE_DIR": str(tmp_path), "INCRAX_REMEMBER": "1"}
    command = [sys.executable, "-c", JOB]
    run = lambda: subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    ended = [run() for _ in range(2)]
    assert [process.stdout.strip() for process in ended] == ["0", "1"]
    assert [process.stderr for process in ended] == ["", ""]
    assert len(list(tmp_path.iterdir())) == 2


LATE = """
import atexit

def work():  # after what was learned was written
    import jax, jax.numpy as jnp
    jax.kept = f = incrax.incremental(lambda a, x: jnp.sum(jnp.tanh(a * jnp.tile(x, 100_000))))
    for number in range(20):
        f(float(number), jnp.ones(10)).block_until_ready()

atexit.register(work)
import incrax
"""


def test_what_goes_with_its_modules_is_silent(tmp_path):
    env = {**os.environ, "INCRAX_CACHE_DIR": str(tmp_path), "INCRAX_REMEMBER": "1"}
    command = [sys.executable, "-c", LATE]
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert not ended.stderr
