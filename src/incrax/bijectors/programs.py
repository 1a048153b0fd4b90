"""Passes through a bijection, compiled where that is safe.

In: a bijection and its state. Out: `Programs`, which evaluates passes and log-determinants. Invariant: what a program
was traced for (the `_Code`) is compared by value, and a bijection that can be changed in place without its `_Code`
changing is evaluated without compilation.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from operator import is_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax.bijectors.protocol import Adapter, Pass
from incrax.bijectors.state import Watch, watch
from incrax.engine.program.passes import KEPT, LADJ, OUTPUT, Key, claim


class _Code:
    """A bijection without its leaves that are arrays: what its programs are compiled for. Hashable."""

    __slots__ = ("adapter", "functions", "hash", "hidden", "leaves", "rebuilt", "state", "treedef")

    def __init__(self, adapter: Adapter, seen: Watch, leaves: tuple[Any, ...], treedef: Any) -> None:
        self.adapter, self.state, self.treedef = adapter, seen.state, treedef
        self.leaves = tuple(_ARRAY if _is_array(leaf) else leaf for leaf in leaves)
        self.functions = [reference() for reference in seen.state.functions]  # alive as long as this
        numbers = {id(leaf) for leaf in leaves}
        rebuilt = watch(jax.tree.unflatten(treedef, leaves))
        self.rebuilt = rebuilt.state
        self.hidden = [array for array in rebuilt.arrays if id(array) not in numbers]  # closed over: constants
        self.hash = hash(seen.state.tags)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, _Code) or self.adapter is not other.adapter:
            return False
        return self.state.is_same_code(other.state) and _are_same(self.hidden, other.hidden)

    def bijection(self, arrays: tuple[Any, ...]) -> Any:
        """The bijection with the given arrays, which are tracers.

        Raises:
            _ChangedError: what is no array was changed in place since.
        """
        rest = iter(arrays)
        found = jax.tree.unflatten(self.treedef, [next(rest) if leaf is _ARRAY else leaf for leaf in self.leaves])
        seen = watch(found)
        given = set(map(id, arrays))
        hidden = [array for array in seen.arrays if id(array) not in given]
        if not seen.state.is_same_code(self.rebuilt) or not _are_same(hidden, self.hidden):
            raise _ChangedError
        return found


def _are_same(arrays: list[Any], others: list[Any]) -> bool:
    return len(arrays) == len(others) and all(map(is_, arrays, others))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)


class _ChangedError(Exception):
    """A bijection that a program is compiled for is no more what it was."""


_ARRAY = object()


class Programs:
    """The passes through one bijection in one state, compiled where that is safe.

    Under a transformation a compiled pass is a `jit` equation named after the bijection's number, and what it returns
    is marked. A concrete result is an array object of its own, unless a derivative was taken of an identity.
    """

    __slots__ = ("_arrays", "_calls", "_is_split", "_watch", "adapter", "bijection")

    def __init__(self, bijection: Any, adapter: Adapter, seen: Watch) -> None:
        self.bijection, self.adapter, self._watch = bijection, adapter, seen
        self._is_split = False
        self._calls: _Calls | None = None
        self._arrays: tuple[Any, ...] = ()

    def run(self, direction: str, value: Any, context: Any, requires_ladj: bool) -> Pass:
        """One pass."""
        calls = self._compiled()
        if calls is not None:
            try:
                return calls.passes[direction, requires_ladj](self._arrays, value, context)
            except _ChangedError:
                self._calls = None
        found = getattr(self.adapter, direction)(self.bijection, value, context, requires_ladj=requires_ladj)
        return jax.tree.map(_own, found)

    def ladj(self, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        """The log-determinant of the forward pass."""
        calls = self._compiled()
        if calls is not None:
            try:
                return calls.ladj(self._arrays, x, y, context, intermediates)
            except _ChangedError:
                self._calls = None
        return _own(self.adapter.ladj(self.bijection, x, y, context, intermediates))

    def types(self, direction: str, value: Any, context: Any) -> Pass | None:
        """The types that a pass would give; None if they cannot be told without it."""
        try:
            output, ladj = self._types(direction, value, context)[:2]
        except Exception:  # of another library, which may have no pass in this direction
            return None
        return Pass(output, ladj, None)

    def _types(self, direction: str, value: Any, context: Any) -> Any:
        calls = self._compiled()
        if calls is not None:
            return calls.passes[direction, True].eval_shape(self._arrays, value, context)
        run: Callable[..., Pass] = getattr(self.adapter, direction)
        return jax.eval_shape(lambda v, c: run(self.bijection, v, c, requires_ladj=True)[:2], value, context)

    def _compiled(self) -> _Calls | None:
        if not self._is_split:
            code, self._arrays = _split(self.bijection, self.adapter, self._watch)
            self._calls, self._is_split = None if code is None else _calls_of(code), True
        return None if _jax.is_jit_disabled() else self._calls


def _own(x: Any) -> Any:
    """An array that is no other object: what runs without compilation may hand on its input, or a parameter."""
    return jnp.array(x) if isinstance(x, (_jax.ArrayImpl, np.ndarray)) else x


class _Calls:
    """The compiled passes of what equal `_Code`s stand for, and their number in jaxprs."""

    def __init__(self, code: _Code) -> None:
        self.number = next(_numbers)
        self.key = Key(self.number, lambda arrays, x, y, context: self.ladj(arrays, x, y, context, None))
        self.passes: dict[tuple[str, bool], Any] = {
            (direction, requires): _pass_of(code, self, direction, requires)
            for direction in ("forward", "inverse")
            for requires in (False, True)
        }
        self.ladj = _ladj_of(code, self)


_numbers = itertools.count()
_calls_of = functools.lru_cache(maxsize=1024)(_Calls)


def _named(name: str, calls: _Calls, run: Callable[..., Any]) -> Any:
    run.__name__ = run.__qualname__ = f"incrax_bijection_{calls.number}_{name}"
    return jax.jit(run)


def _pass_of(code: _Code, calls: _Calls, direction: str, requires_ladj: bool) -> Any:
    """(arrays, value, context) -> `Pass`."""

    def run(arrays: Any, value: Any, context: Any) -> Pass:
        def plain(arrays: Any, value: Any, context: Any) -> Pass:
            run: Callable[..., Pass] = getattr(code.adapter, direction)
            return run(code.bijection(arrays), value, context, requires_ladj=requires_ladj)

        found = _without_unused(plain, arrays, value, context)
        results, treedef = jax.tree.flatten(found)
        kinds = [OUTPUT, *([] if found.ladj is None else [LADJ])]
        kinds += [KEPT] * (len(results) - len(kinds))
        inputs = [*arrays, value, *_context(context)]
        return jax.tree.unflatten(treedef, claim(calls.key, direction, results, kinds, inputs, context is not None))

    return _named(direction, calls, run)


def _ladj_of(code: _Code, calls: _Calls) -> Any:
    """(arrays, x, y, context, intermediates) -> the log-determinant of the forward pass."""

    def run(arrays: Any, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        def plain(arrays: Any, *operands: Any) -> Any:
            return code.adapter.ladj(code.bijection(arrays), *operands)

        found = _without_unused(plain, arrays, x, y, context, intermediates)
        inputs = [*arrays, x, y, *_context(context)]
        return claim(calls.key, LADJ, [found], [LADJ], inputs, context is not None)[0]

    return _named(LADJ, calls, run)


def _context(context: Any) -> list[Any]:
    return [] if context is None else [context]


def _without_unused(f: Callable[..., Any], *operands: Any) -> Any:
    """What a function returns, without evaluating what its results do not need; XLA leaves some of that in."""
    leaves, treedef = jax.tree.flatten(operands)
    body, tree = _traced(lambda *leaves: f(*jax.tree.unflatten(treedef, leaves)), leaves)
    kept, is_used = _jax.pruned(body)
    env = dict(zip(kept.constvars, kept.consts, strict=True))
    env.update(zip(kept.invars, itertools.compress(leaves, is_used), strict=True))
    _jax.evaluate(kept.eqns, env)
    return jax.tree.unflatten(tree, [_jax.read(atom, env) for atom in kept.outvars])


def _traced(f: Callable[..., Any], leaves: list[Any]) -> tuple[_jax.Body, Any]:
    """A function of arrays as a jaxpr, and the tree of its results."""
    trees = []

    def flat(*leaves: Any) -> list[Any]:
        results, tree = jax.tree.flatten(f(*leaves))
        trees.append(tree)
        return results

    return _jax.trace_body(flat, *leaves), trees[-1]


def _split(bijection: Any, adapter: Adapter, seen: Watch) -> tuple[_Code | None, tuple[Any, ...]]:
    """What the programs are compiled for, and their arrays; None where compiling is not safe."""
    leaves, treedef = jax.tree.flatten(bijection)
    is_leaf = len(leaves) == 1 and leaves[0] is bijection
    if is_leaf or seen.state.is_opaque:
        return None, ()
    if seen.state.is_traced and _hides_tracers(leaves, treedef):
        return None, ()
    return _Code(adapter, seen, tuple(leaves), treedef), tuple(filter(_is_array, leaves))


def _hides_tracers(leaves: list[Any], treedef: Any) -> bool:
    """Whether a tracer is also found elsewhere than in the leaves; what is compiled would keep it."""
    try:
        rest = jax.tree.unflatten(treedef, [None if _is_array(leaf) else leaf for leaf in leaves])
    except Exception:  # of a class that takes arrays only
        return True
    return watch(rest).state.is_traced
