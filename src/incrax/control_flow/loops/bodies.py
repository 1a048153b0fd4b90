"""Bodies of loops as data: closed jaxprs without constants, one object for all that are alike,
their transposes.

In: functions and avals. Out: jaxprs. It must not know how loops are run.

A body maps (constants, carry, row of xs) to (carry, row of ys); `BodyLayout` says which input is
which.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from incrax import _jax
from incrax._context import context_key
from incrax._program import evaluator, from_jaxpr
from incrax._tables import LruTable, program_bytes
from incrax.engine.program.functions import Identity, function_key

T = TypeVar("T")
MAX_BODIES = 512
"""Bodies that are remembered; a forgotten one is compiled again."""


class BodyLayout(NamedTuple):
    """Numbers of constants, carries and xs of a body."""

    num_consts: int
    num_carry: int
    num_xs: int

    def split(self, values: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
        """Constants, carry, xs."""
        rest = len(values) - self.num_consts - self.num_carry
        consts, carry, xs = in_groups(values, (self.num_consts, self.num_carry, rest))
        return consts, carry, xs


def in_groups(values: Iterable[T], sizes: Iterable[int]) -> list[list[T]]:
    """Values in groups of these sizes, in their order."""
    left = iter(values)
    return [list(itertools.islice(left, size)) for size in sizes]


def avals_in(jaxpr: Any) -> list[Any]:
    """Types of a body's inputs."""
    return [var.aval for var in _jax.open_jaxpr(jaxpr).invars]


def avals_out(jaxpr: Any) -> list[Any]:
    """Types of a body's outputs."""
    return [atom.aval for atom in _jax.open_jaxpr(jaxpr).outvars]


def call(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """Evaluate a body, open or not, an equation at a time."""
    program = from_jaxpr(jaxpr)
    return evaluator(program)(program.consts, *values)


def close(function: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> Any:
    """A function of values of these types as a jaxpr; small constants stay in it."""
    return remembered(_jax.closed_jaxpr(_jax.trace_body(function, *avals)))


def lift(body: _jax.Body) -> Any:
    """A jaxpr (constants, *inputs) -> outputs without constants of its own."""
    invars = (*body.constvars, *body.invars)
    return remembered(_jax.closed_jaxpr(body._replace(invars=invars, constvars=(), consts=())))


def per_configuration(maker: Callable[..., T]) -> Callable[..., T]:
    """The maker of jaxprs, called once per arguments and per configuration of JAX."""

    @functools.lru_cache(maxsize=MAX_BODIES)
    def made(_: Hashable, *args: Any) -> T:
        return maker(*args)

    return functools.wraps(maker)(lambda *args: made(context_key(), *args))


# --- transposes -----------------------------------------------------------------------------------


@per_configuration
def transposed(
    jaxpr: Any, layout: BodyLayout, is_linear: tuple[bool, ...], is_wanted: tuple[bool, ...]
) -> Any:
    """The pullback of a body, as a body.

    (known consts | cotangents of the carry, sums of cotangents of linear consts | known xs, wanted
    cotangents of ys) -> (cotangents of the carry, sums | cotangents of linear xs).

    Args:
        jaxpr: linear in its carry and in what `is_linear` marks.
        layout: of the body.
        is_linear: which inputs are linear; of the carry, all.
        is_wanted: which ys have a cotangent.
    """
    avals = layout.split(avals_in(jaxpr))
    masks = layout.split(is_linear)
    (known_consts, _, known_xs), (sums, carry, xs) = (
        [
            [aval for aval, linear in zip(*part, strict=True) if linear is kind]
            for part in zip(avals, masks, strict=True)
        ]
        for kind in (False, True)
    )
    wanted = list(itertools.compress(avals_out(jaxpr)[layout.num_carry :], is_wanted))
    inputs = (known_consts, carry, sums, known_xs, wanted)

    def pull(*values: Any) -> list[Any]:
        consts, carry_ct, total, rows, ys_ct = in_groups(values, map(len, inputs))

        def of_linear(linear: list[Any]) -> list[Any]:
            outs = call(jaxpr, merged(is_linear, linear, consts + rows))
            ys = itertools.compress(outs[layout.num_carry :], is_wanted)
            return [*outs[: layout.num_carry], *ys]

        (cts,) = jax.linear_transpose(of_linear, [*sums, *carry, *xs])(carry_ct + ys_ct)
        consts_ct, new_carry_ct, xs_ct = BodyLayout(len(sums), len(carry), 0).split(cts)
        return [*new_carry_ct, *(t + ct for t, ct in zip(total, consts_ct, strict=True)), *xs_ct]

    return close(pull, list(itertools.chain(*inputs)))


def merged(mask: Sequence[bool], chosen: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Values in the order of the mask: `chosen` where it is True."""
    left = iter(chosen)
    right = iter(others)
    return [next(left) if is_chosen else next(right) for is_chosen in mask]


# --- one object for bodies that are alike ---------------------------------------------------------


def _body_bytes(jaxpr: Any) -> int:
    return program_bytes(len(_jax.open_jaxpr(jaxpr).eqns))


_known: LruTable[Hashable, Any] = LruTable(MAX_BODIES, weigh=_body_bytes)


def remembered(jaxpr: Any) -> Any:
    """The first jaxpr that is like this one, equation by equation: what was compiled for it serves
    this one too.
    """
    key = (context_key(), _jaxpr_key(jaxpr))
    return _known.setdefault(key, jaxpr)


def _jaxpr_key(jaxpr: Any) -> Hashable:
    """What a jaxpr computes, with its variables numbered; constants and functions by identity."""
    body = _jax.open_jaxpr(jaxpr)
    numbers: dict[Any, int] = {}

    def atom_key(atom: Any) -> Hashable:
        if isinstance(atom, _jax.Literal):
            value = np.asarray(atom.val)
            return type(atom.val), str(atom.aval), value.tobytes()
        return (
            numbers.setdefault(atom, len(numbers)),
            str(atom.aval),
            getattr(atom.aval, "weak_type", False),
        )

    inputs = tuple(atom_key(var) for var in (*body.constvars, *body.invars))
    eqns = tuple(
        (
            eqn.primitive,
            _value_key(eqn.params),
            Identity(eqn.ctx),
            tuple(atom_key(atom) for atom in (*eqn.invars, *eqn.outvars)),
        )
        for eqn in body.eqns
    )
    outputs = tuple(atom_key(atom) for atom in body.outvars)
    return len(body.constvars), tuple(Identity(c) for c in body.consts), inputs, eqns, outputs


def _value_key(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple((name, _value_key(value[name])) for name in sorted(value))
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_value_key(x) for x in value)
    if _jax.is_jaxpr(value):
        return _jaxpr_key(value)
    if isinstance(value, float):
        return repr(value)
    if callable(value) and not isinstance(value, type):
        return function_key(value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return type(value), value
