"""Rules for rows that meet a vector that changed as a whole: R_k = sum_n D_kn u_n.

A coherent sum |sum_k A_k(x_n)|^2, or a mixture sum_k f_k p_k(x_n), reads all rows k: where one of them
changes, so does its slope u_n for every n. The derivative by what row k depends on then multiplies u by
one factor of that row after the other, and sums over n. Of these factors D_kn few rows change: in the
order  (..(D^1_kn D^2_kn)..) u_n  they are one matrix, kept with its new rows written in, and all that
runs as a whole is a product of this matrix and u.

In: an equation that reads what changed as a whole. Out: nothing, until a sum over n, or something else
that reads all of a product, which is then made as the function says.

Promise: where the guards are true, each term of R differs by rounding from what the function makes of
it. A product of factors that became too large is not finite, nor is R then. One that became too small
has lost an absolute amount, which later factors multiply: the largest of each row is kept (`_lost`), and
must be small against R_k. What u makes too large or too small is so in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax.engine.plan.environment import PutOff, RowEnvironment, size_of
from incrax.primitives.entry import shape_of
from incrax.primitives.on_rows import NotByRowsError

MIN_SIZE = 2**14
"""Elements of a product from which on it is put off: what is smaller costs less than a value more."""

MAX_TERMS = 4
"""Products that are added up, each of which has a matrix."""


class Weighted(NamedTuple):
    """A product D_kn u_n, D of the shape of the product (None: ones)."""

    rows: Var | None  # the variable of D; None: ones
    weight: Any  # u
    axes: tuple[int, ...]  # of each axis of u, that of the product
    is_negative: bool = False  # it is subtracted
    lost: Var | None = None  # the variable of what D lost, in units of `_unit`; None: nothing

    @property
    def matrix(self) -> Var:
        """The same variable.

        Raises:
            NotByRowsError: it is ones.
        """
        if self.rows is None:
            raise NotByRowsError
        return self.rows


Sum = tuple[Weighted, ...]


def weigh(env: RowEnvironment, eqn: Equation) -> bool:
    """Put off what an equation makes of rows and of a value that changed as a whole, or make a sum of
    what was put off; whether that can be done.

    Not in compiled loops, where each step would write the matrix.
    """
    if env.adds_changes or len(eqn.outvars) != 1:
        return False
    name = eqn.primitive.name
    rule = RULES.get(name)
    (var,) = eqn.outvars
    try:
        if name == "reduce_sum":
            return _add_up(env, eqn)
        is_inexact = jnp.issubdtype(var.aval.dtype, np.inexact)
        if rule is None or not is_inexact or _jax.aval_size(var.aval) < MIN_SIZE:
            return False
        terms = rule(env, eqn)
    except NotByRowsError:
        return False
    if not terms or len(terms) > MAX_TERMS:
        return False
    env.dirty[var] = PutOff(terms)
    return True


# --- where a vector becomes rows ------------------------------------------------------------------


def _spread(env: RowEnvironment, eqn: Equation) -> Sum:
    """u, the same for each row."""
    operand = eqn.invars[0]
    if not _is_whole(env, operand) or env.put_off_as(operand):
        return ()
    axes = tuple(eqn.params["broadcast_dimensions"])
    shape = shape_of(eqn.outvars[0])
    is_same = all(shape[d] == size for d, size in zip(axes, shape_of(operand), strict=True))
    return (Weighted(None, env.result(operand), axes),) if axes and is_same else ()


def _outer(env: RowEnvironment, eqn: Equation) -> Sum:
    """u_n c_k, as an outer product: D_kn = c_k."""
    contracted, batched = eqn.params["dimension_numbers"]
    (var,) = eqn.outvars
    ranks = [len(shape_of(atom)) for atom in eqn.invars]
    places = [range(ranks[0]), range(ranks[0], sum(ranks))]
    for number, atom in enumerate(eqn.invars):
        other = eqn.invars[1 - number]
        is_weight = _is_whole(env, atom) and not env.put_off_as(atom) and not _is_whole(env, other)
        if contracted[0] or batched[0] or not is_weight or atom.aval.dtype != other.aval.dtype:
            continue
        along = tuple(places[1 - number])
        spread = lambda c, along=along: lax.broadcast_in_dim(c, shape_of(var), along)
        rows = _derived(env, eqn, "outer", [other], spread)
        return (Weighted(rows, env.result(atom), tuple(places[number])),)
    return ()


# --- from product to product ----------------------------------------------------------------------


def _times(env: RowEnvironment, eqn: Equation) -> Sum:
    """A product or quotient of what was put off and a factor of few dirty rows, or a number."""
    number = next((n for n, atom in enumerate(eqn.invars) if env.put_off_as(atom)), None)
    if number is None or (number and eqn.primitive.name == "div"):
        return ()
    factor = eqn.invars[1 - number]
    if _is_whole(env, factor) or factor.aval.dtype != eqn.outvars[0].aval.dtype:
        return ()
    run = lambda x, y: _jax.apply(eqn, [y, x] if number else [x, y])[0]
    terms = env.put_off_as(eqn.invars[number])
    return tuple(_with_factor(env, eqn, term, factor, run) for term in terms)


def _with_factor(
    env: RowEnvironment, eqn: Equation, term: Weighted, factor: Atom, run: Callable[..., Any]
) -> Weighted:
    """A product with its D, or while there is none a u, multiplied or divided by a factor."""
    is_quotient = eqn.primitive.name == "div"
    rows = env.rows(factor)
    if rows is not None and rows.of.ends is not None:
        raise NotByRowsError
    is_first = term.rows is None
    if is_first and rows is None and shape_of(factor) == ():
        return term._replace(weight=run(term.weight, env.result(factor)))
    shape = shape_of(eqn.outvars[0])
    if is_first and shape_of(factor) != shape:  # the same for all rows, or all places of u
        factor = _derived(env, eqn, "spread", [factor], lambda x: jnp.broadcast_to(x, shape))
    if is_first and not is_quotient:
        return term._replace(rows=factor)
    before = np.ones((), factor.aval.dtype) if is_first else term.rows
    product = _derived(env, eqn, "product", [before, factor], run)
    losing = functools.partial(_lost, is_quotient=is_quotient)
    lost = _derived(env, eqn, "lost", [product, before, factor, term.lost or 0.0], losing)
    return term._replace(rows=product, lost=lost)


def _lost(product: Any, x: Any, factor: Any, lost: Any, *, is_quotient: bool) -> Any:
    """What was lost so far, multiplied by a factor, and what is lost where the product of both is so
    small that digits are: not where one of them is zero.
    """
    numbers = jnp.finfo(product.dtype)
    is_small = (size_of(product) < numbers.tiny / numbers.eps) & (x != 0) & (factor != 0)
    size = size_of(jnp.asarray(factor))
    times = 2.0 / size if is_quotient else 2.0 * size  # of the parts of complex numbers
    return _product_of_losses(lost, times) + is_small.astype(numbers.dtype)


def _product_of_losses(lost: Any, times: Any) -> Any:
    """Zero where nothing was lost, whatever it is multiplied by."""
    lost, times = jnp.broadcast_arrays(jnp.asarray(lost, times.dtype), times)
    return lax.select(lost > 0, lost * times, lax.full_like(lost, 0))


def _negated(env: RowEnvironment, eqn: Equation) -> Sum:
    """The other sign."""
    return tuple(map(_minus, env.put_off_as(eqn.invars[0])))


def _minus(term: Weighted) -> Weighted:
    # Not of u: XLA would make u once more for it.
    return term._replace(is_negative=not term.is_negative)


def _transposed(env: RowEnvironment, eqn: Equation) -> Sum:
    """The axes in another order."""
    (operand,) = eqn.invars
    order = eqn.params["permutation"]
    transpose = lambda x: lax.transpose(x, order)
    transposed = lambda var: _derived(env, eqn, "transposed", [var], transpose)
    return tuple(
        term._replace(
            rows=transposed(term.matrix),
            lost=term.lost and transposed(term.lost),
            axes=tuple(map(order.index, term.axes)),
        )
        for term in env.put_off_as(operand)
    )


def _real(env: RowEnvironment, eqn: Equation) -> Sum:
    """Re (D u) = Re D Re u - Im D Im u, of complex products."""
    (operand,) = eqn.invars
    is_real = jnp.issubdtype(eqn.outvars[0].aval.dtype, np.floating)
    if not is_real or not jnp.issubdtype(operand.aval.dtype, np.complexfloating):
        return ()
    return _parts(env, eqn, env.put_off_as(operand))[0]


def _parts(env: RowEnvironment, eqn: Equation, terms: Sum) -> tuple[Sum, Sum]:
    """The real and the imaginary part of complex products, as real ones."""
    real: list[Weighted] = []
    imaginary: list[Weighted] = []
    for term in terms:
        re, im = (
            term._replace(rows=_derived(env, eqn, part.__name__, [term.matrix], part))
            for part in (lax.real, lax.imag)
        )
        u, v = lax.real(term.weight), lax.imag(term.weight)
        real += [re._replace(weight=u), _minus(im._replace(weight=v))]
        imaginary += [re._replace(weight=v), im._replace(weight=u)]
    return tuple(real), tuple(imaginary)


def _added(env: RowEnvironment, eqn: Equation) -> Sum:
    """The sum of two."""
    both = [env.put_off_as(atom) for atom in eqn.invars]
    return tuple(term for terms in both for term in terms) if all(both) else ()


def _is_whole(env: RowEnvironment, atom: Atom) -> bool:
    """Whether it changed, and not in rows of one axis alone."""
    return env.is_dirty(atom) and env.rows(atom) is None


def _derived(
    env: RowEnvironment, eqn: Equation, kind: str, inputs: Sequence[Any], fun: Callable[..., Any]
) -> Var:
    """A variable made of others, and of numbers among them, run on rows like those of the program.

    Raises:
        NotByRowsError: it changed as a whole.
    """
    inputs = [x.val if isinstance(x, Literal) else x for x in inputs]
    variables = [x for x in inputs if isinstance(x, Var)]

    def run(*values: Any) -> Any:
        named = dict(zip(variables, values, strict=True))
        return fun(*(named[x] if isinstance(x, Var) else x for x in inputs))

    var = env.derived((kind, eqn.outvars[0]), variables, run)
    if _is_whole(env, var):
        raise NotByRowsError
    return var


# --- the sum --------------------------------------------------------------------------------------


def _add_up(env: RowEnvironment, eqn: Equation) -> bool:
    """The sum over all axes of u, and others: products of matrices with u, then their sum."""
    operand = eqn.invars[0]
    terms = env.put_off_as(operand)
    (var,) = eqn.outvars
    axes = eqn.params["axes"]
    if not _is_summed(env, terms, axes):
        return False
    losses = [_lost_in(env, eqn, term, term.lost) for term in terms if term.lost is not None]
    parts = [terms]
    if jnp.issubdtype(var.aval.dtype, np.complexfloating):
        # A product of complex matrices calls no library on a CPU: twice as slow as four real ones.
        parts = _parts(env, eqn, terms)
    left = [axis for axis in range(len(shape_of(operand))) if axis not in terms[0].axes]
    others = tuple(number for number, axis in enumerate(left) if axis in axes)
    value, *imaginary = (jnp.sum(_product(env, part), axis=others) for part in parts)
    if imaginary:
        value = lax.complex(value, *imaginary)
    env.set_whole(var, value)
    if losses:
        lost = jnp.sum(functools.reduce(lax.add, losses), axis=others)
        size = size_of(value)
        env.guards.append(jnp.all((size >= lost) & lax.is_finite(size + lost)))
    return True


def _is_summed(env: RowEnvironment, terms: Sum, axes: Sequence[int]) -> bool:
    """Whether products with u are to be made for a sum over some axes, all those of u among them."""
    is_sum = terms and all(x.rows is not None and {*x.axes} == {*terms[0].axes} for x in terms)
    if not is_sum or not {*terms[0].axes} <= {*axes}:
        return False
    # Nothing keeps what is clean: it would be made, and looked at, in each call.
    return all(term.lost is None or env.is_dirty(term.rows) for term in terms)


def _lost_in(env: RowEnvironment, eqn: Equation, term: Weighted, lost: Var) -> Any:
    """The least absolute value of each sum against which what its terms lost is small."""
    largest = _derived(env, eqn, "largest", [lost], lambda x: lax.reduce_max(x, term.axes))
    weight = size_of(term.weight)
    numbers = jnp.finfo(weight.dtype)
    # Lost at most where a product is small: a few of the least normal number, relative to what the
    # result may lose.
    unit = float(8.0 * numbers.tiny / numbers.eps)
    most = jnp.max(weight) * (weight.size * unit)
    return _product_of_losses(env.result(largest), most)


def _product(env: RowEnvironment, terms: Sum) -> Any:
    """sum_n D_kn u_n of some products, added up."""
    dots = []
    for term in terms:
        together = (term.axes, tuple(range(len(term.axes)))), ((), ())
        dot = lax.dot_general(
            env.result(term.matrix), term.weight, together, precision=Precision.HIGHEST
        )
        dots.append(-dot if term.is_negative else dot)
    return functools.reduce(lax.add, dots)


RULES: dict[str, Callable[[RowEnvironment, Equation], Sum]] = {
    "broadcast_in_dim": _spread,
    "dot_general": _outer,
    "mul": _times,
    "div": _times,
    "neg": _negated,
    "transpose": _transposed,
    "real": _real,
    "convert_element_type": _real,
    "add": _added,
    "add_any": _added,
}
