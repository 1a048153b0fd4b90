"""Derived values: variables that the program has not, and equations made by tracing a function.

A derived variable has a recipe, equations that compute it from variables of the program. It is made
once per set of inputs, so that plans for different dirty sets share it. Results that are computed
in another way come with a guard, a boolean that must be true for them to be used.

In: functions of variables. Out: recipes, equations. It must not know what the functions compute.
"""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Body, Equation, Var
from incrax._program import Env, read_vars, writes_of, written_vars
from incrax.engine.program.simplify import needed_equations, reading, renamed
from incrax.engine.program.structure import value_key


class HostRecipe(NamedTuple):
    """How a derived variable is made with NumPy of the values of others; tables may be among them."""

    sources: tuple[Var, ...]
    make: Callable[..., np.ndarray]


class DerivedTable:
    """Recipes of derived variables, interned by what they are made of."""

    def __init__(self) -> None:
        self.recipes: dict[Var, tuple[Equation, ...]] = {}
        self.matrices: set[Var] = set()
        """Those that only a matrix product reads."""
        self.flags: dict[Var, Var] = {}
        """For some matrices, what is computed with one and says whether it may be used."""
        self.on_host: dict[Var, HostRecipe] = {}
        """Those that no program computes: tables of indices, and what is arranged by them."""
        self.instead: dict[Var, Var] = {}
        """For results of an equation of the program, what a recipe makes that does the same and
        more.
        """
        self._made: dict[Hashable, Var] = {}
        self._made_together: dict[Hashable, list[Var]] = {}
        self._traces: dict[Hashable, Body] = {}

    def make(
        self,
        kind: Hashable,
        inputs: Sequence[Var],
        fun: Callable[..., Any],
        *,
        is_alike: bool = False,
    ) -> Var:
        """The variable that `fun` of the inputs computes; the same one for the same kind and inputs.
        `is_alike`: the kind says all of `fun`, as `traced` asks.
        """
        key = (kind, tuple(inputs))
        if key not in self._made:
            body = self.traced(kind, inputs, fun) if is_alike else _traced(inputs, fun)
            (var, *flag), eqns = renamed(body, inputs)
            self._made[key] = var
            if var not in inputs:  # what hands on an input is no other variable
                self.recipes[var] = (*self.recipe(inputs), *eqns)
            if flag:
                self.flags[var] = flag[0]
        return self._made[key]

    def make_matrix(self, kind: Hashable, inputs: Sequence[Var], fun: Callable[..., Any]) -> Var:
        """The same of a matrix, with a flag if `fun` returns two values; see `traced` for its kind."""
        matrix = self.make(kind, inputs, fun, is_alike=True)
        self.matrices.add(matrix)
        return matrix

    def traced(self, kind: Hashable, inputs: Sequence[Var], fun: Callable[..., Any]) -> Body:
        """The trace of a function of which a kind, in tuples, says all but the names of variables:
        one serves what is alike, as are plans of one family.
        """
        key = nameless((kind, tuple(inputs)))
        if key not in self._traces:
            self._traces[key] = _traced(inputs, fun)
        return self._traces[key]

    def make_written(
        self,
        kind: Hashable,
        inputs: Sequence[Var],
        aval: Any,
        write: Callable[[Var], tuple[Equation, ...]],
    ) -> Var:
        """The variable of this type, strong, that some equations write: the same one for the same
        kind and inputs. To trace a sum of 25,000 terms takes seconds; to write it down does not.
        """
        key = (kind, tuple(inputs))
        if key not in self._made:
            var = self._made[key] = _jax.new_var(aval.update(weak_type=False))
            self.recipes[var] = write(var)
        return self._made[key]

    def make_together(
        self,
        results: Sequence[Var],
        inputs: Sequence[Var],
        fun: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    ) -> list[Var]:
        """The variables of what `fun` of the inputs returns as second part; its first part are some
        results of one equation, all that are read, for which it stands where both would be run.
        """
        key = tuple(results)
        if key not in self._made_together:
            flat = lambda *values: [x for part in fun(*values) for x in part]
            body = _traced(inputs, flat)
            made = [_jax.new_var(atom.aval) for atom in body.outvars]
            self.recipes.update(dict.fromkeys(made, written_by(body, inputs, made)))
            self.instead.update(zip(results, made, strict=False))
            self._made_together[key] = made[len(results) :]
        return self._made_together[key]

    def made_with(self, variables: Iterable[Var]) -> list[Var]:
        """What stands for results of the program and is made by the recipes of some variables."""
        recipes = {id(self.recipes[var]) for var in variables if var in self.recipes}
        return [var for var in self.instead.values() if id(self.recipes[var]) in recipes]

    def put_instead(self, eqns: Sequence[Equation]) -> tuple[Equation, ...]:
        """The equations without those for which others among them stand."""
        written = set(writes_of(eqns))
        names = {new: old for old, new in self.instead.items() if new in written}
        if not names:
            return tuple(eqns)
        replaced = set(names.values())
        kept = [
            reading(eqn, names).replace(outvars=[names.get(var, var) for var in eqn.outvars])
            for eqn in eqns
            if replaced.isdisjoint(eqn.outvars)
        ]
        ordered = in_order(kept)
        assert ordered is not None
        return ordered

    def make_on_host(self, kind: Hashable, aval: Any, recipe: HostRecipe) -> Var:
        """The variable of this type that is made with NumPy."""
        key = (kind, recipe.sources)
        if key not in self._made:
            var = self._made[key] = _jax.new_var(aval)
            self.on_host[var] = recipe
        return self._made[key]

    def recipe(self, variables: Iterable[Var]) -> list[Equation]:
        """The equations that compute the derived ones among some variables."""
        return list(dict.fromkeys(eqn for var in variables for eqn in self.recipes.get(var, ())))


def _traced(inputs: Sequence[Var], fun: Callable[..., Any]) -> Body:
    types = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in inputs]
    body = _jax.trace_body(fun, *types)
    assert not body.consts
    return body


def nameless(value: Hashable) -> Hashable:
    """Nested tuples with a number and a type in the place of each variable."""
    numbers: dict[Var, int] = {}

    def key_of(value: Any) -> Hashable:
        if isinstance(value, Var):
            return numbers.setdefault(value, len(numbers)), value.aval
        if isinstance(value, tuple):
            return tuple(map(key_of, value))
        return value_key(value)

    return key_of(value)


def traced_equations(
    fun: Callable[..., Any], inputs: Sequence[Var], outputs: Sequence[Var | None] | None = None
) -> tuple[list[Var], tuple[Equation, ...]]:
    """The equations of a function applied to variables; it may write to given output variables,
    whose types they keep.
    """

    def typed(*values: Any) -> list[Any]:
        pairs = zip_longest(jax.tree.leaves(fun(*values)), outputs or ())
        return [x if var is None else _jax.typed_as(x, var.aval) for x, var in pairs]

    return renamed(_traced(inputs, typed), inputs, outputs)


def written_by(body: Body, inputs: Sequence[Var], results: Sequence[Var]) -> tuple[Equation, ...]:
    """The equations of a trace that its results need, in these variables."""
    return tuple(needed_equations(renamed(body, inputs, results)[1], results))


def in_order(eqns: Sequence[Equation]) -> tuple[Equation, ...] | None:
    """The equations sorted so that each reads what was written before, else in their order; None
    where they depend on each other.
    """
    writer = {var: number for number, eqn in enumerate(eqns) for var in written_vars(eqn)}
    needs = [{writer[var] for var in read_vars(eqn) if var in writer} for eqn in eqns]
    sorter = graphlib.TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return None
    order: list[Equation] = []
    ready: list[int] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        first = heapq.heappop(ready)
        sorter.done(first)
        order.append(eqns[first])
    return tuple(order)


class Recomputed(NamedTuple):
    """Equations, and the boolean variable that must be true for their results to be used."""

    eqns: tuple[Equation, ...]
    guard: Var


def recomputed(
    eqns: Sequence[Equation],
    inputs: Iterable[Var],
    outputs: Collection[Var],
    compute: Callable[[Env], tuple[Env, Sequence[Any]]],
    targets: Iterable[Var],
    trace: Callable[[Sequence[Var], Callable[..., Any]], Body] = _traced,
) -> Recomputed | None:
    """The equations that targets need, with `outputs` computed by a function of the values of
    inputs, which returns booleans too that must all be true; None where they become cyclic. `trace`
    may know the trace of what is alike.
    """
    inputs = list(dict.fromkeys(inputs))

    def run(*values: Any) -> list[Any]:
        results, guards = compute(dict(zip(inputs, values, strict=True)))
        typed = [_jax.typed_as(results[var], var.aval) for var in outputs]
        return [*typed, jnp.all(jnp.stack(guards))]

    guard = _jax.new_var(_jax.bool_aval())
    new = renamed(trace(inputs, run), inputs, [*outputs, guard])[1]
    others = [eqn for eqn in eqns if not any(var in outputs for var in eqn.outvars)]
    ordered = in_order([*others, *new])
    if ordered is None:
        return None
    return Recomputed(tuple(needed_equations(ordered, [*targets, guard])), guard)
