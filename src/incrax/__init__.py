"""incrax: re-evaluate differentiable JAX functions and pay only for what changed.

A call runs through one pipeline: trace, simplify, depend, plan, compile, store, run.
"""

from incrax._api import incremental
from incrax._bind_errors import BindError, InputValueError
from incrax._cost_errors import CostError
from incrax._derivative_errors import FreedResidualError, PreparedTypeError, SelectionError, TangentError
from incrax._errors import (
    DeletedInputError,
    IncraxError,
    MemoryBudgetError,
    MissingExtraError,
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
from incrax._held_errors import StaleRepresentationsError
from incrax._incremental import Incremental
from incrax._loop_errors import CapacityError, LoopTypeError
from incrax._marks import cached, keep
from incrax._report_errors import ReportError
from incrax._stats import Stats
from incrax._tape_errors import (
    CapturedStateError,
    FloatGuardError,
    GuardOnEffectError,
    NotReproducibleError,
    PythonBranchError,
    TapeError,
    TooManyPathsError,
)
from incrax._tuning import Tuning
from incrax._version import __version__ as __version__
from incrax.control_flow.loops.bucketed import Bucketed, bucketed
from incrax.control_flow.loops.mapped import map  # noqa: A004
from incrax.control_flow.loops.padded import Padded
from incrax.control_flow.loops.scan import scan
from incrax.control_flow.loops.selecting import Unique, nonzero, select_rows, unique
from incrax.control_flow.loops.while_loop import while_loop
from incrax.control_flow.tapes.api import check_tape, guarded
from incrax.control_flow.tapes.checking import TapeReport
from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.explanation import TapeExplanation
from incrax.control_flow.tapes.guarded import Guarded
from incrax.derivatives.cuts import cut, uncut
from incrax.derivatives.linearized import linearize
from incrax.derivatives.prepared import Prepared, prepare
from incrax.derivatives.pullback import Pullback, vjp
from incrax.derivatives.row_sparse.rows import RowSparse
from incrax.derivatives.row_sparse.structured import Structured, structured
from incrax.derivatives.transforms import grad, hessian, hvp, jacobian, jvp, value_and_grad
from incrax.engine.call.verification import verify
from incrax.engine.inputs.leaves import frozen
from incrax.engine.inputs.rows import Rows
from incrax.inspection.assertions import assert_ran
from incrax.inspection.cost.api import cost
from incrax.inspection.cost.report import CostReport
from incrax.inspection.counters import totals
from incrax.inspection.environment import Environment, environment
from incrax.inspection.page import Report
from incrax.inspection.report_of import report
from incrax.models.api import bind
from incrax.models.bound import Bound
from incrax.models.held.epoch import EpochGradient
from incrax.models.held.holding import Held, hold
from incrax.models.held.kept import HoldStats, Kept
from incrax.models.training import Training
from incrax.models.vector import Unbounded

__all__ = [
    "BindError",
    "Bound",
    "Bucketed",
    "CapacityError",
    "CapturedStateError",
    "CostError",
    "CostReport",
    "DeletedInputError",
    "Environment",
    "EpochGradient",
    "FloatGuardError",
    "FreedResidualError",
    "GuardOnEffectError",
    "Guarded",
    "Held",
    "HoldStats",
    "IncraxError",
    "Incremental",
    "InputValueError",
    "Kept",
    "LoopTypeError",
    "MemoryBudgetError",
    "MissingExtraError",
    "MixedRowsError",
    "NotCalledError",
    "Padded",
    "NotReproducibleError",
    "Prepared",
    "PreparedTypeError",
    "Pullback",
    "PythonBranchError",
    "ReentrantCallError",
    "Report",
    "ReportError",
    "RowShapeError",
    "RowSparse",
    "Rows",
    "RowsError",
    "SelectionError",
    "StaleRepresentationsError",
    "StaleResultError",
    "Stats",
    "StepTypeError",
    "Structured",
    "TangentError",
    "TapeError",
    "TapeExplanation",
    "TapeReport",
    "TapeStats",
    "TooManyPathsError",
    "Training",
    "Tuning",
    "Unbounded",
    "Unique",
    "UnknownInputError",
    "UnsupportedLeafError",
    "assert_ran",
    "bind",
    "bucketed",
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
    "linearize",
    "map",
    "nonzero",
    "prepare",
    "report",
    "scan",
    "select_rows",
    "structured",
    "totals",
    "uncut",
    "unique",
    "value_and_grad",
    "verify",
    "vjp",
    "while_loop",
]
