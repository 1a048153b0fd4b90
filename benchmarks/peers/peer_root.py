"""The mixture in RooFit: two normals and an exponential, extended, one parameter changed at every
call.

RooFit keeps the values of components whose parameters did not change, so that this is its own
incremental evaluation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ROOT
from serving import Case, moved, serve

ROOT.RooMsgService.instance().setGlobalKillBelow(ROOT.RooFit.ERROR)


def value(changed: str) -> Any:
    """The value while one parameter changes."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "mixture.npz")
        start = {name: float(data[name]) for name in data["names"]}
        x = ROOT.RooRealVar("x", "x", 0.0, 10.0)
        p = {
            name: ROOT.RooRealVar(name, name, v, -10.0 * abs(v), 10.0 * abs(v))
            for name, v in start.items()
        }
        shapes = [
            ROOT.RooGaussian("g1", "g1", x, p["mu1"], p["s1"]),
            ROOT.RooGaussian("g2", "g2", x, p["mu2"], p["s2"]),
            ROOT.RooExponential("e", "e", x, p["lam"]),
        ]
        yields = ROOT.RooArgList(p["n1"], p["n2"], p["nb"])
        model = ROOT.RooAddPdf("model", "model", ROOT.RooArgList(*shapes), yields)
        rows = ROOT.RooDataSet.from_numpy({"x": data["x"]}, [x])
        nll = model.createNLL(rows, Extended=True, EvalBackend="cpu")
        kept = (x, p, shapes, yields, model, rows)  # RooFit holds no references to them

        def call(number: int, kept: Any = kept) -> float:
            p[changed].setVal(moved(start[changed], number))
            return float(nll.getVal())

        return Case(call, lambda result: [result])

    return make


if __name__ == "__main__":
    cases = {"mixture, value, one yield": value("n1"), "mixture, value, one mean": value("mu1")}
    serve(cases, ["root", "numpy"], release=str(ROOT.__version__))
