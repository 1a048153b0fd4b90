"""Fits: what a scientist does with an incremental function."""

from incrax._fit_errors import BoundsError, CovarianceError, ParameterTypeError, WeightsError
from incrax.fit.batches import LeastSquaresSteps, StepState
from incrax.fit.levenberg import levenberg_marquardt
from incrax.fit.result import LeastSquaresResult, Status

__all__ = [
    "BoundsError",
    "CovarianceError",
    "LeastSquaresResult",
    "LeastSquaresSteps",
    "ParameterTypeError",
    "Status",
    "StepState",
    "WeightsError",
    "levenberg_marquardt",
]
