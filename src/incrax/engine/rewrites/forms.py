"""Which reductions over rows are polynomials of a few numbers.

While some inputs are dirty, an array of many elements may have the form  sum_t f_t w_t(z):  f_t is
a product of dirty real scalars and inverses of them, and w_t is a polynomial of degree two at most
in the small dirty values z (parameters, couplings, small values computed from them), with clean
arrays as coefficients. Sums, products, matrix products, moves of data and complex arithmetic keep
the form; a reduction gives few numbers, sum_t f_t P_t(z), where P_t is known once and for all.

In: equations, and what is dirty. Out: `Forms`. It must not know how a polynomial is stored or
evaluated.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.primitives.table import algebra_of

Factor: TypeAlias = tuple[Var, bool]
"""A dirty scalar, and whether it divides."""

MAX_SMALL = 512
"""Elements up to which a dirty value counts as a few numbers."""

MAX_DEGREE = 2

MAX_TERMS = 6
"""Terms with different factors that a form may have."""


class FormTerm(NamedTuple):
    """A product of scalars, and the degree of the polynomial that it multiplies."""

    factors: tuple[Factor, ...]
    degree: int


Form: TypeAlias = tuple[FormTerm, ...]
"""A sum of terms with different factors."""

CLEAN: Form = (FormTerm((), 0),)


class FormRead(NamedTuple):
    """The polynomial of one term of an input, times factors that are part of the polynomial from
    there on.
    """

    term: int
    extras: tuple[Factor, ...] = ()


Application: TypeAlias = tuple[tuple[FormRead, ...], ...]
"""An equation applied to sums of polynomials, one sum for each input; an empty one is zero."""


class FormStep(NamedTuple):
    """How the polynomial of each term of an equation's outputs is made: a sum of applications."""

    eqn: Equation
    terms: tuple[tuple[Application, ...], ...]


class Cone(NamedTuple):
    """How a reduction is computed: steps in order, clean inputs, and the dirty values that the
    polynomial is of.
    """

    steps: tuple[FormStep, ...]
    clean: tuple[Var, ...]
    symbols: tuple[Factor, ...]


class Forms:
    """The arrays of a program that have a form; `reductions` are the small ones, made from large
    ones.

    `level` counts the reductions, one after the other, that a value depends on.
    """

    def __init__(self, eqns: Sequence[Equation], is_dirty: Callable[[Var], bool]) -> None:
        self.is_dirty = is_dirty
        self.of: dict[Var, Form] = {}
        self.steps: dict[Var, FormStep] = {}
        self.reductions: dict[Var, None] = {}
        self.level: dict[Var, int] = {}
        for eqn in eqns:
            dirty = [var for var in read_vars(eqn) if is_dirty(var)]
            if dirty:
                self._add(eqn, has_rows=not all(map(is_small, (*dirty, *eqn.outvars))))
                level = max(self.level.get(var, 0) for var in dirty)
                self.level.update((var, level + (var in self.reductions)) for var in eqn.outvars)

    def _add(self, eqn: Equation, *, has_rows: bool) -> None:
        """Note the form of what is written: large arrays, reductions, and small arrays that are
        scaled clean ones.
        """
        if not has_rows and all(var.aval.shape == () for var in eqn.outvars):
            return
        eqn = _as_product(eqn)
        algebra = algebra_of(eqn)
        rule = None if algebra is None else _rules.get(algebra.form)
        forms = [self._form(atom) for atom in eqn.invars]
        if (
            rule is None
            or None in forms
            or _is_rounded(eqn)
            or not all(_is_inexact(var) for var in eqn.outvars)
        ):
            return
        found = rule(eqn, [form for form in forms if form is not None])
        if (
            found is None
            or len(found) > MAX_TERMS
            or any(term.degree > MAX_DEGREE for term in found)
        ):
            return
        if not has_rows and any(term.degree for term in found):
            return
        for var in eqn.outvars:
            self.of[var] = tuple(found)
            self.steps[var] = FormStep(eqn, tuple(map(tuple, found.values())))
            if has_rows and is_small(var):
                self.reductions[var] = None

    def _form(self, atom: Atom) -> Form | None:
        """The form of an input: clean, a scalar factor, a small array, or a large one, which may
        have none.
        """
        if isinstance(atom, Literal) or not self.is_dirty(atom):
            return CLEAN
        if not self.is_number(atom):
            return self.of.get(atom)
        if not _is_inexact(atom):
            return None
        return (FormTerm(((atom, False),), 0),) if self.is_factor(atom) else (FormTerm((), 1),)

    def is_number(self, atom: Var) -> bool:
        """Whether a dirty value is one that polynomials are of: small, and no clean array times
        scalars.
        """
        return is_small(atom) and (atom not in self.of or atom in self.reductions)

    @staticmethod
    def is_factor(atom: Atom) -> bool:
        """Whether a small dirty value is a real scalar."""
        return atom.aval.shape == () and jnp.issubdtype(atom.aval.dtype, jnp.floating)

    def cone(self, reductions: Iterable[Var]) -> Cone:
        """How some reductions are computed together."""
        steps: dict[int, FormStep] = {}
        clean: dict[Var, None] = {}
        symbols: dict[Factor, None] = {}

        def visit(step: FormStep) -> None:
            if id(step.eqn) in steps:
                return
            reads = (
                read
                for term in step.terms
                for application in term
                for own in application
                for read in own
            )
            symbols.update((factor, None) for read in reads for factor in read.extras)
            for atom in step.eqn.invars:
                if isinstance(atom, Literal):
                    continue
                if not self.is_dirty(atom):
                    clean[atom] = None
                elif not self.is_number(atom):
                    visit(self.steps[atom])
                elif not self.is_factor(atom):
                    symbols[atom, False] = None
            steps[id(step.eqn)] = step

        for var in reductions:
            visit(self.steps[var])
        return Cone(tuple(steps.values()), tuple(clean), tuple(symbols))


def is_small(var: Any) -> bool:
    """Whether a value has few elements."""
    return _jax.aval_size(var.aval) <= MAX_SMALL


def _is_rounded(eqn: Equation) -> bool:
    """Whether numbers lose digits and range: what overflows there is no multiple of anything."""
    read, written = (
        [_bits(atom) for atom in atoms if _is_inexact(atom)] for atoms in (eqn.invars, eqn.outvars)
    )
    return min(written, default=0) < max(read, default=0)


def _bits(atom: Any) -> int:
    return int(np.finfo(atom.aval.dtype).bits)


def _is_inexact(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "fc"


# --- rules ----------------------------------------------------------------------------------------

Found: TypeAlias = dict[FormTerm, list[Application]] | None
FIRST = (FormRead(0),)


def _collected(options: Iterable[tuple[FormTerm, Application]]) -> Found:
    """Terms with the same factors added up."""
    found: dict[tuple[Factor, ...], tuple[int, list[Application]]] = {}
    for term, application in options:
        degree, applications = found.get(term.factors, (0, []))
        found[term.factors] = max(degree, term.degree), [*applications, application]
    return {
        FormTerm(factors, degree): applications for factors, (degree, applications) in found.items()
    }


def _as_product(eqn: Equation) -> Equation:
    """A square as the product that it is."""
    if eqn.primitive.name == "square" or (
        eqn.primitive.name == "integer_pow" and eqn.params["y"] == 2
    ):
        return _jax.as_product(eqn)
    return eqn


def _sum(eqn: Equation, forms: Sequence[Form]) -> Found:
    """Additive in the operands that have a sign, or linear in the first; the others must be clean.

    One polynomial, with what all terms share as a factor, unless that raises the degree beyond one;
    else a term for each product of factors.
    """
    algebra = algebra_of(eqn)
    added = [i for i, x in enumerate(eqn.invars) if algebra and algebra.sign(i) and not _is_zero(x)]
    if not added or any(form != CLEAN for i, form in enumerate(forms) if i not in added):
        return None
    terms = [term for i in added for term in forms[i]]
    common = functools.reduce(operator.and_, [Counter(term.factors) for term in terms])
    extras = lambda term: tuple((Counter(term.factors) - common).elements())
    degree = max(term.degree + len(extras(term)) for term in terms)
    if degree > max(1, *(term.degree for term in terms)):
        return _sum_by_factors(forms, terms, added)
    reads = [tuple(FormRead(k, extras(term)) for k, term in enumerate(form)) for form in forms]
    return {FormTerm(_sorted(common.elements()), degree): [_chosen(reads, added)]}


def _sum_by_factors(
    forms: Sequence[Form], terms: Sequence[FormTerm], added: Sequence[int]
) -> Found:
    """A sum with a term for each product of factors."""
    options = []
    for factors in dict.fromkeys(term.factors for term in terms):
        reads = [
            tuple(FormRead(k) for k, term in enumerate(form) if term.factors == factors)
            for form in forms
        ]
        degree = max(term.degree for term in terms if term.factors == factors)
        options.append((FormTerm(factors, degree), _chosen(reads, added)))
    return _collected(options)


def _chosen(reads: Sequence[tuple[FormRead, ...]], added: Sequence[int]) -> Application:
    return tuple(own if i in added else FIRST for i, own in enumerate(reads))


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.any(atom.val)


def _product(eqn: Equation, forms: Sequence[Form]) -> Found:
    """Linear in each of two inputs."""
    del eqn
    left, right = forms
    return _collected(
        (
            FormTerm(_sorted([*a.factors, *b.factors]), a.degree + b.degree),
            ((FormRead(i),), (FormRead(j),)),
        )
        for (i, a), (j, b) in product(enumerate(left), enumerate(right))
    )


def _division(eqn: Equation, forms: Sequence[Form]) -> Found:
    """Linear in what is divided, by a product of scalars and clean values."""
    del eqn
    above, below = forms
    (divisor, *others) = below
    if others or divisor.degree:
        return None
    inverse = _inverted(divisor.factors)
    options = (
        (FormTerm(_sorted([*a.factors, *inverse]), a.degree), ((FormRead(k),), FIRST))
        for k, a in enumerate(above)
    )
    return _collected(options)


def _power(eqn: Equation, forms: Sequence[Form]) -> Found:
    """A power of one term."""
    exponent = eqn.params["y"]
    (term, *others) = forms[0]
    if others or (exponent < 0 and term.degree):
        return None
    factors = term.factors if exponent >= 0 else _inverted(term.factors)
    return {FormTerm(_sorted(factors * abs(exponent)), term.degree * abs(exponent)): [(FIRST,)]}


def _inverted(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    return tuple((var, not inverse) for var, inverse in factors)


def _sorted(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """One order for equal products; a scalar and its inverse do not cancel, as they may be zero or
    infinite.
    """
    return tuple(sorted(factors, key=lambda factor: (id(factor[0]), factor[1])))


_rules: dict[str, Callable[[Equation, Sequence[Form]], Found]] = {
    "linear": _sum,
    "sum": _sum,
    "joined": _sum,
    "product": _product,
    "quotient": _division,
    "power": _power,
}
"""By algebraic form."""
