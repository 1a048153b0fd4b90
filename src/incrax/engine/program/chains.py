"""Sums of many terms: maximal chains of elementwise additions whose intermediate sums nothing else
reads.

In: equations and outputs. Out: `SumChain`s. It must not know which terms are dirty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.primitives.table import is_addition

MIN_SIZE = 256
"""Elements below which a sum is not worth regrouping."""


class SumChain(NamedTuple):
    """`last` writes the sum of `terms`, in order; `eqns` are all the additions, by number."""

    last: int
    eqns: tuple[int, ...]
    terms: tuple[Var, ...]


def find_chains(eqns: Sequence[Equation], outvars: Sequence[Atom]) -> tuple[SumChain, ...]:
    """All maximal chains of at least three terms."""
    uses = Counter(var for eqn in eqns for var in read_vars(eqn))
    uses.update(atom for atom in outvars if isinstance(atom, Var))
    additions = {eqn.outvars[0]: number for number, eqn in enumerate(eqns) if _is_addition(eqn)}
    inner = {
        atom
        for number in additions.values()
        for atom in read_vars(eqns[number])
        if atom in additions and uses[atom] == 1
    }
    chains = []
    for var, number in additions.items():
        if var in inner:
            continue
        numbers, terms = _expand(eqns, additions, inner, number)
        if len(terms) >= 3:
            chains.append(SumChain(number, tuple(numbers), tuple(terms)))
    return tuple(chains)


def _expand(
    eqns: Sequence[Equation], additions: dict[Var, int], inner: set[Var], last: int
) -> tuple[list[int], list[Var]]:
    numbers: list[int] = []
    terms: list[Var] = []
    stack: list[Var] = [eqns[last].outvars[0]]
    is_root = True
    while stack:
        var = stack.pop()
        if is_root or (var in inner and var in additions):
            is_root = False
            numbers.append(additions[var])
            stack.extend(reversed(read_vars(eqns[additions[var]])))
        else:
            terms.append(var)
    return sorted(numbers), terms


def _is_addition(eqn: Equation) -> bool:
    if not is_addition(eqn) or any(isinstance(atom, Literal) for atom in eqn.invars):
        return False
    aval = eqn.outvars[0].aval
    is_float = not _jax.is_key_dtype(aval.dtype) and np.dtype(aval.dtype).kind in "fc"
    return (
        is_float
        and _jax.aval_size(aval) >= MIN_SIZE
        and all(a.aval.shape == aval.shape for a in eqn.invars)
    )
