"""Plans are compiled in a thread while the whole program serves; nothing waits for it, and nothing
goes wrong at an exit, in a fork, in another configuration, or where it fails.
"""

from __future__ import annotations

import gc
import math
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same
from slice_cases import CASES

import incrax
from incrax.engine.compile import background
from incrax.engine.compile.background import MAX_WAITING, Background, Compilation, Worker
from incrax.engine.policy import slices

pytestmark = pytest.mark.usefixtures("known_prices")

X = np.linspace(0.1, 2.0, 20_000)
BEHIND = incrax.Tuning(background=True, compile_s=math.inf)


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x) * jnp.arctan2(x, b))


class Held(Worker):
    """Jobs are run when a test says so, in a thread that it waits for."""

    def __init__(self):
        super().__init__()
        self.jobs = []

    def take(self, job):
        self.jobs.append(job)
        return True

    def run_all(self):
        while self.jobs:
            thread = threading.Thread(target=self.jobs.pop(0).run)
            thread.start()
            thread.join()


@pytest.fixture
def worker(monkeypatch):
    held = Held()
    monkeypatch.setattr(background, "worker", held)
    return held


@pytest.fixture
def compiled_in():
    """The threads in which XLA compiled, one entry for each program."""
    found = []

    def listen(name, seconds, **_):
        if name.endswith("backend_compile_duration"):
            found.append(threading.current_thread())

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def served_by(f):
    return f.explain().as_dict()["served_by"]


def verdict_of(f):
    return f._traces.latest.engine.chooser.verdict


def until_one_waits(f, worker, call):
    """Calls until a program waits for the thread; how many these were."""
    for number in range(1, 40):
        call(f, number)
        if worker.jobs:
            return number
    raise AssertionError("nothing is compiled")


def change_scale(f, number):
    same(f(float(number), 1.5, X), model(float(number), 1.5, X))


def test_the_whole_program_serves_until_a_plan_is_compiled(worker):
    f = incrax.incremental(model, tuning=BEHIND)
    number = until_one_waits(f, worker, change_scale)
    for later in range(number + 1, number + 6):
        change_scale(f, later)
        assert served_by(f) == "whole"
    worker.run_all()
    for later in range(number + 6, number + 40):
        change_scale(f, later)
        worker.run_all()
    assert served_by(f) == "plan"


def test_the_verdict_says_what_is_compiled_and_tells_its_seconds_apart(worker):
    f = incrax.incremental(model, tuning=BEHIND)
    number = until_one_waits(f, worker, change_scale)
    change_scale(f, number + 1)
    verdict = verdict_of(f)
    assert verdict.num_behind == len(worker.jobs)
    assert verdict.behind_s == 0.0
    assert verdict.sentence.startswith(f"learning: compiling {verdict.num_behind} plan")
    assert verdict.sentence.endswith(f"in the background, {verdict.num_calls} calls so far")
    for later in range(number + 2, number + 30):
        worker.run_all()
        change_scale(f, later)
    verdict = verdict_of(f)
    assert verdict.num_behind == 0
    assert verdict.behind_s > 0.0
    assert "more in the background)" in verdict.sentence


def in_single_precision(f, number):
    with jax.enable_x64(False):
        x = jnp.asarray(X, jnp.float32)
        same(f(jnp.float32(number), jnp.float32(1.5), x), model(jnp.float32(number), 1.5, x))


def test_a_program_for_rows_is_compiled_there_too(worker, compiled_in, monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.chooser.ROUNDS", 0)
    for name, least in [("MIN_GAIN", -math.inf), ("LEAST_SHARE", -1.0), ("ROWS_S", 0.0)]:
        monkeypatch.setattr(slices, name, least)
    function, arguments, _ = CASES["groups"]
    main = threading.current_thread()
    f = incrax.incremental(function, tuning=replace(BEHIND, hot_after=1))
    theta, *others = arguments
    num_behind = 0
    for number in range(40):
        theta = theta.copy()
        theta[number % theta.size] += 0.1
        expected = function(theta, *others)
        compiled_in.clear()
        worker.run_all()
        num_behind += len(compiled_in)
        same(f(theta, *others), expected, factor=1024.0, terms=30.0)
        assert not number or main not in compiled_in
    assert num_behind > 1
    assert served_by(f) == "slices"


def test_a_call_of_rows_counts_once_while_their_program_is_compiled(worker, monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.ledger.LOOK_SHARE", 1e9)  # each call is looked at
    y = jnp.asarray(np.random.default_rng(0).normal(size=(500, 1_000)))
    f = incrax.incremental(
        lambda theta: jnp.sum(jnp.exp(jnp.sin(theta)[:, None] * y * jnp.cos(y))),
        tuning=replace(BEHIND, hot_after=1),
    )
    theta = np.ones(500)
    for number in range(40):
        theta = theta.copy()
        theta[number] += 0.1
        f(theta)
    assert worker.jobs
    assert f._traces.latest.engine.chooser.accounts.num_calls == f.stats.calls


@pytest.mark.parametrize("call", [change_scale, in_single_precision])
def test_what_the_thread_compiled_is_what_the_call_runs(call, worker, compiled_in):
    f = incrax.incremental(model, tuning=BEHIND)
    until_one_waits(f, worker, call)
    for number in range(40, 60):
        call(f, number)  # all that is called here besides is compiled
    num_behind = 0
    main = threading.current_thread()
    for number in range(60, 120):
        compiled_in.clear()
        worker.run_all()
        num_behind += len(compiled_in)
        call(f, number)
        assert main not in compiled_in
    assert num_behind
    assert served_by(f) != "whole"


@pytest.mark.parametrize("seed", range(3))
def test_results_are_right_whenever_jobs_end(seed, worker):
    rng = random.Random(seed)
    f = incrax.incremental(jax.value_and_grad(model), tuning=replace(BEHIND, hot_after=1))
    plain = jax.jit(jax.value_and_grad(model))
    args = [1.0, 1.5, X]
    served = set()
    for _ in range(60):
        for index in rng.choice([(0,), (1,), (0, 1), (2,)]):
            args[index] = args[index] * (1 + 0.1 * rng.random())
        same(f(*args), plain(*args), terms=1e5)
        served.add(served_by(f))
        if rng.random() < 0.2:
            worker.run_all()
    assert {"whole", "plan"} <= served


def test_a_job_that_fails_is_left_to_a_call(worker):
    f = incrax.incremental(model, tuning=BEHIND)
    number = until_one_waits(f, worker, change_scale)
    for later in range(number + 1, number + 30):
        for job in worker.jobs:
            job.call = None
        worker.run_all()
        change_scale(f, later)
    assert served_by(f) == "plan"
    assert verdict_of(f).behind_s == 0.0


def test_another_configuration_compiles_nothing(worker, compiled_in):
    with jax.numpy_rank_promotion("raise"):
        job = Compilation(jax.jit(jnp.sin), [jax.ShapeDtypeStruct((7,), jnp.float32)])
    worker.take(job)
    worker.run_all()
    assert job.is_done
    assert not compiled_in


@pytest.mark.parametrize(
    "tuning",
    [
        incrax.Tuning(background=False, compile_s=math.inf),
        incrax.Tuning(background=True, compile_s=math.inf, timed=False),
        incrax.Tuning(background=True, planner="minimal"),
    ],
)
def test_nothing_waits_where_the_same_calls_must_be_served_alike(tuning, worker):
    f = incrax.incremental(model, tuning=tuning)
    for number in range(12):
        change_scale(f, number)
    assert f.stats.compiles > 1
    assert not worker.jobs


def test_what_is_asked_for_is_compiled_in_front(worker):
    f = incrax.incremental(model, tuning=BEHIND)
    f.warm_up(1.0, 1.5, X, changing=["a"])
    assert f.stats.compiles > 1
    assert not worker.jobs


@pytest.mark.parametrize(
    ("said", "variable", "expected"),
    [
        (None, None, False),
        (None, "0", False),
        (None, "1", True),
        (True, "0", True),
        (False, "1", False),
    ],
)
def test_a_thread_compiles_where_somebody_said_so(said, variable, expected, monkeypatch):
    monkeypatch.delenv("INCRAX_BACKGROUND", raising=False)
    if variable is not None:
        monkeypatch.setenv("INCRAX_BACKGROUND", variable)
    assert background.is_wanted(said) is expected


class Lowered:
    """Stands for a jitted function: notes that it was lowered, and lets the test go on or wait."""

    def __init__(self):
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.num_compiled = 0

    def lower(self, *types):
        self.has_begun.set()
        self.may_end.wait()
        return self

    def compile(self):
        self.num_compiled += 1


def test_one_job_runs_at_a_time_and_those_that_nobody_holds_do_not():
    worker = Worker()
    first, second, dropped = Lowered(), Lowered(), Lowered()
    jobs = [Compilation(call, ()) for call in (first, dropped, second)]
    for job in jobs:
        assert worker.take(job)
    del job, jobs[1]
    gc.collect()
    first.has_begun.wait()
    assert not second.has_begun.is_set()
    thread = worker.thread
    for call in (first, second, dropped):
        call.may_end.set()
    thread.join()
    assert (first.num_compiled, second.num_compiled, dropped.num_compiled) == (1, 1, 0)
    assert worker.thread is None


def test_the_queue_is_bounded():
    worker = Worker()
    call = Lowered()
    jobs = [Compilation(call, ()) for _ in range(MAX_WAITING + 3)]
    worker.take(jobs[0])
    call.has_begun.wait()
    taken = [worker.take(job) for job in jobs[1:]]
    assert taken == [True] * MAX_WAITING + [False, False]
    thread = worker.thread
    call.may_end.set()
    thread.join()


def test_a_closed_worker_ends_before_it_compiles_and_leaves_jobs_to_calls(monkeypatch):
    worker = Worker()
    monkeypatch.setattr(background, "worker", worker)
    call = Lowered()
    running, waiting, late = (Compilation(call, ()) for _ in range(3))
    worker.take(running)
    call.has_begun.wait()
    worker.take(waiting)
    closing = threading.Thread(target=worker.close)
    closing.start()
    while not worker.is_closed:
        continue
    call.may_end.set()
    closing.join()
    assert call.num_compiled == 0
    assert worker.take(late)
    assert late.is_done


def test_a_forked_process_waits_for_nothing(monkeypatch):
    held = Held()
    monkeypatch.setattr(background, "worker", held)
    behind = Background(is_on=True)
    job = behind.compile(Lowered(), ())
    assert not job.has_ended
    assert behind.num_waiting == 1
    held.thread = threading.current_thread()
    monkeypatch.setattr(background.os, "getpid", lambda: 0)
    held.renew()
    assert job.has_ended
    assert behind.num_waiting == 0
    assert held.thread is None


SCRIPT = """
import math, threading
import jax, jax.numpy as jnp, numpy as np
import incrax
from incrax.engine.plan import facts
from incrax.engine.program.cost import Calibration

facts.calibrate = Calibration

def model(a, b, x):
    for _ in range(60):
        x = jnp.sin(x) @ x * b
    return a * jnp.sum(x)

f = incrax.incremental(model, tuning=incrax.Tuning(compile_s=math.inf))
x = np.full((16, 16), 0.1)
for number in range(200):
    float(f(float(number), 1.5, x))
    if any(t.name == "incrax-compile" for t in threading.enumerate()):
        print("ends while it compiles")
        break
"""


@pytest.mark.parametrize("ending", ["", "\nimport sys; sys.exit(0)", "\ndel f"])
def test_a_script_that_ends_while_it_compiles_ends_well(ending):
    environment = {**os.environ, "INCRAX_BACKGROUND": "1", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT + ending],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=300,
    )
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert ended.stdout == "ends while it compiles\n"
