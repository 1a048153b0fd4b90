"""What is part of a key of traces and programs: settings and switches, and nothing that happens to
be imported.
"""

from __future__ import annotations

import subprocess
import sys

from incrax import bijectors
from incrax._context import context_key

PROGRAM = """
import incrax
from incrax._context import context_key
before = context_key()
from incrax import bijectors, fit, samplers
names = [getattr(incrax, name) for name in incrax.__all__]
assert context_key() == before
"""


def test_parts_of_incrax_that_are_imported_later_change_no_key():
    """Else every function would be traced once more after the first loop, or the first bijector."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_a_switch_that_is_off_is_another_key():
    with bijectors.set_requires_ladj(False):
        off = context_key()
    assert off != context_key()
