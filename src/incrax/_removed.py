"""Names of version 0.1 that went, and what to use instead; for one version.

In: a name that a module lacks. Out: what took its place, with a warning, or an error that says what
to do.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from incrax import _jax_options

RENAMED = {
    "bijectors.Record": "bijectors.Origin",
    "fit.Contour": "fit.Scan",
    "fit.LeastSquaresResult": "fit.FitResult",
    "fit.Profile": "fit.Scan",
    "fit.Scan2D": "fit.Scan",
    "samplers.metropolis": "samplers.gibbs",
}
"""What took their place has the same fields, or those that the changelog names."""

_BUILT = "build flows of FlowJAX and `remember` them: its"
_COPY = "copy it from `examples/flowtorch_bijections.py`"
_OWN = "write a class with `transform_and_log_det` and `inverse_and_log_det`, and `remember` it"
_FAST = "ask `f.deps(...)` which parameters are slow, and move the others by `Walk(times=...)`"
GONE = {
    "map": "write `incrax.scan(lambda carry, x: (carry, f(x)), (), xs)[1]`",
    "select_rows": "write `incrax.Padded(x[rows], mask.sum())`, where `rows` are those of "
    "`jnp.flatnonzero(mask, size=n)`",
    "Unbounded": "use NumPyro's `biject_to`, as `docs/binding.md` shows",
    "bijectors.Affine": f"{_BUILT} `Affine`",
    "bijectors.AffineFixed": f"{_BUILT} `Affine` in `paramax.non_trainable`",
    "bijectors.Autoregressive": f"{_BUILT} `MaskedAutoregressive`",
    "bijectors.Bijection": _OWN,
    "bijectors.Compose": f"{_BUILT} `Chain`",
    "bijectors.Coupling": f"{_BUILT} `Coupling`",
    "bijectors.ELU": _COPY,
    "bijectors.Elementwise": f"{_BUILT} `Vmap`",
    "bijectors.Fixed": "use `paramax.non_trainable`",
    "bijectors.Flow": "use FlowJAX's `Transformed`",
    "bijectors.FlowFit": "use FlowJAX's `fit_to_data`",
    "bijectors.Invert": f"{_BUILT} `Invert`",
    "bijectors.InvertibleResidual": _OWN,
    "bijectors.LeakyReLU": _COPY,
    "bijectors.MLP": "use `equinox.nn.MLP`",
    "bijectors.MaskedMLP": f"{_BUILT} `MaskedAutoregressive`",
    "bijectors.Normal": "use FlowJAX's `Normal`",
    "bijectors.Pass": _OWN,
    "bijectors.Shift": f"{_BUILT} `Loc`",
    "bijectors.Spline": f"{_BUILT} `RationalQuadraticSpline`",
    "bijectors.as_numpyro": "use FlowJAX's distributions with `numpyro.factor`",
    "bijectors.cancel": "call `inverse` and `forward` inside one compiled function, not across `jax.jit`",
    "bijectors.fit_maximum_likelihood": "use FlowJAX's `fit_to_data`",
    "bijectors.fit_variational": "use FlowJAX's `fit_to_variational_target`",
    "bijectors.lipswish": _OWN,
    "bijectors.numpyro_guide": "use NumPyro's `AutoIAFNormal` and its kin",
    "bijectors.plot": "plot samples with matplotlib",
    "fit.CovarianceError": "every fit has its covariance",
    "fit.WeightsError": "divide residuals by their errors",
    "samplers.Blocks": _FAST,
    "samplers.Conditional": "draw the block in a loop of your own, as `examples/gibbs_blocks.py` does",
    "samplers.Ensemble": "give emcee `jax.vmap` of `logdensity`, as `docs/sampling.md` shows",
    "samplers.blocks": _FAST,
    "samplers.ensemble": "give emcee `jax.vmap` of `logdensity`, as `docs/sampling.md` shows",
}


def moved(old: str, new: str, stacklevel: int = 3) -> Any:
    """What has another name now, such as `fit.Scan`; warns."""
    text = f"`incrax.{old}` is `incrax.{new}` now; the old name goes with the next version."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
    module, _, name = new.rpartition(".")
    return getattr(importlib.import_module(f"incrax.{module}"), name)


def advice(old: str) -> str:
    """What to use in place of a name that went; nothing for others."""
    return f"; it went with version 0.2: {GONE[old]}" if old in GONE else ""


def finder(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module."""

    def find(name: str) -> Any:
        old = f"{module}.{name}"
        if old in RENAMED:
            return moved(old, RENAMED[old])
        hint = advice(old) or _jax_options.hint(old, _jax_options.FUNCTIONS)
        raise AttributeError(f"module 'incrax.{module}' has no attribute '{name}'{hint}")

    return find
