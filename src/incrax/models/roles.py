"""Which part of a model's inputs is fitted, and which values an input takes.

In: leaves with their paths. Out: a role for each; values in the type of their leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from incrax.derivatives.selection import is_python_int, type_name
from incrax.engine.inputs.leaves import has_tracer, is_dynamic
from incrax.errors import BindError, InputValueError

Role = Literal["trainable", "fixed", "state", "data"]
TRAINABLE, FIXED, STATE, DATA = ROLES = ("trainable", "fixed", "state", "data")

Roles = Mapping[str, Role] | None


def is_floating(leaf: Any) -> bool:
    """Whether a leaf has a derivative."""
    try:
        return is_dynamic(leaf) and jnp.issubdtype(jax.dtypes.result_type(leaf), jnp.inexact)
    except TypeError:  # an array that JAX has no type for
        return False


def default_role(leaf: Any) -> Role:
    """The role of a leaf of which nothing is said."""
    return TRAINABLE if _can_move(leaf) else DATA


def checked_roles(roles: Any) -> Mapping[str, Role]:
    """What users say of roles.

    Raises:
        BindError: it is no mapping.
    """
    if roles is not None and not isinstance(roles, Mapping):
        raise BindError(
            f"`bind(roles=...)` got {roles!r}. Nothing was bound. Pass a mapping of names to "
            'roles: `roles={"x": "data"}`.'
        )
    return roles or {}


def check_role(path: str, leaf: Any, role: Any) -> None:
    """Refuse a role that is none, or that the leaf cannot have.

    Raises:
        BindError: as it says.
    """
    if role not in ROLES:
        raise BindError(
            f"`bind(roles=...)` gives `{path}` the role {role!r}. The model is as it was. Use one "
            'of "trainable", "fixed", "state", "data".'
        )
    if role == TRAINABLE and not _can_move(leaf):
        raise BindError(
            f"`{path}` of type {type_name(leaf)} cannot be trainable, because it has no "
            "derivative. This is usually a number without a decimal point. The model is as it was. "
            'Write 1.0 instead of 1, or give it the role "fixed" or "data".'
        )


def _can_move(leaf: Any) -> bool:
    return is_floating(leaf) or is_python_int(leaf)


def as_parameter(leaf: Any, role: str) -> Any:
    """A leaf in its role: an integer of Python that is a parameter is a float, `mu=2`."""
    return float(leaf) if role in (TRAINABLE, FIXED) and is_python_int(leaf) else leaf


# --- values ---------------------------------------------------------------------------------------


def fitted(path: str, old: Any, new: Any) -> Any:
    """A new value in the type of the leaf that it replaces.

    Raises:
        InputValueError: it is traced, has another shape, or would lose something.
    """
    check_value(path, None, new)
    if not is_dynamic(old):
        return new
    given = new
    if not isinstance(new, (jax.Array, np.ndarray)):
        new = np.asarray(new)
    dtype = jax.dtypes.result_type(old)
    if isinstance(new, np.ndarray) and new.dtype.kind in "USOMmV":
        raise _other_type(path, type(given).__name__, type_name(old))
    if new.shape != np.shape(old) or not _is_kept(new.dtype, dtype):
        raise _other_type(path, type_name(new), type_name(old))
    if isinstance(old, (bool, int, float, complex)):
        return type(old)(new)
    if isinstance(old, jax.Array):
        return jnp.asarray(new, dtype)
    return np.asarray(new, dtype)[()] if isinstance(old, np.generic) else np.array(new, dtype)


def check_value(path: str, shaped: Any, value: Any) -> None:
    """Refuse a traced value, and one of another shape than that of `shaped`, unless that is None.

    Raises:
        InputValueError: as it says.
    """
    if has_tracer([value]):
        raise InputValueError(
            f"`{path}` was to be set to a traced value, which has no number. This is usually a "
            "call of `set` inside `jax.jit` or `jax.grad`. The model is as it was. Set it outside; "
            "inside compiled code, pass the value to the function itself."
        )
    if shaped is not None and np.shape(value) != np.shape(shaped):
        raise _other_type(path, type_name(value), type_name(shaped))


def as_was(old: Any, new: Any) -> Any:
    """A Python number where one was, whose type promotes in another way than an array's."""
    is_number = isinstance(old, (int, float, complex)) and not isinstance(old, np.generic)
    return type(old)(new) if is_number and is_dynamic(new) else new


_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def _is_kept(new: Any, old: Any) -> bool:
    """Whether a value may take another dtype: of its own kind or a wider one; precision may be
    lost.
    """
    ranks = [
        [k for k, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)] for dtype in (new, old)
    ]
    return new == old if not all(ranks) else ranks[0] <= ranks[1]


def _other_type(path: str, seen: str, expected: str) -> InputValueError:
    """A value of another shape, or whose dtype would lose something."""
    return InputValueError(
        f"`{path}` is of type {expected} and was to be set to {seen}. The model is as it was. Pass "
        'a value of the same shape and kind; only inputs with the role "data" may change theirs.'
    )
