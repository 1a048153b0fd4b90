"""The order of the folders: each imports only folders before it, and JAX's inner interfaces only in
`_jax.py`.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import incrax
from incrax import bijectors, fit, samplers

ROOT = Path(incrax.__file__).parent

FOLDERS = """
errors _messages
_interrupts _names _jax_options _removed
_version _jax _extras _context _tuning _cache_folder _collection _marks _locations
_table _stats _progress _tables
_program
primitives
engine
engine.program engine.rewrites engine.plan engine.inputs engine.compile engine.policy engine.store engine.call
rows explanation _incremental _api _forecast
control_flow.loops control_flow.tapes
derivatives.row_sparse derivatives.sparsity derivatives
models models.held
inspection
bijectors fit samplers
demo cli __main__
""".split()
"""Folders, and files that lie in none, in the order in which a reader meets them."""

APPLICATIONS = ("demo", "cli", "__main__")
INNER = ("jax._src", "jax.extend", "jax.interpreters")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


PACKAGES = {module_name(path) for path in ROOT.rglob("__init__.py") if path.parent != ROOT}
FILES = {
    module_name(path): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"
}


def folder_of(name: str) -> str:
    """The folder of a file; a file that lies in none stands for itself."""
    return name if name in PACKAGES or "." not in name else name.rpartition(".")[0]


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


def own_imports(name: str) -> list[tuple[str, bool]]:
    """(file of ours, is inside a function) of every import of a file; a package only where nothing
    in it is meant.
    """
    found = [
        (module.removeprefix("incrax."), is_inner) for module, is_inner in imports(FILES[name])
    ]
    known = [(module, is_inner) for module, is_inner in found if module in FILES and module != name]
    prefixes = {module.rpartition(".")[0] for module, _ in known}
    return [(module, is_inner) for module, is_inner in known if module not in prefixes]


def test_every_file_lies_in_a_known_folder():
    assert {folder_of(name) for name in FILES} - set(FOLDERS) <= {"control_flow"}
    assert set(FOLDERS) <= {folder_of(name) for name in FILES}


def test_what_lies_in_one_folder_comes_together():
    """So that whole folders are ordered, not only those inside them."""
    outer = [name.partition(".")[0] for name in FOLDERS]
    assert len(set(outer)) == len(list(itertools.groupby(outer)))


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_imports_only_from_its_own_folder_and_those_before_it(name):
    folder = folder_of(name)
    allowed = FOLDERS[: FOLDERS.index(folder) + 1] if folder in FOLDERS else []
    for module, is_inner in own_imports(name):
        assert not is_inner, f"{name} imports {module} inside a function"
        assert folder_of(module) in allowed, (
            f"{name} imports {module}, whose folder does not come before"
        )


def test_files_do_not_import_each_other_in_a_circle():
    graphlib.TopologicalSorter(
        {name: {module for module, _ in own_imports(name)} for name in FILES}
    ).prepare()


@pytest.mark.parametrize("package", [incrax, samplers, fit, bijectors])
def test_no_module_has_the_name_of_something_public_beside_it(package):
    """Which of the two `package.name` is would depend on who imported what."""
    folder = Path(package.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if path.is_dir()
    }
    assert not modules & set(package.__all__)


@pytest.mark.parametrize("name", sorted(FILES))
def test_inner_interfaces_of_jax_are_imported_in_one_file(name):
    inner = [module for module, _ in imports(FILES[name]) if module.startswith(INNER)]
    assert name == "_jax" or not inner


@pytest.mark.parametrize("name", [n for n in sorted(FILES) if n.split(".")[0] in APPLICATIONS])
def test_applications_use_public_names_only(name):
    wings = ("fit", "samplers", "bijectors")
    public = {
        *APPLICATIONS,
        *incrax.__all__,
        *wings,
        "errors",
        "__version__",
        "_interrupts",  # which ends a process
        "_table",
    }
    for module, _ in imports(FILES[name]):
        if module.startswith("incrax."):
            assert module.split(".")[1] in public


def loaded(statements, *names):
    """What is loaded of these packages after some statements in a fresh process."""
    code = f"import sys\n{statements}\nprint(*[m for m in sys.modules if m.startswith({names})])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_importing_incrax_loads_the_core_only():
    core = ("errors", "engine", "primitives", "rows", "explanation")
    outside = [
        m
        for m in loaded("import jax, incrax", "incrax", "scipy", "rich")
        if not m.startswith(("incrax._", *(f"incrax.{name}" for name in core)))
    ]
    assert outside == ["incrax"]


def test_importing_incrax_loads_hardly_anything_of_others():
    """Beside what JAX has loaded: an import is counted in modules, since times are noisy."""
    before = loaded("import jax, jax.numpy", "")
    after = loaded("import jax, jax.numpy, incrax", "")
    others = {m for m in {*after} - {*before} if not m.startswith("incrax")}
    known = {"graphlib", "mmap", "jax._src.xla_metadata", "jax.experimental.xla_metadata"}
    assert others <= known


def test_a_fit_with_minuit_and_a_chain_load_no_scipy():
    # which takes as long to load as many a fit
    job = """
from incrax import fit, samplers
assert fit.minimize(lambda p: (p - 1.0) ** 2, 0.0).is_converged
samplers.gibbs(lambda p: -(p**2), 0.0, key=0, num_sweeps=4)
"""
    assert loaded(job, "scipy", "jax.experimental.sparse", "rich") == []


@pytest.mark.parametrize("name", ["fit", "samplers", "bijectors"])
def test_a_wing_is_there_without_an_import_of_its_own(name):
    assert getattr(incrax, name).__name__ == f"incrax.{name}"


def test_every_public_name_is_there_and_names_that_moved_say_where():
    assert all(getattr(incrax, name) is not None for name in incrax.__all__)
    with pytest.warns(
        DeprecationWarning, match=r"`incrax.TapeError` is `incrax.errors.TapeError` now"
    ):
        assert incrax.TapeError is incrax.errors.TapeError
    with pytest.raises(AttributeError, match="module 'incrax' has no attribute 'nothing'"):
        _ = incrax.nothing
    assert [name for name in dir(incrax) if name.startswith("_")] == ["__version__"]
