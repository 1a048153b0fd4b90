"""incrax: re-evaluate differentiable JAX functions and pay only for what changed.

A call runs through one pipeline: trace, simplify, depend, plan, compile, store, run.
"""

from incrax._api import Incremental, incremental
from incrax._errors import (
    DeletedInputError,
    IncraxError,
    NotCalledError,
    StepTypeError,
    UnknownInputError,
    UnsupportedLeafError,
)
from incrax._tuning import Tuning
from incrax.running.leaves import frozen
from incrax.running.stats import Stats

__all__ = [
    "DeletedInputError",
    "Incremental",
    "IncraxError",
    "NotCalledError",
    "Stats",
    "StepTypeError",
    "Tuning",
    "UnknownInputError",
    "UnsupportedLeafError",
    "frozen",
    "incremental",
]
__version__ = "0.1.0"
