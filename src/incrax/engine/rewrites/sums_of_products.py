"""Values as sums of products: operands of reductions, and the scalars that are linear in these.

A reverse pass over k scalar parameters ends in reductions  R = sum_n (sum_t s_t c_t[n]) u[n],  with
u dirty and the same in each term: it adds what every place where a value occurs contributes, before
that is reduced; that of -z z / 2 is u (-z / 2) + (u z) (-1 / 2). For each parameter it then adds up,
among scalars, the reductions of every place where the parameter occurs. Clean arrays stay whole, so
that they are saved as they are.

For example, the operand (s c - d) u of a sum is two products, with the numbers 1 and -1 and the
factors (s, c, u) and (d, u). Both have the dirty array u, so that s c - d may be added up, row by
row, before it meets u.

In: equations and what is dirty. Out: the products whose sum over n is a reduction, or a scalar that
is linear in some. It must not know what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.engine.rewrites.partial_sums import is_full_sum
from incrax.primitives.table import algebra_of, entry_of

EquationOf: TypeAlias = Callable[[Var], Equation | None]
IsDirty: TypeAlias = Callable[[Var], bool]

Factor: TypeAlias = tuple[Var, bool]
"""A variable, and whether the product is divided by it."""

MAX_FACTORS = 64
"""Factors of a product up to which it is taken apart."""

MAX_PRODUCTS = 16
"""Products up to which an array is taken apart."""

MAX_TERMS = 32
"""Products up to which a sum of scalars is followed."""


class Product(NamedTuple):
    """A number times a product of variables."""

    factors: tuple[Factor, ...] = ()
    number: float = 1.0

    def times(self, other: Product) -> Product:
        """The product of both."""
        return Product(self.factors + other.factors, self.number * other.number)

    def inverse(self) -> Product:
        """One divided by it."""
        number = 1.0 / self.number if self.number else math.inf
        return Product(tuple((var, not inverse) for var, inverse in self.factors), number)

    def negated(self) -> Product:
        """The product with the other sign."""
        return self._replace(number=-self.number)

    def chosen(self, is_chosen: Callable[[Var], bool]) -> tuple[Factor, ...]:
        """Some of the factors."""
        return tuple(factor for factor in self.factors if is_chosen(factor[0]))


Sum: TypeAlias = tuple[Product, ...]


def whole(atom: Atom) -> Sum:
    """An atom that is not taken apart."""
    is_number = isinstance(atom, Literal)
    return (Product((), float(atom.val)) if is_number else Product(((atom, False),)),)


def is_array(var: Var) -> bool:
    """Whether a factor has elements, over which its product is summed."""
    return var.aval.shape != ()


def _expanded(eqn: Equation, operands: Sequence[Sum]) -> Sum | None:
    """What an equation makes of sums of products; None where it is no such sum, or a number is zero
    or infinite.
    """
    products = operands[0] if _is_filled(eqn) else _combined(eqn, operands)
    if products is None or not all(p.number and math.isfinite(p.number) for p in products):
        return None
    return products


def _is_filled(eqn: Equation) -> bool:
    """Whether an equation writes one number everywhere."""
    return eqn.primitive.name == "broadcast_in_dim" and eqn.invars[0].aval.shape == ()


def _combined(eqn: Equation, operands: Sequence[Sum]) -> Sum | None:
    algebra = algebra_of(eqn)
    if algebra is None or not entry_of(eqn).is_elementwise:
        return None
    if algebra.form == "product":
        left, right = operands
        return tuple(one.times(other) for one in left for other in right)
    if algebra.form == "quotient":
        dividend, (divisor, *others) = operands
        return None if others else tuple(product.times(divisor.inverse()) for product in dividend)
    is_same_type = eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    if algebra.form == "sum" or (algebra.form == "linear" and is_same_type):
        return tuple(
            product.negated() if algebra.is_negative(number) else product
            for number, products in enumerate(operands)
            for product in products
        )
    return None


# --- operands of reductions -----------------------------------------------------------------------


def reductions(
    eqns: Sequence[Equation], is_dirty: IsDirty, equation_of: EquationOf
) -> dict[Var, Sum]:
    """The sums over large arrays whose operand has dirty factors, the same in all of its products;
    `equation_of` knows what else writes what is read.
    """
    reader = _Reader(is_dirty, equation_of)
    found: dict[Var, Sum] = {}
    for eqn in _behind_sums(eqns, is_dirty):
        if not is_full_sum(eqn):
            reader.enter(eqn)
            continue
        products = reader.read(eqn.invars[0])
        arrays = [array for product in products for array, _ in product.chosen(is_array)]
        is_alike = all(array.aval.shape == eqn.invars[0].aval.shape for array in arrays)
        if products[0].chosen(reader.is_shared) and is_alike:
            found[eqn.outvars[0]] = products
    return found


def _behind_sums(eqns: Sequence[Equation], is_dirty: IsDirty) -> list[Equation]:
    """The dirty sums over large arrays, and what their operands are made of by equations that may
    be taken apart, in order: of a long program most often a small part.
    """
    kept: list[Equation] = []
    wanted: set[Var] = set()
    for eqn in reversed(eqns):
        var = eqn.outvars[0]
        if is_full_sum(eqn, jnp.floating):
            is_kept = not var.aval.weak_type and is_dirty(var)
        else:
            is_kept = var in wanted and len(eqn.outvars) == 1 and _may_expand(eqn) and is_dirty(var)
        if is_kept:
            kept.append(eqn)
            wanted.update(read_vars(eqn))
    return kept[::-1]


def _may_expand(eqn: Equation) -> bool:
    """Whether an equation writes an array of numbers that may be a sum of products."""
    aval = eqn.outvars[0].aval
    is_form = algebra_of(eqn) is not None or _is_filled(eqn)
    return is_form and aval.shape != () and jnp.issubdtype(aval.dtype, jnp.floating)


class _Reader:
    """The products of dirty arrays, entered in the order of the equations that write them."""

    def __init__(self, is_dirty: IsDirty, equation_of: EquationOf) -> None:
        self.is_shared = lambda var: is_array(var) and is_dirty(var)
        self.equation_of = equation_of
        self.known: dict[Var, Sum] = {}

    def read(self, atom: Atom) -> Sum:
        """The products that an atom is the sum of."""
        if isinstance(atom, Literal) or not is_array(atom):
            return whole(atom)
        eqn = self.equation_of(atom)
        return self.known.get(atom) or whole(eqn.invars[0] if eqn and _is_filled(eqn) else atom)

    def enter(self, eqn: Equation) -> None:
        """Find the products of what an equation writes; sums among its operands stay whole where
        they cannot be taken apart in it.
        """
        operands = [self.read(atom) for atom in eqn.invars]
        products = self._as_rows(_expanded(eqn, operands))
        if products is None and max(map(len, operands)) > 1:
            pairs = zip(eqn.invars, operands, strict=True)
            operands = [own if len(own) == 1 else whole(atom) for atom, own in pairs]
            products = self._as_rows(_expanded(eqn, operands))
        self.known[eqn.outvars[0]] = products or whole(eqn.outvars[0])

    def _as_rows(self, products: Sum | None) -> Sum | None:
        """The products, if they may be added up row by row before they meet what is dirty."""
        if products is None or max(len(product.factors) for product in products) >= MAX_FACTORS:
            return None
        if len(products) == 1:
            return products
        if len(products) > MAX_PRODUCTS:
            return None
        dirty = {factor_key(product.chosen(self.is_shared)) for product in products}
        is_one_row = len(dirty) == 1 and factor_key(()) not in dirty
        return products if is_one_row else None


Key: TypeAlias = frozenset[tuple[Factor, int]]


def factor_key(factors: Sequence[Factor]) -> Key:
    """Equal for products of the same factors."""
    return frozenset((factor, factors.count(factor)) for factor in factors)


# --- scalars that are linear in them --------------------------------------------------------------


def linear_sums(
    eqns: Sequence[Equation], sources: Mapping[Var, Sum], targets: Collection[Var]
) -> dict[Var, Sum]:
    """The products that add up to each value, linear in the sources, that is a target or that a
    nonlinear equation reads; those of a source are given.
    """
    first = _linear(eqns, sources, frozenset())
    others = [eqn for eqn in eqns if not any(var in first for var in eqn.outvars)]
    ends = first.keys() & {*targets, *(var for eqn in others for var in read_vars(eqn))}
    found = _linear(eqns, sources, ends)
    return {var: products for var, products in found.items() if var in ends}


def _linear(
    eqns: Sequence[Equation], sources: Mapping[Var, Sum], ends: Collection[Var]
) -> dict[Var, Sum]:
    """Every value that is linear in the sources; `ends` count as other scalars where they are
    read.
    """
    found: dict[Var, Sum] = {}
    for eqn in eqns:
        var = eqn.outvars[0]
        if var in sources:
            found[var] = sources[var]
            continue
        is_open = [
            isinstance(atom, Var) and atom in found and atom not in ends for atom in eqn.invars
        ]
        if _is_linear(eqn, is_open):
            pairs = zip(eqn.invars, is_open, strict=True)
            products = _expanded(eqn, [found[a] if known else whole(a) for a, known in pairs])
            if products is not None and len(products) <= MAX_TERMS:
                found[var] = products
    return found


def _is_linear(eqn: Equation, is_open: Sequence[bool]) -> bool:
    """Whether an equation of scalars of one type is linear in those of its operands that are
    open.
    """
    out = eqn.outvars[0].aval
    avals = [atom.aval for atom in eqn.invars]
    if not any(is_open) or not all(a.shape == out.shape == () for a in avals):
        return False
    algebra = algebra_of(eqn)
    form = "" if algebra is None else algebra.form
    is_product = form in ("product", "quotient")
    is_lone = sum(is_open) == 1 and (form == "product" or is_open[0])
    return all(a.dtype == out.dtype for a in avals) and (is_lone or not is_product)
