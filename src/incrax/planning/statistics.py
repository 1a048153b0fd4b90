"""Statistics of polynomial reductions: one vector (z0, sum |terms|, P(z0), J, H), and the polynomial it stands for.

In: a group of reductions with their forms. Out: the saved variable with its recipe, and P(z) in a graph. It must not
know which equations it replaces.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Literal, Var
from incrax.planning.derived import DerivedTable
from incrax.planning.forms import Cone, Forms, Read, Step

BATCH = 8
"""Directions that are differentiated at once, while statistics are made."""

MAX_GROWTH = {8: 1e4, 4: 64.0}
"""How much larger than a result its terms may be, by bytes of the number: 2e-12 in double, 8e-6 in single precision."""

ONE_SIGN = 1e-6
"""Relative difference up to which a sum counts as the sum of the sizes of its terms."""


class Output(NamedTuple):
    """One term of a reduction."""

    var: Var
    term: int

    @property
    def aval(self) -> Any:
        """The type of the reduction."""
        return self.var.aval


class Group(NamedTuple):
    """Terms of reductions whose statistics depend on the same clean inputs, by degree, and how they are computed."""

    straight: tuple[Output, ...]
    curved: tuple[Output, ...]
    cone: Cone
    dtype: Any
    num_numbers: int

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All terms, straight ones first."""
        return (*self.straight, *self.curved)

    @property
    def avals(self) -> list[Any]:
        """The types of the outputs."""
        return [output.aval for output in self.outputs]

    @property
    def reductions(self) -> tuple[Var, ...]:
        """The reductions, each once."""
        return tuple(dict.fromkeys(output.var for output in self.outputs))


# --- numbers ----------------------------------------------------------------------------------------------------------


def num_real(aval: Any) -> int:
    """Real numbers that a value consists of."""
    return _jax.aval_size(aval) * (2 if aval.dtype.kind == "c" else 1)


def pack(values: Sequence[Any], dtype: Any) -> Any:
    """Values as one vector of real numbers."""
    parts = [part.ravel() for x in values for part in ((x.real, x.imag) if jnp.iscomplexobj(x) else (x,))]
    return jnp.concatenate(parts).astype(dtype) if parts else jnp.zeros(0, dtype)


def unpack(vector: Any, avals: Sequence[Any]) -> list[Any]:
    """The values that were packed."""
    values, start = [], 0
    for aval in avals:
        size = _jax.aval_size(aval)
        value = vector[start : start + size]
        start += size
        if aval.dtype.kind == "c":
            value = jax.lax.complex(value, vector[start : start + size])
            start += size
        values.append(value.reshape(aval.shape))
    return values


def number_of(value: Any, inverse: bool) -> Any:
    """The number that a factor stands for."""
    return 1 / value if inverse else value


# --- statistics -------------------------------------------------------------------------------------------------------


class _Evaluation:
    """The polynomials w of a group's steps at one z, a list for each variable: one for each of its terms."""

    def __init__(self, group: Group, forms: Forms, known: Mapping[Var, Any], z: Any) -> None:
        symbols = group.cone.symbols
        self.numbers = dict(zip(symbols, unpack(z, [var.aval for var, _ in symbols]), strict=True))
        self.known = known
        self.env: dict[Var, list[Any]] = {}
        self.forms = forms
        for step in group.cone.steps:
            terms = [self.apply(step, k, lambda x: x) for k in range(len(step.terms))]
            for number, var in enumerate(step.eqn.outvars):
                self.env[var] = [outputs[number] for outputs in terms]

    def apply(self, step: Step, term: int, change: Callable[[Any], Any]) -> list[Any]:
        """One term of a step's outputs; its inputs may be changed first."""
        total: list[Any] = []
        for application in step.terms[term]:
            pairs = zip(step.eqn.invars, application, strict=True)
            outputs = _jax.apply(step.eqn, [change(self._input(atom, reads)) for atom, reads in pairs])
            total = [a + b for a, b in zip(total, outputs, strict=True)] if total else list(outputs)
        return total

    def _input(self, atom: Any, reads: Sequence[Read]) -> Any:
        """The sum of what is read of an input."""
        if not reads:
            return jnp.zeros(atom.aval.shape, atom.aval.dtype)
        return functools.reduce(operator.add, [self._read(atom, read) for read in reads])

    def _read(self, atom: Any, read: Read) -> Any:
        if isinstance(atom, Literal):
            value = jnp.asarray(atom.val, atom.aval.dtype)
        elif atom in self.known:
            value = self.known[atom]
        elif atom in self.env:
            value = self.env[atom][read.term]
        elif self.forms.is_factor(atom):
            value = jnp.ones((), atom.aval.dtype)
        else:
            value = self.numbers[atom, False]
        for factor in read.extras:
            value = value * self.numbers[factor].astype(value.dtype)
        return value


def make_statistics(group: Group, forms: Forms, table: DerivedTable) -> Var:
    """The variable that holds z0, the sizes, P(z0), J and H of a group."""
    clean, symbols = group.cone.clean, group.cone.symbols
    numbers = tuple(dict.fromkeys(var for var, _ in symbols))

    def make(*values: Any) -> Any:
        known = dict(zip(clean, values, strict=False))
        at = {var: _jax.as_constant(x, None) for var, x in zip(numbers, values[len(clean) :], strict=True)}
        centre = pack([number_of(at[var], inverse) for var, inverse in symbols], group.dtype)

        def polynomials(z: Any) -> tuple[Any, Any]:
            env = _Evaluation(group, forms, known, z).env
            straight, curved = ([env[var][k] for var, k in part] for part in (group.straight, group.curved))
            return pack(straight, group.dtype), pack(curved, group.dtype)

        sizes = _sizes(group, _Evaluation(group, forms, known, centre))
        return jnp.concatenate([centre, sizes, *_derivatives(polynomials, centre)])

    return table.make(("statistics", group.outputs, symbols), (*clean, *numbers), make)


def _sizes(group: Group, evaluation: _Evaluation) -> Any:
    """For each number of the results, the sum of the sizes of its terms; zero where all of them have one sign."""
    results, sums = [], []
    for var, term in group.outputs:
        (total,) = evaluation.apply(evaluation.forms.steps[var], term, _size)
        results.append(evaluation.env[var][term])
        sums.append(jax.lax.complex(total.real, total.real) if jnp.iscomplexobj(total) else total)
    values, sizes = jnp.abs(pack(results, group.dtype)), pack(sums, group.dtype)
    return jnp.where(sizes <= values * (1 + ONE_SIGN), jnp.zeros_like(sizes), sizes)


def _size(x: Any) -> Any:
    return jnp.abs(x).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _derivatives(polynomials: Callable[[Any], tuple[Any, Any]], centre: Any) -> list[Any]:
    """P, J (p, m) and H (p, m2, p) at the centre, a few directions at a time so that memory stays bounded."""

    def together(z: Any) -> Any:
        return jnp.concatenate(polynomials(z))

    values, directions = together(centre), jnp.eye(centre.size, dtype=centre.dtype)
    if not centre.size:
        return [values]
    found = [values, _slopes(together, centre, directions).ravel()]
    num_curved = jax.eval_shape(polynomials, centre)[1].size
    if num_curved:
        found.append(_curvatures(lambda z: polynomials(z)[1], centre, directions, num_curved).ravel())
    return found


def _slopes(fun: Callable[[Any], Any], centre: Any, directions: Any) -> Any:
    """The derivative in each direction, (p, m)."""
    return jax.lax.map(lambda e: jax.jvp(fun, (centre,), (e,))[1], directions, batch_size=BATCH)


def _curvatures(fun: Callable[[Any], Any], centre: Any, directions: Any, num_outputs: int) -> Any:
    """Second derivatives, (p, m, p): gradients along each direction, or pairs of directions where outputs are many."""
    if 2 * num_outputs <= len(directions):
        return _slopes(jax.jacrev(fun), centre, directions)

    def along(e: Any) -> Any:
        return _slopes(lambda z: jax.jvp(fun, (z,), (e,))[1], centre, directions).T

    return jax.lax.map(along, directions)


# --- the polynomial ---------------------------------------------------------------------------------------------------


def taylor(group: Group, known: Any, z: Any) -> tuple[Any, Any]:
    """P(z), and whether no term is much larger than it."""
    p = group.num_numbers
    m, m2 = (sum(map(num_real, avals)) for avals in (group.avals, [output.aval for output in group.curved]))
    centre, sizes, values, slopes, curvatures = _split(known, [p, m, m, p * m, p * m2 * p])
    slopes, curvatures = slopes.reshape(p, m), curvatures.reshape(p, m2, p)
    d = z - centre
    with jax.default_matmul_precision("highest"):
        straight, bound = d @ slopes, jnp.abs(d) @ jnp.abs(slopes)
        curved = 0.5 * jnp.einsum("i,ijk,k->j", d, curvatures, d)
        bent = 0.5 * jnp.einsum("i,ijk,k->j", jnp.abs(d), jnp.abs(curvatures), jnp.abs(d))
    pad = (m - m2, 0)
    total = values + straight + jnp.pad(curved, pad)
    terms = jnp.abs(values) + bound + jnp.pad(bent, pad)
    growth = MAX_GROWTH[np.dtype(group.dtype).itemsize]
    return total, jnp.all(jnp.isfinite(terms) & (terms <= growth * jnp.maximum(jnp.abs(total), sizes)))


def _split(vector: Any, sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum([0, *sizes])
    return [vector[start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]
