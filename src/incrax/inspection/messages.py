"""Errors of reports: what was seen, the usual cause, the consequence, what to do."""

from __future__ import annotations

from incrax.errors import ReportError


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


def no_file_to_write_to(kind: str) -> ReportError:
    """Something else where the name of a file belongs."""
    return ReportError(
        f"`report` got an object of type {kind} for the file to write to, which must be a name or a path. Usually the "
        "arguments of a call were given first, as for `f.explain(*args)`. Nothing was evaluated or written. Call "
        "`f.report(None, *args)`, or `incrax.report(f, *args)`, in which the file is `path=...`."
    )
