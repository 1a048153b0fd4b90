"""Which reductions over rows are polynomials of a few numbers.

While some inputs are dirty, an array of many elements may have the form  f w(z):  f is a product of
dirty real scalars and inverses of them, and w is a polynomial of degree two at most in the small
dirty values z (parameters, couplings, small values computed from them), with clean arrays as
coefficients. Sums, products, matrix products, moves of data and complex arithmetic keep the form; a
reduction gives few numbers, f P(z), where P is known once and for all.

In: equations, and what is dirty. Out: `Forms`. It must not know how a polynomial is stored or
evaluated.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.engine.program.simplify import reading
from incrax.primitives.table import algebra_of

Factor: TypeAlias = tuple[Var, bool]
"""A dirty scalar, and whether it divides."""

Factors: TypeAlias = tuple[Factor, ...]

MAX_SMALL = 512
"""Elements up to which a dirty value counts as a few numbers."""

MAX_DEGREE = 2


class Polynomial(NamedTuple):
    """A product of scalars, and the degree of the polynomial that it multiplies."""

    factors: Factors = ()
    degree: int = 0


CLEAN = Polynomial()


class FormStep(NamedTuple):
    """An equation applied to polynomials; of each operand, the factors that are part of its
    polynomial from there on.
    """

    eqn: Equation
    extras: tuple[Factors, ...]


class Cone(NamedTuple):
    """How a reduction is computed: steps in order, clean inputs, and the dirty values that the
    polynomial is of.
    """

    steps: tuple[FormStep, ...]
    clean: tuple[Var, ...]
    symbols: Factors


class Forms:
    """The arrays of a program that have a form.

    Args:
        eqns: in order.
        is_dirty: whether a variable is.
        follows_scalars: whether what is made of dirty scalars alone is a product of these, and not
            one more.
    """

    def __init__(
        self,
        eqns: Sequence[Equation],
        is_dirty: Callable[[Var], bool],
        *,
        follows_scalars: bool = False,
    ) -> None:
        self.is_dirty = is_dirty
        self.follows_scalars = follows_scalars
        self.zeros: dict[Var, Atom] = {}
        """Clean arrays that are zero everywhere, and that zero."""
        self.of: dict[Var, Polynomial] = {}
        self.steps: dict[Var, FormStep] = {}
        """What writes each that has a form."""
        self.reductions: dict[Var, None] = {}
        """The small ones that are made from large ones."""
        self.level: dict[Var, int] = {}
        """How many reductions, one after the other, a value depends on."""
        for eqn in eqns:
            dirty = [var for var in read_vars(eqn) if is_dirty(var)]
            if dirty:
                self._add(eqn, has_rows=not all(map(is_small, (*dirty, *eqn.outvars))))
                level = max(self.level.get(var, 0) for var in dirty)
                self.level.update((var, level + (var in self.reductions)) for var in eqn.outvars)
            elif eqn.primitive.name == "broadcast_in_dim" and _is_zero(eqn.invars[0]):
                self.zeros[eqn.outvars[0]] = eqn.invars[0]

    def _add(self, eqn: Equation, *, has_rows: bool) -> None:
        """Note the form of what is written: large arrays, reductions, and small arrays that are
        scaled clean ones.
        """
        is_scalar = not has_rows and all(var.aval.shape == () for var in eqn.outvars)
        if is_scalar and not self.follows_scalars:
            return
        eqn = _as_product(eqn)
        forms = [form for form in map(self._form, eqn.invars) if form is not None]
        is_known = len(forms) == len(eqn.invars) and not _is_rounded(eqn)
        rule = _rule_of(eqn) if is_known and all(map(_is_inexact, eqn.outvars)) else None
        found = None if rule is None else rule(reading(eqn, self.zeros), forms)
        if found is None or found.degree > (MAX_DEGREE if has_rows else 0):
            return
        step = FormStep(eqn, _extras(forms, found) if rule is _sum else ((),) * len(forms))
        for var in eqn.outvars:
            self.of[var] = found
            self.steps[var] = step
            if has_rows and is_small(var):
                self.reductions[var] = None

    def _form(self, atom: Atom) -> Polynomial | None:
        """The form of an input: clean, a scalar factor, a small array, or a large one, which may
        have none.
        """
        if isinstance(atom, Literal) or not self.is_dirty(atom):
            return CLEAN
        if not self.is_number(atom):
            return self.of.get(atom)
        if not _is_inexact(atom):
            return None
        return Polynomial(((atom, False),)) if self.is_factor(atom) else Polynomial(degree=1)

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
            symbols.update((factor, None) for own in step.extras for factor in own)
            for atom in read_vars(step.eqn):
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
        [int(np.finfo(atom.aval.dtype).bits) for atom in atoms if _is_inexact(atom)]
        for atoms in (eqn.invars, eqn.outvars)
    )
    return min(written, default=0) < max(read, default=0)


def _is_inexact(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "fc"


# --- rules ----------------------------------------------------------------------------------------


def _rule_of(eqn: Equation) -> Any:
    """What says the form of what an equation makes of operands that have one; None without a rule."""
    algebra = algebra_of(eqn)
    return None if algebra is None else _rules.get(algebra.form)


def _extras(forms: Sequence[Polynomial], found: Polynomial) -> tuple[Factors, ...]:
    """Of each term of a sum, the factors that do not go in front: those that all share do. A product
    takes all.
    """
    left = [Counter(form.factors) - Counter(found.factors) for form in forms]
    return tuple(tuple(own.elements()) for own in left)


def _as_product(eqn: Equation) -> Equation:
    """A square as the product that it is."""
    if eqn.primitive.name == "square" or (
        eqn.primitive.name == "integer_pow" and eqn.params["y"] == 2
    ):
        return _jax.as_product(eqn)
    return eqn


def _sum(eqn: Equation, forms: Sequence[Polynomial]) -> Polynomial | None:
    """Additive in the operands that have a sign, or linear in the first; the others must be clean.

    One polynomial, with what all terms share as a factor, unless that raises the degree beyond one.
    """
    algebra = algebra_of(eqn)
    added = [i for i, x in enumerate(eqn.invars) if algebra and algebra.sign(i) and not _is_zero(x)]
    if not added or any(form != CLEAN for i, form in enumerate(forms) if i not in added):
        return None
    shared = [Counter(forms[i].factors) for i in added]
    common = functools.reduce(operator.and_, shared)
    degree = max(forms[i].degree + (shared[k] - common).total() for k, i in enumerate(added))
    if degree > max(1, *(forms[i].degree for i in added)):
        return None
    return Polynomial(_sorted(common.elements()), degree)


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.any(atom.val)


def _product(_: Equation, forms: Sequence[Polynomial]) -> Polynomial:
    """Linear in each of two inputs."""
    left, right = forms
    return Polynomial(_sorted(left.factors + right.factors), left.degree + right.degree)


def _division(_: Equation, forms: Sequence[Polynomial]) -> Polynomial | None:
    """Linear in what is divided, by a product of scalars and clean values."""
    above, below = forms
    factors = _sorted(above.factors + _inverted(below.factors))
    return None if below.degree else Polynomial(factors, above.degree)


def _power(eqn: Equation, forms: Sequence[Polynomial]) -> Polynomial | None:
    """Of an array that is divided by, no polynomial."""
    exponent = eqn.params["y"]
    (form,) = forms
    if exponent < 0 and form.degree:
        return None
    factors = form.factors if exponent >= 0 else _inverted(form.factors)
    return Polynomial(_sorted(factors * abs(exponent)), form.degree * abs(exponent))


def _inverted(factors: Factors) -> Factors:
    return tuple((var, not inverse) for var, inverse in factors)


def _sorted(factors: Iterable[Factor]) -> Factors:
    """One order for equal products; a scalar and its inverse do not cancel, as they may be zero or
    infinite.
    """
    return tuple(sorted(factors, key=lambda factor: (id(factor[0]), factor[1])))


_rules: dict[str, Callable[[Equation, Sequence[Polynomial]], Polynomial | None]] = {
    "linear": _sum,
    "sum": _sum,
    "joined": _sum,
    "product": _product,
    "quotient": _division,
    "power": _power,
}
"""By algebraic form."""
