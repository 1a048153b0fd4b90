"""Stage 1, trace: a function and example leaves become a `Program`, a flat list of equations.

In: a function of flat arrays. Out: a `Program`. It must not know which inputs will change.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax

from incrax import _jax
from incrax._context import context_key
from incrax._jax import Atom, Equation, Literal, Var

STATEFUL = frozenset({"rng_uniform"})
"""Primitives that give another result each time although they declare no effect."""

Values: TypeAlias = _jax.Values
Results: TypeAlias = _jax.Results
Env: TypeAlias = dict[Var, Any]
"""Values by variable."""

Function: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
"""What is called, and a call."""


@dataclass(frozen=True)
class Program:
    """A jaxpr as data: `outvars` computed from `invars` and the closed-over `consts` by `eqns`, in
    order.
    """

    invars: tuple[Var, ...]
    constvars: tuple[Var, ...]
    consts: tuple[Any, ...]
    eqns: tuple[Equation, ...]
    outvars: tuple[Atom, ...]

    @functools.cached_property
    def digest(self) -> str:
        """A text that other programs hardly have, the same in all processes; what is inside of
        equations is left out.

        Cost: a microsecond for each equation.
        """
        shape = lambda var: getattr(var.aval, "shape", None)
        ends = [str(atom.aval) for atom in (*self.invars, *self.outvars)]
        lines = [
            (eqn.primitive.name, eqn.params.get("name"), *map(shape, eqn.outvars))
            for eqn in self.eqns
        ]
        return hashlib.sha256(repr((ends, lines)).encode()).hexdigest()

    def with_eqns(
        self, eqns: list[Equation] | tuple[Equation, ...], outvars: tuple[Atom, ...] | None = None
    ) -> Program:
        """The same program with other equations (and outputs)."""
        return replace(self, eqns=tuple(eqns), outvars=self.outvars if outvars is None else outvars)

    def as_jaxpr(self) -> Any:
        """The program as a closed jaxpr, for printing and for evaluation by JAX."""
        return _jax.closed_jaxpr(
            _jax.Body(self.invars, self.constvars, self.consts, self.eqns, self.outvars)
        )

    def __call__(self, *leaves: Any) -> Results:
        """The outputs at these leaves, an equation at a time."""
        return evaluator(self)(self.consts, *leaves)

    def __str__(self) -> str:
        return str(self.as_jaxpr())


def trace(fun: Function, *args: Any, **kwargs: Any) -> Program:
    """Trace a function of pytrees; the program's inputs and outputs are their leaves, and the arrays
    of NumPy that the function closes over are copied.
    """
    return trace_with_tree(fun, *args, **kwargs)[0]


def trace_with_tree(fun: Function, *args: Any, **kwargs: Any) -> tuple[Program, Any]:
    """The same, and the tree of the outputs."""
    once = lambda *args, **kwargs: fun(*args, **kwargs)  # JAX keeps the trace of a function
    jaxpr, types = jax.make_jaxpr(once, return_shape=True)(*args, **kwargs)
    _jax.own_arrays(jaxpr)
    return from_jaxpr(jaxpr), jax.tree.structure(types)


class OtherTypesError(Exception):
    """A function that was traced is called with arguments of another tree or other types, or in
    another configuration.
    """


def trace_jitted(
    fun: Function, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Program, Any, Function | None]:
    """The program of a function, the tree of its outputs, and `jax.jit` of it under this name, all
    of one trace; None where a tracer is closed over, or where arguments are flattened to another
    tree each time: JAX would trace at every call.

    With arguments of other types, or in another configuration, that jitted function raises
    OtherTypesError.
    """
    known: list[Function] = []

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        # After `jax.clear_caches`: what is captured may have changed by now.
        return known[0](*args, **kwargs) if known else fun(*args, **kwargs)

    run.__name__ = name
    jitted = jax.jit(run)
    leaves, in_tree = jax.tree.flatten((args, dict(kwargs)))
    traced = jitted.trace(*args, **kwargs)
    jaxpr = traced.jaxpr
    has_tree = in_tree == jax.tree.structure((args, dict(kwargs)))
    if not has_tree or len(jaxpr.in_avals) != len(leaves):  # tracers closed over are inputs here
        return *trace_with_tree(fun, *args, **kwargs), None
    out_tree = jax.tree.structure(traced.out_info)
    _jax.own_arrays(jaxpr)
    program = from_jaxpr(jaxpr)
    known.append(as_traced(program, in_tree, out_tree))
    return program, out_tree, jitted


def as_traced(program: Program, in_tree: Any, out_tree: Any) -> Function:
    """The function that was traced, from its program; it raises OtherTypesError where arguments have
    another tree or other types, or the configuration is another one than now.
    """
    config = context_key()

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        avals = (var.aval for var in program.invars)
        is_known = treedef == in_tree and all(map(has_type, map(jax.typeof, leaves), avals))
        if not is_known or context_key() != config or _jax.is_jit_disabled():
            raise OtherTypesError
        return jax.tree.unflatten(out_tree, program(*leaves))

    return run


def has_type(aval: Any, known: Any) -> bool:
    """Whether two types have the same shape and dtype, weak or not."""
    is_weak = getattr(aval, "weak_type", False)
    is_known_weak = getattr(known, "weak_type", False)
    return (aval.shape, aval.dtype, is_weak) == (known.shape, known.dtype, is_known_weak)


def from_jaxpr(jaxpr: Any) -> Program:
    """A `Program` that evaluates an open body or a jaxpr of JAX."""
    body = jaxpr if isinstance(jaxpr, _jax.Body) else _jax.open_jaxpr(jaxpr)
    return Program(body.invars, body.constvars, body.consts, body.eqns, body.outvars)


def type_of(x: Any) -> Any:
    """What stands for a variable, a literal or a value when a function of it is traced: its type
    without its memory.

    Weak types stay, keys are keys; how it is sharded is part of it only where types say so.
    """
    aval = x.aval if isinstance(x, (Var, Literal)) else jax.typeof(x)
    if _jax.explicit_sharding(aval) is not None:
        return aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def evaluator(program: Program) -> Callable[..., Results]:
    """A function `(consts, *leaves) -> outputs` that evaluates the program's equations one by
    one.
    """

    def run(consts: tuple[Any, ...], *leaves: Any) -> Results:
        env: Env = dict(zip(program.constvars, consts, strict=True))
        env.update(zip(program.invars, leaves, strict=True))
        return evaluated(program.eqns, program.outvars, env)

    return run


def evaluated(eqns: Iterable[Equation], outputs: Iterable[Atom], env: Env) -> Results:
    """The outputs of equations, which read the values in `env` and add theirs to it."""
    _jax.evaluate(eqns, env)
    return [_jax.read(atom, env) for atom in outputs]


def evaluated_sparingly(eqns: Sequence[Equation], outputs: Sequence[Atom], env: Env) -> Results:
    """The same where values are arrays: each goes from `env` after its last use.

    Outputs have their types, though terms be added in another order: `add_any`, of which gradients
    are sums, has the weak type of its first operand.
    """
    last = {
        var: number for number, eqn in enumerate(eqns) for var in (*eqn.outvars, *read_vars(eqn))
    }
    last |= dict.fromkeys((atom for atom in outputs if isinstance(atom, Var)), len(eqns))
    for number, eqn in enumerate(eqns):
        _jax.evaluate((eqn,), env)
        for var in dict.fromkeys((*eqn.outvars, *read_vars(eqn))):
            if last[var] == number:
                del env[var]
    return [_jax.typed_as(_jax.read(atom, env), atom.aval) for atom in outputs]


def read_vars(eqn: Equation) -> list[Var]:
    """The variables that an equation reads, literals left out."""
    return [atom for atom in eqn.invars if isinstance(atom, Var)]


def all_read(eqns: Iterable[Equation], outputs: Iterable[Atom] = ()) -> set[Var]:
    """The variables that equations read, and those among outputs."""
    found = {atom for atom in outputs if isinstance(atom, Var)}
    return found.union(reads_of(eqns))


def written_vars(eqn: Equation) -> list[Var]:
    """The variables that an equation writes, dropped ones left out."""
    return [var for var in eqn.outvars if not isinstance(var, _jax.DropVar)]


def reads_of(eqns: Iterable[Equation]) -> list[Var]:
    """The variables that equations read, in order, each as often as it is read."""
    return [var for eqn in eqns for var in read_vars(eqn)]


def writes_of(eqns: Iterable[Equation]) -> list[Var]:
    """The variables that equations write, in order."""
    return [var for eqn in eqns for var in written_vars(eqn)]


class Listing(NamedTuple):
    """Equations by number, each after those that write what it reads, and what each reads, every
    variable once; who writes a variable; how many read it.
    """

    eqns: Sequence[Equation]
    read: Sequence[Sequence[Var]]
    writer: Mapping[Var, int]
    num_readers: Mapping[Var, int]

    def extended(self, eqns: Sequence[Equation]) -> Listing:
        """The same with more equations at the end."""
        if not eqns:
            return self
        read = [tuple(dict.fromkeys(read_vars(eqn))) for eqn in eqns]
        added = {var: n for n, eqn in enumerate(eqns, len(self.eqns)) for var in written_vars(eqn)}
        num_readers = dict(self.num_readers)
        for var in itertools.chain.from_iterable(read):
            num_readers[var] = num_readers.get(var, 0) + 1
        writer = {**self.writer, **added}
        return Listing([*self.eqns, *eqns], [*self.read, *read], writer, num_readers)

    def equation_of(self, var: Var) -> Equation | None:
        """The equation that writes a variable; None for an input or a constant."""
        number = self.writer.get(var)
        return None if number is None else self.eqns[number]


def listing_of(eqns: Sequence[Equation]) -> Listing:
    """The equations of a program, numbered in order."""
    return Listing((), (), {}, {}).extended(eqns)
