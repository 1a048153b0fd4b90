"""Values that plans save although the program does not name them: partial sums and stacked rows.

`regroup`: in a sum with clean and dirty terms, the clean ones become one value, sum_i t_i = R +
sum_dirty t_i. `stack_rows`: reductions sum_n u[n] r_k[n] over one dirty u and loaded rows r_k
become one product M u (a reverse pass over k scalars ends in k such reductions, which XLA on CPU
runs one by one). Both change the order of summation, by a few units in the last place of the
largest term.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import all_read, read_vars, written_vars
from incrax.engine.program.chains import SumChain
from incrax.engine.program.simplify import needed_equations
from incrax.engine.rewrites.derived import DerivedTable, traced_equations

MIN_CLEAN_TERMS = 4
"""Clean terms from which on a partial sum is worth a value of its own; a change of any of them
makes it stale.
"""

MIN_LARGE = 2**14
"""Elements of a sum from which on that is so for two that would be loaded: to read one less saves more
than to keep their sum costs.
"""

MIN_SIZE = 256
"""Elements of a sum from which on that is so: what is smaller is added up again, all of it."""

MAX_TERMS = 64
"""Terms of a smaller sum of which all are loaded: each is one more argument."""

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
        if chain.size < MIN_SIZE or len(clean) == len(chain.terms):
            continue
        is_large = chain.size >= MIN_LARGE and _num_loaded(eqns, chain, is_clean) > 1
        if len(clean) < MIN_CLEAN_TERMS and not is_large:
            continue
        dirty = [var for var in chain.terms if not is_clean(var)]
        last = eqns[chain.last]
        partial = table.make_written(
            "sum", clean, last.outvars[0].aval, functools.partial(additions, clean, last)
        )
        replaced.update({number: () for number in chain.eqns})
        replaced[chain.last] = additions([partial, *dirty], last, last.outvars[0])
    return replaced


def _num_loaded(eqns: Sequence[Equation], chain: SumChain, is_clean: Callable[[Var], bool]) -> int:
    """Clean values that the additions of a sum read which a change reaches."""
    added = [eqns[number] for number in chain.eqns]
    dirty = [eqn for eqn in added if not is_clean(eqn.outvars[0])]
    return sum(is_clean(var) for eqn in dirty for var in read_vars(eqn))


def is_added_anew(chain: SumChain, num_turning: int = 0) -> bool:
    """Whether all of a sum that a change reaches is added up again, from its terms: so the same runs
    whichever term moves, and one program serves all, where the sum of those before it would do. A
    large one only where some of its clean terms change in turns with the others: the sum of these
    would be stale at each call.
    """
    return (chain.size < MIN_SIZE or num_turning > 0) and len(chain.terms) <= MAX_TERMS


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


def stack_rows(
    eqns: Sequence[Equation], loads: Sequence[Var], kept: Collection[Var], table: DerivedTable
) -> tuple[tuple[Equation, ...], tuple[Var, ...]]:
    """Merge reductions over loaded rows into matrix products; returns the new equations and
    loads.
    """
    groups = _siblings(eqns, set(loads))
    if not groups:
        return tuple(eqns), tuple(loads)
    inserted: dict[int, tuple[Equation, ...]] = {}
    places: dict[Var, tuple[Var, int]] = {}
    matrices: list[Var] = []
    for shared, reductions in groups.items():
        rows = list(dict.fromkeys(reductions.values()))
        stack = lambda *rows: jnp.stack([row.ravel() for row in rows])
        matrix = table.make_matrix("stack", rows, stack)
        matrices.append(matrix)
        for number, row in enumerate(rows):
            places.setdefault(row, (matrix, number))
        products = _products([rows.index(row) for row in reductions.values()])
        outputs = [eqns[number].outvars[0] for number in reductions]
        inserted.update(dict.fromkeys(reductions, ()))
        inserted[min(reductions)] = traced_equations(products, [matrix, shared], outputs)[1]
    merged = [new for n, eqn in enumerate(eqns) for new in inserted.get(n, (eqn,))]
    body = needed_equations(merged, kept)
    used = all_read(body, kept)
    new_loads = [var for var in (*loads, *matrices) if var in used and var not in places]
    return (*_slices(places, used), *body), tuple(new_loads)


def _slices(places: Mapping[Var, tuple[Var, int]], used: Collection[Var]) -> list[Equation]:
    """Rows that something else reads, too, taken out of the matrices."""
    return [
        eqn
        for row, (matrix, number) in places.items()
        if row in used
        for eqn in traced_equations(_row(number, row.aval.shape), [matrix], [row])[1]
    ]


def _siblings(eqns: Sequence[Equation], loads: set[Var]) -> dict[Var, dict[int, Var]]:
    """Full reductions of a product of one computed and one loaded array, by the computed one: their
    numbers, and the loaded array of each, of which there are several.
    """
    sums = [number for number, eqn in enumerate(eqns) if is_full_sum(eqn)]
    if len(sums) < MIN_ROWS:
        return {}
    producer = {var: eqn for eqn in eqns for var in written_vars(eqn)}
    groups: dict[Var, dict[int, Var]] = {}
    for number in sums:
        product = producer.get(eqns[number].invars[0])
        if product is None or product.primitive.name != "mul":
            continue
        rows = [var for var in read_vars(product) if var in loads]
        shared = [var for var in read_vars(product) if var in producer and var not in loads]
        if len(rows) == 1 and len(shared) == 1 and rows[0].aval.shape == shared[0].aval.shape:
            groups.setdefault(shared[0], {})[number] = rows[0]
    return {u: rows for u, rows in groups.items() if len(set(rows.values())) >= MIN_ROWS}


def is_full_sum(eqn: Equation, kind: Any = jnp.inexact) -> bool:
    """Whether an equation sums all of a large array of numbers of this kind, of at least four
    bytes.
    """
    if eqn.primitive.name != "reduce_sum" or not isinstance(eqn.invars[0], Var):
        return False
    aval = eqn.invars[0].aval
    is_wide = jnp.issubdtype(aval.dtype, kind) and aval.dtype.itemsize >= 4
    is_full = len(eqn.params["axes"]) == len(aval.shape)
    return is_wide and is_full and _jax.aval_size(aval) >= MIN_ROW_SIZE


def _row(number: int, shape: Sequence[int]) -> Callable[[Any], Any]:
    """A function of a matrix that returns a row, of this shape."""
    return lambda matrix: lax.index_in_dim(matrix, number, keepdims=False).reshape(shape)


def _products(order: Sequence[int]) -> Callable[..., Any]:
    def products(matrix: Any, shared: Any) -> list[Any]:
        sums = jnp.matmul(matrix, shared.ravel(), precision=Precision.HIGHEST)
        return [lax.index_in_dim(sums, index, keepdims=False) for index in order]

    return products
