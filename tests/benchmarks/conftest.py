"""`python -m benchmarks` as a package; it is not part of every distribution."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
collect_ignore_glob = [] if (ROOT / "benchmarks" / "suite").is_dir() else ["*.py"]
