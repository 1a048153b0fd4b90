"""What is published: one version everywhere, a recipe with the dependencies of the project, and a
source distribution that has all it names.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

import incrax

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
RECIPE = (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def recipe_list(key: str) -> list[str]:
    """The items below a key, without spaces."""
    below = RECIPE[RECIPE.index(f"{key}:\n") + len(key) + 2 :]
    found = re.match(r"(?: +- .*\n)+", below)
    assert found, key
    return [line.strip().removeprefix("- ").replace(" ", "") for line in found[0].splitlines()]


def recipe_variable(name: str) -> str:
    found = re.search(rf'set {name} = "([^"]+)"', RECIPE)
    assert found
    return found[1]


def test_the_version_is_one():
    latest = re.search(r"^## (\d\S*)$", CHANGES, re.MULTILINE)
    assert latest
    versions = [PROJECT["version"], recipe_variable("version"), latest[1]]
    assert versions == [incrax.__version__] * 3


def test_the_recipe_has_the_dependencies_of_the_project():
    python, *others = recipe_list("run")
    assert python == "python>={{python_min}}"
    assert others == PROJECT["dependencies"]


def test_the_recipe_builds_with_the_backend_of_the_project():
    backend = SETTINGS["build-system"]["requires"]
    assert recipe_list("host") == ["python{{python_min}}", "pip", *backend]


def test_the_recipe_has_the_commands_and_licences_of_the_project():
    commands = [f"{name}={where}" for name, where in PROJECT["scripts"].items()]
    assert recipe_list("entry_points") == commands
    assert recipe_list("license_file") == PROJECT["license-files"]
    assert f"license: {PROJECT['license']}" in RECIPE


def test_the_source_distribution_has_what_it_names():
    included = SETTINGS["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [pattern for pattern in included if not list(ROOT.glob(pattern))] == []


@pytest.fixture
def hook(monkeypatch):
    """The hook of the build, without the library that calls it."""
    interface = types.SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("metadata", ROOT / "scripts" / "metadata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Metadata()
    made.root = str(ROOT)
    return made


def test_whoever_publishes_gives_the_addresses_of_the_project(hook, monkeypatch):
    monkeypatch.setenv("INCRAX_REPO_URL", "https://example.org/incrax/")
    monkeypatch.setenv("INCRAX_SITE_URL", "https://docs.example.org")
    metadata = {"version": "0.2.0"}
    hook.update(metadata)
    assert metadata["urls"] == {
        "Documentation": "https://docs.example.org",
        "Repository": "https://example.org/incrax",
        "Changelog": "https://example.org/incrax/blob/v0.2.0/CHANGELOG.md",
        "Issues": "https://example.org/incrax/issues",
    }
    text = metadata["readme"]["text"]
    assert 'src="https://example.org/incrax/raw/v0.2.0/docs/assets/demo.png"' in text
    assert 'href="https://example.org/incrax/blob/v0.2.0/docs/assets/demo.png"' in text
    assert "(https://example.org/incrax/blob/v0.2.0/docs/faq.md)" in text
    assert re.findall(r"\]\((?!https:)", text) == []


def test_without_addresses_the_project_has_none_and_its_readme_is_the_file(hook, monkeypatch):
    monkeypatch.delenv("INCRAX_REPO_URL", raising=False)
    monkeypatch.delenv("INCRAX_SITE_URL", raising=False)
    metadata = {"version": "0.2.0"}
    hook.update(metadata)
    assert metadata["urls"] == {}
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text(encoding="utf-8")
