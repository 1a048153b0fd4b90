"""Random numbers, by the integer operations of Threefry-2x32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.entry import EquationWork, Family, Primitive, each, no_work

WORD_INT_OPS = 60
"""Per 32-bit word: 20 rounds of 5, and 19 for keys, give two."""


def _words(eqn: Equation) -> EquationWork:
    words = sum(_jax.aval_size(var.aval) * max(_word_bytes(var.aval), 4) / 4 for var in eqn.outvars)
    return EquationWork(int_ops=WORD_INT_OPS * words)


def _word_bytes(aval: Any) -> float:
    """A typed key is two words."""
    return 8 if _jax.is_key_dtype(aval.dtype) else np.dtype(aval.dtype).itemsize


_MIXED = Primitive(work=_words)
_DRAWN = replace(_MIXED, draws=True)

FAMILY: Family = {
    **each("random_bits threefry2x32", replace(_DRAWN, is_unfused=True)),
    **each("random_split rng_bit_generator", _DRAWN),
    "random_gamma": Primitive(draws=True),
    **each("random_seed random_fold_in rng_uniform", _MIXED),
    **each("iota_2x32_shape random_clone random_unwrap random_wrap", Primitive(work=no_work)),
}
