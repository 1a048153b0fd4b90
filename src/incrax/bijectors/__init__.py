"""Bijections whose outputs remember where they came from: the inverse and the log-density of a sample are free."""

from incrax.bijectors.bases import Normal
from incrax.bijectors.bijection import Bijection
from incrax.bijectors.chains import Compose, Invert
from incrax.bijectors.compiled import cancel, jit
from incrax.bijectors.couplings import Autoregressive, Coupling, autoregressive, coupling
from incrax.bijectors.distributions import Flow
from incrax.bijectors.elementwise import ELU, AffineFixed, LeakyReLU
from incrax.bijectors.guides import as_numpyro, numpyro_guide
from incrax.bijectors.memory import Record, forget, memory_of
from incrax.bijectors.networks import MLP, MaskedMLP
from incrax.bijectors.plots import plot
from incrax.bijectors.protocol import Pass
from incrax.bijectors.remembered import Remembered, remember
from incrax.bijectors.residual import InvertibleResidual, lipswish
from incrax.bijectors.switches import is_recording, requires_ladj, set_record_flow_graph, set_requires_ladj
from incrax.bijectors.training import FlowFit, fit_maximum_likelihood, fit_variational
from incrax.bijectors.transformers import Affine, Elementwise, Fixed, Shift, Spline, Transformer
from incrax.errors import (
    BijectionArgumentError,
    FlowShapeError,
    NotABijectionError,
    NotADistributionError,
    NothingToTrainError,
)

__all__ = [
    "Affine",
    "AffineFixed",
    "Autoregressive",
    "Bijection",
    "BijectionArgumentError",
    "Compose",
    "Coupling",
    "ELU",
    "Elementwise",
    "Fixed",
    "Flow",
    "FlowFit",
    "FlowShapeError",
    "Invert",
    "InvertibleResidual",
    "LeakyReLU",
    "MLP",
    "MaskedMLP",
    "Normal",
    "NotABijectionError",
    "NotADistributionError",
    "NothingToTrainError",
    "Pass",
    "Record",
    "Remembered",
    "Shift",
    "Spline",
    "Transformer",
    "as_numpyro",
    "autoregressive",
    "cancel",
    "coupling",
    "fit_maximum_likelihood",
    "fit_variational",
    "forget",
    "is_recording",
    "jit",
    "lipswish",
    "memory_of",
    "numpyro_guide",
    "plot",
    "remember",
    "requires_ladj",
    "set_record_flow_graph",
    "set_requires_ladj",
]
