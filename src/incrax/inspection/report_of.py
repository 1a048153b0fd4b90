"""`report(f)`: a page about a function, for people."""

from __future__ import annotations

import os
from typing import Any

from incrax._incremental import Incremental
from incrax._messages import not_called
from incrax.control_flow.tapes.alone import incremental_of
from incrax.control_flow.tapes.guarded import Guarded
from incrax.inspection.gathered import gather, subject_of
from incrax.inspection.messages import no_report, no_report_of_guarded
from incrax.inspection.page import Report, checked_path
from incrax.models.bound import Bound


def report(f: Any, /, *args: Any, path: str | os.PathLike[str] | None = None, **kwargs: Any) -> Report:
    """A page about an incremental function: what it saves, what its calls ran, and what a change would cost.

    One HTML file without network access: the equations as a map, coloured by what a change that one chooses makes run,
    loads or leaves alone; the latest calls; plans and the races between them; memory; inputs against work.

    Args:
        f: what `incremental`, `grad`, ... returned, or a model made by `bind` (then the method that was called most);
            of an incremental function with Python branches (`incremental(guarded(f))`), the page is about the path that
            the arguments take, recorded if need be, or the one that most calls took.
        *args: arguments of a call to report on, as for `explain`; without any, the last call's signature. Nothing is
            evaluated.
        path: a file to write the page to. An argument of `f` with this name is given by position.
        **kwargs: keyword arguments of that call.

    Returns:
        A `Report`: `save(path)`, `html`, `as_dict()`; shows itself in a notebook.

    Raises:
        NotCalledError: without arguments before the first call.
        ReportError: `f` is of another kind, or guarded and not incremental: it saves nothing; or `path` is no path.
        OSError: the file cannot be written.

    Cost: for 5,000 equations a few seconds; nothing compiles. What calls did is known for the latest
        `Tuning(history=...)` of them.

    Not handled: measured seconds per equation. Programs are timed, and the time of one is divided among its equations
        as they are estimated; the page says which is which.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(jnp.exp(x)))
        >>> value = f(2.0, jnp.zeros(3)), f(3.0, jnp.zeros(3))
        >>> incrax.report(f).as_dict()["calls"]["num"]
        2
    """
    if isinstance(f, Guarded):
        f, args, kwargs = _path_of(f, args, kwargs)
    function = _most_called(f) if isinstance(f, Bound) else f
    if not isinstance(function, Incremental):
        raise no_report(type(f).__name__)
    target = checked_path(path)
    page = _page(function, args, kwargs)
    if target is not None:
        page.save(target)
    return page


def _page(function: Incremental[..., Any], args: Any, kwargs: Any) -> Report:
    """About the signature of some arguments, or the last call's; no call runs meanwhile."""
    with function._locked():
        counters = function.stats.as_dict()
        subject = subject_of(function._name, function._traces, function._rows, counters, args, kwargs)
        return Report(gather(subject))


def _path_of(f: Guarded[..., Any], args: Any, kwargs: Any) -> tuple[Incremental[..., Any], Any, dict[str, Any]]:
    """The incremental function of a path, and the arguments to report on, which are its leaves."""
    if f._make is None:
        raise no_report_of_guarded()
    function, leaves = incremental_of(f, args, kwargs)
    if function is None:
        raise not_called("report()")
    return function, leaves, {}


def _most_called(model: Bound) -> Incremental[..., Any]:
    """The method of a bound model that was called most; its value, if none was."""
    functions = model.functions.values()
    return max(functions, key=lambda function: function.stats.calls) if functions else model.function
