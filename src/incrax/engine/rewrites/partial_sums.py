"""Partial sums: values that plans save although the program does not name them.

In a sum with clean and dirty terms the clean ones become one value, sum_i t_i = R + sum_dirty t_i.
This changes the order of summation, by a few units in the last place of the largest term.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.engine.program.chains import SumChain
from incrax.engine.rewrites.derived import DerivedTable

MIN_CLEAN_TERMS = 4
"""Clean terms from which on a partial sum is worth a value of its own; a change of any of them
makes it stale.
"""


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
        partial = table.make_written(
            "sum", clean, last.outvars[0].aval, functools.partial(additions, clean, last)
        )
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
