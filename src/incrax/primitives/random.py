"""Random numbers, by the integer operations of Threefry-2x32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.elementwise import as_words, in_place
from incrax.primitives.entry import (
    Axis,
    EquationWork,
    Family,
    IndexRule,
    Kind,
    Primitive,
    Read,
    Reads,
    View,
    each,
    mapped,
    no_work,
    of_all,
    rank_of,
)

DRAWN = Kind("draws the random numbers of all rows from one key", is_final=True)

# --- index rules ----------------------------------------------------------------------------------


def _drawn(eqn: Equation, _: View) -> list[Reads]:
    """What each key draws, by the places after the axes of the keys."""
    ranks = list(map(rank_of, eqn.invars))
    places = range(ranks[0], rank_of(eqn.outvars[0]))
    made = Read(tuple(Axis(d, DRAWN) for d in places))
    return of_all(eqn, [*map(mapped, ranks), made])


def _of_threefry(rule: IndexRule) -> IndexRule:
    """No claim for other keys: of a batch of "rbg" the first one draws for all."""

    def index(eqn: Equation, view: View) -> Sequence[Reads] | None:
        return rule(eqn, view) if eqn.invars[0].aval.dtype.name == "key<fry>" else None

    return index


# --- work -----------------------------------------------------------------------------------------

WORD_INT_OPS = 60
"""Per 32-bit word: 20 rounds of 5, and 19 for keys, give two."""


def _words(eqn: Equation) -> EquationWork:
    words = sum(_jax.aval_size(var.aval) * max(_word_bytes(var.aval), 4) / 4 for var in eqn.outvars)
    return EquationWork(int_ops=WORD_INT_OPS * words)


def _word_bytes(aval: Any) -> float:
    """A typed key is two words."""
    return 8 if _jax.is_key_dtype(aval.dtype) else np.dtype(aval.dtype).itemsize


# --- entries --------------------------------------------------------------------------------------

_BY_PLACE = Primitive(index=_of_threefry(_drawn), draws=True)
_DRAWN = replace(_BY_PLACE, work=_words)
_MOVED = Primitive(index=in_place, work=no_work)

FAMILY: Family = {
    "random_bits": replace(_DRAWN, is_unfused=True),
    "random_split": _DRAWN,
    "random_gamma": _BY_PLACE,
    "random_fold_in": Primitive(index=_of_threefry(in_place), work=_words),
    "random_seed": Primitive(index=in_place, work=_words),
    "random_clone": _MOVED,
    **each("random_wrap random_unwrap", replace(_MOVED, index=as_words)),
    # Without a rule, since no program of a user has them.
    "threefry2x32": Primitive(work=_words, draws=True, is_unfused=True),
    "rng_bit_generator": Primitive(work=_words, draws=True),
    "rng_uniform": Primitive(work=_words),
    "iota_2x32_shape": Primitive(work=no_work),
}
