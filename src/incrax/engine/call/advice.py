"""Advice to users whose calls spend their time on what they need not.

In: seconds. Out: warnings. It must not change what is done.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from incrax import _jax
from incrax._messages import large_unchanged
from incrax.engine.compile.timing import Clock
from incrax.engine.plan.facts import Facts

ADVICE_S = 1.0
ADVICE_SHARE = 0.2
"""Seconds that comparing an unchanged array has taken, and their share of all, from which on `frozen` is advised."""


def advise_frozen(unchanged_s: Mapping[int, float], clock: Clock, paths: Sequence[str], facts: Facts) -> bool:
    """Say that large data which stay the same take long to compare, if they do; whether it was said."""
    index, seconds = max(unchanged_s.items(), key=lambda item: item[1])
    if seconds <= ADVICE_S or seconds <= ADVICE_SHARE * (seconds + clock.spent_s):
        return False
    nbytes = _jax.aval_bytes(facts.program.invars[index].aval)
    warnings.warn(large_unchanged(paths[index], nbytes, seconds), UserWarning, stacklevel=4)
    return True
