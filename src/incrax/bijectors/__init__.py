"""Bijections whose outputs remember where they came from: the inverse and the log-density of a
sample are free.
"""

from incrax._removed import finder
from incrax.bijectors.adapters import NotABijectionError
from incrax.bijectors.jitting import jit
from incrax.bijectors.memory import Origin, forget, memory_of
from incrax.bijectors.remembered import Remembered, remember
from incrax.bijectors.switches import (
    is_recording,
    requires_ladj,
    set_record_flow_graph,
    set_requires_ladj,
)

__all__ = [
    "NotABijectionError",
    "Origin",
    "Remembered",
    "forget",
    "is_recording",
    "jit",
    "memory_of",
    "remember",
    "requires_ladj",
    "set_record_flow_graph",
    "set_requires_ladj",
]

__getattr__ = finder("bijectors")
