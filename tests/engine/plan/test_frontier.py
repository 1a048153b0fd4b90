"""The minimum cut against every choice there is, on random small programs."""

from __future__ import annotations

import itertools
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csgraph

from incrax._program import listing_of, read_vars, trace, written_vars
from incrax.engine.plan import frontier as module
from incrax.engine.plan.frontier import Frontier

lax = jax.lax


def choose_frontier(eqns, *args):
    return module.choose_frontier(listing_of(eqns), *args)


def random_program(rng, num_eqns):
    """Equations with one or two inputs and outputs on a pool of values of one type."""

    def fun(a, b):
        pool = [a, b]
        for _ in range(num_eqns):
            kind = rng.choice(["one", "two", "two", "pair"])
            if kind == "one":
                pool.append(lax.sin(rng.choice(pool)))
            elif kind == "two":
                pool.append(lax.add(rng.choice(pool), rng.choice(pool)))
            else:
                pool += lax.optimization_barrier((rng.choice(pool), rng.choice(pool)))
        return pool[2:]

    return trace(fun, 1.0, 2.0).eqns


def check_valid(eqns, frontier, targets, must_run):
    """Whatever runs or is wanted is written before, loaded or an input; nothing is done in vain."""
    producer = {var: n for n, eqn in enumerate(eqns) for var in written_vars(eqn)}
    available = set(frontier.load)
    assert list(frontier.run) == sorted(set(frontier.run))
    assert len(frontier.load) == len(set(frontier.load))
    assert [producer[var] for var in frontier.load] == sorted(
        producer[var] for var in frontier.load
    )
    for number in frontier.run:
        assert all(var in available or var not in producer for var in read_vars(eqns[number]))
        available.update(written_vars(eqns[number]))
    assert all(var in available or var not in producer for var in targets)
    assert set(must_run) <= set(frontier.run)
    assert not any(producer[var] in frontier.run for var in frontier.load)
    read = {*targets, *(var for number in frontier.run for var in read_vars(eqns[number]))}
    assert set(frontier.load) <= read
    assert all(n in must_run or read & set(written_vars(eqns[n])) for n in frontier.run)


def price_of(frontier, load, run):
    return sum(run[n] for n in frontier.run) + sum(load[var] for var in frontier.load)


def cheapest(eqns, targets, must_run, load, run):
    """The least price of all choices of equations, each with the loads that it needs."""
    producer = {var: n for n, eqn in enumerate(eqns) for var in written_vars(eqn)}
    best = float("inf")
    for chosen in itertools.product([False, True], repeat=len(eqns)):
        ran = {n for n, is_chosen in enumerate(chosen) if is_chosen}
        if not set(must_run) <= ran:
            continue
        needed = {v for n in ran for v in read_vars(eqns[n])} | set(targets)
        loads = {v for v in needed if v in producer and producer[v] not in ran}
        if all(load[v] is not None for v in loads):
            best = min(best, sum(run[n] for n in ran) + sum(load[v] for v in loads))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_as_cheap_as_the_best_of_all_choices(seed):
    rng = random.Random(seed)
    eqns = random_program(rng, rng.randint(1, 8))
    variables = [var for eqn in eqns for var in written_vars(eqn)]
    scale = rng.choice([1.0, 1e-6, 1e3])
    run = [rng.choice([0.0, 1.0, rng.random(), 20.0]) * scale for _ in eqns]
    load = {v: rng.choice([None, rng.random() * scale, 2.0 * scale, 0.0]) for v in variables}
    targets = rng.sample(variables, rng.randint(1, min(3, len(variables))))
    must_run = rng.sample(range(len(eqns)), rng.choice([0, 0, 1]))
    frontier = choose_frontier(eqns, targets, must_run, load.get, run.__getitem__)
    check_valid(eqns, frontier, targets, must_run)
    assert price_of(frontier, load, run) == pytest.approx(
        cheapest(eqns, targets, must_run, load, run), rel=1e-6, abs=1e-6 * scale
    )


@pytest.mark.parametrize("seed", range(10))
def test_prices_of_very_different_size_give_a_valid_choice(seed):
    rng = random.Random(seed)
    eqns = random_program(rng, 7)
    variables = [var for eqn in eqns for var in written_vars(eqn)]
    run = [10.0 ** rng.uniform(-12, 3) for _ in eqns]
    load = {v: rng.choice([None, 10.0 ** rng.uniform(-12, 3)]) for v in variables}
    targets = variables[-2:]
    frontier = choose_frontier(eqns, targets, [], load.get, run.__getitem__)
    check_valid(eqns, frontier, targets, [])
    best = cheapest(eqns, targets, [], load, run)
    assert price_of(frontier, load, run) <= best * (1 + 1e-6) + 1e-7 * sum(run)


def naive(eqns, targets, must_run, load):
    """Equations and loads where all that can be loaded is loaded, from the targets backwards."""
    producer = {var: n for n, eqn in enumerate(eqns) for var in written_vars(eqn)}
    ran, loads, stack = set(), set(), [*must_run]
    needed = [var for var in targets if var in producer]
    while stack or needed:
        if needed:
            var = needed.pop()
            if load[var] is None:
                stack.append(producer[var])
            else:
                loads.add(var)
        elif (number := stack.pop()) not in ran:
            ran.add(number)
            needed += [var for var in read_vars(eqns[number]) if var in producer]
    return ran, {var for var in loads if producer[var] not in ran}


@pytest.mark.parametrize("seed", range(60))
def test_windows_give_a_valid_choice_no_dearer_than_to_load_what_can_be_loaded(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(module, "WINDOW", rng.randint(1, 5))
    eqns = random_program(rng, rng.randint(5, 30))
    variables = [var for eqn in eqns for var in written_vars(eqn)]
    run = [rng.choice([0.0, rng.random(), 20.0]) for _ in eqns]
    load = {v: rng.choice([None, rng.random(), 2.0, 5.0]) for v in variables}
    targets = rng.sample(variables, rng.randint(1, 5))
    must_run = rng.sample(range(len(eqns)), rng.choice([0, 0, 1]))
    frontier = choose_frontier(eqns, targets, must_run, load.get, run.__getitem__)
    check_valid(eqns, frontier, targets, must_run)
    ran, loads = naive(eqns, targets, must_run, load)
    assert (
        price_of(frontier, load, run)
        <= price_of(Frontier(tuple(ran), tuple(loads)), load, run) + 1e-6
    )


# --- by hand --------------------------------------------------------------------------------------


def chain(num=4):
    """b = sin a, c = sin b, ..."""

    def fun(x):
        values = []
        for _ in range(num):
            x = lax.sin(x)
            values.append(x)
        return values

    program = trace(fun, 1.0)
    return program.eqns, [eqn.outvars[0] for eqn in program.eqns]


def test_nothing_to_load_runs_all_that_is_needed():
    eqns, (b, c, d, e) = chain()
    assert choose_frontier(eqns, [d], [], lambda _: None, lambda _: 1.0) == Frontier((0, 1, 2), ())


def test_a_cheap_value_is_loaded_and_only_what_follows_runs():
    eqns, (b, c, d, e) = chain()
    assert choose_frontier(eqns, [e], [], {c: 0.5}.get, lambda _: 1.0) == Frontier((2, 3), (c,))


def test_a_dear_value_is_computed_again():
    eqns, (b, c, d, e) = chain()
    assert choose_frontier(eqns, [e], [], {c: 2.5}.get, lambda _: 1.0) == Frontier((0, 1, 2, 3), ())


def test_a_target_itself_may_be_loaded():
    eqns, (b, c, d, e) = chain()
    assert choose_frontier(eqns, [e], [], {e: 0.1, c: 0.01}.get, lambda _: 1.0) == Frontier(
        (), (e,)
    )


def test_one_dear_equation_decides_where_the_cut_is():
    eqns, (b, c, d, e) = chain()
    loads = {b: 1.0, c: 1.0, d: 1.0}
    assert choose_frontier(eqns, [e], [], loads.get, [9.0, 0.1, 9.0, 0.1].__getitem__) == Frontier(
        (3,), (d,)
    )
    loads[d] = 12.0
    assert choose_frontier(eqns, [e], [], loads.get, [9.0, 0.1, 9.0, 0.1].__getitem__).load == (c,)


def test_a_value_read_twice_is_paid_once():
    program = trace(lambda x: (lambda y: [lax.cos(y), lax.exp(y)])(lax.sin(x)), 1.0)
    shared, *outputs = (eqn.outvars[0] for eqn in program.eqns)
    frontier = choose_frontier(
        program.eqns, outputs, [], {shared: 1.5}.get, [2.0, 1.0, 1.0].__getitem__
    )
    assert frontier == Frontier((1, 2), (shared,))


def test_what_must_run_runs_even_where_nothing_reads_it():
    eqns, (b, c, d, e) = chain()
    frontier = choose_frontier(eqns, [c], [3], {b: 0.1, c: 0.1, d: 0.1}.get, lambda _: 1.0)
    assert frontier == Frontier((3,), (c, d))


def test_equations_that_no_target_needs_do_not_run():
    program = trace(lambda x: [lax.sin(x), lax.cos(x), lax.exp(x)], 1.0)
    outputs = [eqn.outvars[0] for eqn in program.eqns]
    assert choose_frontier(program.eqns, outputs[1:2], [], lambda _: 9.0, lambda _: 1.0).run == (1,)


def test_no_targets_need_nothing():
    eqns, variables = chain()
    assert choose_frontier(eqns, [], [], lambda _: 1.0, lambda _: 1.0) == Frontier((), ())
    assert choose_frontier([], [], [], lambda _: 1.0, lambda _: 1.0) == Frontier((), ())


def test_inputs_are_neither_loaded_nor_run():
    program = trace(lambda x, y: [lax.sin(x), y], 1.0, 2.0)
    frontier = choose_frontier(program.eqns, [program.invars[1]], [], lambda _: 1.0, lambda _: 1.0)
    assert frontier == Frontier((), ())


def test_loading_one_output_of_an_equation_does_not_give_the_other():
    program = trace(lambda x: lax.optimization_barrier((x, x + 1)), 1.0)
    first, second = program.eqns[-1].outvars
    frontier = choose_frontier(program.eqns, [first, second], [], {first: 0.1}.get, lambda _: 1.0)
    assert frontier == Frontier((0, 1), ())


def test_the_choice_does_not_depend_on_the_order_of_targets():
    rng = random.Random(3)
    eqns = random_program(rng, 8)
    variables = [var for eqn in eqns for var in written_vars(eqn)]
    load = {v: rng.random() for v in variables}
    run = [rng.random() for _ in eqns]
    targets = variables[-3:]
    choices = {
        choose_frontier(eqns, order, [], load.get, run.__getitem__)
        for order in itertools.permutations(targets)
    }
    assert len(choices) == 1


def test_a_long_program_is_cut_too():
    def fun(x):
        for k in range(400):
            x = jnp.sin(x) + k
        return [x]

    eqns = trace(fun, 1.0).eqns
    middle = eqns[500].outvars[0]
    frontier = choose_frontier(eqns, eqns[-1].outvars, [], {middle: 1e-9}.get, lambda _: 1e-9)
    assert frontier.load == (middle,)
    assert frontier.run == tuple(range(501, len(eqns)))


def fan(num):
    """Values c_k = exp b of one b = sin a, in order."""

    def fun(x):
        shared = lax.sin(x)
        return [lax.exp(lax.add(shared, float(k))) for k in range(num)]

    eqns = trace(fun, 1.0).eqns
    return eqns, eqns[0].outvars[0], [eqn.outvars[0] for eqn in eqns if eqn.primitive.name == "exp"]


def test_what_a_window_would_load_is_computed_in_the_one_before_where_that_is_cheaper(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 4)
    eqns, shared, targets = fan(6)
    loads = {shared: 2.0, **dict.fromkeys(targets, 3.0)}
    frontier = choose_frontier(eqns, targets, [], loads.get, lambda n: 0.5 if n == 0 else 1.0)
    assert frontier == Frontier(tuple(range(len(eqns))), ())
    frontier = choose_frontier(eqns, targets, [], loads.get, lambda n: 3.5 if n == 0 else 1.0)
    assert frontier == Frontier(tuple(range(1, len(eqns))), (shared,))


def test_a_value_that_is_loaded_anyway_is_not_paid_again():
    eqns, shared, targets = fan(2)
    loads = {shared: 1.0, targets[0]: 1.5}
    frontier = choose_frontier(
        eqns, [shared, targets[0]], [], loads.get, lambda n: 9.0 if n == 0 else 0.5
    )
    assert frontier == Frontier((1, 2), (shared,))


def test_a_value_wanted_in_a_later_window_is_not_paid_again(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    eqns, shared, targets = fan(1)
    loads = {shared: 8.0, targets[0]: 1.5}
    frontier = choose_frontier(
        eqns, [shared, targets[0]], [], loads.get, lambda n: 7.0 if n == 0 else 0.5
    )
    assert frontier == Frontier((0, 1, 2), ())


def test_no_more_windows_than_needed_are_decided_on_and_one_more(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 4)
    eqns, values = chain(40)
    loads = {var: 1.0 + 2.0 * k for k, var in enumerate(values)}
    frontier = choose_frontier(eqns, values[-1:], [], loads.get, lambda _: 0.9)
    assert frontier == Frontier(tuple(range(32, 40)), (values[31],))


EDGES = st.lists(
    st.tuples(
        st.sampled_from([0, *range(2, 12)]),
        st.sampled_from([1, *range(2, 12)]),
        st.one_of(st.just(np.inf), st.floats(0.0, 1.0)),
    ).filter(lambda edge: edge[0] != edge[1]),
    min_size=1,
    max_size=60,
)


UNDONE = [(0, 2), (2, 3), (3, 1), (2, 4), (4, 5), (5, 1), (0, 6), (6, 7), (7, 3)]
"""The shortest path takes 2 to 3, which a maximum flow must give back."""


@given(EDGES)
@example([(*edge, 1.0) for edge in UNDONE])
@examples(2)
def test_a_small_cut_is_that_of_scipy(edges):
    edges = [*edges, (0, 2, 0.5), (2, 1, 0.25)]
    small = module._source_side(edges, 12)
    assert csgraph.__name__ == module.SOLVER  # which is loaded: else both were found by paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_EDGES", 0)
        assert (small == module._source_side(edges, 12)).all()


CHAINS = [(0, k, 0.5) for k in range(2, 202)] + [(k, 1, 1.0) for k in range(2, 202)]
"""Two hundred paths from the source to the sink."""


@pytest.mark.parametrize(("max_visits", "is_loaded"), [(module.MAX_VISITS, False), (10_000, True)])
def test_scipy_is_imported_where_a_cut_takes_longer_than_that(max_visits, is_loaded, monkeypatch):
    monkeypatch.delitem(sys.modules, module.SOLVER)
    monkeypatch.setattr(module, "MAX_VISITS", max_visits)
    is_source = module._source_side(CHAINS, 202)
    assert is_source.nonzero()[0].tolist() == [0]
    assert (module.SOLVER in sys.modules) is is_loaded
