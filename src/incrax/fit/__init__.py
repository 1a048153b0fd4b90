"""Fits: what a scientist does with an incremental function."""

from incrax._removed import finder
from incrax.errors import (
    BoundsError,
    MethodError,
    MinimumError,
    ParameterTypeError,
)
from incrax.fit.batches import LeastSquaresSteps, StepState
from incrax.fit.joint import Constraint, constrained, gaussian_constraint, negative, simultaneous
from incrax.fit.levenberg import levenberg_marquardt
from incrax.fit.methods import Interval
from incrax.fit.minimizing import minimize
from incrax.fit.result import FitResult, Status
from incrax.fit.scans import Impacts, Scan, contour, impacts, profile, scan2d
from incrax.fit.simulating import Toys, toys
from incrax.fit.task import Counts, Task, Work, make_task

__all__ = [
    "BoundsError",
    "Constraint",
    "Counts",
    "FitResult",
    "Impacts",
    "Interval",
    "LeastSquaresSteps",
    "MethodError",
    "MinimumError",
    "ParameterTypeError",
    "Scan",
    "Status",
    "StepState",
    "Task",
    "Toys",
    "Work",
    "constrained",
    "contour",
    "gaussian_constraint",
    "impacts",
    "levenberg_marquardt",
    "make_task",
    "minimize",
    "negative",
    "profile",
    "scan2d",
    "simultaneous",
    "toys",
]

__getattr__ = finder("fit")
