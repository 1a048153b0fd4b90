"""incrax: re-evaluate differentiable JAX functions and pay only for what changed.

A call runs through one pipeline: trace, simplify, depend, plan, compile, store, run. `import
incrax` loads that; all else is loaded when it is asked for.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from incrax import (
    _interrupts as _interrupts,
)  # before JAX, an interrupt of whose import crashes the process
from incrax._collection import paused

with paused():  # else the collector walks through all objects of JAX, several times
    from incrax import _cache_folder, _jax_options, _removed
    from incrax import errors as errors
    from incrax._api import incremental
    from incrax._cache_folder import keep_programs
    from incrax._incremental import Incremental
    from incrax._marks import cached, keep
    from incrax._stats import Stats
    from incrax._tuning import Tuning
    from incrax._version import __version__ as __version__
    from incrax.engine.call.verification import verify
    from incrax.engine.inputs.leaves import frozen
    from incrax.engine.inputs.row_updates import at
    from incrax.engine.inputs.rows import Rows
    from incrax.errors import IncraxError, NotCalledError, StaleResultError

if TYPE_CHECKING:
    from incrax import bijectors as bijectors
    from incrax import fit as fit
    from incrax import samplers as samplers
    from incrax.control_flow.loops.padded import Bucketed, Padded, bucketed
    from incrax.control_flow.loops.scan import scan
    from incrax.control_flow.loops.while_loop import while_loop
    from incrax.control_flow.tapes.explanation import TapeExplanation, TapeReport
    from incrax.control_flow.tapes.guarded import Guarded, check_tape, guarded
    from incrax.control_flow.tapes.paths import TapeStats
    from incrax.derivatives.cuts import cut, uncut
    from incrax.derivatives.prepared import Prepared, prepare
    from incrax.derivatives.pullback import Pullback, vjp
    from incrax.derivatives.row_sparse.rows import RowSparse
    from incrax.derivatives.row_sparse.structured import Structured, structured
    from incrax.derivatives.transforms import grad, hessian, hvp, jacobian, jvp, value_and_grad
    from incrax.inspection.assertions import assert_ran
    from incrax.inspection.cost import CostReport, cost
    from incrax.inspection.environment import Environment, cache_folder, environment
    from incrax.inspection.page import Report, report
    from incrax.models.bound import Bound, bind
    from incrax.models.held.holding import EpochGradient, Held, HoldStats, Kept, hold
    from incrax.models.training import Training

_WINGS = ("bijectors", "fit", "samplers")
_LATER = {
    "control_flow.loops.padded": "Bucketed Padded bucketed",
    "control_flow.loops.scan": "scan",
    "control_flow.loops.while_loop": "while_loop",
    "control_flow.tapes.explanation": "TapeExplanation TapeReport",
    "control_flow.tapes.guarded": "Guarded check_tape guarded",
    "control_flow.tapes.paths": "TapeStats",
    "derivatives.cuts": "cut uncut",
    "derivatives.prepared": "Prepared prepare",
    "derivatives.pullback": "Pullback vjp",
    "derivatives.row_sparse.rows": "RowSparse",
    "derivatives.row_sparse.structured": "Structured structured",
    "derivatives.transforms": "grad hessian hvp jacobian jvp value_and_grad",
    "inspection.assertions": "assert_ran",
    "inspection.cost": "CostReport cost",
    "inspection.environment": "Environment cache_folder environment",
    "inspection.page": "Report report",
    "models.bound": "Bound bind",
    "models.held.holding": "EpochGradient Held HoldStats Kept hold",
    "models.training": "Training",
}
_HOMES = {name: module for module, names in _LATER.items() for name in names.split()}
"""Where each name is that is loaded when it is asked for."""

__all__ = [
    "Bound",
    "Bucketed",
    "CostReport",
    "Environment",
    "EpochGradient",
    "Guarded",
    "Held",
    "HoldStats",
    "IncraxError",
    "Incremental",
    "Kept",
    "NotCalledError",
    "Padded",
    "Prepared",
    "Pullback",
    "Report",
    "RowSparse",
    "Rows",
    "StaleResultError",
    "Stats",
    "Structured",
    "TapeExplanation",
    "TapeReport",
    "TapeStats",
    "Training",
    "Tuning",
    "assert_ran",
    "at",
    "bind",
    "bucketed",
    "cache_folder",
    "cached",
    "check_tape",
    "cost",
    "cut",
    "environment",
    "frozen",
    "grad",
    "guarded",
    "hessian",
    "hold",
    "hvp",
    "incremental",
    "jacobian",
    "jvp",
    "keep",
    "keep_programs",
    "prepare",
    "report",
    "scan",
    "structured",
    "uncut",
    "value_and_grad",
    "verify",
    "vjp",
    "while_loop",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for; errors that stood here until 0.1 warn, and are found in
    `incrax.errors`.
    """
    if name in _WINGS:
        return importlib.import_module(f"incrax.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"incrax.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name.endswith("Error") and hasattr(errors, name):
        return _removed.moved(name, f"errors.{name}")
    hint = _removed.advice(name) or _jax_options.hint(name, _jax_options.FUNCTIONS)
    raise AttributeError(f"module 'incrax' has no attribute '{name}'{hint}")


if os.environ.get("INCRAX_REMEMBER") == _cache_folder.PROGRAMS:
    keep_programs()


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, *_WINGS, "errors", "__version__"])
