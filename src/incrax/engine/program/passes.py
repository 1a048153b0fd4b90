"""The marker of a pass through a bijection: what some values are, in a form that stays visible in a
jaxpr.

In: results of a pass, and what it was given. Out: the same results, through an equation of the
primitive `incrax_pass`. The equation claims: these values are what this pass gives for those
inputs. Invariant: it holds wherever the equation is found, since every transformation that would
make it false (vmap, derivatives) leaves the equation out; the name of a `jit` says less, because
vmapped, differentiated and transposed calls keep it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from incrax import _jax
from incrax._jax import Atom, Equation, Var

OUTPUT = "output"
LADJ = "ladj"
KEPT = "kept"


class Claim(NamedTuple):
    """What an equation of the primitive says."""

    key: Any  # of the bijection without its arrays
    direction: str  # "forward", "inverse", or "ladj", the log-determinant alone
    results: dict[str, Var]  # output and log-determinant, as far as they are there
    arrays: tuple[Atom, ...]
    value: Atom  # the input of the pass; x of "ladj"
    context: tuple[Atom, ...]  # none or one
    output: tuple[Atom, ...]  # of "ladj": the output of x


class Key:
    """A bijection without its arrays, as an equation holds it: equal if it is the same object."""

    def __init__(self, number: int, ladj: Any) -> None:
        self.number = number
        self.ladj = ladj
        """(arrays, x, y, context) -> log-determinant of the forward pass."""

    def __repr__(self) -> str:
        return str(self.number)


def claim(
    key: Key,
    direction: str,
    results: Sequence[Any],
    kinds: Sequence[str],
    inputs: Sequence[Any],
    num_context: int,
) -> list[Any]:
    """The results, marked; `inputs` are the arrays, the value, for "ladj" the output, and
    `num_context` contexts.
    """
    return _pass_p.bind(
        *results, *inputs, key=key, direction=direction, kinds=tuple(kinds), num_context=num_context
    )


def claim_of(eqn: Equation) -> Claim | None:
    """What an equation claims; None for any other."""
    if eqn.primitive is not _pass_p:
        return None
    kinds = eqn.params["kinds"]
    direction = eqn.params["direction"]
    inputs = tuple(eqn.invars[len(kinds) :])
    split = len(inputs) - eqn.params["num_context"]
    inputs, context = inputs[:split], inputs[split:]
    inputs, output = (inputs[:-1], inputs[-1:]) if direction == LADJ else (inputs, ())
    results = {kind: var for kind, var in zip(kinds, eqn.outvars, strict=True) if kind != KEPT}
    return Claim(eqn.params["key"], direction, results, inputs[:-1], inputs[-1], context, output)


def has_claim(eqns: Iterable[Equation]) -> bool:
    """Whether an equation, or one in an inner jaxpr, is a marker."""
    return bool(_has_bound) and any(eqn.primitive is _pass_p for eqn in _jax.with_inner(eqns))


_has_bound: list[Hashable] = []
"""Not empty once a marker was made in this process."""


def _types(*avals: Any, kinds: tuple[str, ...], **_: Any) -> tuple[list[Any], Any]:
    if not _has_bound:
        _has_bound.append(True)
    return list(avals[: len(kinds)]), set()


def _run(*values: Any, kinds: tuple[str, ...], **_: Any) -> list[Any]:
    return list(values[: len(kinds)])


def _push(
    values: Any, tangents: Any, *, kinds: tuple[str, ...], **_: Any
) -> tuple[list[Any], list[Any]]:
    return list(values[: len(kinds)]), list(tangents[: len(kinds)])


def _pull(cotangents: Any, values: Any, **_: Any) -> list[Any]:
    given = [*cotangents, *[None] * (len(values) - len(cotangents))]
    return [ct if isinstance(x, _jax.Linear) else None for ct, x in zip(given, values, strict=True)]


def _batch(_mapped: Any, values: Any, axes: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    return _push(values, axes, **params)


def _prune(is_used: Sequence[bool], eqn: Equation) -> Equation:
    kinds = eqn.params["kinds"]
    rest = eqn.invars[len(kinds) :]
    invars = [atom for atom, used in zip(eqn.invars, is_used, strict=False) if used]
    outvars = [var for var, used in zip(eqn.outvars, is_used, strict=True) if used]
    kept = tuple(kind for kind, used in zip(kinds, is_used, strict=True) if used)
    return eqn.replace(
        invars=[*invars, *rest], outvars=outvars, params={**eqn.params, "kinds": kept}
    )


_pass_p = _jax.new_primitive(_jax.PASS, _jax.Rules(_run, _types, _push, _pull, _batch, _prune))
