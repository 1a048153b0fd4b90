"""Write tests/slow.txt, the tests that the default run leaves to the exhaustive one, from times
that were measured.

    python -m pytest -q -n 2 -m "" --junitxml=times.xml
    python scripts/slow_tests.py times.xml

A test is slow if one of its cases takes `LIMIT_S` on the average; else its slow cases are listed,
each by itself.
"""

from __future__ import annotations

import argparse
import collections
import statistics
from pathlib import Path
from xml.etree import ElementTree

LIMIT_S = 1.5
OUTPUT = Path(__file__).parents[1] / "tests" / "slow.txt"


def slow_tests(report: Path, limit_s: float) -> list[str]:
    """Names of slow tests, and of slow cases of others, as pytest prints them."""
    seconds: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        node = f"{module.replace('.', '/')}.py::{name}"
        seconds[node.partition("[")[0]][node] = float(case.get("time", 0.0))
    found = []
    for test, cases in seconds.items():
        is_slow = statistics.mean(cases.values()) > limit_s
        found += (
            [test] if is_slow else [node for node, taken_s in cases.items() if taken_s > limit_s]
        )
    return sorted(found)


def main() -> None:
    """Read the report that is named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="what pytest's --junitxml wrote")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS")
    options = parser.parse_args()
    found = slow_tests(options.report, options.limit)
    OUTPUT.write_text("\n".join(found) + "\n")
    print(f"{len(found)} slow tests and cases: {OUTPUT}")


if __name__ == "__main__":
    main()
