"""Fits: what a scientist does with an incremental function."""

from incrax._fit_errors import BoundsError, ParameterTypeError, WeightsError
from incrax.fit.levenberg import levenberg_marquardt
from incrax.fit.result import LeastSquaresResult, Status

__all__ = [
    "BoundsError",
    "LeastSquaresResult",
    "ParameterTypeError",
    "Status",
    "WeightsError",
    "levenberg_marquardt",
]
