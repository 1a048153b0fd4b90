"""All that planning needs to know of a program: its dependence, prices, sums and derived values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from operator import or_
from typing import NamedTuple

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._program import (
    Listing,
    Program,
    listing_of,
    read_vars,
    writes_of,
    written_vars,
)
from incrax.engine.plan.families import operation_digest
from incrax.engine.program.chains import SumChain, find_chains
from incrax.engine.program.cost import Calibration, calibrate, is_calibrated, num_host_calls
from incrax.engine.program.dependence import ALWAYS, Dependence, Layout
from incrax.engine.program.nested import num_in_all
from incrax.engine.rewrites.derived import DerivedTable

MARKED_LOAD_S = 1e-12
"""Price of loading a value that the user marked as worth saving: below that of any equation."""


@dataclass
class AlgebraState:
    """Whether reductions over rows may be replaced by statistics, and why they no longer are."""

    is_on: bool = False
    reason: str = ""

    def give_up(self, reason: str) -> None:
        """Switch it off."""
        self.is_on = False
        self.reason = reason


class Masks(dict[Var, int]):
    """The inputs that each variable of a program, or derived from it, depends on; found once."""

    def __init__(self, dependence: Dependence, derived: DerivedTable) -> None:
        super().__init__(dependence.masks)
        self._derived = derived

    def __missing__(self, var: Var) -> int:
        derived = self._derived
        if var in derived.on_host:
            self[var] = self.of_all(derived.on_host[var].sources)
        else:
            for eqn in derived.recipes[var]:
                mask = 0 if eqn.params.get("is_narrowed") else self.of_all(read_vars(eqn))
                self.update(dict.fromkeys(written_vars(eqn), mask))
        return self[var]

    def of_all(self, variables: Iterable[Var]) -> int:
        """The inputs that some of these depend on."""
        return reduce(or_, [self[var] for var in variables], 0)


class Reached(NamedTuple):
    """Equations that a change makes run: a digest, equal where they are the same ones in any order
    and whatever they read, so that plans are most often of one family; and their number.
    """

    digest: int
    num_eqns: int


@dataclass(frozen=True)
class Facts:
    """An analysed program."""

    program: Program  # simplified
    dependence: Dependence
    # To plan with; None: this machine's, measured when they are first needed.
    given_prices: Calibration | None
    is_minimal: bool  # the planner runs exactly the dirty equations
    # Whether reductions may be replaced by statistics.
    algebra: AlgebraState = field(default_factory=AlgebraState)
    digest: str = ""  # of the program as it was traced
    derived: DerivedTable = field(default_factory=DerivedTable)  # variables made so far

    @property
    def eqns(self) -> tuple[Equation, ...]:
        """The equations of the program."""
        return self.program.eqns

    @property
    def invars(self) -> tuple[Var, ...]:
        """The inputs of the program."""
        return self.program.invars

    @property
    def outvars(self) -> tuple[Atom, ...]:
        """The outputs of the program."""
        return self.program.outvars

    @cached_property
    def returned(self) -> tuple[Var, ...]:
        """The outputs that are no literals."""
        return tuple(atom for atom in self.outvars if isinstance(atom, Var))

    @property
    def layout(self) -> Layout:
        """Which bits of a mask are whose."""
        return self.dependence.layout

    @cached_property
    def masks(self) -> Masks:
        """The inputs that each variable of the program, or derived from it, depends on."""
        return Masks(self.dependence, self.derived)

    @cached_property
    def mask(self) -> Callable[[Var], int]:
        """The same of one variable."""
        return self.masks.__getitem__

    def is_known(self, var: Var) -> bool:
        """Whether a variable is one of the program, or derived from it: its mask is known."""
        return var in self.masks or var in self.derived.recipes

    @cached_property
    def calibration(self) -> Calibration:
        """The prices to plan with."""
        return calibrate() if self.given_prices is None else self.given_prices

    @cached_property
    def seconds(self) -> Callable[[Equation], float]:
        """Estimated seconds of an equation."""
        return cache(self.calibration.seconds)

    @cached_property
    def total_seconds(self) -> float:
        """Estimated seconds of a call of the whole program."""
        return self.calibration.call_s + self.work_seconds

    @cached_property
    def work_seconds(self) -> float:
        """Estimated seconds of all equations."""
        return sum(map(self.seconds, self.eqns))

    @property
    def is_calibrated(self) -> bool:
        """Whether prices are there without measuring the machine."""
        return self.given_prices is not None or is_calibrated()

    @cached_property
    def unmeasured(self) -> Facts:
        """The same without measuring the machine, if it was not when this was first asked for: that
        takes longer than most jobs gain. What is derived is shared.
        """
        if self.is_calibrated:
            return self
        return replace(self, given_prices=Calibration())

    @cached_property
    def rough_seconds(self) -> tuple[float, ...]:
        """Estimated seconds of each equation on a machine that was not measured."""
        return tuple(map(Calibration().seconds, self.eqns))

    @cached_property
    def num_compiled(self) -> int:
        """Equations that XLA compiles for the whole program, those inside of others as well."""
        return num_in_all(self.eqns)

    @cached_property
    def constant_bytes(self) -> int:
        """Of what the program closes over."""
        return sum(_jax.aval_bytes(var.aval) for var in self.program.constvars)

    def clean_share(self, dirty: int) -> float:
        """Share of the program's work, roughly, that a change does not reach: what saved values may
        save, unless sums are put in other forms.
        """
        if dirty & self.layout.full == self.layout.full:
            return 0.0
        masks = zip(self.rough_seconds, self.equation_masks, strict=True)
        clean_s = sum(seconds for seconds, mask in masks if not mask & dirty)
        return clean_s / max(sum(self.rough_seconds), 1e-12)

    def reached(self, dirty: int) -> Reached:
        """What a change makes run.

        Cost: a few microseconds for each equation that was not asked for before.
        """
        numbers = [n for n, mask in enumerate(self.equation_masks) if mask & dirty]
        digests = [self.digest_of(self.eqns[n]) for n in numbers if n not in self._inner_sums]
        return Reached(sum(digests) % 2**64, len(digests))

    @cached_property
    def digest_of(self) -> Callable[[Equation], int]:
        """The same number for equations of one operation."""
        return cache(operation_digest)

    @cached_property
    def _inner_sums(self) -> frozenset[int]:
        """Equations by number that add up what others add more to. A sum of many terms, of numbers
        too, counts once, at whichever place the term stands that moves: the others are added up
        beside it.
        """
        return frozenset(n for chain in self.chains for n in chain.eqns if n != chain.last)

    @cached_property
    def load_seconds(self) -> Callable[[Var], float]:
        """Estimated seconds to hand a saved value to a program and read it; the product of a matrix
        reads it itself. Each plan asks for those of all that it could load.

        Nothing for a value that the user marked: it is always taken.
        """

        def seconds(var: Var) -> float:
            if var in self.kept:
                return MARKED_LOAD_S
            size = 0 if var in self.derived.matrices else _jax.aval_bytes(var.aval)
            return self.calibration.load_seconds(size)

        return cache(seconds)

    def save_seconds(self, var: Var) -> float:
        """Estimated seconds to return a value from a program."""
        return self.calibration.save_seconds(_jax.aval_bytes(var.aval))

    def is_saveable(self, var: Var) -> bool:
        """Whether a value can be kept: a derived one, or an array that an equation writes and no
        effect touches.
        """
        return var in self.saveable or var in self.derived.recipes

    @cached_property
    def is_explicit(self) -> bool:
        """Whether types say how values are sharded: sums in another order would need types that
        nobody gave.
        """
        variables = (*self.program.invars, *self.program.constvars, *self.saveable)
        return any(_jax.explicit_sharding(var.aval) is not None for var in variables)

    @cached_property
    def listing(self) -> Listing:
        """The equations by number."""
        return listing_of(self.eqns)

    @cached_property
    def effects(self) -> tuple[int, ...]:
        """Numbers of the equations with effects."""
        return tuple(number for number, eqn in enumerate(self.eqns) if eqn.effects)

    @cached_property
    def equation_masks(self) -> tuple[int, ...]:
        """The dependence mask of each equation."""
        return tuple(self.dependence.of_equation(eqn) for eqn in self.eqns)

    @cached_property
    def has_effects(self) -> bool:
        """Whether some equation must run at every call."""
        return bool(self.effects) or any(mask & ALWAYS for mask in self.masks.values())

    @cached_property
    def always(self) -> int:
        """The bit of what runs at every call, where something does: each dirty set has it."""
        return ALWAYS if self.has_effects else 0

    @property
    def everything(self) -> int:
        """The dirty set of a call in which all inputs changed."""
        return self.layout.full | self.always

    @cached_property
    def calls_host(self) -> bool:
        """Whether some equation, or one inside it, calls the host, whose errors come when a result
        is waited for.
        """
        return bool(self.calling)

    @cached_property
    def calling(self) -> tuple[Equation, ...]:
        """The equations that call functions on the host, themselves or inside."""
        eqns = self.eqns
        return tuple(eqn for eqn in eqns if any(map(_jax.calls_host, _jax.with_inner([eqn]))))

    @cached_property
    def num_outside(self) -> int:
        """How often an evaluation calls pure functions on the host at least; checks have no calls."""
        return sum(num_host_calls(eqn) for eqn in self.calling if not eqn.effects)

    @cached_property
    def kept(self) -> dict[Var, str | None]:
        """What the user marked as worth saving, with its name."""
        marked = [eqn for eqn in self.eqns if eqn.primitive.name == _jax.KEEP]
        return {
            var: eqn.params["name"]
            for eqn in marked
            for var in written_vars(eqn)
            if var in self.saveable
        }

    @cached_property
    def chains(self) -> tuple[SumChain, ...]:
        """The sums of many terms."""
        return find_chains(self.eqns, self.outvars)

    @cached_property
    def saveable(self) -> frozenset[Var]:
        """Variables whose value can be kept."""
        masks = self.masks
        eqns = [eqn for eqn in self.eqns if eqn.params.get("is_kept", True)]
        written = writes_of(eqns)
        return frozenset(var for var in written if not masks[var] & ALWAYS and _is_array(var))

    @cached_property
    def cut_set(self) -> dict[Var, None]:
        """Every value that is read by an equation of another dependency set: what the minimal
        planner keeps.

        Not what is read only to be marked as dependent on less.
        """
        masks = self.masks
        pairs = zip(self.eqns, self.equation_masks, strict=True)
        ends = [(eqn, mask) for eqn, mask in pairs if not eqn.params.get("is_narrowed")]
        read = ((var, mask) for eqn, mask in ends for var in read_vars(eqn))
        return {var: None for var, mask in read if var in self.saveable and masks[var] != mask}

    def dirty_outputs(self, dirty: int) -> tuple[int, ...]:
        """Output positions that a dirty set reaches; all of them if every input is dirty: there may be
        no version that has the others.
        """
        full = self.layout.full
        if dirty & full == full:
            return tuple(range(len(self.outvars)))
        return self.reached_outputs(dirty)

    def reached_outputs(self, dirty: int) -> tuple[int, ...]:
        """Output positions that a dirty set reaches."""
        return tuple(i for i, atom in enumerate(self.outvars) if self.dependence.of(atom) & dirty)


def _is_array(var: Var) -> bool:
    return hasattr(var.aval, "shape") and hasattr(var.aval, "dtype")
