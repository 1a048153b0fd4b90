"""One path of a guarded function, for others to look at.

In: a guarded function and the values of a call. Out: the path that they take as a function of
arguments like these, recorded apart from those that calls take; or the incremental function that
evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.guarded import Guarded
from incrax.control_flow.tapes.making import make_path
from incrax.control_flow.tapes.statics import split
from incrax.engine.inputs.signature import make_signature


class Alone(NamedTuple):
    """A path that is right at some values.

    Fields: `run(*args, **kwargs)` gives its results, and the number of the first guard that does
    not hold, for arguments of the same structure and types, traced or not; the number of guards.
    """

    run: Callable[..., tuple[Any, Any]]
    num_guards: int


def path_alone(f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Alone:
    """The path that a call with these values takes.

    Raises:
        TapeError: no tape can hold it; the message says why.

    Cost: a trace of the function, and the equations that its guards depend on.
    """
    if f._ragged is not None:
        return _of_rows(f, args, kwargs)
    if f._statics:
        return _of_statics(f, args, kwargs)
    signature = make_signature(f._fun, args, kwargs, is_watched=True)
    leaves = signature.dynamic_leaves(jax.tree.leaves((args, kwargs)))
    subject = f._subject._replace(roots=list(f._subject.roots))  # recording adds to them
    path, _ = make_path(subject, signature, leaves, TapeStats())

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        leaves = signature.dynamic_leaves(jax.tree.leaves((args, kwargs)))
        results, failing = path._run(path.consts, *leaves)
        return jax.tree.unflatten(path.out_tree, results), failing

    return Alone(run, path.num_guards)


def _of_rows(f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Alone:
    """The path of padded arguments, its results as long as they are padded."""
    assert f._ragged is not None
    padded = f._ragged.padded
    given, named, _ = padded(args, kwargs)
    found = path_alone(f._rows_kin(), given, named)

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given, named, _ = padded(args, kwargs)
        return found.run(*given, **named)

    return found._replace(run=run)


def _of_statics(f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Alone:
    """The path of these static values; where they stand, `run` takes anything."""
    parts = split(f._fun, f._statics, args, kwargs)
    statics = f._statics
    found = path_alone(f._static_kin(parts), parts.args, parts.kwargs)

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        others = [x for number, x in enumerate(args) if number not in statics.positions]
        return found.run(
            *others, **{name: x for name, x in kwargs.items() if name not in statics.names}
        )

    return found._replace(run=run)


def incremental_of(
    f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """The incremental function of the path that these values take, recorded if need be, and its
    arguments.

    Without values that of the path that most calls took. None where there is no path, or it is
    compiled as a whole.
    """
    if not args and not kwargs:
        paths = [path for tape in f._all_tapes() for path in tape.tree.paths]
        return max(paths, key=lambda path: path.hits).incremental if paths else None, ()
    if f._ragged is not None:
        args, kwargs, _ = f._ragged.padded(args, kwargs)
        return incremental_of(f._rows_kin(), args, kwargs)
    if f._statics:
        parts = split(f._fun, f._statics, args, kwargs)
        return incremental_of(f._static_kin(parts), parts.args, parts.kwargs)
    signature = make_signature(f._fun, args, kwargs, is_watched=True)
    leaves = signature.dynamic_leaves(jax.tree.leaves((args, kwargs)))
    path = f._path_at(signature, leaves)
    return None if path is None else path.incremental, leaves
