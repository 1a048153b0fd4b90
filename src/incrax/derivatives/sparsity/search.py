"""Sparsity: which elements of a Jacobian or a Hessian can be nonzero, for all values of the inputs.

In: a `Program`. Out: a boolean CSR matrix, or None where finding it would cost too much. Not the function is walked but
the equations of its pushforward: an output's tangent depends on an input's tangent exactly where the derivative that
JAX computes may be nonzero, with the derivative rules that users wrote, and zero through `floor` or `stop_gradient`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import Program, evaluator, from_jaxpr, read_vars, trace, type_of
from incrax.derivatives.sparsity.known import Constant, constant_of, known_of, learn
from incrax.derivatives.sparsity.moves import Operands, all_to_all
from incrax.derivatives.sparsity.nested import Constants, learn_counters, nested_rules
from incrax.derivatives.sparsity.patterns import Matrix, Pattern, TooMuch, empty, stacked, unit
from incrax.derivatives.sparsity.rules import rules
from incrax.engine.program.simplify import RULED, drop_dead, inline

MAX_WORK = 1 << 26
"""Nonzeros made in all beyond which the search is given up."""


def pattern_of(program: Program, wrt: Sequence[int] | None = None, *, max_work: int | None = None) -> Matrix | None:
    """Which elements of a program's outputs depend on which elements of its inputs number `wrt` (None: of all).

    Args:
        program: what to differentiate; calls with a derivative rule of their own must not have been opened.
        wrt: numbers of inputs of floating type.
        max_work: nonzeros made in all beyond which the search is given up; None: `MAX_WORK`.

    Returns:
        A boolean matrix with sorted indices: a row for each element of the outputs, in order, a column for each of the
        chosen inputs. Where it is False, `jax.jacfwd` is zero wherever all values are finite. None: finding it takes
        too much work, or the program writes to references. Cost: tracing the pushforward, and a walk in the time of the
        nonzeros made; nothing of the program is compiled but small equations that move constants.
    """
    chosen = tuple(range(len(program.invars))) if wrt is None else tuple(wrt)
    is_transposed = has_custom_vjp(program)
    if any(_jax.is_ref(var.aval) for var in program.invars):
        return None
    linear = (_pullback if is_transposed else _pushforward)(program, chosen)
    seeds = linear.invars[len(program.invars) :]
    try:
        outputs = _depend(linear, seeds, MAX_WORK if max_work is None else max_work)
        found = stacked((p, _jax.aval_size(a.aval)) for p, a in zip(outputs, linear.outvars, strict=True))
    except TooMuch:
        return None
    num_rows, num_columns = (sum(_jax.aval_size(a.aval) for a in atoms) for atoms in (linear.outvars, seeds))
    pattern = empty(num_rows, num_columns) if found is None else found
    return _tidy(pattern.T if is_transposed else pattern)


def hessian_pattern(
    program: Program, wrt: Sequence[int] | None = None, *, max_work: int | None = None
) -> Matrix | None:
    """Which elements of the Hessian of a program with one scalar output can be nonzero; symmetric.

    Rows and columns are the elements of the inputs number `wrt`, in order, as in `pattern_of`.
    """
    chosen = tuple(range(len(program.invars))) if wrt is None else tuple(wrt)

    def gradient(*leaves: Any) -> Any:
        return jax.grad(lambda *xs: _run(program, leaves, chosen, xs)[0].reshape(()))(*(leaves[k] for k in chosen))

    pattern = pattern_of(trace(gradient, *map(type_of, program.invars)), chosen, max_work=max_work)
    return None if pattern is None else _tidy(pattern + pattern.T)


def _tidy(pattern: Any) -> Matrix:
    result = csr_array(pattern, dtype=bool)
    result.sum_duplicates()
    return result


# --- the linear program -----------------------------------------------------------------------------------------------


def _run(program: Program, leaves: Sequence[Any], chosen: Sequence[int], xs: Sequence[Any]) -> list[Any]:
    """The program's outputs, with other values of the chosen inputs."""
    values = list(leaves)
    for number, x in zip(chosen, xs, strict=True):
        values[number] = x
    return evaluator(program)(program.consts, *values)


def _pushforward(program: Program, chosen: Sequence[int]) -> Program:
    """(inputs, tangents of the chosen) -> tangents of the outputs."""

    def push(*args: Any) -> list[Any]:
        leaves, tangents = args[: len(program.invars)], args[len(program.invars) :]
        primals = [leaves[k] for k in chosen]
        _, results = jax.jvp(lambda *xs: _run(program, leaves, chosen, xs), primals, list(tangents))
        return [jnp.zeros(t.shape) if t.dtype == jax.dtypes.float0 else t for t in results]

    return drop_dead(inline(trace(push, *map(type_of, program.invars), *(type_of(program.invars[k]) for k in chosen))))


def _pullback(program: Program, chosen: Sequence[int]) -> Program:
    """(inputs, cotangents of the outputs) -> cotangents of the chosen; a `custom_vjp` has no pushforward."""

    def pull(*args: Any) -> Any:
        leaves, cotangents = args[: len(program.invars)], args[len(program.invars) :]
        outputs, vjp = jax.vjp(lambda *xs: _run(program, leaves, chosen, xs), *(leaves[k] for k in chosen))
        return vjp([_cotangent(y, ct) for y, ct in zip(outputs, cotangents, strict=True)])

    cotangents = [jax.ShapeDtypeStruct(atom.aval.shape, jnp.result_type(float)) for atom in program.outvars]
    return drop_dead(inline(trace(pull, *map(type_of, program.invars), *cotangents)))


def _cotangent(output: Any, cotangent: Any) -> Any:
    if jnp.issubdtype(output.dtype, jnp.inexact):
        return cotangent.astype(output.dtype)
    return np.zeros(output.shape, jax.dtypes.float0)


def has_custom_vjp(program: Program) -> bool:
    """Whether some call, at any depth, has a rule for reverse mode alone."""
    return any(
        (eqn.primitive.name in RULED and "vjp" in eqn.primitive.name)
        or any(has_custom_vjp(from_jaxpr(body)) for body in _jax.sub_bodies(eqn))
        for eqn in program.eqns
    )


# --- the walk ---------------------------------------------------------------------------------------------------------


def _depend(program: Program, seeds: Sequence[Var], max_work: int) -> list[Pattern]:
    num_columns, first = sum(_jax.aval_size(var.aval) for var in seeds), 0
    operands: list[Pattern] = [None] * (len(program.invars) - len(seeds))
    for var in seeds:
        size = _jax.aval_size(var.aval)
        operands.append(unit(first, size, num_columns) if size else None)
        first += size
    return _Walk(max_work).walk(program, operands, [None] * len(operands))[0]


class _Walk:
    """A walk through the equations; `work` counts the nonzeros made, in bodies of loops, too."""

    def __init__(self, max_work: int) -> None:
        self.work = 0
        self.max_work = max_work

    def walk(
        self, program: Program, operands: Operands, constants: Constants
    ) -> tuple[list[Pattern], list[Constant | None]]:
        """The patterns of a program's outputs from those of its inputs; the outputs that are constants."""
        known = known_of(program, constants)
        env: dict[Var, Pattern] = dict(zip(program.invars, operands, strict=True))
        last_read = {var: number for number, eqn in enumerate(program.eqns) for var in read_vars(eqn)}
        kept = {atom for atom in program.outvars if isinstance(atom, Var)}
        for number, eqn in enumerate(program.eqns):
            patterns = [None if isinstance(atom, Literal) else env.get(atom) for atom in eqn.invars]
            if all(pattern is None for pattern in patterns):
                learn(eqn, known)
                if not all(var in known for var in eqn.outvars):
                    learn_counters(eqn, known, self.walk)
                continue
            results = self._equation(eqn, patterns, known)
            env.update(zip(eqn.outvars, results, strict=True))
            self.work += sum(pattern.nnz for pattern in results if pattern is not None)
            if self.work > self.max_work:
                raise TooMuch
            for var in read_vars(eqn):
                if last_read[var] == number and var not in kept:
                    env.pop(var, None)
        outputs = [None if isinstance(atom, Literal) else env.get(atom) for atom in program.outvars]
        return outputs, [constant_of(atom, known) for atom in program.outvars]

    def _equation(self, eqn: Equation, operands: Operands, known: Any) -> list[Pattern]:
        name = eqn.primitive.name
        if any(_jax.is_ref(atom.aval) for atom in eqn.invars):
            raise TooMuch  # what is written to a reference is not followed
        if name in nested_rules and not eqn.effects:
            return nested_rules[name](eqn, operands, known, self.walk)
        found = rules.get(name, all_to_all)(eqn, operands, known)
        return found if isinstance(found, list) else [found]
