"""Settings of the engine that change speed, never results."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

from incrax._messages import as_real, checked_count
from incrax._names import groups_in

Planner = Literal["cost", "minimal"]
Policy = Literal["fast", "exact"]


_BY_ESTIMATES = "write `timed=False`, which decides by estimates and built-in prices"
_FIXED = "leave it out, {} are kept"
GONE = {
    "race": _BY_ESTIMATES,
    "race_rounds": "leave it out, the first four runs of each program are timed",
    "calibrate": _BY_ESTIMATES,
    "max_plans": _FIXED.format("64 programs of plans"),
    "max_signatures": _FIXED.format("16 traces"),
    "max_tracked": "leave it out, arrays of up to 256 elements are tracked element by element",
    "history": "leave it out, the log has what calls did (`docs/logging.md`)",
}
"""Options of 0.1, and what to do instead."""


def is_disabled() -> bool:
    """Whether the user turned the engine off by `INCRAX_DISABLE=1`."""
    return os.environ.get("INCRAX_DISABLE") == "1"


def differing(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """The options that differ from their defaults, as a call has them."""
    given = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
    return ", ".join(given)


@dataclass(frozen=True, repr=False)
class Tuning:
    """How plans are chosen. The defaults are for production; tests of counters use
    `planner="minimal"`.

    Args:
        planner: `"cost"` weighs bytes moved against arithmetic and may choose the whole program;
            `"minimal"` runs exactly what the change reaches, saves every value where the inputs that
            values depend on change, and measures nothing.
        hot_after: how often a set of changed inputs must be seen before a plan of its own is
            compiled.
        compile_s: seconds that planning and compiling may take from the first calls on (`"cost"`
            only), and beyond them 2 % of the time spent in programs, or half of what was gained so
            far. A plan that does not fit into these is compiled when it would have repaid that over
            the calls so far.
        timed: whether measured seconds decide. If not, nothing is timed or compiled because of
            them, and the same calls run the same programs on every machine. In runs of several
            processes it is always off.
        calls: how many calls to expect in all, if known: a plan is compiled as soon as it pays over
            as many calls as it will serve, not when the calls so far would have repaid it.
        changing: names of inputs, as `explain()` prints them, of which each is expected to change
            alone, in as many calls as any other (a thousand where `calls` is not given); `*` stands
            for each ("theta[*]"), and several names in a tuple change together.
        remember: keep in the user's cache folder what was learned, and start the next process of
            the same program from it; see `docs/tuning.md`.
        background: compile plans in a thread while the whole function serves (`"cost"` only, and not
            in runs of several processes). None: where `INCRAX_BACKGROUND=1` says so.

    Example:
        >>> import incrax
        >>> least_work = incrax.Tuning(planner="minimal")
        >>> f = incrax.incremental(lambda a, x: a * x**2, tuning=least_work)
        >>> values = f(1.0, 3.0), f(2.0, 3.0)
        >>> f.explain().as_dict()["num_ran"], f.num_equations
        (1, 2)
    """

    planner: Planner = "cost"
    hot_after: int = 2
    compile_s: float = 0.0
    timed: bool = True
    calls: int | None = None
    changing: Iterable[str | Iterable[str]] = ()
    remember: bool = True
    background: bool | None = None

    __signature__: ClassVar[inspect.Signature]
    """What `help` shows: that of `__init__`, not of `__new__`."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Say of an option that went what to write."""
        for name in GONE.keys() & options.keys():
            raise TypeError(f"`Tuning({name}=...)` went with version 0.2: {GONE[name]}.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        if self.planner not in ("cost", "minimal"):
            raise ValueError(
                f'`Tuning(planner=...)` got {self.planner!r}; use "cost" or "minimal".'
            )
        object.__setattr__(self, "changing", groups_in("Tuning(changing=...)", self.changing))
        if self.calls is not None:
            object.__setattr__(self, "calls", checked_count("Tuning(calls=...)", self.calls))
        checked_count("Tuning(hot_after=...)", self.hot_after)
        if not as_real("Tuning(compile_s=...)", self.compile_s) >= 0:
            raise ValueError(
                f"`Tuning(compile_s=...)` got {self.compile_s}; it is a number of seconds, at "
                "least 0."
            )

    def __repr__(self) -> str:
        """What differs from the defaults."""
        return (
            f"Tuning({differing(vars(self), {each.name: each.default for each in fields(self)})})"
        )


Tuning.__signature__ = inspect.signature(Tuning.__init__.__get__(object()))
