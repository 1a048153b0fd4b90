"""Stage 6 and 7, plan: for a dirty set, what to load, run and save, as data that prints readably.

In: `Facts` (a program with its dependence and prices). Out: a `Plan`. It must not know the values
of anything.

Promise: running a plan's equations on the current inputs and current values of `loads` gives the
current values of `outputs` and `saves`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from incrax import _jax
from incrax._collection import paused
from incrax._jax import Equation, Var
from incrax._program import reads_of, writes_of, written_vars
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.frontier import choose_frontier
from incrax.engine.program.nested import num_in_all
from incrax.engine.rewrites.algebra import Statistics, polynomial_reductions
from incrax.engine.rewrites.clean_rows import with_clean_rows_apart
from incrax.engine.rewrites.complex_products import in_real_arithmetic
from incrax.engine.rewrites.derived import Recomputed, in_order, traced_equations
from incrax.engine.rewrites.factors import factor_reductions
from incrax.engine.rewrites.partial_sums import is_added_anew, regroup, stack_rows
from incrax.engine.rewrites.sums_of_products import IsDirty

MIN_LOAD_S = 1e-12
NEW_VALUE_S = 5e-6
"""Price of keeping one more value: a segment of its own to compile and to start when the value is
stale.
"""

MAX_LISTED = 3
"""Equations, at most, that a report names."""

SAVE_SHARE = 0.1
"""Share of the price of saving a new value that each use bears."""


def lines_of(eqns: Sequence[Equation]) -> str:
    """Some equations, the first few, with their lines, for reports."""
    lines = [f"{eqn.primitive.name} {_jax.source_line(eqn)}".strip() for eqn in eqns[:MAX_LISTED]]
    return ", ".join([*lines, *["..."] * (len(eqns) > MAX_LISTED)])


@dataclass(frozen=True)
class Plan:
    """What to load, run, save and return for one dirty set."""

    dirty: int  # the dirty set, as a mask
    loads: tuple[Var, ...]  # from the store
    eqns: tuple[Equation, ...]  # to run, in order
    saves: tuple[Var, ...]  # to the store
    outputs: tuple[int, ...]  # positions of those that are computed; the others are kept
    seconds: float  # estimated
    base_loads: tuple[Var, ...]  # before rows were stacked
    # A boolean that it computes: its results may be used only where it is true.
    guard: Var | None = None
    statistics: Statistics | None = None  # the algebra over rows in it
    may_reorder: bool = False  # terms of sums may be added in any order
    sliced: Sliced | None = None  # what it takes besides, for a change of some rows
    blocked: Blocked | None = None  # the same, if it computes in blocks of rows

    @functools.cached_property
    def num_compiled(self) -> int:
        """Equations that XLA compiles for it, those inside of others as well; counted once, since
        calls that are looked at ask.
        """
        return num_in_all(self.eqns)

    @property
    def num_eqns(self) -> int:
        """Equations of the function that it runs, on rows or as a whole."""
        return len((self.sliced or self.blocked or self).eqns)

    @property
    def current_loads(self) -> tuple[Var, ...]:
        """What it loads of a segment's values, all of them current."""
        return self.loads if self.blocked is None else self.base_loads

    @property
    def saved_loads(self) -> tuple[Var, ...]:
        """What it loads of values that calls save, and of the baseline's arguments, as the function
        calls them: not which rows changed.
        """
        sliced = self.sliced
        if sliced is None:
            return self.current_loads
        read = [var for var in self.loads if var is not sliced.numbers]
        return tuple([sliced.olds.get(var, var) for var in read])

    def outputs_with(self, held: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The program's outputs: its results in their places, what is held in all others."""
        outputs = [*held]
        for number, position in enumerate(self.outputs):
            outputs[position] = results[number]
        return outputs

    def __str__(self) -> str:
        lines = [f"load  {_jax.short_type(var.aval)}" for var in self.loads]
        for eqn in self.eqns:
            made = " ".join(_jax.short_type(var.aval) for var in eqn.outvars)
            lines.append(f"run   {eqn.primitive.name} -> {made}")
        return "\n".join(lines + [f"save  {_jax.short_type(var.aval)}" for var in self.saves])


class Extent(NamedTuple):
    """How many rows of how many, along which axis."""

    num: int
    length: int
    axis: int


class Made(NamedTuple):
    """What a plan for rows makes of an equation of the function."""

    eqn: Equation  # of the function
    read: tuple[Extent, ...]  # rows that it reads, along one axis or two; none: it has none, or all
    made: tuple[Extent, ...]  # rows that it makes
    why_all: str = ""  # why it does not run by rows
    # It does not run, but for the factors of rows that it reads or has (`weighted_rows`).
    is_put_off: bool = False


class RowKind(NamedTuple):
    """A change of a few rows: of which leaves; how many at most; where these are among the last rows
    of their axis alone, how many those are; below 0, among the first.
    """

    leaves: tuple[int, ...]
    capacity: int
    within: int = 0

    def covers(self, other: RowKind) -> bool:
        """Whether a program for one kind serves the other: of these leaves, and of no more rows."""
        is_of = self.within == other.within and self.capacity >= other.capacity
        return is_of and set(self.leaves) >= set(other.leaves)


@dataclass(frozen=True)
class RowArguments:
    """What a plan that runs on some rows takes besides leaves and saved values."""

    length: int  # how many rows there are in all
    numbers: Var  # of the rows, or of the blocks of rows, that run
    olds: dict[Var, Var]  # of variables that it reads, those of which they are the baseline's value
    eqns: tuple[Equation, ...]  # of the function that it stands for


@dataclass(frozen=True)
class Sliced(RowArguments):
    """The same, for a change of a few rows, whichever these are."""

    kind: RowKind  # the changes that it serves, with those that this covers
    made: tuple[Made, ...] = ()  # what becomes of those that the change reaches
    tables: tuple[Var, ...] = ()  # what is loaded and made of indices alone
    resumed: tuple[Equation, ...] = ()  # scans that start at the first dirty step
    # Of steps whose carry may be the same again: what `seconds` of the plan leaves out.
    agreeing_s: float = 0.0
    endless_s: float = 0.0  # the same of steps whose carry will not be
    moved_s: float = 0.0  # of `seconds`, those in which saved values are read and written
    # What is loaded, and saved, of values that rows are written into.
    in_place: tuple[tuple[Var, Var], ...] = ()

    @property
    def widened(self) -> list[Equation]:
        """Equations that read some rows, and run as a whole."""
        return [each.eqn for each in self.made if each.why_all and each.read]


@dataclass(frozen=True)
class Blocked(RowArguments):
    """The same, where values are computed in blocks of rows, as many as are dirty."""

    size: int  # rows of a block
    by_rows: int  # the inputs of which a row reaches its own block alone, as a mask
    count: Var  # how many of the numbers are meant
    num_run: int | None = None  # blocks that ran, in the record of a call

    @property
    def num(self) -> int:
        """How many blocks there are."""
        return -(-self.length // self.size)

    @property
    def share(self) -> float:
        """The share of the rows that ran; all of them where nothing is known."""
        return 1.0 if self.num_run is None else self.num_run / self.num


class Prices(NamedTuple):
    """Factors on the calibrated prices of loading a value and of running an equation."""

    load: float = 1.0
    run: float = 1.0


@paused()
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
    moving: int = -1,
    turning: int = 0,
) -> Plan:
    """Plan for a dirty set: compute the reached outputs from clean saved values.

    Args:
        facts: the analysed program.
        dirty: mask of the changed inputs.
        wanted: values that other plans load already; loading them again costs a little less here.
        saves: values to save as well, as far as the dirty set reaches them.
        prices: factors on the calibrated prices.
        only_wanted: load nothing but wanted values and values derived from them.
        may_factor: also try to merge sibling reductions into matrix products, and take the cheaper
            plan.
        may_derive: use values that the program has not: partial sums, stacked rows, factors.
        moving: mask of the inputs that are known to change; of the others, matrices are split in
            their real and imaginary parts, which no program for rows keeps up to date.
        turning: mask of the inputs that change in turns with these: no terms that depend on them are
            added up to a value to load, which would be stale at each call.
    """
    may_derive = may_derive and not facts.is_minimal and not facts.is_explicit
    reached_saves = tuple(dict.fromkeys(v for v in saves if facts.mask(v) & dirty))
    outputs = facts.dirty_outputs(dirty)
    reached = (facts.outvars[i] for i in outputs)
    targets = [atom for atom in (*reached, *reached_saves) if isinstance(atom, Var)]
    known = frozenset(wanted)

    @functools.cache
    def load_seconds(var: Var) -> float | None:
        """With a share of keeping it where no other plan does."""
        if facts.mask(var) & dirty or not facts.is_saveable(var):
            return None
        is_new = var not in known
        if only_wanted and is_new and var not in facts.derived.recipes:
            return None
        if facts.is_minimal:
            return MIN_LOAD_S
        seconds = facts.load_seconds(var)
        if is_new:
            seconds += NEW_VALUE_S + SAVE_SHARE * facts.save_seconds(var)
        return seconds * prices.load

    search = _Search(
        facts, load_seconds, dirty, prices.run, reached_saves, outputs, may_reorder=may_derive
    )
    eqns = reached_equations(
        facts, dirty, targets, reached_saves, may_regroup=may_derive, turning=turning
    )
    guards: Sequence[Var] = ()
    if may_derive:
        is_steady = lambda var: facts.is_known(var) and not facts.mask(var) & (moving | dirty)
        eqns, guards = in_real_arithmetic(eqns, facts.derived, is_steady, targets)
    plans = [search.plan(eqns, targets, guards=guards)]
    if may_derive and not facts.effects:
        read = [*targets, *guards]
        apart = with_clean_rows_apart(eqns, facts.derived, search.is_dirty, read)
        if apart is not None:
            plans.append(search.plan(apart, targets, guards=guards))
    if may_derive:
        plans += search.other_plans(eqns, targets, guards, may_factor=may_factor)
    return min(plans, key=lambda p: p.seconds)


def _factored(
    facts: Facts, eqns: Sequence[Equation], is_dirty: IsDirty, targets: frozenset[Var]
) -> Recomputed | None:
    """The equations with sibling reductions merged."""
    equation_of = facts.listing.equation_of
    return factor_reductions(eqns, facts.derived, is_dirty, targets, equation_of, facts.mask)


@paused()
def plan_top(facts: Facts, wanted: Iterable[Var], *, may_factor: bool = False) -> Plan:
    """Plan that computes all outputs from the inputs and the wanted values.

    With `may_factor` sibling reductions become products of matrices, where that is cheaper. Their rows
    depend on no more inputs than some wanted value does: a change of one input leaves most as they
    are.
    """
    known = frozenset(wanted)
    is_there = lambda var: var in known or (may_factor and var in facts.derived.recipes)
    load_seconds = lambda var: facts.load_seconds(var) if is_there(var) else None
    search = _Search(
        facts, load_seconds, facts.layout.full, outputs=facts.dirty_outputs(facts.layout.full)
    )
    plan = search.plan((), facts.returned, facts.effects)
    if not may_factor or facts.effects:
        return plan
    most = max((facts.mask(var).bit_count() for var in known), default=0)
    is_wide = lambda var: not facts.is_known(var) or facts.mask(var).bit_count() > most
    eqns = [eqn for eqn in plan.eqns if any(map(is_wide, written_vars(eqn)))]
    merged = _factored(facts, eqns, is_wide, frozenset(facts.returned))
    if merged is None:
        return plan
    other = search.plan(merged.eqns, facts.returned, guards=[merged.guard])
    return min(plan, other, key=lambda p: p.seconds)


@paused()
def plan_whole(facts: Facts, saves: Iterable[Var]) -> Plan:
    """Plan that computes all outputs from the inputs alone, and saves some values."""
    saves = tuple(saves)
    search = _Search(
        facts, lambda _: None, saves=saves, outputs=facts.dirty_outputs(facts.layout.full)
    )
    derived = facts.derived
    targets = [*facts.returned, *saves, *derived.made_with(saves)]
    plan = search.plan((), targets, facts.effects)
    return replace(plan, eqns=derived.put_instead(plan.eqns))


@paused()
def plan_fill(facts: Facts, missing: Iterable[Var], is_available: Callable[[Var], bool]) -> Plan:
    """Plan that computes missing saved values from the inputs and the saved values that are there.

    Cost: proportional to what it runs; see `choose_frontier`.
    """
    missing = tuple(dict.fromkeys(missing))
    absent = frozenset(missing)

    def load_seconds(var: Var) -> float | None:
        if var in absent or not is_available(var):
            return None
        return MIN_LOAD_S if facts.is_minimal else facts.load_seconds(var)

    return _Search(facts, load_seconds, saves=missing).plan((), missing)


def reached_equations(
    facts: Facts,
    dirty: int,
    targets: Iterable[Var],
    saves: Iterable[Var] = (),
    *,
    may_regroup: bool = False,
    turning: int = 0,
) -> tuple[Equation, ...]:
    """The equations that a dirty set reaches and that targets need, in order, with clean terms of
    sums taken out; of those that change in turns with others, each by itself.
    """
    listing = facts.listing.extended(facts.derived.recipe(saves))
    writer = listing.writer
    eqns = listing.eqns
    numbers: set[int] = set()
    pending = list(facts.effects) if dirty else []

    def follow(variables: Iterable[Var]) -> None:
        pending.extend(
            writer[var] for var in variables if var in writer and facts.mask(var) & dirty
        )

    follow(targets)
    while pending:
        number = pending.pop()
        if number not in numbers:
            numbers.add(number)
            follow(listing.read[number])
    replaced: dict[int, tuple[Equation, ...]] = {}
    if may_regroup and not facts.effects:
        is_turning = lambda var: bool(facts.mask(var) & turning & ~dirty)
        is_clean = lambda var: not facts.mask(var) & dirty
        is_steady = lambda var: is_clean(var) and not is_turning(var)
        kept = frozenset(saves)
        for chain in [chain for chain in facts.chains if chain.last in numbers]:
            is_anew = is_added_anew(chain, sum(map(is_turning, chain.terms)))
            numbers.update(chain.eqns if is_anew else ())
            is_apart = is_steady if is_anew else is_clean
            replaced.update(regroup(eqns, [chain], facts.derived, is_apart, kept))
    return tuple(eqn for n in sorted(numbers) for eqn in replaced.get(n, (eqns[n],)))


class _Search(NamedTuple):
    """What plans for one purpose have in common: see `Plan`, and the price of loading a variable
    (None: cannot be).
    """

    facts: Facts
    load_seconds: Callable[[Var], float | None]
    dirty: int = 0
    run_price: float = 1.0
    saves: tuple[Var, ...] = ()
    outputs: tuple[int, ...] = ()
    may_reorder: bool = False

    def is_dirty(self, var: Var) -> bool:
        """Whether a change reaches it. What is no variable of the program is made of dirty terms,
        where sums were regrouped.
        """
        return not self.facts.is_known(var) or bool(self.facts.mask(var) & self.dirty)

    def plan(
        self,
        eqns: Sequence[Equation],
        targets: Sequence[Var],
        must_run: Sequence[int] = (),
        guards: Sequence[Var] = (),
        statistics: Statistics | None = None,
    ) -> Plan:
        """The plan that runs some equations, and whatever else they and the targets need."""
        facts = self.facts
        if len(guards) > 1:
            guards, both = traced_equations(lambda *each: jnp.all(jnp.stack(each)), guards)
            eqns = (*eqns, *both)
        wanted = [*targets, *guards]
        before, loads = self._before(eqns, wanted, must_run)
        ran = (*before, *eqns)
        if facts.effects:
            ran = in_order(ran) or ran
        base_loads = tuple(var for var in loads if var not in facts.derived.recipes)
        if self.dirty and not facts.is_minimal and not facts.is_explicit:
            ran, loads = stack_rows(ran, loads, wanted, facts.derived)
        return Plan(
            self.dirty,
            loads,
            ran,
            self.saves,
            self.outputs,
            self._seconds(ran, loads),
            base_loads,
            guards[0] if guards else None,
            statistics,
            may_reorder=self.may_reorder,
        )

    def other_plans(
        self,
        eqns: Sequence[Equation],
        targets: Sequence[Var],
        guards: Sequence[Var],
        *,
        may_factor: bool,
    ) -> Iterator[Plan]:
        """The same with sibling reductions merged, with algebra over rows, and with both."""
        facts = self.facts
        kept = frozenset([*targets, *guards])
        is_dirty = self.is_dirty
        merged = _factored(facts, eqns, is_dirty, kept) if may_factor else None
        if merged is not None:
            yield self.plan(merged.eqns, targets, guards=[*guards, merged.guard])
        if not facts.algebra.is_on:
            return
        plain = reached_equations(facts, self.dirty, targets, self.saves)
        statistics = polynomial_reductions(plain, facts.derived, is_dirty, facts.mask, kept)
        if statistics is None:
            return
        guards = [statistics.guard]
        yield self.plan(statistics.eqns, targets, guards=guards, statistics=statistics)
        kept = frozenset([*targets, *guards])
        merged = _factored(facts, statistics.eqns, is_dirty, kept) if may_factor else None
        if merged is not None:
            guards = [*guards, merged.guard]
            yield self.plan(merged.eqns, targets, guards=guards, statistics=statistics)

    def _before(
        self, eqns: Sequence[Equation], wanted: Sequence[Var], must_run: Sequence[int]
    ) -> tuple[list[Equation], tuple[Var, ...]]:
        """What to run and to load so that these equations can run, and all that is wanted is there."""
        facts = self.facts
        written = set(writes_of(eqns))
        read = reads_of(eqns)
        needed = [var for var in dict.fromkeys([*read, *wanted]) if var not in written]
        listing = facts.listing.extended(facts.derived.recipe(needed))

        def seconds(number: int) -> float:
            if facts.is_minimal:
                return 1.0
            return facts.seconds(listing.eqns[number]) * self.run_price

        chosen = choose_frontier(listing, needed, must_run, self.load_seconds, seconds)
        return [listing.eqns[number] for number in chosen.run], chosen.load

    def _seconds(self, eqns: Iterable[Equation], loads: Iterable[Var]) -> float:
        facts = self.facts
        run_s = sum(map(facts.seconds, eqns)) * self.run_price
        load_s = sum(map(facts.load_seconds, loads))
        save_s = sum(map(facts.save_seconds, self.saves))
        return facts.calibration.call_s + run_s + load_s + save_s
