"""Libraries that only some functions need."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from incrax.errors import MissingExtraError


def needed(module: str, what: str, extra: str) -> Any:
    """A module of an optional library, for what a user called; `extra` is that of incrax which
    brings it.

    Raises:
        MissingExtraError: the library is not installed.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise MissingExtraError(
            f"`{what}` needs {library}, which is not installed. Nothing was done. Install "
            f"`incrax[{extra}]` (in a clone: `pip install '.[{extra}]'`), or {library} alone."
        ) from None


def is_of(library: str, kind: str, x: Any) -> bool:
    """Whether it is of a class of an optional library; if it is, the library is imported already."""
    module = sys.modules.get(library)
    return module is not None and isinstance(x, getattr(module, kind))
