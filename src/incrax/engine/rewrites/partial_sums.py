"""Values that plans save although the program does not name them: partial sums and stacked rows.

A derived variable has a recipe, equations that compute it from variables of the program. It is made
once per set of inputs, so that plans for different dirty sets share it.

`regroup`: in a sum with clean and dirty terms, the clean ones become one value, sum_i t_i = R +
sum_dirty t_i. `stack_rows`: reductions sum_n u[n] r_k[n] over one dirty u and loaded rows r_k
become one product M u (a reverse pass over k scalars ends in k such reductions, which XLA on CPU
runs one by one). Both change the order of summation, by a few units in the last place of the
largest term.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import read_vars, written_vars
from incrax.engine.program.chains import SumChain

MIN_CLEAN_TERMS = 4
"""Clean terms from which on a partial sum is worth a value of its own; a change of any of them
makes it stale.
"""

MIN_ROWS = 2
MIN_ROW_SIZE = 1024
"""Elements below which a reduction is left alone."""


class HostRecipe(NamedTuple):
    """How a derived variable is made with NumPy of the value of one variable."""

    source: Var
    make: Callable[[np.ndarray], np.ndarray]


class DerivedTable:
    """Recipes of derived variables, interned by what they are made of.

    `on_host` has those that no program computes: tables of indices.

    `matrices` are those variables that only a matrix product reads; `flags` has for some of them a
    variable that is computed with it and says whether it may be used.
    """

    def __init__(self) -> None:
        self.recipes: dict[Var, tuple[Equation, ...]] = {}
        self.matrices: set[Var] = set()
        self.flags: dict[Var, Var] = {}
        self.on_host: dict[Var, HostRecipe] = {}
        self._made: dict[Hashable, Var] = {}

    def make(
        self,
        kind: Hashable,
        inputs: Sequence[Var],
        fun: Callable[..., Any],
        *,
        is_matrix: bool = False,
    ) -> Var:
        """The variable that `fun` of the inputs computes, with a flag if it returns two values; the
        same one for the same kind and inputs.
        """
        key = (kind, tuple(inputs))
        if key not in self._made:
            (var, *flag), eqns = traced_equations(fun, inputs)
            self._made[key] = var
            self.recipes[var] = eqns
            if flag:
                self.flags[var] = flag[0]
            if is_matrix:
                self.matrices.add(var)
        return self._made[key]

    def make_on_host(self, kind: Hashable, aval: Any, recipe: HostRecipe) -> Var:
        """The variable of this type that is made with NumPy."""
        key = (kind, recipe.source)
        if key not in self._made:
            var = self._made[key] = _jax.new_var(aval)
            self.on_host[var] = recipe
        return self._made[key]

    def make_sum(self, terms: Sequence[Var], like: Equation) -> Var:
        """The variable that is the sum of some terms, of the type of an addition's result."""
        key = ("sum", tuple(terms))
        if key not in self._made:
            total = self._made[key] = _jax.new_var(like.outvars[0].aval)
            self.recipes[total] = additions(terms, like, total)
        return self._made[key]

    def recipe(self, variables: Iterable[Var]) -> list[Equation]:
        """The equations that compute the derived ones among some variables."""
        return [eqn for var in variables for eqn in self.recipes.get(var, ())]


def traced_equations(
    fun: Callable[..., Any], inputs: Sequence[Var], outputs: Sequence[Var] | None = None
) -> tuple[list[Var], tuple[Equation, ...]]:
    """The equations of a function applied to variables; it may write to given output variables."""
    body = _jax.trace_body(
        fun, *[jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in inputs]
    )
    assert not body.consts
    names: dict[Any, Any] = dict(zip(body.invars, inputs, strict=True))
    if outputs is not None:
        names.update(zip(body.outvars, outputs, strict=True))
    eqns = []
    for eqn in body.eqns:
        for var in eqn.outvars:
            names.setdefault(var, _jax.new_var(var.aval))
        invars = [names.get(atom, atom) if isinstance(atom, Var) else atom for atom in eqn.invars]
        eqns.append(eqn.replace(invars=invars, outvars=[names[var] for var in eqn.outvars]))
    return [names[var] for var in body.outvars], tuple(eqns)


def in_order(eqns: Sequence[Equation]) -> tuple[Equation, ...] | None:
    """The equations sorted so that each reads what was written before; None where they depend on
    each other.
    """
    writer = {var: number for number, eqn in enumerate(eqns) for var in written_vars(eqn)}
    needs = [{writer[var] for var in read_vars(eqn) if var in writer} for eqn in eqns]
    readers: list[list[int]] = [[] for _ in eqns]
    for number, needed in enumerate(needs):
        for other in needed:
            readers[other].append(number)
    ready = [number for number, needed in enumerate(needs) if not needed]
    heapq.heapify(ready)
    missing = [len(needed) for needed in needs]
    order: list[Equation] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(eqns[number])
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return tuple(order) if len(order) == len(eqns) else None


# --- partial sums ---------------------------------------------------------------------------------


def regroup(
    eqns: Sequence[Equation],
    chains: Iterable[SumChain],
    table: DerivedTable,
    is_clean: Callable[[Var], bool],
    kept: Iterable[Var] = (),
) -> dict[int, tuple[Equation, ...]]:
    """What takes the place of equations, by number, where the clean terms of partly dirty sums are
    added up first.

    The partial sums are derived variables, to be loaded or computed before; `kept` sums stay as
    they are.
    """
    replaced: dict[int, tuple[Equation, ...]] = {}
    kept = frozenset(kept)
    for chain in chains:
        if any(eqns[number].outvars[0] in kept for number in chain.eqns if number != chain.last):
            continue
        clean = [var for var in chain.terms if is_clean(var)]
        if len(clean) < MIN_CLEAN_TERMS or len(clean) == len(chain.terms):
            continue
        dirty = [var for var in chain.terms if not is_clean(var)]
        last = eqns[chain.last]
        partial = table.make_sum(clean, last)
        replaced.update({number: () for number in chain.eqns})
        replaced[chain.last] = additions([partial, *dirty], last, last.outvars[0])
    return replaced


def additions(terms: Sequence[Var], like: Equation, total: Var) -> tuple[Equation, ...]:
    """The sum of two or more terms from the left, by additions like another one, written to a
    variable.
    """
    eqns = []
    left = terms[0]
    for term in terms[1:-1]:
        new = _jax.new_var(like.outvars[0].aval)
        eqns.append(like.replace(invars=[left, term], outvars=[new]))
        left = new
    return (*eqns, like.replace(invars=[left, terms[-1]], outvars=[total]))


# --- stacked rows ---------------------------------------------------------------------------------


class _Group(NamedTuple):
    rows: list[Var]
    reductions: list[int]


def stack_rows(
    eqns: Sequence[Equation], loads: Sequence[Var], kept: Iterable[Var], table: DerivedTable
) -> tuple[tuple[Equation, ...], tuple[Var, ...]]:
    """Merge reductions over loaded rows into matrix products; returns the new equations and
    loads.
    """
    producer = {var: number for number, eqn in enumerate(eqns) for var in written_vars(eqn)}
    kept = frozenset(kept)
    groups = {
        u: g for u, g in _groups(eqns, set(loads), producer).items() if len(set(g.rows)) >= MIN_ROWS
    }
    if not groups:
        return tuple(eqns), tuple(loads)
    inserted: dict[int, list[Equation]] = {}
    removed: set[int] = set()
    places: dict[Var, tuple[Var, int]] = {}
    matrices: list[Var] = []
    for shared, group in groups.items():
        rows = list(dict.fromkeys(group.rows))
        matrix = table.make("stack", rows, _stack, is_matrix=True)
        matrices.append(matrix)
        numbers = {row: number for number, row in enumerate(rows)}
        for row, number in numbers.items():
            places.setdefault(row, (matrix, number))
        outputs = [eqns[number].outvars[0] for number in group.reductions]
        order = [numbers[row] for row in group.rows]
        inserted[group.reductions[0]] = list(
            traced_equations(_products(order), [matrix, shared], outputs)[1]
        )
        removed.update(group.reductions)
    body = live(
        [
            new
            for n, eqn in enumerate(eqns)
            for new in inserted.get(n, () if n in removed else (eqn,))
        ],
        {*kept},
    )
    used = {var for eqn in body for var in read_vars(eqn)}
    read: dict[Var, dict[Var, int]] = {}
    for row, (matrix, number) in places.items():
        if row in used or row in kept:
            read.setdefault(matrix, {})[row] = number
    slices = [
        traced_equations(_slices(rows), [matrix], list(rows))[1] for matrix, rows in read.items()
    ]
    body = [*(eqn for part in slices for eqn in part), *body]
    written = {var for eqn in body for var in written_vars(eqn)}
    return tuple(body), tuple(
        v for v in [*loads, *matrices] if (v in used or v in kept) and v not in written
    )


def _groups(
    eqns: Sequence[Equation], loads: set[Var], producer: dict[Var, int]
) -> dict[Var, _Group]:
    """Full reductions of a product of one computed and one loaded array, by the computed one."""
    groups: dict[Var, _Group] = {}
    for number, eqn in enumerate(eqns):
        if not is_full_sum(eqn) or eqn.invars[0] not in producer:
            continue
        product = eqns[producer[eqn.invars[0]]]
        if product.primitive.name != "mul":
            continue
        factors = [atom for atom in product.invars if isinstance(atom, Var)]
        rows = [var for var in factors if var in loads]
        shared = [var for var in factors if var in producer and var not in loads]
        if len(rows) == 1 and len(shared) == 1 and rows[0].aval.shape == shared[0].aval.shape:
            group = groups.setdefault(shared[0], _Group([], []))
            group.rows.append(rows[0])
            group.reductions.append(number)
    return groups


def is_full_sum(eqn: Equation, kinds: str = "fc") -> bool:
    """Whether an equation sums all of a large array of numbers of these kinds, complex ones
    included or not.
    """
    if eqn.primitive.name != "reduce_sum" or not isinstance(eqn.invars[0], Var):
        return False
    aval = eqn.invars[0].aval
    is_wide = (
        not _jax.is_key_dtype(aval.dtype)
        and np.dtype(aval.dtype).kind in kinds
        and aval.dtype.itemsize >= 4
    )
    return (
        is_wide
        and len(eqn.params["axes"]) == len(aval.shape)
        and _jax.aval_size(aval) >= MIN_ROW_SIZE
    )


def live(eqns: Sequence[Equation], kept: set[Var]) -> list[Equation]:
    """Equations whose results are read later or kept."""
    needed = set(kept)
    live = []
    for eqn in reversed(eqns):
        if eqn.effects or any(var in needed for var in written_vars(eqn)):
            needed.update(read_vars(eqn))
            live.append(eqn)
    return live[::-1]


def _stack(*rows: Any) -> Any:
    return jnp.stack([row.ravel() for row in rows])


def _slices(rows: Mapping[Var, int]) -> Callable[..., Any]:
    """A function of a matrix that returns some rows, each with the shape of its variable."""
    return lambda matrix: [
        jax.lax.reshape(jax.lax.slice_in_dim(matrix, number, number + 1), row.aval.shape)
        for row, number in rows.items()
    ]


def _products(order: Sequence[int]) -> Callable[..., Any]:
    def products(matrix: Any, shared: Any) -> list[Any]:
        sums = jnp.matmul(matrix, shared.ravel(), precision=Precision.HIGHEST)
        return [
            jax.lax.reshape(jax.lax.slice_in_dim(sums, index, index + 1), ()) for index in order
        ]

    return products
