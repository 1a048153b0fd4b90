"""Sums of many terms: maximal chains of elementwise additions whose intermediate sums nothing else
reads.

In: equations and outputs. Out: `SumChain`s. It must not know which terms are dirty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars, reads_of
from incrax.primitives.table import is_addition


class SumChain(NamedTuple):
    """`last` writes the sum of `terms`, in order, of so many elements; `eqns` are all the additions,
    by number.
    """

    last: int
    eqns: tuple[int, ...]
    terms: tuple[Var, ...]
    size: int


def find_chains(eqns: Sequence[Equation], outvars: Sequence[Atom]) -> tuple[SumChain, ...]:
    """All maximal chains of at least three terms."""
    additions = {eqn.outvars[0]: number for number, eqn in enumerate(eqns) if _is_addition(eqn)}
    if not additions:
        return ()
    uses = Counter(reads_of(eqns))
    uses.update(atom for atom in outvars if isinstance(atom, Var))
    added = (var for number in additions.values() for var in read_vars(eqns[number]))
    inner = {var for var in added if var in additions and uses[var] == 1}
    chains = (_chain(var, eqns, additions, inner) for var in additions if var not in inner)
    return tuple(chain for chain in chains if len(chain.terms) >= 3)


def _chain(
    total: Var, eqns: Sequence[Equation], additions: Mapping[Var, int], inner: Collection[Var]
) -> SumChain:
    """The chain that ends in a total; once for each addition, however long it is."""
    numbers: list[int] = []
    terms: list[Var] = []
    pending = [total]
    while pending:
        var = pending.pop()
        if var in inner or var is total:
            numbers.append(additions[var])
            pending += reversed(read_vars(eqns[additions[var]]))
        else:
            terms.append(var)
    size = _jax.aval_size(total.aval)
    return SumChain(additions[total], tuple(sorted(numbers)), tuple(terms), size)


def _is_addition(eqn: Equation) -> bool:
    if not is_addition(eqn) or any(isinstance(atom, Literal) for atom in eqn.invars):
        return False
    aval = eqn.outvars[0].aval
    is_float = not _jax.is_key_dtype(aval.dtype) and np.dtype(aval.dtype).kind in "fc"
    return is_float and all(a.aval.shape == aval.shape for a in eqn.invars)
