"""Our side: writes the problems that a peer reads, and evaluates the same cases with incrax.

python benchmarks/peers/ours.py FOLDER PEER [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from problems import amplitude, mixture, nist
from serving import Case, moved, serve

import incrax
from incrax import fit

SETTLED = incrax.Tuning(compile_s=60.0)

QUICK = "--quick" in sys.argv
TABLE = (20_000 if QUICK else 1_000_000, 64)
NUM_POINTS = 10_000 if QUICK else 1_000_000


# --- mixture --------------------------------------------------------------------------------------


def write_mixture(folder: Path) -> None:
    """Events and the values of the parameters by name."""
    num = 5_000 if QUICK else mixture.NUM_EVENTS
    p, x = mixture.truth(num), np.asarray(mixture.make_data(num))
    np.savez(
        folder / "mixture.npz",
        x=x,
        names=np.array(mixture.NAMES),
        **{k: np.array(v) for k, v in p.items()},
    )


def of_mixture(changed: str, transform: Callable[[Any], Any]) -> Callable[[Path], Case]:
    """The mixture while one parameter changes."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "mixture.npz")
        start, x = {name: float(data[name]) for name in mixture.NAMES}, jnp.asarray(data["x"])
        ours = incrax.incremental(transform(mixture.nll), tuning=SETTLED)
        call = lambda number: jax.block_until_ready(
            ours({**start, changed: moved(start[changed], number)}, x)
        )
        return Case(call, _mixture_figures)

    return make


def _mixture_figures(result: Any) -> list[float]:
    if not isinstance(result, tuple):
        return [float(result)]
    value, gradient = result
    return [float(value), *(float(gradient[name]) for name in mixture.NAMES)]


# --- the polynomial and the table -----------------------------------------------------------------


def write_polynomial(folder: Path) -> None:
    """Points and coefficients."""
    x = np.random.default_rng(1).uniform(0.1, 1.0, NUM_POINTS)
    np.savez(folder / "polynomial.npz", x=x, c=1.0 / (1.0 + np.arange(10)))


def polynomial(folder: Path) -> Case:
    """Value and derivative by one field of ten."""
    data = np.load(folder / "polynomial.npz")
    start, x = (
        {f"c{k}": float(value) for k, value in enumerate(data["c"])},
        incrax.frozen(data["x"]),
    )
    value = lambda p, x: jnp.sum(sum(p[f"c{k}"] * x**k for k in range(10)))
    ours = incrax.value_and_grad(value, wrt="p['c2']")
    call = lambda number: jax.block_until_ready(
        ours({**start, "c2": moved(start["c2"], number)}, x)
    )
    return Case(call, lambda result: [float(each) for each in jax.tree.leaves(result)])


def write_table(folder: Path) -> None:
    """The size of the table, which is sin(0), sin(1), ... in float32, and rows to read, one of them
    twice.
    """
    ids = np.random.default_rng(0).integers(0, TABLE[0], (100, 64))
    ids[:, 1] = ids[:, 0]
    np.savez(folder / "table.npz", rows=TABLE[0], columns=TABLE[1], ids=ids)


def table(folder: Path) -> Case:
    """The gradient of a loss of some rows of a table."""
    data = np.load(folder / "table.npz")
    size = int(data["rows"]) * int(data["columns"])
    weights = jnp.asarray(np.sin(np.arange(size, dtype=np.float32)).reshape(int(data["rows"]), -1))
    ids = jnp.asarray(data["ids"])
    batches = [ids[k] for k in range(len(ids))]
    ours = incrax.grad(lambda t, ids: jnp.sum(jnp.tanh(t[ids]) ** 2), sparse="rows")
    return Case(
        lambda number: jax.block_until_ready(ours(weights, batches[number % len(batches)])),
        _table_figures,
    )


def _table_figures(gradient: Any) -> list[float]:
    values = np.asarray(gradient.coalesce().values, float)
    return [np.abs(values).sum(), (values**2).sum()]


# --- amplitudes -----------------------------------------------------------------------------------


def write_amplitude(folder: Path) -> None:
    """Couplings, shapes, data and simulation."""
    inputs = amplitude.make_inputs(*((6, 2_000) if QUICK else ()))
    columns = {f"data_{name}": np.asarray(x) for name, x in inputs.data._asdict().items()}
    columns |= {
        f"monte_carlo_{name}": np.asarray(x) for name, x in inputs.monte_carlo._asdict().items()
    }
    np.savez(folder / "amplitude.npz", **inputs.couplings, **inputs.shapes, **columns)


def couplings(transform: Callable[[Any], Any]) -> Callable[[Path], Case]:
    """The likelihood while all couplings move."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "amplitude.npz")
        shapes = {name: data[name] for name in ("mass", "width")}
        events = [
            amplitude.Events(
                *(jnp.asarray(data[f"{kind}_{name}"]) for name in amplitude.Events._fields)
            )
            for kind in ("data", "monte_carlo")
        ]
        ours = incrax.incremental(transform(amplitude.nll_vectorised), tuning=SETTLED)

        def call(number: int) -> Any:
            p = {name: np.asarray(moved(data[name], number)) for name in ("re", "im")}
            return jax.block_until_ready(ours(p, shapes, *events))

        return Case(call, _coupling_figures)

    return make


def _coupling_figures(result: Any) -> Any:
    if not isinstance(result, tuple):
        return [float(result)]
    value, gradient = result
    return np.concatenate([[float(value)], gradient["re"], gradient["im"]])


# --- flows and fits -------------------------------------------------------------------------------


def write_flow(folder: Path) -> None:
    """The sizes of the flow, and batches of base samples."""
    dim, layers, batch, width = (4, 2, 8, 8) if QUICK else (32, 5, 256, 50)
    xs = np.random.default_rng(1).normal(size=(8, batch, dim))
    np.savez(folder / "flow.npz", dim=dim, layers=layers, width=width, xs=xs)


def flow(name: str, transform: Callable[[Any], Any]) -> Callable[[Path], Case]:
    """The log-density of own samples, from memory."""

    def make(folder: Path) -> Case:
        import bench_bijectors
        from peer_flowjax import figures

        data = np.load(folder / "flow.npz")
        sizes = bench_bijectors.Sizes(
            int(data["dim"]), int(data["layers"]), data["xs"].shape[1], int(data["width"])
        )
        arrays, forms = bench_bijectors.forms(bench_bijectors.flows(sizes)[name][0])
        compiled, batches = jax.jit(transform(forms[bench_bijectors.OURS])), jnp.asarray(data["xs"])
        call = lambda number: jax.block_until_ready(
            compiled(arrays, batches[number % len(batches)])
        )
        return Case(call, figures)

    return make


def write_nist(folder: Path) -> None:
    """Every third certified problem, from its harder start."""
    (folder / "nist").mkdir()
    for name in nist.names()[:: 9 if QUICK else 3]:
        each = nist.problem(name)
        np.savez(
            folder / "nist" / name,
            x=each.x,
            y=each.y,
            start=each.starts[0],
            expression=np.array(each.expression),
        )


def fits(folder: Path) -> Case:
    """All problems of the folder, one after the other."""
    paths = sorted((folder / "nist").glob("*.npz"))
    if not paths:
        raise FileNotFoundError(
            f"the problems of NIST are not in {nist.FOLDER}; NIST_STRD names their folder"
        )
    solvers = [_solver(path) for path in paths]
    return Case(lambda _: [solve() for solve in solvers], lambda found: np.concatenate(found))


def _solver(path: Path) -> Callable[[], Any]:
    data, problem = np.load(path), nist.problem(path.stem)
    residuals = lambda b, x, y: y - problem.model(b, x)
    x, y, start = jnp.asarray(data["x"]), jnp.asarray(data["y"]), data["start"]
    return lambda: fit.levenberg_marquardt(residuals, start, x, y).values


# --- what a peer asks for -------------------------------------------------------------------------


def _same(function: Any) -> Any:
    return function


MIXTURE = {
    f"mixture, {what}, {change}": of_mixture(name, transform)
    for what, transform in {"value": _same, "value and gradient": jax.value_and_grad}.items()
    for change, name in {"one yield": "n1", "one mean": "mu1"}.items()
}
AMPLITUDE = {
    "amplitude, value, couplings": couplings(_same),
    "amplitude, value and gradient, couplings": couplings(jax.value_and_grad),
}
OTHERS = {
    "polynomial, value and derivative by one field": polynomial,
    "table, gradient, few rows read (sparse=True)": table,
    "table, gradient, few rows read (sparse=False)": table,
}
FLOWS = {
    f"{name} flow, {what}": flow(name, transform)
    for name in ("inverse autoregressive", "spline coupling")
    for what, transform in {"value": _same, "value and gradient": jax.value_and_grad}.items()
}
FITS = {"certified fits of least squares": fits}
SIDES: dict[str, tuple[list[Callable[[Path], None]], dict[str, Callable[[Path], Case]]]] = {
    "zfit": ([write_mixture], MIXTURE),
    "root": ([write_mixture], MIXTURE),
    "torch": ([write_mixture, write_polynomial, write_table], MIXTURE | OTHERS),
    "tensorwaves": ([write_amplitude], AMPLITUDE),
    "flowjax": ([write_flow], FLOWS),
    "optimistix": ([write_nist], FITS),
}
"""By peer: what to write, and the cases."""


def main() -> None:
    """Write, then serve."""
    jax.config.update("jax_enable_x64", True)
    writers, makers = SIDES[sys.argv[2]]
    for write in writers:
        write(Path(sys.argv[1]))
    serve(makers, ["incrax", "jax", "numpy"])


if __name__ == "__main__":
    main()
