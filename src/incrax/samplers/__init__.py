"""Samplers that evaluate what a step changed: adapters for NumPyro and BlackJAX, and chains block by
block.
"""

from incrax._removed import finder
from incrax.errors import BlockError, PositionError, ProposalError, StartError
from incrax.samplers.chain import Chain
from incrax.samplers.density import logdensity, numpyro_potential
from incrax.samplers.numpyro_models import NumPyroModel, discrete_hmc_gibbs, from_numpyro
from incrax.samplers.sweeping import gibbs
from incrax.samplers.updates import Categorical, Hamiltonian, Kernel, Walk

__all__ = [
    "BlockError",
    "Categorical",
    "Chain",
    "Hamiltonian",
    "Kernel",
    "NumPyroModel",
    "PositionError",
    "ProposalError",
    "StartError",
    "Walk",
    "discrete_hmc_gibbs",
    "from_numpyro",
    "gibbs",
    "logdensity",
    "numpyro_potential",
]

__getattr__ = finder("samplers")
