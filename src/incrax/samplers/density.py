"""A log-density of pytrees for samplers: of one vector on the host, or of its leaves inside a
compiled loop.

In: a function and its arguments. Out: names and values of what is sampled, and two ways to
evaluate. It must not know how points are proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import Incremental, Tuning, _jax, frozen, incremental
from incrax._messages import wrong_option
from incrax.derivatives.cuts import unmarked, without_marks
from incrax.derivatives.flat import Ends, ends
from incrax.derivatives.prepared import Flat, prepare
from incrax.derivatives.selection import Selection, as_parameters, select
from incrax.derivatives.transforms import plain
