"""A function at a point: its value, and a linear program that reads residuals.

JAX splits a function into a primal program and a linear one. Here both are programs as data: the
primal one is compiled once per function and signature, the linear one is pruned to the outputs that
are asked for.

In: a function, a selection of leaves, arguments. Out: an `AtPoint`.
"""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._locations import NO_VALUE
from incrax._program import Program, Values, evaluator, from_jaxpr, trace, trace_with_tree
from incrax._tables import LruTable
from incrax._tuning import is_disabled
from incrax.derivatives.cuts import is_mark
from incrax.derivatives.selection import Selection
from incrax.engine.compile.executables import device_constants
from incrax.engine.inputs.leaves import LeafValue, has_tracer, is_dynamic
from incrax.engine.inputs.signature import Function, Signature, make_signature
from incrax.engine.program.simplify import (
    drop_dead,
    fold_constants,
    inline_but_rules,
    merge_equal,
    run_passes,
)

PASSES = (inline_but_rules, fold_constants, merge_equal, drop_dead)
MAX_PRIMALS = 64
"""Primal programs that are kept, over all functions and signatures."""
MAX_PARTS = 64
"""Pruned programs that are kept per linear program."""


# --- linear programs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputTypes:
    """The outputs of a function: their tree, their types, and which of them have derivatives."""

    treedef: Any
    avals: tuple[Any, ...]

    @cached_property
    def is_active(self) -> tuple[bool, ...]:
        """Per leaf: whether it is a floating-point or complex array."""
        return tuple(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in self.avals)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Per leaf: its place in the result, as Python would write it."""
        with_paths = jax.tree_util.tree_flatten_with_path(
            jax.tree.unflatten(self.treedef, self.avals)
        )[0]
        return tuple(jax.tree_util.keystr(path) for path, _ in with_paths)

    def filled(self, active: Values) -> list[Any]:
        """All leaves: those given for the active ones, zeros of type float0 for the others."""
        rest = iter(active)
        pairs = zip(self.avals, self.is_active, strict=True)
        return [
            next(rest) if flag else np.zeros(aval.shape, jax.dtypes.float0) for aval, flag in pairs
        ]


class PrunedProgram(NamedTuple):
    """What some outputs of a linear program need."""

    program: Program
    reads: tuple[int, ...]  # numbers of what it reads, inputs before residuals
    function: Callable[..., list[Any]]  # it, of these

    def __call__(self, inputs: Values, residuals: Values) -> list[jax.Array]:
        """The outputs."""
        values = [*inputs, *residuals]
        return [_as_array(x) for x in self.function(*(values[i] for i in self.reads))]


@dataclass(frozen=True)
class LinearProgram:
    """A program (inputs, residuals) -> outputs, linear in the inputs, and its parts so far."""

    program: Program
    types: OutputTypes  # of the function: cotangents of the active ones are its inputs
    is_compiled: bool  # or parts run equation by equation
    parts: LruTable[tuple[int, ...], PrunedProgram] = field(
        default_factory=lambda: LruTable(MAX_PARTS)
    )

    def part(self, outputs: tuple[int, ...]) -> PrunedProgram:
        """The part that computes these outputs, and nothing else."""
        return self.parts.made(outputs, functools.partial(self._pruned, outputs))

    def _pruned(self, outputs: tuple[int, ...]) -> PrunedProgram:
        whole = self.program
        asked = tuple(whole.outvars[i] for i in outputs)
        body, is_used = _jax.pruned(
            _jax.Body(whole.invars, whole.constvars, whole.consts, whole.eqns, asked)
        )
        program = _with_device_constants(drop_dead(from_jaxpr(body)))
        reads = tuple(i for i, flag in enumerate(is_used) if flag)
        return PrunedProgram(program, reads, _compiled(program) if self.is_compiled else program)


def _with_device_constants(program: Program) -> Program:
    return replace(program, consts=tuple(device_constants(program).values()))


def _compiled(program: Program) -> Callable[..., list[Any]]:
    """The program, of arguments alone; its constants are no part of what is compiled."""
    return functools.partial(jax.jit(evaluator(program)), program.consts)


# --- a function at a point ------------------------------------------------------------------------


class AtPoint(NamedTuple):
    """A function at a point: value, the linear program and what it reads."""

    value: Any
    linear: LinearProgram
    residuals: list[Any]


def at_point(fun: Function, selection: Selection, args: Any, kwargs: Any) -> AtPoint:
    """The function at these arguments, of which the selected leaves may move.

    Compiled once per function, selection and signature. Where there are tracers, where JAX compiles
    nothing, and where Python code of the function asks for values, it is evaluated as JAX does,
    operation by operation.

    Raises:
        UnsupportedLeafError: an argument is an array that JAX has no type for, or a static value
            without a hash.
    """
    leaves = jax.tree.leaves((args, kwargs))
    if not is_evaluated(leaves) and not any(map(_jax.is_mutable_array, leaves)):
        found = _by_program(fun, selection, make_signature(fun, args, kwargs), leaves)
        if found is not None:
            return found
    # NumPy arrays as private copies, because their owner may change them.
    private = replace(selection, leaves=tuple(jax.tree.map(_private, selection.leaves)))
    return _split(fun, private, is_compiled=False)


def _by_program(
    fun: Function, selection: Selection, signature: Signature, leaves: Values
) -> AtPoint | None:
    """By the program that is kept; None where nothing can be compiled."""
    key = _key(fun, signature.key, selection.numbers)
    feeds = [LeafValue(x).feed for x in signature.dynamic_leaves(leaves)]
    make = lambda: _traced(fun, selection, signature, feeds)
    primal = key is not None and _primals.made(key, make)
    return primal.at(feeds) if primal else None


def is_evaluated(leaves: Values) -> bool:
    """Whether a call with these leaves is evaluated as it is: under a transformation, or where
    nothing is compiled.
    """
    return not _jax.is_top_level() or has_tracer(leaves) or _jax.is_jit_disabled() or is_disabled()


def _private(leaf: Any) -> Any:
    return jnp.array(leaf, copy=True) if isinstance(leaf, np.ndarray) else leaf


def _split(fun: Function, selection: Selection, *, is_compiled: bool) -> AtPoint:
    """Value and linear program, evaluated or traced as the values are."""
    function = selection.of_selected(fun)
    value, linear = jax.vjp(function, *selection.values)
    outputs, out_tree = jax.tree.flatten(value)
    types = OutputTypes(out_tree, tuple(jax.typeof(x) for x in outputs))
    residuals, treedef = jax.tree.flatten(linear)
    active = [x for x, flag in zip(outputs, types.is_active, strict=True) if flag]

    def pull(cotangents: Values, residuals: Values) -> Values:
        linear = jax.tree.unflatten(treedef, residuals)
        return list(linear(jax.tree.unflatten(types.treedef, types.filled(cotangents))))

    inputs = list(map(_jax.as_strong, active))
    program = run_passes(trace(pull, inputs, residuals), PASSES)
    return AtPoint(value, LinearProgram(program, types, is_compiled), residuals)


class Primal(NamedTuple):
    """A compiled function: arguments -> value and residuals; and the linear program that reads
    these.
    """

    program: Program  # its outputs are the leaves of (value, residuals)
    computed: tuple[Any, ...]  # those that are neither arguments nor constants
    function: Callable[..., list[Any]]  # of arguments: what is computed
    treedef: Any  # of (value, residuals)
    linear: LinearProgram

    def at(self, leaves: Values) -> AtPoint:
        """The function at these leaves; arguments that are residuals are not copied."""
        program = self.program
        env = dict(zip(program.constvars, program.consts, strict=True))
        env.update(zip(program.invars, leaves, strict=True))
        env.update(zip(self.computed, self.function(*leaves), strict=True))
        found = [_jax.as_value(atom, env) for atom in program.outvars]
        value, residuals = jax.tree.unflatten(self.treedef, found)
        return AtPoint(jax.tree.map(_as_array, value), self.linear, residuals)


def _traced(
    fun: Function,
    selection: Selection,
    signature: Signature,
    feeds: Values,
) -> Primal | Literal[False]:
    """The primal and the linear program, of types like these; False where the function needs values."""
    points: list[AtPoint] = []

    def primal(*leaves):
        with_marks = jax.tree.leaves(signature.rebuild(leaves), is_leaf=is_mark)
        at = replace(selection, leaves=tuple(with_marks))
        point = _split(fun, at, is_compiled=True)
        points.append(point)
        return point.value, point.residuals

    try:
        traced, treedef = trace_with_tree(primal, *feeds)
    except NO_VALUE:
        return False
    program = _with_device_constants(run_passes(traced, PASSES))
    (point,) = points
    linear = point.linear
    if has_tracer(linear.program.consts):
        return False
    inputs = {*program.invars, *program.constvars}
    computed = tuple(
        dict.fromkeys(v for v in program.outvars if isinstance(v, _jax.Var) and v not in inputs)
    )
    function = _compiled(replace(program, outvars=computed))
    return Primal(program, computed, function, treedef, linear)


def _as_array(x: Any) -> Any:
    return jnp.asarray(x) if not isinstance(x, jax.Array) and is_dynamic(x) else x


# --- primal programs that are kept ----------------------------------------------------------------


_primals: LruTable[Hashable, Primal | Literal[False]] = LruTable(MAX_PRIMALS)
"""By function and the rest of a key; False where nothing is compiled."""
if hasattr(os, "register_at_fork"):  # programs of the parent must not be used in a child
    os.register_at_fork(after_in_child=_primals.clear)


def _key(fun: Function, *rest: Hashable) -> Hashable | None:
    """A key that keeps neither the function alive nor what it closes over; None if the function has
    no hash.
    """
    try:
        hash(fun)
    except TypeError:
        return None
    name: Hashable = fun
    # A method is a new object each time it is read; some callables cannot be referred to weakly.
    if not isinstance(fun, types.MethodType) and getattr(type(fun), "__weakrefoffset__", 0):
        name = weakref.ref(fun, functools.partial(_forget, _primals))
    return name, rest


def _forget(primals: LruTable[Any, Any], name: weakref.ref[Any]) -> None:
    """Drop the programs of a function that is no more; reads no name of the module, which may be
    gone before it.
    """
    for key, _ in primals.items():
        if key[0] is name:
            primals.pop(key)
