"""Float64 everywhere; which cases and how many random ones the default run takes.

Hypothesis is deterministic unless the nightly profile is chosen.
"""

from __future__ import annotations

import functools
import gc
import os
import sys

os.environ["INCRAX_REMEMBER"] = "0"  # what one test learned is nothing to the next
os.environ["COLUMNS"] = "160"  # so that what is printed does not follow the window
os.environ.setdefault("INCRAX_BACKGROUND", "0")  # programs come at the same calls everywhere
from collections import defaultdict
from pathlib import Path

import hypothesis
import jax
import pytest
from jax._src import compiler

from incrax.engine.policy import candidates, compile_budget, ledger, planner
from incrax.engine.program import cost
from incrax.engine.program.cost import Calibration

jax.config.update("jax_enable_x64", True)

# The functions of tests take no time: every call is looked at, and small gains count.
ledger.LOOK_SHARE = 1e9
compile_budget.SHORT_S = 0.0
candidates.UPKEEP_S = planner.UPKEEP_S = 5e-6

common = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("default run", derandomize=True, max_examples=3, **common)
hypothesis.settings.register_profile("push", derandomize=True, max_examples=25, **common)
hypothesis.settings.register_profile("nightly", derandomize=False, max_examples=1000, **common)

MAX_PROGRAMS = 400
NUM_CASES = 2
"""Of one test, in the default run."""

SLOW = Path(__file__).with_name("slow.txt")
"""Tests, or cases of them, that take longer than the limit of `scripts/slow_tests.py`, which writes
it.
"""


def pytest_configure(config):
    """Where exhaustive tests run, random ones draw all their examples: `-m "exhaustive or
    hypothesis"` is the rest.
    """
    is_default = config.option.markexpr == "not exhaustive"
    hypothesis.settings.load_profile(
        os.environ.get("HYPOTHESIS_PROFILE", "default run" if is_default else "push")
    )
    config.pluginmanager.register(Doctests())  # hooks of this file do not see those of `src`


class Doctests:
    """Examples in docstrings: `doctest` of Python 3.11.2, which Debian 12 has, takes the last note of
    an error for its message, and JAX adds one where it leaves out frames.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        if not isinstance(item, pytest.DoctestItem):
            return (yield)
        before = jax.config.jax_traceback_filtering
        jax.config.update("jax_traceback_filtering", "off")
        try:
            return (yield)
        finally:
            jax.config.update("jax_traceback_filtering", before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What is slow is exhaustive; of a test with many cases some are enough by default, evenly
    spread.
    """
    slow = frozenset(SLOW.read_text().splitlines())
    tests = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_random = hypothesis.is_hypothesis_test(
            getattr(item, "obj", None)
        )  # there, fewer examples do
        if not is_random and (item.nodeid in slow or name in slow):
            item.add_marker("exhaustive")
        tests[name].append(item)
    for cases in tests.values():
        chosen = {k * (len(cases) - 1) // (NUM_CASES - 1) for k in range(NUM_CASES)}
        for number in set(range(len(cases))) - chosen:
            if cases[number].get_closest_marker("every_case") is None:
                cases[number].add_marker("exhaustive")


def pytest_runtest_setup(item):
    """On other devices the same is decided as on CPUs: the prices of work are the same."""
    if jax.default_backend() == "cpu":
        return
    cost.ACCELERATOR = cost.Calibration()
    if item.get_closest_marker("cpu"):
        pytest.skip("asserts what holds on CPUs alone")


def pytest_collection_finish():
    """What imports and collecting made stays: collections of garbage leave it out, of which each
    test makes some, and `gc.collect()` takes a tenth of the time.
    """
    gc.collect()
    gc.freeze()


LEAN = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Options of XLA under which a small program compiles in a third of the time, and runs no worse."""


@functools.cache
def lean_options():
    """Those of `LEAN` that this XLA has."""

    def is_known(name):
        try:
            jax.jit(lambda x: x, compiler_options={name: LEAN[name]}).lower(0.0).compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    return [(name, value) for name, value in LEAN.items() if is_known(name)]


def as_installed(function):
    """Recorders take what is outside of installed code for the user's."""
    function.__code__ = function.__code__.replace(co_filename=compiler.__file__)
    return function


def compile_lean(get_compile_options):
    """The options of a program, with those of `LEAN`: what is cached on a disk has them in its key."""
    known = lean_options()

    def lean(*args, **kwargs):
        options = get_compile_options(*args, **kwargs)
        options.env_option_overrides = options.env_option_overrides + known
        return options

    return as_installed(lean)


def compile_once(compile_and_load):
    """The same, where programs of one text become one.

    Those that call the host are each their own.
    """
    programs = {}

    def compile_or_reuse(backend, module, devices, options, host_callbacks):
        if host_callbacks:
            return compile_and_load(backend, module, devices, options, host_callbacks)
        key = str(module), str(devices), options.SerializeAsString()
        if key not in programs:
            programs[key] = compile_and_load(backend, module, devices, options, host_callbacks)
        return programs[key]

    return as_installed(compile_or_reuse)


@pytest.fixture(autouse=True, scope="module")
def programs_of_the_module(request):
    """Tests of one module share compiled programs: a third of their time goes into compiling the
    same ones again. Most of the rest goes into optimising programs that run once; `optimized` asks
    for it, where bits are compared.
    """
    get_options = compiler.get_compile_options
    if is_lean := request.node.get_closest_marker("optimized") is None:
        get_options = compile_lean(get_options)
    if getattr(request.session, "is_lean", False) is not is_lean:
        jax.clear_caches()  # functions that modules share were compiled the other way
        request.session.is_lean = is_lean
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", get_options)
        patch.setattr(
            compiler, "backend_compile_and_load", compile_once(compiler.backend_compile_and_load)
        )
        yield


@pytest.fixture(autouse=True)
def closed_figures():
    """Matplotlib warns where many are open."""
    yield
    plots = sys.modules.get("matplotlib.pyplot")
    if plots is not None:
        plots.close("all")


@pytest.fixture(autouse=True, scope="module")
def forgotten_programs():
    """Between modules, drop what JAX keeps compiled, and leave what is left out of collections of
    garbage.

    Each living program makes compilations, and what a test collects, slower: thousands double the
    time.
    """
    yield
    if len(jax.devices()[0].client.live_executables()) > MAX_PROGRAMS:
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture
def known_prices(monkeypatch):
    """Prices that are built in: a machine under load must not decide what is planned."""
    monkeypatch.setattr("incrax.engine.plan.facts.calibrate", Calibration)
