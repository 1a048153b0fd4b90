"""Stage 6 and 7, plan: for a dirty set, what to load, run and save, as data that prints readably.

In: `Facts` (a program with its dependence and prices). Out: a `Plan`. It must not know the values of anything.

Law: running a plan's equations on the current inputs and current values of `loads` gives the current values of
`outputs` and `saves`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.facts.cost import Calibration
from incrax.facts.dependence import ALWAYS, Dependence
from incrax.facts.program import Program, read_vars, written_vars
from incrax.planning.frontier import Frontier, choose_frontier

MIN_LOAD_S = 1e-12


@dataclass(frozen=True)
class Facts:
    """All that planning needs to know of a program."""

    program: Program
    dependence: Dependence
    calibration: Calibration
    is_minimal: bool

    @cached_property
    def masks(self) -> dict[Var, int]:
        """The dependence mask of each variable."""
        return self.dependence.masks

    @cached_property
    def equation_masks(self) -> tuple[int, ...]:
        """The dependence mask of each equation."""
        return tuple(self.dependence.of_equation(eqn) for eqn in self.program.eqns)

    @cached_property
    def must_run(self) -> tuple[int, ...]:
        """Equations with effects, by number."""
        return tuple(number for number, eqn in enumerate(self.program.eqns) if eqn.effects)

    @cached_property
    def equation_seconds(self) -> tuple[float, ...]:
        """Estimated seconds of each equation."""
        return tuple(self.calibration.seconds(eqn) for eqn in self.program.eqns)

    @cached_property
    def written(self) -> frozenset[Var]:
        """Variables that an equation writes."""
        return frozenset(var for eqn in self.program.eqns for var in written_vars(eqn))

    @cached_property
    def saveable(self) -> frozenset[Var]:
        """Variables whose value can be kept: arrays that do not change at every call."""
        return frozenset(v for v in self.written if not self.masks[v] & ALWAYS and _is_array(v))

    @cached_property
    def cut_set(self) -> tuple[Var, ...]:
        """Every value that is read by an equation of another dependency set: what the minimal planner keeps."""
        found: dict[Var, None] = {}
        for eqn, mask in zip(self.program.eqns, self.equation_masks, strict=True):
            found.update({var: None for var in read_vars(eqn) if var in self.saveable and self.masks[var] != mask})
        return tuple(found)

    def dirty_outputs(self, dirty: int) -> tuple[int, ...]:
        """Output positions that a dirty set reaches; all of them if every input is dirty."""
        full = self.dependence.layout.full
        if dirty & full == full:
            return tuple(range(len(self.program.outvars)))
        return tuple(i for i, atom in enumerate(self.program.outvars) if self.dependence.of(atom) & dirty)


@dataclass(frozen=True)
class Plan:
    """What to load, run, save and return for one dirty set.

    Fields: the dirty set as a mask; variables loaded from the store; equation numbers to run; variables to save;
    positions of the program outputs that are computed (the others are loaded); estimated seconds.
    """

    dirty: int
    loads: tuple[Var, ...]
    run: tuple[int, ...]
    saves: tuple[Var, ...]
    outputs: tuple[int, ...]
    seconds: float
    load_bytes: int

    def describe(self, facts: Facts) -> list[str]:
        """The plan as lines: what it loads, runs, saves."""
        eqns = facts.program.eqns
        lines = [f"load  {var.aval.str_short(short_dtypes=True)}" for var in self.loads]
        lines += [f"run   {_short(eqns[number])}  {_jax.source_line(eqns[number])}" for number in self.run]
        lines += [f"save  {var.aval.str_short(short_dtypes=True)}" for var in self.saves]
        return lines


def _short(eqn: Equation) -> str:
    outputs = " ".join(var.aval.str_short(short_dtypes=True) for var in eqn.outvars)
    return f"{eqn.primitive.name} -> {outputs}"


def _is_array(var: Var) -> bool:
    return hasattr(var.aval, "shape") and hasattr(var.aval, "dtype")


def plan_dirty(
    facts: Facts, dirty: int, *, wanted: Iterable[Var] = (), saves: Iterable[Var] = (), load_price: float = 1.0
) -> Plan:
    """Plan for a dirty set: compute the reached outputs from clean saved values.

    Args:
        facts: the analysed program.
        dirty: mask of the changed inputs.
        wanted: values that other plans load already; loading them again costs a little less here.
        saves: values to save as well, as far as the dirty set reaches them.
        load_price: factor on the price of loading; larger means fewer saved bytes.
    """
    reached_saves = tuple(dict.fromkeys(v for v in saves if facts.masks[v] & dirty))
    outputs = facts.dirty_outputs(dirty)
    returned = [facts.program.outvars[i] for i in outputs]
    targets = [atom for atom in returned if isinstance(atom, Var)] + list(reached_saves)
    wanted = frozenset(wanted)

    def load_seconds(var: Var) -> float | None:
        if var not in facts.saveable or facts.masks[var] & dirty:
            return None
        if facts.is_minimal:
            return MIN_LOAD_S
        price = facts.calibration.load_seconds(_jax.aval_bytes(var.aval)) * load_price
        return price if var in wanted else price * 1.1

    return _plan(facts, dirty, targets, load_seconds, reached_saves, outputs)


def plan_fill(facts: Facts, missing: Iterable[Var], available: Iterable[Var]) -> Plan:
    """Plan that computes missing saved values from the inputs and the saved values that are there."""
    missing, available = tuple(dict.fromkeys(missing)), frozenset(available)

    def load_seconds(var: Var) -> float | None:
        if var not in available or var in missing:
            return None
        return MIN_LOAD_S if facts.is_minimal else facts.calibration.load_seconds(_jax.aval_bytes(var.aval))

    return _plan(facts, 0, list(missing), load_seconds, missing, ())


def _plan(facts: Facts, dirty: int, targets: list, load_seconds, saves: tuple[Var, ...], outputs: tuple) -> Plan:
    must_run = facts.must_run if dirty else ()
    eqns = facts.program.eqns
    run_seconds = (lambda number: 1.0) if facts.is_minimal else facts.equation_seconds.__getitem__
    frontier = choose_frontier(eqns, targets, must_run, load_seconds, run_seconds)
    load_bytes = sum(_jax.aval_bytes(var.aval) for var in frontier.load)
    seconds = _estimate(facts, frontier, saves)
    return Plan(dirty, frontier.load, frontier.run, saves, outputs, seconds, load_bytes)


def _estimate(facts: Facts, frontier: Frontier, saves: tuple[Var, ...]) -> float:
    calibration = facts.calibration
    seconds = sum(facts.equation_seconds[number] for number in frontier.run)
    seconds += sum(calibration.load_seconds(_jax.aval_bytes(var.aval)) for var in frontier.load)
    return seconds + sum(calibration.save_seconds(_jax.aval_bytes(var.aval)) for var in saves)
