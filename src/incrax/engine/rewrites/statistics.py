"""Statistics of polynomial reductions: one vector (z0, P(z0), J, H), and the polynomial it stands
for.

With each reduction goes a second polynomial, its *scale*: the sum of its terms w_n(z), each with
the sign that it has at z0,
    B(z) = sum_n sign(w_n(z0)) w_n(z).
At z0 it is the sum of their sizes, elsewhere never more: |B(z)| <= sum_n |w_n(z)|. So it says at z,
without the rows, how large the terms are to which the rounding of a direct evaluation is
proportional.

In: a group of reductions with their forms. Out: the saved variable with its recipe, and P(z) in a
graph. It must not know which equations it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Literal, Var
from incrax.engine.rewrites.derived import DerivedTable
from incrax.engine.rewrites.forms import Cone, Factors, Forms

BATCH = 8
"""Directions that are differentiated at once, while statistics are made."""

MAX_GROWTH = {8: 1e4, 4: 64.0}
"""How much larger than a result its terms may be, by bytes of the number: 2e-12 in double, 8e-6 in
single precision.
"""


MAX_TERM = 0.6
"""Exponent of the least normal number that bounds terms either way: times factors they are numbers
still.
"""

MAX_STEP = 0.5
"""The same for z - z0, whose squares enter."""


class Group(NamedTuple):
    """Reductions whose statistics depend on the same clean inputs, those of degree two first, and
    how they are computed.
    """

    curved: tuple[Var, ...]
    straight: tuple[Var, ...]
    cone: Cone
    dtype: Any

    @property
    def outputs(self) -> tuple[Var, ...]:
        """All of them."""
        return (*self.curved, *self.straight)

    @property
    def avals(self) -> list[Any]:
        """The types of the outputs."""
        return [var.aval for var in self.outputs]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Numbers in z0, P, J and H; each output has a scale."""
        p = sum(num_real(symbol.aval) for symbol, _ in self.cone.symbols)
        m = 2 * sum(map(num_real, self.avals))
        return p, m, p * m, 2 * p * p * self.num_curved

    @property
    def num_curved(self) -> int:
        """Numbers of degree two."""
        return sum(num_real(var.aval) for var in self.curved)


# --- numbers --------------------------------------------------------------------------------------


def num_real(aval: Any) -> int:
    """Real numbers that a value consists of."""
    return _jax.aval_size(aval) * (2 if aval.dtype.kind == "c" else 1)


def pack(values: Sequence[Any], dtype: Any) -> Any:
    """Values as one vector of real numbers."""
    parts = [
        part.ravel() for x in values for part in ((x.real, x.imag) if jnp.iscomplexobj(x) else (x,))
    ]
    return jnp.concatenate(parts).astype(dtype) if parts else jnp.zeros(0, dtype)


def unpack(vector: Any, avals: Sequence[Any]) -> list[Any]:
    """The values that were packed."""
    parts = jnp.split(vector, np.cumsum([num_real(aval) for aval in avals])[:-1])
    return [
        (lax.complex(*jnp.split(x, 2)) if aval.dtype.kind == "c" else x).reshape(aval.shape)
        for x, aval in zip(parts, avals, strict=False)
    ]


def number_of(value: Any, inverse: bool) -> Any:
    """The number that a factor stands for."""
    return 1 / value if inverse else value


# --- statistics -----------------------------------------------------------------------------------


def make_statistics(group: Group, forms: Forms, table: DerivedTable) -> Var:
    """The variable that holds z0, and P(z0), J and H of a group and of its scales."""
    clean = group.cone.clean
    symbols = group.cone.symbols
    numbers = tuple(dict.fromkeys(var for var, _ in symbols))

    def make(*values: Any) -> Any:
        known = dict(zip(clean, values, strict=False))
        at = {
            var: _jax.as_constant(x, None)
            for var, x in zip(numbers, values[len(clean) :], strict=True)
        }
        centre = pack([number_of(at[var], inverse) for var, inverse in symbols], group.dtype)

        def polynomials(z: Any) -> Any:
            outputs = _with_scales(group, forms, known, z)
            return jnp.stack([pack(own, group.dtype) for own in outputs])

        derivatives = _derivatives(polynomials, centre, group.num_curved) if centre.size else []
        return jnp.concatenate([x.ravel() for x in (centre, polynomials(centre), *derivatives)])

    return table.make(("statistics", group.outputs, symbols), (*clean, *numbers), make)


def _with_scales(
    group: Group, forms: Forms, known: Mapping[Var, Any], z: Any
) -> tuple[list[Any], list[Any]]:
    """The outputs at z, and their scales: complex ones have one for both parts."""
    symbols = group.cone.symbols
    numbers = dict(zip(symbols, unpack(z, [var.aval for var, _ in symbols]), strict=True))
    made = dict(known)
    scales: dict[Var, Any] = {}

    def polynomial(atom: Atom, extras: Factors) -> Any:
        if isinstance(atom, Literal):
            value = jnp.asarray(atom.val, atom.aval.dtype)
        elif atom in known or not forms.is_number(atom):
            value = made[atom]
        elif forms.is_factor(atom):  # it stands in front
            value = jnp.ones((), atom.aval.dtype)
        else:
            value = numbers[atom, False]
        for factor in extras:
            value = value * numbers[factor].astype(value.dtype)
        return value

    for eqn, extras in group.cone.steps:
        values = list(map(polynomial, eqn.invars, extras))
        made.update(zip(eqn.outvars, _jax.apply(eqn, values), strict=True))
        if eqn.outvars[0] in group.outputs:
            (total,) = _jax.apply(eqn, list(map(_turned, values)))
            is_complex = jnp.iscomplexobj(total)
            scales[eqn.outvars[0]] = lax.complex(total.real, total.real) if is_complex else total
    return [made[var] for var in group.outputs], [scales[var] for var in group.outputs]


def _turned(x: Any) -> Any:
    """Each element times the sign, or phase, that makes it positive at the centre, and has no
    derivative.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    if jnp.iscomplexobj(x):
        size = jnp.abs(x)
        phase = jnp.where(size == 0, 1, jnp.conj(x) / jnp.where(size == 0, 1, size))
    else:
        phase = jnp.where(x < 0, -1, 1)
    return x * lax.stop_gradient(phase).astype(x.dtype)


def _derivatives(polynomials: Callable[[Any], Any], centre: Any, num_curved: int) -> Iterator[Any]:
    """J (p, 2, m) and H (p, 2, m2, p) at the centre, a few directions at a time so that memory
    stays bounded.
    """
    directions = jnp.eye(centre.size, dtype=centre.dtype)
    yield _slopes(polynomials, centre, directions)
    if num_curved:
        curved = lambda z: polynomials(z)[:, :num_curved]
        yield _curvatures(curved, centre, directions, 2 * num_curved)


def _slopes(fun: Callable[[Any], Any], centre: Any, directions: Any) -> Any:
    """The derivative in each direction, (p, ...)."""
    return lax.map(lambda e: jax.jvp(fun, (centre,), (e,))[1], directions, batch_size=BATCH)


def _curvatures(fun: Callable[[Any], Any], centre: Any, directions: Any, num_outputs: int) -> Any:
    """Second derivatives, (p, ..., p): gradients along each direction, or pairs of directions where
    outputs are many.
    """
    if 2 * num_outputs <= len(directions):
        return _slopes(jax.jacrev(fun), centre, directions)

    def along(e: Any) -> Any:
        slopes = _slopes(lambda z: jax.jvp(fun, (z,), (e,))[1], centre, directions)
        return jnp.moveaxis(slopes, 0, -1)

    return lax.map(along, directions)


# --- the polynomial -------------------------------------------------------------------------------


def taylor(group: Group, known: Any, z: Any) -> tuple[Any, Any]:
    """P(z), and whether no term is much larger than it, or than the terms of the direct form are at
    z.
    """
    centre, *derivatives = jnp.split(known, np.cumsum(group.sizes)[:-1])
    d = z - centre
    with jax.default_matmul_precision("highest"):
        total, scale = _series(group, d, *derivatives)
        sizes = _series(group, jnp.abs(d), *map(jnp.abs, derivatives))
        terms = jnp.max(sizes, axis=0)
    size = jnp.maximum(jnp.abs(total), jnp.abs(scale))
    growth = MAX_GROWTH[np.dtype(group.dtype).itemsize]
    is_right = are_within(terms, MAX_TERM) & (terms <= growth * size)
    return total, jnp.all(are_within(d, MAX_STEP)) & jnp.all(is_right)


def _series(group: Group, d: Any, values: Any, slopes: Any, curvatures: Any) -> Any:
    """P and the scales, (2, m / 2), at a distance d from the centre."""
    p, m, *_ = group.sizes
    straight = (values + d @ slopes.reshape(p, m)).reshape(2, -1)
    if not curvatures.size:
        return straight
    bent = jnp.einsum("i,isjk,k->sj", d, curvatures.reshape(p, 2, -1, p), d)
    return straight + jnp.pad(0.5 * bent, ((0, 0), (0, m // 2 - group.num_curved)))


def are_within(x: Any, exponent: float) -> Any:
    """Whether numbers are far from the ends of the range; zero is."""
    limit = float(jnp.finfo(x.dtype).tiny) ** -exponent
    return (x == 0) | ((jnp.abs(x) <= limit) & (jnp.abs(x) >= 1 / limit))
