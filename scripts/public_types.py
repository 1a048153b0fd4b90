"""Are all public names typed? Runs pyright's check of type completeness and lists public names that
fall short.

    python scripts/public_types.py

Public are the names in `__all__` of the packages below, with their methods and fields; what starts
with an underscore is not, nor are types of other libraries. Exit code 1 if something is not typed,
or differently by other checkers.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("incrax", "incrax.fit", "incrax.samplers", "incrax.bijectors")
SOURCE = Path(__file__).parent.parent / "src"
SYMBOL = dict[str, Any]


def public_names() -> set[str]:
    """Where the public functions and classes are defined."""
    found = set()
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name)
            module = getattr(value, "__module__", None) or ""
            if module.startswith("incrax"):
                found.add(f"{module}.{value.__qualname__}")
    return found


def symbols() -> list[SYMBOL]:
    """What pyright says of each symbol of the package."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [
        "pyright",
        "--pythonpath",
        sys.executable,
        "--verifytypes",
        "incrax",
        "--ignoreexternal",
        "--outputjson",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    return json.loads(done.stdout)["typeCompleteness"]["symbols"]


def is_short(symbol: SYMBOL) -> bool:
    """Whether a type is not known, or told differently by different checkers."""
    return not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]


def main() -> int:
    """Print what is not typed; the exit code is 1 if there is anything."""
    public = public_names()
    checked = [
        symbol
        for symbol in symbols()
        if any(symbol["name"] == name or symbol["name"].startswith(f"{name}.") for name in public)
        and not symbol["name"].rpartition(".")[2].startswith("_")
    ]
    short = list(filter(is_short, checked))
    for symbol in short:
        told = [
            diagnostic["message"].replace("\n", " ") for diagnostic in symbol.get("diagnostics", [])
        ]
        print(symbol["name"], *told[:2], sep="\n    ")
    print(f"{len(public)} public names, {len(checked)} symbols, {len(short)} not typed completely")
    return 1 if short or len(checked) < len(public) else 0


if __name__ == "__main__":
    sys.exit(main())
