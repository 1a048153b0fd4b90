"""Fits: what a scientist does with an incremental function."""

from incrax._fit_errors import BoundsError, ParameterTypeError, WeightsError
from incrax.fit.joint import Constraint, constrained, gaussian_constraint, simultaneous
from incrax.fit.levenberg import levenberg_marquardt
from incrax.fit.result import LeastSquaresResult, Status

__all__ = [
    "BoundsError",
    "Constraint",
    "LeastSquaresResult",
    "ParameterTypeError",
    "Status",
    "WeightsError",
    "constrained",
    "gaussian_constraint",
    "levenberg_marquardt",
    "simultaneous",
]
