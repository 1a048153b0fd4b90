"""Scalars that are linear in some sums: v = sum_t c_t R_t, with coefficients that are products of
other scalars.

A reverse pass adds up, for each scalar parameter, the sums over data of every place where it
occurs.

In: equations and the sums R. Out: for each value that something else reads, its terms. It must not
know what the sums are of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.primitives.entry import Algebra
from incrax.primitives.table import algebra_of

Factor: TypeAlias = tuple[Atom, bool]
"""An atom, and whether the product is divided by it."""

MAX_TERMS = 32
"""Terms up to which a sum is followed."""


class LinearTerm(NamedTuple):
    """A product of scalars, times one of the sums (None: of scalars alone)."""

    source: Var | None
    factors: tuple[Factor, ...] = ()
    is_negative: bool = False

    def times(self, factor: Atom, inverse: bool) -> LinearTerm:
        """The term multiplied or divided by a scalar."""
        return self._replace(factors=(*self.factors, (factor, inverse)))

    def negated(self) -> LinearTerm:
        """The term with the other sign."""
        return self._replace(is_negative=not self.is_negative)


Terms: TypeAlias = tuple[LinearTerm, ...]


def linear_sums(
    eqns: Sequence[Equation], sources: Collection[Var], targets: Collection[Var]
) -> dict[Var, Terms]:
    """The terms of each value, linear in the sources, that is a target or that a nonlinear equation
    reads.
    """
    first = _forms(eqns, sources, frozenset())
    ends = frozenset(var for var in first if var in targets) | _read_otherwise(eqns, first)
    forms = _forms(eqns, sources, ends)
    return {var: forms[var] for var in forms if var in ends}


def _forms(
    eqns: Sequence[Equation], sources: Collection[Var], ends: frozenset[Var]
) -> dict[Var, Terms]:
    """Terms of every value that is linear in the sources; `ends` count as other scalars where they
    are read.
    """
    forms: dict[Var, Terms] = {}
    for eqn in eqns:
        if len(eqn.outvars) != 1:
            continue
        var = eqn.outvars[0]
        if var in sources:
            forms[var] = (LinearTerm(var),)
            continue
        open_forms = {a: forms[a] for a in read_vars(eqn) if a in forms and a not in ends}
        terms = _terms(eqn, open_forms) if open_forms else None
        if terms is not None:
            forms[var] = terms
    return forms


def _read_otherwise(eqns: Sequence[Equation], forms: dict[Var, Terms]) -> frozenset[Var]:
    """Values with terms that are read by an equation whose result has none."""
    others = (eqn for eqn in eqns if not (len(eqn.outvars) == 1 and eqn.outvars[0] in forms))
    return frozenset(var for eqn in others for var in read_vars(eqn) if var in forms)


def _terms(eqn: Equation, forms: dict[Var, Terms]) -> Terms | None:
    """The terms of an equation's result; None where it is not linear, too long, or of another
    type.
    """
    known = [None if isinstance(atom, Literal) else forms.get(atom) for atom in eqn.invars]
    if not _keeps_type(eqn):
        return None
    algebra = algebra_of(eqn)
    terms = None if algebra is None else _combined(algebra, eqn.invars, known)
    return None if terms is None or len(terms) > MAX_TERMS else terms


def _keeps_type(eqn: Equation) -> bool:
    out = eqn.outvars[0].aval
    avals = [atom.aval for atom in eqn.invars]
    return all(a.shape == out.shape == () and a.dtype == out.dtype for a in avals)


def _combined(
    algebra: Algebra, atoms: Sequence[Atom], known: Sequence[Terms | None]
) -> Terms | None:
    first = known[0]
    if algebra.form == "linear" and len(atoms) == 1:
        return first if first is None or not algebra.is_negative(0) else _negated(first)
    if algebra.form == "sum":
        parts = [_as_terms(atom, terms) for atom, terms in zip(atoms, known, strict=True)]
        return sum((_negated(t) if algebra.is_negative(n) else t for n, t in enumerate(parts)), ())
    if algebra.form == "quotient":
        return (
            None
            if first is None or known[1] is not None
            else tuple(term.times(atoms[1], True) for term in first)
        )
    if algebra.form == "product" and (first is None) != (known[1] is None):
        terms, factor = (known[1], atoms[0]) if first is None else (first, atoms[1])
        return tuple(term.times(factor, False) for term in terms or ())
    return None


def _negated(terms: Terms) -> Terms:
    return tuple(term.negated() for term in terms)


def _as_terms(atom: Atom, terms: Terms | None) -> Terms:
    return (LinearTerm(None, ((atom, False),)),) if terms is None else terms
