"""Errors of reports: what was seen, the usual cause, the consequence, what to do."""

from __future__ import annotations

from incrax._errors import IncraxError


class ReportError(IncraxError, TypeError):
    """There is no page about an object of this kind."""


def no_report(kind: str) -> ReportError:
    """An object that is no incremental function."""
    return ReportError(
        f"`report(f)` got a {kind}. A page shows what an incremental function saves and runs, and this is none. "
        "Usually the plain function was passed instead of what `incremental` or `grad` returned: calls of it are not "
        "tracked. Nothing was evaluated. Pass `incrax.incremental(f)`, call it a few times, and report on that."
    )


def no_report_of_guarded() -> ReportError:
    """A guarded function, which has a program per path."""
    return ReportError(
        "`report(f)` got a function made by `guarded`, which has a program for each path through its branches, each "
        "compiled as a whole: there are no saved values to show. Nothing was evaluated. `f.explain()` lists its paths "
        "and guards; for a page, pass `incrax.incremental(f)` and call it: it saves values for each path."
    )
