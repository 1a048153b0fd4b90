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

with paused:  # else the collector walks through all objects of JAX, several times
    from incrax import _cache_folder, _jax_options, _removed
    from incrax import errors as errors
    from incrax._api import incremental as incremental
    from incrax._cache_folder import keep_programs as keep_programs
    from incrax._incremental import Incremental as Incremental
    from incrax._marks import cached as cached
    from incrax._marks import keep as keep
    from incrax._stats import Stats as Stats
    from incrax._tuning import Tuning as Tuning
    from incrax._version import __version__ as __version__
    from incrax.engine.call.verification import verify as verify
    from incrax.engine.inputs.leaves import frozen as frozen
    from incrax.engine.inputs.row_updates import at as at
    from incrax.engine.inputs.rows import Rows as Rows
    from incrax.errors import IncraxError as IncraxError
    from incrax.errors import NotCalledError as NotCalledError
    from incrax.errors import StaleResultError as StaleResultError

if TYPE_CHECKING:
    from incrax import bijectors as bijectors
    from incrax import fit as fit
    from incrax import samplers as samplers
    from incrax.control_flow.loops.bucketed import Bucketed as Bucketed
    from incrax.control_flow.loops.bucketed import bucketed as bucketed
    from incrax.control_flow.loops.padded import Padded as Padded
    from incrax.control_flow.loops.scan import map as map
    from incrax.control_flow.loops.scan import scan as scan
    from incrax.control_flow.loops.selecting import select_rows as select_rows
    from incrax.control_flow.loops.while_loop import while_loop as while_loop
    from incrax.control_flow.tapes.api import check_tape as check_tape
    from incrax.control_flow.tapes.api import guarded as guarded
    from incrax.control_flow.tapes.explanation import TapeExplanation as TapeExplanation
    from incrax.control_flow.tapes.explanation import TapeReport as TapeReport
    from incrax.control_flow.tapes.guarded import Guarded as Guarded
    from incrax.control_flow.tapes.paths import TapeStats as TapeStats
    from incrax.derivatives.cuts import cut as cut
    from incrax.derivatives.cuts import uncut as uncut
    from incrax.derivatives.prepared import Prepared as Prepared
    from incrax.derivatives.prepared import prepare as prepare
    from incrax.derivatives.pullback import Pullback as Pullback
    from incrax.derivatives.pullback import vjp as vjp
    from incrax.derivatives.row_sparse.rows import RowSparse as RowSparse
    from incrax.derivatives.row_sparse.structured import Structured as Structured
    from incrax.derivatives.row_sparse.structured import structured as structured
    from incrax.derivatives.transforms import grad as grad
    from incrax.derivatives.transforms import hessian as hessian
    from incrax.derivatives.transforms import hvp as hvp
    from incrax.derivatives.transforms import jacobian as jacobian
    from incrax.derivatives.transforms import jvp as jvp
    from incrax.derivatives.transforms import value_and_grad as value_and_grad
    from incrax.inspection.assertions import assert_ran as assert_ran
    from incrax.inspection.cache_folder import cache_folder as cache_folder
    from incrax.inspection.cost import CostReport as CostReport
    from incrax.inspection.cost import cost as cost
    from incrax.inspection.counters import totals as totals
    from incrax.inspection.environment import Environment as Environment
    from incrax.inspection.environment import environment as environment
    from incrax.inspection.page import Report as Report
    from incrax.inspection.page import report as report
    from incrax.models.api import bind as bind
    from incrax.models.bound import Bound as Bound
    from incrax.models.held.epoch import EpochGradient as EpochGradient
    from incrax.models.held.holding import Held as Held
    from incrax.models.held.holding import hold as hold
    from incrax.models.held.kept import HoldStats as HoldStats
    from incrax.models.held.kept import Kept as Kept
    from incrax.models.training import Training as Training
    from incrax.models.vector import Unbounded as Unbounded

_WINGS = ("bijectors", "fit", "samplers")
_HOMES = {
    "Bound": "models.bound",
    "Bucketed": "control_flow.loops.bucketed",
    "CostReport": "inspection.cost",
    "Environment": "inspection.environment",
    "EpochGradient": "models.held.epoch",
    "Guarded": "control_flow.tapes.guarded",
    "Held": "models.held.holding",
    "HoldStats": "models.held.kept",
    "Kept": "models.held.kept",
    "Padded": "control_flow.loops.padded",
    "Prepared": "derivatives.prepared",
    "Pullback": "derivatives.pullback",
    "Report": "inspection.page",
    "RowSparse": "derivatives.row_sparse.rows",
    "Structured": "derivatives.row_sparse.structured",
    "TapeExplanation": "control_flow.tapes.explanation",
    "TapeReport": "control_flow.tapes.explanation",
    "TapeStats": "control_flow.tapes.paths",
    "Training": "models.training",
    "Unbounded": "models.vector",
    "assert_ran": "inspection.assertions",
    "bind": "models.api",
    "bucketed": "control_flow.loops.bucketed",
    "cache_folder": "inspection.cache_folder",
    "check_tape": "control_flow.tapes.api",
    "cost": "inspection.cost",
    "cut": "derivatives.cuts",
    "environment": "inspection.environment",
    "grad": "derivatives.transforms",
    "guarded": "control_flow.tapes.api",
    "hessian": "derivatives.transforms",
    "hold": "models.held.holding",
    "hvp": "derivatives.transforms",
    "jacobian": "derivatives.transforms",
    "jvp": "derivatives.transforms",
    "map": "control_flow.loops.scan",
    "prepare": "derivatives.prepared",
    "report": "inspection.page",
    "scan": "control_flow.loops.scan",
    "select_rows": "control_flow.loops.selecting",
    "structured": "derivatives.row_sparse.structured",
    "totals": "inspection.counters",
    "uncut": "derivatives.cuts",
    "value_and_grad": "derivatives.transforms",
    "vjp": "derivatives.pullback",
    "while_loop": "control_flow.loops.while_loop",
}
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
    "Unbounded",
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
    "map",
    "prepare",
    "report",
    "scan",
    "select_rows",
    "structured",
    "totals",
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
    hint = _jax_options.hint(name, _jax_options.FUNCTIONS)
    raise AttributeError(f"module 'incrax' has no attribute '{name}'{hint}")


if os.environ.get("INCRAX_REMEMBER") == _cache_folder.PROGRAMS:
    keep_programs()


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, *_WINGS, "errors", "__version__"])
