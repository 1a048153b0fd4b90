"""Functions that the modules of tests made are found as those of users are: by `gc.get_referrers`,
which leaves out what is frozen.
"""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _functions_of_modules_are_found():
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()
