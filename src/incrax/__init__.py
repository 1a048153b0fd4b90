"""incrax: re-evaluate differentiable JAX functions and pay only for what changed.

A call runs through one pipeline: trace, simplify, depend, plan, compile, store, run.
"""

from incrax._api import incremental
from incrax._errors import (
    DeletedInputError,
    IncraxError,
    MemoryBudgetError,
    MixedRowsError,
    NotCalledError,
    ReentrantCallError,
    RowsError,
    RowShapeError,
    StaleResultError,
    StepTypeError,
    UnknownInputError,
    UnsupportedLeafError,
)
from incrax._incremental import Incremental
from incrax._marks import cached, keep
from incrax._tuning import Tuning
from incrax.running.leaves import frozen
from incrax.running.rows import Rows
from incrax.running.stats import Stats
from incrax.running.verifying import verify
from incrax.sparse.rows import RowSparse
from incrax.sparse.structured import Structured, structured

__all__ = [
    "DeletedInputError",
    "Incremental",
    "IncraxError",
    "MemoryBudgetError",
    "MixedRowsError",
    "NotCalledError",
    "ReentrantCallError",
    "RowShapeError",
    "RowSparse",
    "Rows",
    "RowsError",
    "StaleResultError",
    "Stats",
    "StepTypeError",
    "Structured",
    "Tuning",
    "UnknownInputError",
    "UnsupportedLeafError",
    "cached",
    "frozen",
    "incremental",
    "keep",
    "structured",
    "verify",
]
__version__ = "0.1.0"
