"""The order of the modules: each imports only modules before it, and JAX's inner interfaces only in `_jax.py`."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

import incrax
from incrax import bijectors, fit, samplers

ROOT = Path(incrax.__file__).parent

ORDER = """
_errors _row_errors _derivative_errors _loop_errors _tape_errors _bind_errors _fit_errors
_held_errors _sampler_errors _minimize_errors _cost_errors _report_errors
_names _version _profiling _jax _extras _context _tuning _collection _marks tapes.locations
facts.passes facts.program facts.constants facts.functions facts.simplify facts.inverses facts.splitting
facts.matrices facts.work facts.nested facts.cost facts.loops
facts.rules facts.dependence
facts.chains facts.row_numbers facts.row_rules facts.rows
planning.frontier planning.derived planning.linear planning.products planning.operands planning.factors
planning.forms planning.statistics
planning.algebra planning.facts planning.plan planning.segmentation planning.sizes planning.phases
sparsity.patterns sparsity.known sparsity.moves sparsity.products sparsity.rules sparsity.nested
sparsity.search sparsity.coloring sparsity.compressed
_stats _progress
inputs.placement inputs.leaves inputs.paths inputs.sources inputs.chunks inputs.rows inputs.signature
compiling.packing compiling.recycling compiling.host_calls compiling.compiled compiling.timing
choosing.agreement choosing.watch choosing.choice choosing.wants choosing.segments choosing.racing choosing.credit
choosing.journal choosing.chooser
saving.limits saving.store saving.comparison saving.eviction saving.baselines saving.saved saving.succession
running.living running.analysis running.flags running.pure running.record running.history running.advice
running.doubts running.repeat running.serving running.engine running.traces
rehearsing.rehearsal rehearsing.warming rehearsing.verifying
rows.versions rows.combining rows.totals rows.trace rows.chunk_engine rows.engine rows.warm_up rows.traces
reports.table reports.deps reports.explain
row_sparse.indices row_sparse.values row_sparse.rows row_sparse.context row_sparse.elementwise row_sparse.windows
row_sparse.shapes row_sparse.control row_sparse.interpreter row_sparse.explanation row_sparse.structured
_incremental reports.counting reports.asserting
loops.lengths loops.padded loops.ragged
tapes.guards tapes.conversions tapes.recording tapes.oracle tapes.mechanism tapes.images tapes.captured tapes.sources
tapes.counts tapes.syntax tapes.rewriting tapes.reading tapes.sides
tapes.paths tapes.tree tapes.tape tapes.statics tapes.explanation tapes.making tapes.checking tapes.guarded
tapes.alone
_api tapes.api reports.environment
derivatives.cuts derivatives.selection derivatives.flat derivatives.blocks derivatives.differentiated
derivatives.transforms
derivatives.linear_maps derivatives.pullback derivatives.linearized derivatives.prepared
held.encoding held.row_by_row held.programs held.kept held.epoch held.holding
binding.names binding.roles binding.unbounded binding.modules binding.inputs binding.functions binding.vector
binding.training binding.table binding.bound binding.api
reports.equations reports.outlooks reports.gathered reports.page reports.api
loops.bodies loops.linearized loops.batches loops.primitive loops.tracing loops.scan
loops.mapped loops.while_loop loops.sizes loops.bucketed loops.selecting
bijectors.switches bijectors.adapters bijectors.snapshots bijectors.evaluation bijectors.memory
bijectors.remembered bijectors.boundary bijectors.jitting
fit.losses fit.linear fit.steps fit.compiled fit.problem fit.batches fit.turns fit.records fit.result fit.hosted
fit.normal fit.free fit.large fit.levenberg
fit.joint fit.ended fit.task fit.minuit fit.scipy_methods fit.stepped fit.covariance fit.minimum fit.minimizing
fit.following fit.scanned fit.scans fit.simulating
samplers.random samplers.density samplers.chain samplers.compiled samplers.ensembles samplers.updates samplers.blocking
samplers.sweeping
costs.regions costs.rows costs.counting costs.models costs.plain costs.programs costs.places costs.measuring
costs.cells costs.report costs.counted costs.api
""".split()
PIPELINE = "facts planning sparsity inputs compiling choosing saving running rehearsing rows".split()
PACKAGES = {
    *PIPELINE, "reports", "row_sparse", "derivatives", "binding", "loops", "tapes", "bijectors", "fit", "held",
    "samplers", "costs", "demo", "commands",
}  # fmt: skip
APPLICATIONS = ("cli", "__main__", "demo", "commands")
INNER = ("jax._src", "jax.extend", "jax.interpreters")
MAX_LINES = 350
MAX_SEAM_LINES = 630
"""Of `_jax`, which cannot be two modules: one file alone imports JAX's inner interfaces."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
ENGINE = {name: path for name, path in FILES.items() if name in ORDER}


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, is inside a function) of every import."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found += [(name, id(node) not in top) for name in names]
    return found


def test_the_folders_of_the_pipeline_come_one_after_another():
    folders = [name.split(".")[0] for name in ORDER if name.split(".")[0] in PIPELINE]
    assert [folder for folder, _ in itertools.groupby(folders)] == PIPELINE


@pytest.mark.parametrize("package", [incrax, samplers, fit, bijectors])
def test_no_module_has_the_name_of_something_public_beside_it(package):
    """Which of the two `package.name` is would depend on who imported what."""
    folder = module_name(Path(package.__file__)).removesuffix("__init__")
    modules = {name.removeprefix(folder) for name in FILES if name.startswith(folder)}
    assert not modules & set(package.__all__)


def test_every_file_has_a_layer():
    known = {*ORDER, "__init__", *APPLICATIONS}
    unknown = [
        n for n in FILES if n not in known and not n.endswith(".__init__") and n.split(".")[0] not in APPLICATIONS
    ]
    assert not unknown
    assert set(ORDER) <= set(FILES)


@pytest.mark.parametrize("name", sorted(ENGINE))
def test_a_module_imports_only_modules_before_it(name):
    allowed = set(ORDER[: ORDER.index(name)])
    for module, is_inner in imports(ENGINE[name]):
        assert not is_inner, f"{name} imports {module} inside a function"
        if module.startswith("incrax."):
            short = module.removeprefix("incrax.")
            owner = short if short in FILES or short in PACKAGES else short.rpartition(".")[0]
            assert owner in allowed or owner in {"", *PACKAGES}, f"{name} imports {module}, which is not before it"


@pytest.mark.parametrize("name", sorted(FILES))
def test_inner_interfaces_of_jax_are_imported_in_one_file(name):
    inner = [module for module, _ in imports(FILES[name]) if module.startswith(INNER)]
    assert name == "_jax" or not inner


@pytest.mark.parametrize("name", [n for n in sorted(FILES) if n.split(".")[0] in APPLICATIONS])
def test_applications_use_public_names_only(name):
    for module, _ in imports(FILES[name]):
        if module.startswith("incrax."):
            owner = module.split(".")[1]
            assert owner in {*APPLICATIONS, *dir(incrax)} - (PACKAGES - {"demo", "commands"}) - {"_api"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_modules_are_short(name):
    assert len(FILES[name].read_text().splitlines()) <= (MAX_SEAM_LINES if name == "_jax" else MAX_LINES)
