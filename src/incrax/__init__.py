"""incrax: re-evaluate differentiable JAX functions and pay only for what changed.

A call runs through one pipeline: trace, simplify, depend, plan, compile, store, run.
"""

from incrax._api import Incremental as Incremental
from incrax._api import incremental as incremental
from incrax._errors import DeletedInputError as DeletedInputError
from incrax._errors import IncraxError as IncraxError
from incrax._errors import NotCalledError as NotCalledError
from incrax._errors import UnknownInputError as UnknownInputError
from incrax._errors import UnsupportedLeafError as UnsupportedLeafError
from incrax._tuning import Tuning as Tuning
from incrax.running.leaves import frozen as frozen
from incrax.running.stats import Stats as Stats

__version__ = "0.1.0"
