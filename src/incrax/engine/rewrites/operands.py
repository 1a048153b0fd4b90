"""Operands of reductions as sums of products: sum_n (sum_t s_t c_t[n]) u[n], with u dirty and the
same in each term.

A reverse pass adds what every place where a value occurs contributes, before it is reduced: that of
-z z / 2 is u (-z / 2) + (u z) (-1 / 2). Arrays that are clean stay whole, so that they are saved as
they are.

In: equations and what is dirty. Out: the reductions of such operands. It must not know what is made
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from incrax._jax import Atom, Equation, Literal, Var
from incrax.engine.rewrites.linear import Factor
from incrax.engine.rewrites.partial_sums import is_full_sum
from incrax.engine.rewrites.products import Key, factor_key
from incrax.primitives.entry import Algebra
from incrax.primitives.table import algebra_of, entry_of

EquationOf: TypeAlias = Callable[[Var], Equation | None]
IsDirty: TypeAlias = Callable[[Var], bool]

MAX_FACTORS = 64
"""Factors of a product up to which it is taken apart."""

MAX_PRODUCTS = 16
"""Products up to which a sum is taken apart."""


class Product(NamedTuple):
    """A product of scalars, of clean arrays and of dirty ones, with a sign."""

    scalars: tuple[Factor, ...] = ()
    clean: tuple[Factor, ...] = ()
    dirty: tuple[Factor, ...] = ()
    is_negative: bool = False

    @property
    def size(self) -> int:
        """The number of factors."""
        return len(self.scalars) + len(self.clean) + len(self.dirty)

    def negated(self) -> Product:
        """The product with the other sign."""
        return self._replace(is_negative=not self.is_negative)

    def inverse(self) -> Product:
        """One divided by it."""
        return Product(
            _inverse(self.scalars), _inverse(self.clean), _inverse(self.dirty), self.is_negative
        )

    def times(self, other: Product) -> Product:
        """The product of both."""
        is_negative = self.is_negative ^ other.is_negative
        return Product(
            self.scalars + other.scalars,
            self.clean + other.clean,
            self.dirty + other.dirty,
            is_negative=is_negative,
        )


def _inverse(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    return tuple((atom, not inverse) for atom, inverse in factors)


class SiblingReduction(NamedTuple):
    """The number of an equation that sums an operand, and the products that the operand is the sum
    of.
    """

    number: int
    products: tuple[Product, ...]

    @property
    def dirty(self) -> tuple[Factor, ...]:
        """The dirty arrays, the same in all products."""
        return self.products[0].dirty

    @property
    def row(self) -> tuple[Key, ...]:
        """Equal for operands of the same clean arrays."""
        return tuple(sorted(factor_key(product.clean) for product in self.products))


Products: TypeAlias = tuple[Product, ...]


def reductions(
    eqns: Sequence[Equation], is_dirty: IsDirty, equation_of: EquationOf
) -> list[SiblingReduction]:
    """The sums over large arrays whose operand has dirty factors; `equation_of` knows what else
    writes what is read.
    """
    reader = _Reader(is_dirty, equation_of)
    found = []
    for number, eqn in enumerate(eqns):
        is_sum = is_full_sum(eqn, "f") and not eqn.outvars[0].aval.weak_type
        if is_sum and is_dirty(eqn.outvars[0]):
            reduction = SiblingReduction(number, reader.read(eqn.invars[0]))
            if _is_complete(reduction, eqn.invars[0].aval.shape):
                found.append(reduction)
        elif len(eqn.outvars) == 1:
            reader.enter(eqn)
    return found


def _is_complete(reduction: SiblingReduction, shape: tuple[int, ...]) -> bool:
    vectors = [
        atom for product in reduction.products for atom, _ in (*product.clean, *product.dirty)
    ]
    return bool(reduction.dirty) and all(atom.aval.shape == shape for atom in vectors)


class _Reader:
    """The products of dirty arrays, entered in the order of the equations that write them."""

    def __init__(self, is_dirty: IsDirty, equation_of: EquationOf) -> None:
        self.is_dirty = is_dirty
        self.equation_of = equation_of
        self.known: dict[Var, Products] = {}

    def read(self, atom: Atom) -> Products:
        """The products that an atom is the sum of."""
        if isinstance(atom, Literal) or atom.aval.shape == ():
            return (Product(scalars=((atom, False),)),)
        eqn = None if atom in self.known else self.equation_of(atom)
        if eqn is not None and _is_filled(eqn):
            return (Product(scalars=((eqn.invars[0], False),)),)
        if not self.is_dirty(atom):
            return (Product(clean=((atom, False),)),)
        return self.known.get(atom, _whole(atom))

    def enter(self, eqn: Equation) -> None:
        """Find the products of what an equation writes, where it is a dirty array."""
        var = eqn.outvars[0]
        if var.aval.shape == () or not self.is_dirty(var):
            return
        operands = [self.read(atom) for atom in eqn.invars]
        products = self._products(eqn, operands)
        self.known[var] = _whole(var) if products is None or not _is_short(products) else products

    def _products(self, eqn: Equation, operands: list[Products]) -> Products | None:
        """The products of a result; sums among its operands stay whole where they cannot be taken
        apart in it.
        """
        algebra = algebra_of(eqn)
        if _is_filled(eqn):
            return operands[0]
        if algebra is None or not entry_of(eqn).is_elementwise:
            return None
        rule = partial(_combined, algebra)
        products = rule(operands)
        if products is not None or all(len(operand) == 1 for operand in operands):
            return products
        return rule(
            [
                p if len(p) == 1 else _whole(atom)
                for p, atom in zip(operands, eqn.invars, strict=True)
            ]
        )


def _is_filled(eqn: Equation) -> bool:
    """Whether an equation writes one number everywhere."""
    return eqn.primitive.name == "broadcast_in_dim" and eqn.invars[0].aval.shape == ()


def _whole(atom: Atom) -> Products:
    return (Product(dirty=((atom, False),)),)


def _combined(algebra: Algebra, operands: Sequence[Products]) -> Products | None:
    """A result of the products of its operands."""
    if algebra.form == "product":
        left, right = operands
        return _summed([one.times(other) for one in left for other in right])
    if algebra.form == "quotient":
        dividend, (divisor, *others) = operands
        return None if others else tuple(product.times(divisor.inverse()) for product in dividend)
    signed = [
        tuple(p.negated() for p in products) if algebra.is_negative(number) else products
        for number, products in enumerate(operands)
    ]
    if algebra.form == "sum":
        return _summed([product for products in signed for product in products])
    return signed[0] if algebra.is_negative(0) else None


def _summed(products: Sequence[Product]) -> Products | None:
    """The products, if they may be added up row by row before they meet what is dirty."""
    if len(products) == 1:
        return tuple(products)
    shared = {factor_key(product.dirty) for product in products}
    is_one_row = len(shared) == 1 and () not in shared
    return tuple(products) if is_one_row and len(products) <= MAX_PRODUCTS else None


def _is_short(products: Products) -> bool:
    return all(product.size < MAX_FACTORS for product in products)
