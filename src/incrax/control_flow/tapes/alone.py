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


class Alone(NamedTuple):
    """A path that is right at some values.

    Fields: `run(*args, **kwargs)` gives its results (rows as long as they are padded), and the
    number of the first guard that does not hold, for arguments of the same structure and types,
    traced or not, anything where static values stand; the number of guards.
    """

    run: Callable[..., tuple[Any, Any]]
    num_guards: int


def path_alone(f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Alone:
    """The path that a call with these values takes.

    Raises:
        TapeError: no tape can hold it; the message says why.

    Cost: a trace of the function, and the equations that its guards depend on.
    """
    given, named, _ = f.marked(args, kwargs)
    signature, leaves = f._subject.signed(given, named)
    subject = f._subject._replace(roots=list(f._subject.roots))  # recording adds to them
    path, _ = make_path(subject, signature, leaves, TapeStats())

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given, named, _ = f.marked(args, kwargs, mark=lambda *_: None)
        leaves = jax.tree.leaves((given, named))
        results, failing = path._run(path.consts, *signature.dynamic_leaves(leaves))
        return jax.tree.unflatten(path.out_tree, results), failing

    return Alone(run, path.num_guards)


def incremental_of(
    f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Sequence[Any]]:
    """The incremental function of the path that these values take, recorded if need be, and its
    arguments.

    Without values that of the path that most calls took. None where there is no path, or it is
    compiled as a whole.
    """
    if not args and not kwargs:
        paths = [path for tape in f._all_tapes() for path in tape.paths]
        return max(paths, key=lambda path: path.hits).incremental if paths else None, ()
    given, named, _ = f.marked(args, kwargs)
    signature, leaves = f._subject.signed(given, named)
    path = f.path_at(signature, leaves)
    return None if path is None else path.incremental, leaves
