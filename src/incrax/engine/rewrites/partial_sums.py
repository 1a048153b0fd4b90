"""Values that plans save although the program does not name them: partial sums and stacked rows.

`regroup`: in a sum with clean and dirty terms, the clean ones become one value, sum_i t_i = R +
sum_dirty t_i. `stack_rows`: reductions sum_n u[n] r_k[n] over one dirty u and loaded rows r_k
become one product M u (a reverse pass over k scalars ends in k such reductions, which XLA on CPU
runs one by one). Both change the order of summation, by a few units in the last place of the
largest term.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import read_vars, written_vars
from incrax.engine.program.chains import SumChain
from incrax.engine.program.simplify import needed_equations
from incrax.engine.rewrites.derived import DerivedTable, traced_equations

MIN_CLEAN_TERMS = 4
"""Clean terms from which on a partial sum is worth a value of its own; a change of any of them
makes it stale.
"""

MIN_ROWS = 2
MIN_ROW_SIZE = 1024
"""Elements below which a reduction is left alone."""


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
        partial = table.make("sum", clean, lambda *terms: functools.reduce(operator.add, terms))
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
    body = needed_equations(
        [
            new
            for n, eqn in enumerate(eqns)
            for new in inserted.get(n, () if n in removed else (eqn,))
        ],
        kept,
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
