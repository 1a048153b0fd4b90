"""Stage 9, compile: a plan becomes an XLA executable that takes leaves, constants and saved values.

An `Executable` is what runs: a jitted function, and where its arguments come from. It never changes,
and holds no values but constants. XLA compiles the function when it first runs, or a thread does
(`engine.compile.background`); how often it ran and how long it took is known to the `TimedProgram`
that owns it (`engine.compile.timing`), one for each plan that serves.

Plans that differ only in what they read (`engine.plan.families`) share the function, which is their
`Family`: leaves, constants, loads and places of elements are its arguments. It lives as long as one
of its members does; the `Compiler` of a program finds it for the next one.

In: `Facts` and a `Plan`. Out: `Executable`. It must not know where saved values are.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._names import as_program_name
from incrax._program import (
    STATEFUL,
    Env,
    Function,
    Kwargs,
    Program,
    Results,
    Values,
    all_read,
    evaluated_sparingly,
    evaluator,
)
from incrax._tuning import is_disabled
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.compile.in_place import NOTHING, InPlace, in_place
from incrax.engine.compile.recycling import is_recyclable
from incrax.engine.inputs.placement import Placed, on_all_devices, placed_array, placed_as
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.families import CanonicalPlan, Elements, canonical_form, with_names
from incrax.engine.plan.plan import Plan
from incrax.engine.program.constants import is_at_hand, numpy_value, value_of
from incrax.engine.program.simplify import needed_equations

EMBED_BYTES = 64
"""Bytes up to which a constant is written into the program; larger ones are arguments (compile
time).
"""


MAX_FOLDED = 2
"""Times the bytes of all constants that what programs make of them may have: each row is cut and squeezed. Of
windows that overlap there may be any number.
"""


@dataclass(frozen=True, eq=False)
class Family:
    """What plans that differ only in what they read have in common: the function, and how it treats
    its arguments.
    """

    call: Callable[..., Results]  # of (leaves, constants, loads, donated buffers)
    num_eqns: int
    donated: tuple[Any, ...] = ()  # types of the buffers to donate
    in_place: InPlace = NOTHING  # loads that are overwritten with what is saved of them
    # Of what computes values to save: the same, evaluated equation by equation.
    one_by_one: Callable[..., Results] | None = None
    kin: Kin | None = None  # lives as long as one of its families


class Kin:
    """Families that are the same but for small constants, known by their bits, which are written into
    programs: data of a county, the place of a bin.

    The first one has all of them in its program. Where another differs in some, those become
    arguments of one more program, which serves all later ones that differ in no others.
    """

    def __init__(self, numbers: tuple[bytes, ...]) -> None:
        self.first = numbers  # what they are in the first family
        self.differing: tuple[int, ...] = ()  # the places of those that others had otherwise
        # By the places of arguments, and the constants that are none.
        self.families: weakref.WeakValueDictionary[Hashable, Family] = weakref.WeakValueDictionary()

    def find(self, numbers: tuple[bytes, ...]) -> tuple[tuple[int, ...], Family | None]:
        """The places of the constants that are arguments of the program for these, and the program, if
        there is one.
        """
        for places in dict.fromkeys(((), self.differing)):
            family = self.families.get((places, _others(numbers, places)))
            if family is not None:
                return places, family
        different = {n for n, number in enumerate(numbers) if number != self.first[n]}
        self.differing = tuple(sorted(different.union(self.differing)))
        return self.differing, None

    def enter(self, numbers: tuple[bytes, ...], places: tuple[int, ...], family: Family) -> None:
        """The program for these constants, of which some are arguments."""
        self.families[places, _others(numbers, places)] = family


def _others(items: Sequence[Any], places: tuple[int, ...]) -> tuple[Any, ...]:
    """The items at other places."""
    taken = set(places)
    return tuple([item for n, item in enumerate(items) if n not in taken])


@dataclass(frozen=True)
class Executable:
    """A plan as a program, and where its arguments come from."""

    family: Family  # what it shares with others
    leaves: tuple[int, ...]  # numbers of those that it takes
    constants: tuple[Any, ...] = ()
    loads: tuple[Var, ...] = ()
    is_shared: bool = False  # the family had a member before
    # In whose order outputs and saved values are returned; None: the whole program.
    plan: Plan | None = None

    @functools.cached_property
    def overwritten(self) -> Sequence[Var]:
        """What it loads and overwrites."""
        return self.family.in_place.loads

    def specimen(self, feeds: Values) -> tuple[Function, list[Any]]:
        """The jitted function that runs on such feeds, and the types of all its arguments."""
        family = self.family
        given = map(jax.typeof, (*[feeds[i] for i in self.leaves], *self.constants))
        avals = [*given, *(var.aval for var in self.loads), *family.donated]
        return family.call, [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
        ]

    def __call__(self, feeds: Values, loaded: Values, donated: Values = ()) -> Results:
        """Run on the leaves' feeds (all of them, by number), the loaded values in order, and
        buffers to overwrite. Some loaded values may be overwritten, too: see `Family`.
        """
        family = self.family
        read = map(feeds.__getitem__, self.leaves)
        results = family.call(*read, *self.constants, *loaded, *donated)
        in_place = family.in_place
        writing = in_place.writing
        num_first = len(in_place.replaced)
        if not num_first and not writing.olds:
            return results
        assert self.plan is not None
        num_before = num_first + len(self.plan.outputs)
        num_last = len(results) - len(writing.given)
        olds = [loaded[self.loads.index(var)] for var in writing.olds]
        written = writing.run(*olds, *results[num_last:])
        outputs = results[num_first:num_before]
        return [*outputs, *results[:num_first], *written, *results[num_before:num_last]]

    def evaluated(self, feeds: Values, loaded: Values) -> Results:
        """The same results, one equation after the other; nothing but what each of them is by itself
        is compiled, once in a process.
        """
        assert self.family.one_by_one is not None
        read = [feeds[i] for i in self.leaves]
        read = [jax.device_put(x) if isinstance(x, np.ndarray) else x for x in read]
        return self.family.one_by_one(*read, *self.constants, *loaded)


class Compiler:
    """Compiles plans of one program."""

    def __init__(
        self,
        facts: Facts,
        calls: HostCalls,
        name: str,
        *,
        recycles: bool,
        placed: Mapping[int, Placed] | None = None,
    ) -> None:
        self.facts = facts
        self.calls = calls  # to the host
        self.name = as_program_name(name)  # for profiles
        self.now = calls.now if facts.calls_host else time.perf_counter  # does not count these
        self._given = dict(zip(facts.program.constvars, facts.program.consts, strict=True))
        self.placed = placed or {}  # the leaves that are bound to devices, by number
        # Where a value is that depends on none of these.
        self.placement = on_all_devices(
            [*self.placed.values(), *self._placed_constants(self._given)]
        )
        self._num_folded_bytes = 0  # of constants that were made of others
        # Whether saved values are written to recycled buffers.
        self.recycles = recycles and self.placement is None
        self._leaf_numbers = {var: i for i, var in enumerate(facts.invars)}
        self._kin: weakref.WeakValueDictionary[Hashable, Kin] = weakref.WeakValueDictionary()

    @functools.cached_property
    def constants(self) -> Env:
        """Constants on the device; the whole program has its own."""
        placement = self.placement
        is_one = isinstance(placement, SingleDeviceSharding)
        device = next(iter(placement.device_set)) if is_one else None
        return device_constants(self.facts.program, device)

    def compile_plan(self, plan: Plan) -> Executable:
        """An executable that returns the plan's outputs, its saves (in donated buffers if it
        recycles), its guard; the program of a family that is known serves another member.
        """
        numbers: Env = {}  # of equations
        form = self._form(plan, numbers)
        constants = ChainMap(numbers, self.constants)
        written = NOTHING
        if plan.sliced is not None and self.recycles:
            written = in_place(plan, [self.facts.outvars[i] for i in plan.outputs], self.name)
        first = written.saves
        others = [var for var in form.saves if var not in first]
        outputs = tuple([plan.outputs[place] for place in form.outputs])
        plan = replace(plan, outputs=outputs, saves=(*first, *others))
        read = self._read(form, numbers)
        returned = self.facts.returned
        own = [var.aval for var in others if self.recycles and var not in returned]
        donated = tuple(aval for aval in own if is_recyclable(aval))
        kin = family = None
        lifted: tuple[int, ...] = ()
        bits: tuple[bytes, ...] = ()
        if form.key is not None:
            key = (form.key, donated, len(plan.outputs))
            bits = tuple([_jax.bits_on_host(constants[var]).tobytes() for var in read.embedded])
            kin = self._kin.get(key) or Kin(bits)
            self._kin[key] = kin
            lifted, family = kin.find(bits)
            read = read.with_arguments(lifted)
        is_shared = family is not None
        if family is None:
            family = self._compiled(plan, form, read, donated, written, constants, kin)
            if kin is not None:
                kin.enter(bits, lifted, family)
        places = [index for piece in form.pieces for index in piece.start]
        given = tuple([_as_argument(constants[var]) for var in read.passed])
        if places:
            given = (*given, jax.device_put(np.array(places, np.int32)))
        return Executable(family, read.leaves, given, read.loads, is_shared, plan)

    def _form(self, plan: Plan, numbers: Env) -> CanonicalPlan:
        """The plan's equations in canonical order, their numbers among what they read, which are added;
        as they are, without a key, where the program can have no other member: what it does besides,
        and where, is then its own.
        """
        program = self.facts.program
        outputs = [self.facts.outvars[i] for i in plan.outputs]
        is_pure = not any(eqn.effects or eqn.primitive.name in STATEFUL for eqn in plan.eqns)
        is_common = is_pure and self.placement is None and not self.facts.calls_host
        if is_common and plan.sliced is None and plan.blocked is None:
            eqns = [with_names(eqn, numbers) for eqn in self._without_constant(plan, outputs)]
            return canonical_form(
                eqns,
                outputs,
                plan.saves,
                self._kind_of(numbers),
                guard=plan.guard,
                may_reorder=plan.may_reorder,
            )
        guards = [] if plan.guard is None else [plan.guard]
        used = all_read(plan.eqns, [*outputs, *plan.saves, *guards])
        leaves = (var for var in program.invars if var in used)
        constants = (var for var in program.constvars if var in used)
        arguments = (*leaves, *constants, *plan.loads)
        places = tuple(range(len(outputs)))
        return CanonicalPlan(None, (), plan.eqns, arguments, places, plan.saves)

    def _without_constant(self, plan: Plan, outputs: Sequence[Atom]) -> Sequence[Equation]:
        """A plan's equations without those that read nothing but constants, as rows of closed-over data:
        what they give is a constant, too, made once. XLA folds them in the whole function, whose
        constants it knows; here each call would copy the rows.
        """
        if self.placement is not None or jax.default_backend() != "cpu":
            return plan.eqns
        returned = {x for x in (*outputs, *plan.saves, plan.guard) if isinstance(x, Var)}
        folded: dict[Var, np.ndarray] = {}
        known = {var: x for var, x in self.constants.items() if is_at_hand(x)}
        kept: list[Equation] = []
        num_bytes = self._num_folded_bytes
        for eqn in plan.eqns:
            value = None if returned.intersection(eqn.outvars) else _folded(eqn, known)
            if value is None:
                kept.append(eqn)
                continue
            (var,) = eqn.outvars
            known[var] = folded[var] = value
            num_bytes += value.nbytes * (var not in self.constants)
            if num_bytes > MAX_FOLDED * self.facts.constant_bytes:
                return plan.eqns
        read = all_read(kept, []) if folded else ()
        for var, value in folded.items():
            if var in read and var not in self.constants:
                self.constants[var] = jax.device_put(np.ascontiguousarray(value))
                self._num_folded_bytes += value.nbytes
        return kept

    def _kind_of(self, numbers: Env) -> Callable[[Var], Hashable]:
        """What tells arguments apart: what they are, and their types."""
        leaves = self._leaf_numbers

        @functools.cache
        def kind_of(var: Var) -> Hashable:
            if var in leaves:
                return "leaf", var.aval
            if self._is_embedded(var, numbers):
                return "number", var.aval
            return "constant" if var in self.constants else "load", var.aval

        return kind_of

    def _is_embedded(self, var: Var, numbers: Env) -> bool:
        """Whether it is written into programs: a number of an equation, or a small constant that the
        function closes over. One that was made of others, as a row of them, is not: what is for another
        row shares the program.
        """
        return var in numbers or (var in self._given and not _is_passed(self._given[var]))

    def _read(self, form: CanonicalPlan, numbers: Env) -> _Arguments:
        """The arguments of a form by kind, each in order."""
        leaves = self._leaf_numbers
        embedded = dict.fromkeys([x for x in form.arguments if self._is_embedded(x, numbers)])
        others = [var for var in form.arguments if var not in leaves and var not in embedded]
        return _Arguments(
            tuple(leaves[var] for var in form.arguments if var in leaves),
            tuple(var for var in others if var in self.constants),
            tuple(embedded),
            tuple(var for var in others if var not in self.constants),
        )

    def _compiled(
        self,
        plan: Plan,
        form: CanonicalPlan,
        read: _Arguments,
        donated: tuple[Any, ...],
        written: InPlace,
        constants: Mapping[Var, Any],
        kin: Kin | None,
    ) -> Family:
        """The program of a plan."""
        returned = self._returned(plan, written)
        eqns = self._wrapped(form.eqns)
        if written.writing.olds:
            eqns = tuple(needed_equations(eqns, returned))
        leaves = [self.facts.invars[i] for i in read.leaves]
        places = [_PLACES] if form.pieces else []
        names: list[Any] = [*leaves, *read.passed, *places, *read.loads]
        embedded = {var: constants[var] for var in read.embedded}
        num_first = len(written.replaced) + len(plan.outputs)
        run_plan = _runner(names, embedded, form.pieces, eqns, returned, num_first)
        run_plan.__name__ = f"{self.name}_plan"
        is_fill = form.key is not None and not plan.outputs and plan.guard is None
        out_shardings = self._out_shardings(returned, read)
        options: Kwargs = {} if out_shardings is None else {"out_shardings": out_shardings}
        num = len(names)
        given_up = (*map(names.index, written.overwritten), *range(num, num + len(donated)))
        call = jax.jit(run_plan, donate_argnums=given_up, keep_unused=bool(given_up), **options)
        return Family(call, len(plan.eqns), donated, written, run_plan if is_fill else None, kin)

    def _returned(self, plan: Plan, written: InPlace) -> list[Atom]:
        """What a plan's own program returns: what is written over values, the outputs, other saves,
        the guard, and what the program that writes in place is given.
        """
        outputs = [self.facts.outvars[i] for i in plan.outputs]
        saves = plan.saves[len(written.saves) :]
        guard = () if plan.guard is None else (plan.guard,)
        return [*written.replaced, *outputs, *saves, *guard, *written.writing.given]

    def _is_bound(self, read: _Arguments) -> bool:
        """Whether what a plan reads is where all inputs are: saved values are, and what loads one
        follows it there, as what reads such an input does.
        """
        constants = [*read.passed, *read.embedded]
        is_placed = not self.placed.keys().isdisjoint(read.leaves)
        return bool(read.loads or is_placed or self._placed_constants(constants))

    def compile_whole(
        self, program: Program, jitted: Callable[..., Results] | None = None
    ) -> Executable:
        """The function as it was traced, without saved values: `jax.jit` of it as a function of
        leaves, if that is given, and nothing about it is ours.
        """
        leaves = tuple(range(len(program.invars)))
        num_eqns = len(self.facts.eqns)
        if jitted is not None and all(map(_is_held_whole, program.consts)):
            return Executable(Family(jitted, num_eqns), leaves)
        constants = device_constants(program)
        run = evaluator(program.with_eqns(self._wrapped(program.eqns)))
        passed = [v for v in program.constvars if not _is_held_whole(constants[v])]
        num_leaves = len(leaves)

        def run_whole(*values: Any) -> Results:
            given = dict(zip(passed, values[num_leaves:], strict=True))
            return run(tuple({**constants, **given}.values()), *values[:num_leaves])

        run_whole.__name__ = f"{self.name}_whole"
        return Executable(
            Family(jax.jit(run_whole), num_eqns), leaves, tuple(constants[v] for v in passed)
        )

    def _wrapped(self, eqns: tuple[Equation, ...]) -> tuple[Equation, ...]:
        """Equations whose functions on the host are remembered, and know that a call waits."""
        return self.calls.wrap(eqns) if self.facts.calls_host and not is_disabled() else eqns

    def _placed_constants(self, variables: Iterable[Var]) -> list[Placed]:
        found = (placed_array(self._given[var]) for var in variables if var in self._given)
        return [placed for placed in found if placed is not None]

    def _out_shardings(self, results: Sequence[Atom], read: _Arguments) -> Results | None:
        """Where to put results that XLA would put on the default device; None where it knows better."""
        placement = self.placement
        if placement is None or self._is_bound(read):
            return None
        return [placed_as(atom.aval, placement) for atom in results]


_PLACES = "places"
"""Names the argument that has the places of pieces, one after the other."""


class _Arguments(NamedTuple):
    """What a plan reads, each kind in canonical order: leaf numbers, constants that are arguments,
    those that are written into the program, saved values.
    """

    leaves: tuple[int, ...]
    passed: tuple[Var, ...]
    embedded: tuple[Var, ...]
    loads: tuple[Var, ...]

    def with_arguments(self, places: tuple[int, ...]) -> _Arguments:
        """The same where some of those that are written into the program are arguments."""
        lifted = tuple([self.embedded[n] for n in places])
        embedded = _others(self.embedded, places)
        return self._replace(passed=(*self.passed, *lifted), embedded=embedded)


def _runner(
    names: Values,
    embedded: Env,
    pieces: Sequence[Elements],
    eqns: Sequence[Equation],
    returned: Sequence[Atom],
    num_first: int,
) -> Callable[..., Results]:
    """Equations as a function of named values, and of buffers that it is given up; of what it
    returns, all but the first ones have buffers of their own.
    """

    def run(*values: Any) -> Results:
        inputs = values[: len(names)]
        env = {**embedded, **dict(zip(names, inputs, strict=True))}
        _take_pieces(pieces, env, env.get(_PLACES, ()))
        results = evaluated_sparingly(eqns, returned, env)
        first = results[:num_first]
        return first + [_as_own(x, [*inputs, *first]) for x in results[num_first:]]

    return run


def _take_pieces(pieces: Iterable[Elements], env: Env, places: Values) -> None:
    """Add the pieces of arguments in `env`, whose places stand one after the other."""
    at = iter(range(len(places)))
    for piece in pieces:
        start = [places[next(at)] for _ in piece.start]
        env[piece.written] = piece.taken(env[piece.argument], start)


def device_constants(program: Program, device: Any = None) -> Env:
    """Closed-over constants on a device, or the default one, converted once."""
    consts = [_on_device(x, device) for x in program.consts]
    return dict(zip(program.constvars, consts, strict=True))


def _on_device(x: Any, device: Any) -> Any:
    """A constant that nobody bound to a device; one that is traced, may change or has parts stays
    as it is.
    """
    if not isinstance(x, jax.Array) and not _jax.is_mutable_array(x):
        # `jnp.array` would compile a program; a trace owns the arrays of NumPy whose memory this shares.
        x = jax.device_put(x)
    return _jax.unbound(x, device) if is_at_hand(x) else x


def _as_own(x: Any, others: Values) -> Any:
    """A value to save; a copy where it would share the buffer of an argument or an output."""
    is_shared = any(x is other for other in others) and not _jax.is_key_dtype(x.dtype)
    return jnp.array(x, copy=True) if is_shared else x


def _folded(eqn: Equation, known: Env) -> np.ndarray | None:
    """What an equation makes of known values; None where NumPy does not give it bit by bit, or of more
    bytes than what it reads.
    """
    (written, *others) = eqn.outvars
    if written in known:
        return np.asarray(known[written])
    given = [x for x in eqn.invars if isinstance(x, Var)]
    if others or not all(x in known for x in given):
        return None
    if _jax.aval_bytes(written.aval) > max([_jax.aval_bytes(x.aval) for x in given], default=0):
        return None
    values = [value_of(x, known) for x in eqn.invars]
    value = None if any([x is None for x in values]) else numpy_value(eqn, values)
    return None if value is None else value.reshape(written.aval.shape)


def _as_argument(value: Any) -> Any:
    return jax.device_put(value) if isinstance(value, np.ndarray) else value


def _is_passed(const: Any) -> bool:
    """Whether a constant is an argument: a large one, and one that several devices or processes
    hold in parts.
    """
    return not _is_held_whole(const) or const.nbytes > EMBED_BYTES


def _is_held_whole(const: Any) -> bool:
    is_on_device = isinstance(const, jax.Array) and _jax.is_held_whole(const)
    return is_on_device or isinstance(const, np.ndarray)
