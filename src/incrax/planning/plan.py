"""Stage 6 and 7, plan: for a dirty set, what to load, run and save, as data that prints readably.

In: `Facts` (a program with its dependence and prices). Out: a `Plan`. It must not know the values of anything.

Law: running a plan's equations on the current inputs and current values of `loads` gives the current values of
`outputs` and `saves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax.planning.algebra import Statistics, polynomial_reductions
from incrax.planning.derived import regroup, stack_rows, traced_equations
from incrax.planning.factors import factor_reductions
from incrax.planning.facts import Facts
from incrax.planning.frontier import choose_frontier

MIN_LOAD_S = 1e-12
NEW_VALUE_S = 5e-6
"""Price of keeping one more value: a segment of its own to compile and to start when the value is stale."""

SAVE_SHARE = 0.1
"""Share of the price of saving a new value that each use bears."""


@dataclass(frozen=True)
class Plan:
    """What to load, run, save and return for one dirty set.

    Fields: the dirty set as a mask; variables loaded from the store; equations to run, in order; variables to save;
    positions of the program outputs that are computed (the others are kept); estimated seconds; the loads before
    rows were stacked; a boolean that it computes, if any, which must be true for its results to be used; the algebra
    over rows in it, if any.
    """

    dirty: int
    loads: tuple[Var, ...]
    eqns: tuple[Equation, ...]
    saves: tuple[Var, ...]
    outputs: tuple[int, ...]
    seconds: float
    base_loads: tuple[Var, ...]
    guard: Var | None = None
    statistics: Statistics | None = None

    def describe(self) -> list[str]:
        """The plan as lines: what it loads, runs, saves."""
        lines = [f"load  {_type(var)}" for var in self.loads]
        lines += [f"run   {eqn.primitive.name} -> {' '.join(map(_type, eqn.outvars))}" for eqn in self.eqns]
        return lines + [f"save  {_type(var)}" for var in self.saves]

    def __str__(self) -> str:
        return "\n".join(self.describe())


def _type(var: Var) -> str:
    return var.aval.str_short(short_dtypes=True)


class Prices(NamedTuple):
    """Factors on the calibrated prices of loading a value and of running an equation."""

    load: float = 1.0
    run: float = 1.0


def plan_dirty(
    facts: Facts,
    dirty: int,
    *,
    wanted: Iterable[Var] = (),
    saves: Iterable[Var] = (),
    prices: Prices = Prices(),
    only_wanted: bool = False,
    may_factor: bool = True,
    may_derive: bool = True,
) -> Plan:
    """Plan for a dirty set: compute the reached outputs from clean saved values.

    Args:
        facts: the analysed program.
        dirty: mask of the changed inputs.
        wanted: values that other plans load already; loading them again costs a little less here.
        saves: values to save as well, as far as the dirty set reaches them.
        prices: factors on the calibrated prices.
        only_wanted: load nothing but wanted values and values derived from them.
        may_factor: also try to merge sibling reductions into matrix products, and take the cheaper plan.
        may_derive: use values that the program has not: partial sums, stacked rows, factors.
    """
    may_derive = may_derive and not facts.is_minimal and not facts.is_explicit
    reached_saves = tuple(dict.fromkeys(v for v in saves if facts.mask(v) & dirty))
    outputs = facts.dirty_outputs(dirty)
    targets: list[Atom] = [*(facts.program.outvars[i] for i in outputs), *reached_saves]
    known = frozenset(wanted)

    def load_seconds(var: Var) -> float | None:
        if not facts.is_saveable(var) or facts.mask(var) & dirty:
            return None
        if only_wanted and var not in known and var not in facts.derived.recipes:
            return None
        if facts.is_minimal:
            return MIN_LOAD_S
        price = facts.load_seconds(var)
        if var not in known:
            price += NEW_VALUE_S + SAVE_SHARE * facts.calibration.save_seconds(_jax.aval_bytes(var.aval))
        return price * prices.load

    eqns: tuple[Equation, ...] = facts.program.eqns
    if may_derive:
        eqns = regroup(eqns, facts.chains, facts.derived, lambda var: not facts.mask(var) & dirty, reached_saves)
    eqns = (*eqns, *facts.derived.recipe(reached_saves))
    plan = _plan(facts, dirty, eqns, targets, load_seconds, prices.run, reached_saves, outputs)
    if not may_derive:
        return plan
    plans = [plan]
    rest = (targets, load_seconds, prices.run, reached_saves, outputs)
    for form in _other_forms(facts, dirty, eqns, targets, reached_saves, may_factor=may_factor):
        plans.append(_plan(facts, dirty, form.eqns, *rest, guard=form.guard, statistics=form.statistics))
    return min(plans, key=lambda p: p.seconds)


class _OtherForm(NamedTuple):
    """Equations that give the same targets where the guard is true."""

    eqns: tuple[Equation, ...]
    guard: Var
    statistics: Statistics | None


def _other_forms(
    facts: Facts,
    dirty: int,
    eqns: Sequence[Equation],
    targets: Sequence[Atom],
    saves: Sequence[Var],
    *,
    may_factor: bool,
) -> Iterator[_OtherForm]:
    """The program with sibling reductions merged, and with algebra over rows, and with both."""
    named = frozenset(atom for atom in targets if isinstance(atom, Var))

    def is_dirty(var: Var) -> bool:
        return not facts.is_known(var) or bool(facts.mask(var) & dirty)

    if may_factor and (factored := factor_reductions(eqns, facts.derived, is_dirty, named)) is not None:
        yield _OtherForm(*factored, None)
    if not facts.algebra.is_on:
        return
    plain = (*facts.program.eqns, *facts.derived.recipe(saves))
    statistics = polynomial_reductions(plain, facts.derived, is_dirty, facts.mask, named)
    if statistics is None:
        return
    yield _OtherForm(statistics.eqns, statistics.guard, statistics)
    kept = named | {statistics.guard}
    if may_factor and (factored := factor_reductions(statistics.eqns, facts.derived, is_dirty, kept)) is not None:
        (guard,), both = traced_equations(jnp.logical_and, [factored.guard, statistics.guard])
        yield _OtherForm((*factored.eqns, *both), guard, statistics)


def plan_top(facts: Facts, wanted: Iterable[Var]) -> Plan:
    """Plan that computes all outputs from the inputs and the wanted values."""
    known = frozenset(wanted)
    outputs = tuple(range(len(facts.program.outvars)))

    def load_seconds(var: Var) -> float | None:
        return facts.load_seconds(var) if var in known else None

    full = facts.dependence.layout.full
    return _plan(facts, full, facts.program.eqns, facts.program.outvars, load_seconds, 1.0, (), outputs)


def plan_fill(facts: Facts, missing: Iterable[Var], available: Iterable[Var]) -> Plan:
    """Plan that computes missing saved values from the inputs and the saved values that are there."""
    missing, available = tuple(dict.fromkeys(missing)), frozenset(available)

    def load_seconds(var: Var) -> float | None:
        if var not in available or var in missing:
            return None
        return MIN_LOAD_S if facts.is_minimal else facts.load_seconds(var)

    eqns = (*facts.program.eqns, *facts.derived.recipe(missing))
    return _plan(facts, 0, eqns, list(missing), load_seconds, 1.0, missing, ())


def _plan(
    facts: Facts,
    dirty: int,
    eqns: Sequence[Equation],
    targets: Sequence[Atom],
    load_seconds: Callable[[Var], float | None],
    run_price: float,
    saves: tuple[Var, ...],
    outputs: tuple[int, ...],
    guard: Var | None = None,
    statistics: Statistics | None = None,
) -> Plan:
    must_run = [number for number, eqn in enumerate(eqns) if eqn.effects] if dirty else []
    wanted = [atom for atom in (*targets, guard) if isinstance(atom, Var)]
    seconds = [1.0] * len(eqns) if facts.is_minimal else [facts.seconds(eqn) * run_price for eqn in eqns]
    frontier = choose_frontier(eqns, wanted, must_run, load_seconds, seconds.__getitem__)
    ran, loads = tuple(eqns[number] for number in frontier.run), frontier.load
    base_loads = tuple(var for var in loads if var not in facts.derived.recipes)
    if dirty and not facts.is_minimal and not facts.is_explicit:
        ran, loads = stack_rows(ran, loads, wanted, facts.derived)
    seconds_in_all = _estimate(facts, ran, loads, saves, run_price)
    return Plan(dirty, loads, ran, saves, outputs, seconds_in_all, base_loads, guard, statistics)


def _estimate(
    facts: Facts, eqns: Iterable[Equation], loads: Iterable[Var], saves: Iterable[Var], run_price: float
) -> float:
    calibration = facts.calibration
    seconds = sum(facts.seconds(eqn) for eqn in eqns) * run_price
    seconds += sum(map(facts.load_seconds, loads))
    return seconds + sum(calibration.save_seconds(_jax.aval_bytes(var.aval)) for var in saves)
