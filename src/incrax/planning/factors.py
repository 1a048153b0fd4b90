"""Sibling reductions as one matrix product, where factors that do not depend on the row hide what they share.

A reverse pass over k scalar parameters ends in k reductions sum_n s_k u[n] r_k[n]: u is dirty and shared, r_k is clean,
s_k are scalars such as a yield or 1/sigma**2. Each is rewritten as s_k (M u)_k, with the rows r_k of M saved.

Law: where no product over- or underflows, each result differs from the direct one by rounding of single products, not
by cancellation: factors move across a sum, terms don't. Where a product might, the direct form runs, in the same
program: the guard bounds |s_k|, |u| and |(M u)_k| so that neither form leaves the range of normal numbers.

In: equations and what is dirty. Out: equations, and matrices in the table of derived values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax.facts.program import written_vars
from incrax.planning.derived import MIN_ROW_SIZE, MIN_ROWS, DerivedTable, in_order, traced_equations

Factor: TypeAlias = tuple[Atom, bool]
"""An atom, and whether the product is divided by it."""

MAX_FACTORS = 64

_SCALAR_RANGE = 0.2
_RESULT_RANGE = 0.6
_SHARED_RANGE = 0.4
"""Exponents of the least normal number `tiny`: tiny**0.2 <= |s| <= tiny**-0.2, and likewise."""


@dataclass
class _Product:
    """The factors of one reduction's operand, and the number of the reduction."""

    number: int
    scalars: list[Factor] = field(default_factory=list)
    clean: list[Factor] = field(default_factory=list)
    dirty: list[Factor] = field(default_factory=list)
    is_negative: bool = False

    @property
    def size(self) -> int:
        return len(self.scalars) + len(self.clean) + len(self.dirty)


def factor_reductions(
    eqns: Sequence[Equation], table: DerivedTable, is_dirty: Callable[[Var], bool]
) -> tuple[Equation, ...] | None:
    """The equations with reductions over one dirty product merged; None where there are none."""
    products = _products(eqns, is_dirty)
    groups: dict[tuple[tuple[int, bool], ...], list[_Product]] = {}
    for product in products:
        groups.setdefault(_key(product.dirty), []).append(product)
    replaced: dict[int, tuple[Equation, ...]] = {}
    for group in groups.values():
        if len({_key(product.clean) for product in group}) >= MIN_ROWS:
            replaced.update({product.number: () for product in group})
            replaced[group[0].number] = _merged(eqns, group, table)
    if not replaced:
        return None
    return in_order([new for number, eqn in enumerate(eqns) for new in replaced.get(number, (eqn,))])


def _key(factors: Iterable[Factor]) -> tuple[tuple[int, bool], ...]:
    return tuple(sorted((id(atom), inverse) for atom, inverse in factors))


# --- reading products ---------------------------------------------------------------------------------------------


def _products(eqns: Sequence[Equation], is_dirty: Callable[[Var], bool]) -> list[_Product]:
    producer = {var: eqn for eqn in eqns for var in written_vars(eqn)}
    found = []
    for number, eqn in enumerate(eqns):
        if _is_wide_sum(eqn) and is_dirty(eqn.outvars[0]):
            product = _Product(number)
            _expand(eqn.invars[0], False, product, producer, is_dirty)
            shape = eqn.invars[0].aval.shape
            vectors = [atom for atom, _ in (*product.clean, *product.dirty)]
            if product.dirty and product.size < MAX_FACTORS and all(atom.aval.shape == shape for atom in vectors):
                found.append(product)
    return found


def _is_wide_sum(eqn: Equation) -> bool:
    """Whether an equation sums all of a large array of real numbers."""
    if eqn.primitive.name != "reduce_sum" or not isinstance(eqn.invars[0], Var) or eqn.outvars[0].aval.weak_type:
        return False
    aval = eqn.invars[0].aval
    is_real = aval.dtype in (np.dtype(np.float32), np.dtype(np.float64))
    return is_real and len(eqn.params["axes"]) == len(aval.shape) and _jax.aval_size(aval) >= MIN_ROW_SIZE


def _expand(
    atom: Atom, inverse: bool, product: _Product, producer: dict[Var, Equation], is_dirty: Callable[[Var], bool]
) -> None:
    """Add the factors of an atom to a product; clean arrays stay whole, so that they are saved as they are."""
    if isinstance(atom, Literal) or atom.aval.shape == ():
        product.scalars.append((atom, inverse))
        return
    eqn = producer.get(atom)
    name = "" if eqn is None or product.size >= MAX_FACTORS else eqn.primitive.name
    if eqn is not None and name == "broadcast_in_dim" and eqn.invars[0].aval.shape == ():
        product.scalars.append((eqn.invars[0], inverse))
    elif not is_dirty(atom):
        product.clean.append((atom, inverse))
    elif eqn is not None and name in ("mul", "div", "neg"):
        product.is_negative ^= name == "neg"
        for position, part in enumerate(eqn.invars):
            _expand(part, inverse ^ (name == "div" and position == 1), product, producer, is_dirty)
    else:
        product.dirty.append((atom, inverse))


# --- writing the matrix product -----------------------------------------------------------------------------------


def _merged(eqns: Sequence[Equation], group: Sequence[_Product], table: DerivedTable) -> tuple[Equation, ...]:
    """The equations of M, then of all reductions of a group."""
    rows: dict[tuple[tuple[int, bool], ...], list[Factor]] = {}
    for product in group:
        rows.setdefault(_key(product.clean), sorted(product.clean, key=lambda f: (id(f[0]), f[1])))
    order = [list(rows).index(_key(product.clean)) for product in group]
    matrix = _matrix(list(rows.values()), group[0].dirty[0][0].aval, table)
    shared = list(dict.fromkeys(atom for atom, _ in group[0].dirty))
    scalars = list(dict.fromkeys(a for p in group for a, _ in p.scalars if isinstance(a, Var)))
    outputs = [eqns[product.number].outvars[0] for product in group]
    fun = _reductions(group, order, shared, scalars, outputs[0].aval.dtype)
    new = traced_equations(fun, [matrix, *shared, *scalars], outputs)[1]
    table.unlikely.update({id(eqn): eqn for eqn in new if eqn.primitive.name == "cond"})
    return (*table.recipes[matrix], *new)


def _matrix(rows: Sequence[Sequence[Factor]], aval: Any, table: DerivedTable) -> Var:
    """The variable whose rows are products of clean arrays; a row without factors is ones."""
    inputs = list(dict.fromkeys(atom for row in rows for atom, _ in row))
    spec = tuple(tuple((inputs.index(atom), inverse) for atom, inverse in row) for row in rows)
    ones = jax.ShapeDtypeStruct((_jax.aval_size(aval),), aval.dtype)

    def stack(*arrays: Any) -> Any:
        flat = [array.ravel() for array in arrays]
        start = jnp.ones(ones.shape, ones.dtype)
        return jnp.stack([_multiply(start, [(flat[k], inverse) for k, inverse in row]) for row in spec])

    matrix = table.make(("rows", spec, ones.shape, ones.dtype), inputs, stack)
    table.matrices.add(matrix)
    return matrix


def _multiply(start: Any, factors: Iterable[tuple[Any, bool]]) -> Any:
    value = start
    for factor, inverse in factors:
        value = value / factor if inverse else value * factor
    return value


def _reductions(
    group: Sequence[_Product], order: Sequence[int], shared: Sequence[Atom], scalars: Sequence[Var], dtype: Any
) -> Callable[..., list[Any]]:
    """A function of (M, dirty arrays, scalars) that returns each reduction of a group."""

    def value_of(names: dict[Var, Any], factors: Iterable[Factor]) -> list[tuple[Any, bool]]:
        values = [(names[a] if isinstance(a, Var) else jnp.asarray(a.val, dtype), inverse) for a, inverse in factors]
        return [(value.ravel() if value.ndim else value, inverse) for value, inverse in values]

    def reductions(matrix: Any, *values: Any) -> list[Any]:
        names = dict(zip([*shared, *scalars], values, strict=True))
        u = _multiply(jnp.ones((), dtype), value_of(names, group[0].dirty))
        signs = [jnp.asarray(-1.0 if product.is_negative else 1.0, dtype) for product in group]
        factors = [_multiply(s, value_of(names, p.scalars)) for s, p in zip(signs, group, strict=True)]
        scale = jnp.stack(factors)
        products = jnp.matmul(matrix, u, precision=jax.lax.Precision.HIGHEST)
        sums = jnp.stack([_at(products, k) for k in order])

        def direct() -> Any:
            tables = _tables([value_of(names, p.scalars) for p in group], dtype)
            rows = jnp.stack([jnp.asarray(k, jnp.int32) for k in order])
            return jax.lax.map(lambda k: _direct_sum(matrix[k[0]], u * k[1], *k[2:]), (rows, jnp.stack(signs), *tables))

        results = jax.lax.cond(_is_safe(scale, u, sums), lambda: scale * sums, direct)
        return [_at(results, k) for k in range(len(group))]

    return reductions


def _tables(products: Sequence[Sequence[tuple[Any, bool]]], dtype: Any) -> tuple[Any, Any]:
    """Scalar factors of each product as rows of multipliers and divisors, padded with ones: the order is kept."""
    length = max(map(len, products))
    one = jnp.ones((), dtype)

    def table(is_kept: Callable[[bool], bool]) -> Any:
        rows = [[x if is_kept(inverse) else one for x, inverse in p] + [one] * (length - len(p)) for p in products]
        return jnp.array(rows, dtype).reshape(len(products), length)

    return table(lambda inverse: not inverse), table(lambda inverse: inverse)


def _direct_sum(row: Any, u: Any, multipliers: Any, divisors: Any) -> Any:
    """sum_n row[n] u[n] times the scalars, which are multiplied in one by one before the sum."""
    for k in range(multipliers.shape[0]):
        u = u * multipliers[k] / divisors[k]
    return jnp.sum(u * row)


def _at(array: Any, index: int) -> Any:
    return jax.lax.index_in_dim(array, index, keepdims=False)


def _is_safe(scale: Any, u: Any, sums: Any) -> Any:
    """Whether no product of either form can leave the range of normal numbers."""
    tiny = float(jnp.finfo(u.dtype).tiny)
    bounded = _is_within(scale, tiny**_SCALAR_RANGE) & _is_within(sums, tiny**_RESULT_RANGE)
    return bounded & (jnp.max(jnp.abs(u)) <= tiny**-_SHARED_RANGE)


def _is_within(x: Any, least: float) -> Any:
    return jnp.all((jnp.abs(x) >= least) & (jnp.abs(x) <= 1 / least))
