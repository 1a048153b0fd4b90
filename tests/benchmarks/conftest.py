"""`python -m benchmarks` as a package; results and scripts made up for the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("benchmarks.suite", reason="the benchmarks are not part of the source distribution")
