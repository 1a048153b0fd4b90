"""Fits: what a scientist does with an incremental function."""

from incrax._fit_errors import BoundsError, ParameterTypeError, WeightsError
from incrax._minimize_errors import MethodError, MinimumError
from incrax.fit.levenberg import levenberg_marquardt
from incrax.fit.minimize import minimize
from incrax.fit.minimum import FitResult
from incrax.fit.minuit import Interval
from incrax.fit.result import LeastSquaresResult, Status
from incrax.fit.task import Counts, Task, Work, make_task

__all__ = [
    "BoundsError",
    "Counts",
    "FitResult",
    "Interval",
    "LeastSquaresResult",
    "MethodError",
    "MinimumError",
    "ParameterTypeError",
    "Status",
    "Task",
    "WeightsError",
    "Work",
    "levenberg_marquardt",
    "make_task",
    "minimize",
]
