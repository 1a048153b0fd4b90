"""Linear least squares with damping where most of a Jacobian is zero: the normal matrix, factorised sparse.

In: a Jacobian with the elements that may be nonzero. Out: steps, covariance. Equations, with A = J / D:
(A^T A + damping) y = -A^T r, D p = y, corrected once by the residual of that, which undoes most of what is lost by
squaring. Where parameters come in groups that share no residual (points and cameras, curves with a common shape), the
order of elimination takes the groups first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import splu


class SparseModel:
    """The linear model at a point, |r + J p|^2; arrays of NumPy and SciPy."""

    def __init__(self, jacobian: csr_array, residuals: np.ndarray, last_scale: np.ndarray) -> None:
        """Of shapes (m, n), (m,), (n,), all finite."""
        norms = np.sqrt(np.asarray(jacobian.power(2).sum(axis=0)).reshape(-1))
        scale = np.maximum(last_scale, norms)
        self.scale = np.where(scale > 0, scale, 1)
        self.scaled: Any = jacobian @ diags_array(1 / self.scale)
        self.residuals = residuals
        self._is_empty = norms == 0
        held = diags_array(self._is_empty.astype(norms.dtype))  # what moves no residual stays where it is
        self._normal: Any = self.scaled.T @ self.scaled + held
        self._factors: dict[float, Any] = {}

    def rank(self) -> int:
        """How many elements the data determine: pivots of the undamped normal matrix above rounding errors."""
        try:
            pivots = np.abs(self._factor(0.0).U.diagonal())
        except RuntimeError:  # one is zero
            return int(np.sum(~self._is_empty)) - 1
        return int(np.sum(pivots > self._tiny()) - np.sum(self._is_empty))

    def newton(self) -> np.ndarray:
        """The undamped step."""
        return self.step(self._least())

    def step(self, damping: float, residuals: np.ndarray | None = None) -> np.ndarray:
        """The damped step p for the residuals of the point, or others, shape (n,)."""
        r, factor = self.residuals if residuals is None else residuals, self._factor(damping)
        y = factor.solve(-(self.scaled.T @ r))
        y += factor.solve(-(self.scaled.T @ (r + self.scaled @ y)) - damping * y)
        return y / self.scale

    def moved(self, step: np.ndarray) -> np.ndarray:
        """J p, shape (m,)."""
        return self.scaled @ (step * self.scale)

    def inverse_normal(self) -> np.ndarray:
        """(J^T J)^-1, shape (n, n), dense. Cost: n solutions."""
        return self._factor(self._least()).solve(np.eye(self.scale.size)) / self.scale / self.scale[:, None]

    def _least(self) -> float:
        """No damping, or the least that makes a solution unique where the Jacobian is singular."""
        return 0.0 if self.rank() == np.sum(~self._is_empty) else self._tiny()

    def _tiny(self) -> float:
        return 10 * self.scale.size * float(np.finfo(self.scale.dtype).eps)

    def _factor(self, damping: float) -> Any:
        if damping not in self._factors:
            matrix = self._normal + diags_array(np.full_like(self.scale, damping))
            options = {"SymmetricMode": True}
            order = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0}
            self._factors[damping] = splu(csc_array(matrix), options=options, **order)
        return self._factors[damping]
