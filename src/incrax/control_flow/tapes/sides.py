"""What rewritten functions call: two sides of a branch become one `lax.cond` if that cannot be noticed.

In: the test of a branch and both sides as functions. Out: chosen values, or none, so that Python decides. It must not
know which paths there are.

Law: code on a side only assigns variables of its function, and reads values of types listed here, whose operations
change nothing. So running both sides leaves Python as it was, and what follows depends on the side by those variables
alone. Each of them is an array of one type on both sides, or the same on both.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from incrax import _jax
from incrax._locations import NO_VALUE, is_installed
from incrax._program import STATEFUL, Program, from_jaxpr
from incrax.control_flow.tapes.captured import all_codes
from incrax.control_flow.tapes.conversions import is_without_values, without_values
from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.reading import MAX_LEVELS, SCALARS, Reading, Unbound, hides_code, is_quiet
from incrax.control_flow.tapes.rewriting import rewritten_code
from incrax.control_flow.tapes.syntax import OURS, Refused
from incrax.engine.program.simplify import needed_equations

_NO_VALUE = "Python asks for a value on a side"
MAX_DEPTH = 8
"""Calls of functions of the user inside one another on a side, at most."""

_IDENTITY = (id, operator.is_, operator.is_not)


class Outcome(NamedTuple):
    """What a branch is: a test for Python, or chosen values."""

    test: Any
    is_merged: bool = False
    values: tuple[Any, ...] = ()


class Side(NamedTuple):
    """One side: its program, and what it leaves: a tree of arrays (with their number and type) and other values."""

    program: Program
    tree: Any
    leaves: list[Any]
    types: list[Any]
    values: tuple[Any, ...]


class Sides(Reading):
    """What rewritten functions call, and what became of their branches."""

    def __init__(self, stats: TapeStats) -> None:
        self.stats = stats
        self.merged: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.origins: dict[types.CodeType, types.CodeType] = {}
        self.asks_identity = self.compares = False
        self.depth, self.too_deep = 0, set[types.CodeType]()

    @property
    def is_late(self) -> bool:
        """Whether a comparison by identity was found only by running."""
        return self.compares and not self.asks_identity

    def note_identity(self, codes: Iterable[types.CodeType], captured: Iterable[int]) -> None:
        """Whether code of the function, or a function that it captures (by number), compares objects by identity."""
        self.asks_identity = (
            self.compares or any(map(asks_identity, codes)) or not set(map(id, _IDENTITY)).isdisjoint(captured)
        )

    # --- functions ------------------------------------------------------------------------------------------------

    def inner(self, fun: Any, depth: int = MAX_LEVELS) -> Any:
        """A function with its branches rewritten; itself if it cannot be."""
        return self._changed(fun, lambda f: self._copy(f, is_side=False), depth)

    def _changed(self, fun: Any, change: Callable[[Any], Any], depth: int) -> Any:
        """A function of the user changed, inside a method or a wrapper of JAX too."""
        self.compares = self.compares or any(fun is x for x in _IDENTITY)
        if isinstance(fun, types.MethodType):
            return types.MethodType(self._changed(fun.__func__, change, depth), fun.__self__)
        call = inspect.getattr_static(type(fun), "__call__", None)
        if isinstance(call, types.FunctionType) and not is_installed(call.__code__.co_filename):
            return types.MethodType(change(call), fun)
        if not isinstance(fun, types.FunctionType) or not depth or hasattr(fun, OURS):
            return fun
        if not is_installed(fun.__code__.co_filename):
            return change(fun)
        cells = [self._cell(cell, change, depth - 1) for cell in fun.__closure__ or ()]
        return fun if all(map(_is, cells, fun.__closure__ or ())) else _with(fun, fun.__code__, cells)

    def _cell(self, cell: Any, change: Callable[[Any], Any], depth: int) -> Any:
        try:
            old = cell.cell_contents
        except ValueError:
            return cell
        new = self._changed(old, change, depth)
        return cell if new is old else types.CellType(new)

    def _copy(self, fun: types.FunctionType, *, is_side: bool) -> Any:
        try:
            code = rewritten_code(fun, is_side=is_side)
        except Refused as error:
            if is_side:
                raise
            self.reasons.setdefault(f"`{fun.__name__}`", str(error))
            return fun
        self.origins.update(dict.fromkeys(all_codes(code), fun.__code__))
        cells = dict(zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True))
        cells[OURS] = types.CellType(self)
        return _with(fun, code, [cells[name] for name in code.co_freevars])

    def _for_side(self, fun: types.FunctionType) -> Any:
        """A function of the user that refuses to change anything while it runs on a side."""

        @functools.wraps(fun)
        def on_side(*args: Any, **kwargs: Any) -> Any:
            if not is_without_values():
                return fun(*args, **kwargs)
            if self.depth == MAX_DEPTH or fun.__code__ in self.too_deep:
                self.too_deep.add(fun.__code__)
                raise Refused(f"more than {MAX_DEPTH} calls inside one another on a side, by `{fun.__name__}`")
            self.depth += 1
            try:
                return self._copy(fun, is_side=True)(*args, **kwargs)
            finally:
                self.depth -= 1

        setattr(on_side, OURS, True)
        return on_side

    def function(self, value: Any) -> Any:
        """A function that a side may call: one of the user is watched, one of JAX is pure."""
        fun = value.__func__ if isinstance(value, types.MethodType) else value
        is_of_user = isinstance(fun, types.FunctionType) and not is_installed(fun.__code__.co_filename)
        if not is_of_user and not (isinstance(fun, types.FunctionType) and (hasattr(fun, OURS) or is_quiet(fun))):
            raise Refused(f"a side calls `{getattr(fun, '__name__', fun)}` of a package, which could have effects")
        if not is_of_user and not hasattr(fun, OURS) and hides_code(fun):
            raise Refused(f"a side calls `{fun.__name__}`, which runs a function of yours that cannot be watched")
        if not is_of_user and fun is not value:
            self.plain(value.__self__)
        return self._changed(value, self._for_side, MAX_LEVELS)

    def kept(self, test: Any, place: str, reason: str) -> Any:
        """The test of a branch that stays as it is."""
        if isinstance(test, _jax.Tracer):
            self.reasons.setdefault(place, reason)
        return test

    def negation(self, test: Any) -> Any:
        """`not test`."""
        if not isinstance(test, _jax.Tracer) or test.size != 1:
            return not bool(test)
        return ~_flag(test)

    # --- branches -------------------------------------------------------------------------------------------------

    def merge(self, place: str, test: Any, values: Any, yes: Any, no: Any, names: Sequence[Any]) -> Outcome:
        """What is chosen by a test from what both sides give; Python's own choice if that is not the same."""
        if not isinstance(test, _jax.Tracer):
            return Outcome(test)
        try:
            return Outcome(test, is_merged=True, values=self._chosen(place, test, values, yes, no, names))
        except Refused as error:
            self.reasons.setdefault(place, str(error))
            return Outcome(test)

    def either(self, place: str, test: Any, values: Any, yes: Any, no: Any, names: Sequence[Any]) -> tuple[Any, ...]:
        """The same inside a side, where Python cannot choose by a traced value."""
        if isinstance(test, _jax.Tracer):
            return self._chosen(place, test, values, yes, no, names)
        return (yes if test else no)(*map(self._value, values))

    def _value(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except NameError:
            return self.unbound

    def _chosen(self, place: str, test: Any, values: Any, yes: Any, no: Any, names: Sequence[Any]) -> tuple[Any, ...]:
        if test.size != 1:
            raise Refused("an array of several elements is no test")
        bound = [self._value(read) for read in values]
        try:
            first, second = (_traced(side, bound, is_flag=names == [None]) for side in (yes, no))
            chosen = self._conditional(_flag(test), first, second, names)
        except NO_VALUE:
            raise Refused(_NO_VALUE) from None
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__} is raised on a side") from error
        self.merged[place] = ""
        return chosen

    def _conditional(self, flag: Any, yes: Side, no: Side, names: Sequence[Any]) -> tuple[Any, ...]:
        """What both sides leave, chosen by a flag; only one of them is evaluated."""
        numbers = _different(yes, no, names)
        leaves = list(yes.leaves)
        is_new = numbers or any(type(a) is tuple and a is not b for a, b in zip(yes.values, no.values, strict=True))
        if is_new and self.asks_identity:
            raise Refused("the function compares by `is` or `id`, and what is chosen is a new object")
        if numbers:
            chosen = lax.cond(flag, lambda: _evaluated(yes, numbers), lambda: _evaluated(no, numbers))
            if [_type(x) for x in chosen] != [yes.types[n] for n in numbers]:
                raise Refused("the types of a `lax.cond` are others")
            self.stats.merged += 1
            for n, x in zip(numbers, chosen, strict=True):
                leaves[n] = x
        chosen = jax.tree.unflatten(yes.tree, leaves)
        return tuple(a if a is b else c for a, b, c in zip(yes.values, no.values, chosen, strict=True))


def asks_identity(code: types.CodeType) -> bool:
    """Whether code asks if two things are one object; comparing with a constant is no such question."""
    listing = list(dis.get_instructions(code))
    asks = any(b.opname == "IS_OP" and a.opname != "LOAD_CONST" for a, b in zip(listing, listing[1:], strict=False))
    return asks or not {"id", "is_", "is_not"}.isdisjoint(code.co_names)


# --- values -----------------------------------------------------------------------------------------------------------


def _is(a: Any, b: Any) -> bool:
    return a is b


def _with(fun: types.FunctionType, code: types.CodeType, cells: Iterable[Any]) -> types.FunctionType:
    """A function with other code and cells."""
    copy = types.FunctionType(code, fun.__globals__, fun.__name__, fun.__defaults__, tuple(cells))
    copy.__kwdefaults__, copy.__qualname__, copy.__module__ = fun.__kwdefaults__, fun.__qualname__, fun.__module__
    copy.__dict__.update(fun.__dict__)
    return copy


def _flag(x: Any) -> Any:
    """The truth of a value as a boolean scalar."""
    if not isinstance(x, jax.Array):
        return jnp.asarray(bool(x))
    if x.size != 1:
        raise Refused("an array of several elements is no test")
    return x.reshape(()) if x.dtype == bool else x.reshape(()) != 0


def _type(x: Any) -> Any:
    """The type of an array; None of what is none."""
    return (x.shape, x.dtype, getattr(x, "weak_type", False)) if isinstance(x, jax.Array) else None


def _traced(side: Callable[..., tuple[Any, ...]], bound: Sequence[Any], *, is_flag: bool) -> Side:
    """A side, without Python knowing any value.

    Raises:
        Refused: it has effects.
    """
    found: list[Any] = []

    def run() -> list[Any]:
        results = side(*bound)
        results = tuple(map(_flag, results)) if is_flag else results
        leaves, tree = jax.tree.flatten(results, is_leaf=lambda x: type(x) is not tuple)
        found.extend((tree, leaves, [_type(x) for x in leaves], results))
        return [x for x in leaves if isinstance(x, jax.Array)]

    with without_values(Refused(_NO_VALUE)):
        program = from_jaxpr(_jax.trace_body(run))
    for eqn in program.eqns:
        if eqn.effects or _is_stateful(eqn):
            raise Refused(f"`{eqn.primitive.name}` on a side is an effect ({_jax.source_line(eqn)})")
    return Side(program, *found)


def _is_stateful(eqn: Any) -> bool:
    return eqn.primitive.name in STATEFUL or any(map(_is_stateful, (x for b in _jax.sub_bodies(eqn) for x in b.eqns)))


def _different(yes: Side, no: Side, names: Sequence[Any]) -> list[int]:
    """Which arrays are not one object on both sides.

    Raises:
        Refused: they are of other types, or values of Python differ.
    """
    if yes.tree != no.tree:
        raise Refused(f"the sides give tuples of different lengths for one of {', '.join(map(str, names))}")
    owners = [n for n, tree in enumerate(yes.tree.children()) for _ in range(tree.num_leaves)]
    found = []
    for n, (a, b) in enumerate(zip(yes.leaves, no.leaves, strict=True)):
        if a is b or _are_equal_constants(a, b):
            continue
        if yes.types[n] is None or yes.types[n] != no.types[n]:
            raise Refused(f"`{names[owners[n]]}` is {_shown(a)} on one side and {_shown(b)} on the other")
        found.append(n)
    return found


def _are_equal_constants(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in SCALARS and repr(a) == repr(b)


def _shown(x: Any) -> str:
    if isinstance(x, Unbound):
        return "without a value"
    if not isinstance(x, jax.Array):
        return f"{x!r:.40}" if type(x) in SCALARS else f"a {type(x).__name__}"
    return f"an array {x.dtype.name}{list(x.shape)}{' of weak type' if getattr(x, 'weak_type', False) else ''}"


def _evaluated(side: Side, numbers: Sequence[int]) -> list[Any]:
    """Some of what a side leaves, in the present trace."""
    program = side.program
    positions = [sum(kind is not None for kind in side.types[:n]) for n in numbers]
    atoms = [program.outvars[position] for position in positions]
    env: dict[Any, Any] = dict(zip(program.constvars, program.consts, strict=True))
    _jax.evaluate(needed_equations(program.eqns, atoms), env)
    return [_as_array(atom, env) for atom in atoms]


def _as_array(atom: Any, env: dict[Any, Any]) -> Any:
    if not isinstance(atom, _jax.Literal):
        return env[atom]
    value = jnp.asarray(atom.val, atom.aval.dtype)
    return _jax.as_weak(value) if getattr(atom.aval, "weak_type", False) else value
