"""Random numbers, by the integer operations of Threefry-2x32."""

from __future__ import annotations

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
    """What each key draws, by the places after the axes of the keys; of a batch of keys that are
    not Threefry's the first one draws for all.
    """
    keys, *others = map(rank_of, eqn.invars)
    read = mapped(keys)
    first = keys
    if not _is_threefry(eqn):
        read = Read(tuple(Axis(-1 - d, DRAWN) for d in range(keys)))
        first = 0
    made = Read(tuple(Axis(d, DRAWN) for d in range(first, rank_of(eqn.outvars[-1]))))
    return of_all(eqn, [read, *map(mapped, others), made])


def _folded(eqn: Equation, view: View) -> list[Reads] | None:
    """No claim for other keys, of which some fold in the first number alone."""
    return in_place(eqn, view) if _is_threefry(eqn) else None


def _is_threefry(eqn: Equation) -> bool:
    return eqn.invars[0].aval.dtype.name == "key<fry>"


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

_DRAWN = Primitive(index=_drawn, work=_words)
_MOVED = Primitive(index=in_place, work=no_work)

FAMILY: Family = {
    "random_bits": replace(_DRAWN, is_unfused=True),
    **each("random_split rng_bit_generator", _DRAWN),
    "random_gamma": Primitive(index=_drawn),
    "random_fold_in": Primitive(index=_folded, work=_words),
    "random_seed": Primitive(index=in_place, work=_words),
    "random_clone": _MOVED,
    **each("random_wrap random_unwrap", replace(_MOVED, index=as_words)),
    # Without a rule, since hardly any program of a user has them.
    "threefry2x32": Primitive(work=_words, is_unfused=True),
    "rng_uniform": Primitive(work=_words),
    "iota_2x32_shape": Primitive(work=no_work),
}
