"""The site: every page has its place, every public name an API page, and the tutorial's page is its
program.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import incrax
import incrax.bijectors
import incrax.fit
import incrax.samplers
from incrax.cli import commands as cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAV = re.findall(r"^ +- (?:[^\n:]*: )?([\w/.-]+\.md)$", SITE[SITE.index("\nnav:") :], re.MULTILINE)
TUTORIAL = DOCS / "tutorial" / "from_nothing.py"
FOLDER = ROOT / "examples"
ANALYSES = sorted((FOLDER / "analyses").glob("*.py"))
EXAMPLES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in [*FOLDER.glob("*.py"), *ANALYSES]
    if path.name != "wholejob.py"
)
API = "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "api").glob("*.md")))
ENTRY = re.compile(
    r"^::: (incrax[\w.]*)\n(?:    options:\n      heading: (incrax[\w.]*)\n)?", re.MULTILINE
)
OBJECTS = {heading or path: path for path, heading in ENTRY.findall(API)}
"""What is looked up in the sources, by the name that its heading shows."""
WORDS = re.compile(r"^\|([^|]+)\|", re.MULTILINE)


def origin(page: str) -> Path:
    """The file that a page shows; those under `repository/` are beside `docs`, and a README is
    called by its folder.
    """
    if not page.startswith("repository/"):
        return DOCS / page
    path = ROOT / page.removeprefix("repository/")
    return path if path.is_file() else path.with_suffix("") / "README.md"


def public_names() -> list[str]:
    modules = (incrax, incrax.fit, incrax.samplers, incrax.bijectors)
    return [f"{module.__name__}.{name}" for module in modules for name in module.__all__]


def public_object(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def fields_of(value: object) -> list[str]:
    """Public fields of a dataclass or a named tuple; of anything else none."""
    names = [*getattr(value, "_fields", ()), *getattr(value, "__dataclass_fields__", ())]
    return [name for name in names if inspect.isclass(value) and not name.startswith("_")]


def with_fields() -> list[str]:
    return [name for name in public_names() if fields_of(public_object(name))]


def functions_and_classes(path: Path) -> list[str]:
    """The source of each, as it stands in the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.parse("\n".join(lines)).body if isinstance(node, kinds)]
    return ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found]


def test_every_page_of_the_navigation_exists():
    assert len(NAV) > 50
    assert [page for page in NAV if not origin(page).is_file()] == []


def test_every_page_is_in_the_navigation_once():
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(page for page in NAV if not page.startswith("repository/")) == pages


def test_no_page_of_the_navigation_hides_behind_the_title_of_its_section():
    """The theme lists an index, or a README, as the title of its section alone; only the first page
    may be one.
    """
    sections = re.split(r"^ +- [^\n:]*:$", SITE[SITE.index("\nnav:") :], flags=re.MULTILINE)
    pages = [
        page
        for section in sections
        for page in re.findall(r"([\w/.-]+\.md)$", section, re.MULTILINE)[1:]
    ]
    assert [page for page in pages if Path(page).stem in ("index", "README")] == []


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_on_an_api_page(name):
    assert name in OBJECTS


def test_every_name_on_an_api_page_exists():
    for name in OBJECTS:
        value = incrax
        for part in name.split(".")[1:]:
            value = getattr(value, part)


@pytest.mark.parametrize("name", with_fields())
def test_every_field_of_a_public_class_is_described(name):
    """By the docstring of its class, or by its own: only then an API page lists it."""
    found = public_object(name)
    (body,) = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(found))).body]
    own = {
        x.target.id
        for x, y in pairwise(body)
        if isinstance(x, ast.AnnAssign) and isinstance(y, ast.Expr)
    }
    told = set(re.findall(r"(?:^ +|`)(\w+)(?:`|(?: \(.*\))?:)", found.__doc__ or "", re.MULTILINE))
    assert [each for each in fields_of(found) if each not in own | told] == []


def undescribed(cls: type) -> list[str]:
    """Public attributes that the methods of a class set and no docstring tells of."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))))
    attributes = [x for x in nodes if isinstance(x, ast.Attribute) and isinstance(x.ctx, ast.Store)]
    is_set = {x.attr for x in attributes if isinstance(x.value, ast.Name) and x.value.id == "self"}
    bodies = [x.body for x in nodes if isinstance(x, ast.FunctionDef)]
    pairs = [pair for body in bodies for pair in pairwise(body)]
    own = {ast.unparse(x).partition(":")[0] for x, y in pairs if isinstance(y, ast.Expr)}
    told = {*re.findall(r"\w+", cls.__doc__ or ""), *vars(cls)}
    return [x for x in is_set - told if not x.startswith("_") and f"self.{x}" not in own]


def test_every_attribute_that_a_public_class_sets_is_described():
    """What users have no use for begins with `_`."""
    found = {name: public_object(name) for name in public_names()}
    missing = {name: undescribed(x) for name, x in found.items() if inspect.isclass(x)}
    assert {name: names for name, names in missing.items() if names} == {}


def test_every_public_class_and_function_has_an_example():
    """In its docstring; `pytest` runs them, since `pyproject.toml` has `--doctest-modules`."""
    errors = [f"incrax.errors.{name}" for name in vars(incrax.errors) if name.endswith("Error")]
    without = [
        name
        for name in [*public_names(), *errors]
        if callable(public_object(name)) and ">>> " not in (public_object(name).__doc__ or "")
    ]
    assert len(errors) >= 40
    assert without == []


def test_docstrings_have_the_sections_that_the_site_knows():
    """Any other title would fold what follows into a box, lines joined."""
    known = {
        "Args",
        "Returns",
        "Raises",
        "Example",
        "Fields",
        "Promise",
        "Cost",
        "Source",
        "Not handled",
        "Shapes",
        "Units",
    }
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    titles = {
        title for text in texts for title in re.findall(r"^ +([A-Z][a-z ]*):$", text, re.MULTILINE)
    }
    assert "Args" in titles
    assert titles <= known


IN_HOUSE = re.compile(
    r"(?<![Tt]he )\brests?\b|\bon trust\b|\bas there\b(?! (are|is))|\bLaw\b"
    r"|\b(is|are|was|were|be) told\b|\banew\b|\bkinds? of change\b|\bheeds?\b|\braced\b|\bstands? under\b|\bdirty\b"
)
"""Words that only those who wrote the code understand at once."""
USER_PAGES = [
    ROOT / "README.md",
    *(page for page in DOCS.glob("*.md") if page.stem not in ("glossary", "targets")),
    *(DOCS / "api").glob("*.md"),
    *(DOCS / "coming_from").glob("*.md"),
]


def in_house(text: str) -> list[str]:
    """Lines that have such a word, but for code."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for line in prose.splitlines() if IN_HOUSE.search(line)]


@pytest.mark.every_case
@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_a_page_for_users_is_plain_english(page):
    assert in_house(page.read_text(encoding="utf-8")) == []


def test_docstrings_for_users_are_plain_english():
    errors = [f"incrax.errors.{name}" for name in vars(incrax.errors) if name.endswith("Error")]
    found = {}
    for name in [*public_names(), *errors]:
        public = public_object(name)
        parts = vars(public).items() if isinstance(public, type) else ()
        docs = [public.__doc__, *(part.__doc__ for key, part in parts if not key.startswith("_"))]
        found[name] = in_house("\n".join(doc for doc in docs if isinstance(doc, str)))
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_name_is_on_one_api_page():
    counted = Counter(heading or path for path, heading in ENTRY.findall(API))
    assert [name for name, count in counted.items() if count > 1] == []


@pytest.mark.parametrize("path", OBJECTS.values())
def test_what_an_api_page_shows_is_no_module(path):
    """A function that has the name of its module hides behind it: the entry then goes through the
    module.
    """
    assert not list((ROOT / "src").glob(f"{path.replace('.', '/')}.py"))


def test_the_page_of_the_tutorial_holds_its_program():
    """Every function and class, to the letter; `test_readme.py` runs the page."""
    page = TUTORIAL.with_suffix(".md").read_text(encoding="utf-8")
    assert [code for code in functions_and_classes(TUTORIAL) if code not in page] == []


def test_the_notebook_is_that_of_its_page():
    """`python scripts/notebook.py` makes it; `test_notebook.py` runs it."""
    script = ROOT / "scripts" / "notebook.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], timeout=60, check=False)
    assert checked.returncode == 0
    page = (DOCS / "get_started.md").read_text(encoding="utf-8")
    made = json.loads((DOCS / "get_started.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    assert len(code) == page.count("```python\n") > 5
    assert [each for each in code if each not in page] == []


def test_the_tutorial_uses_public_interfaces_of_jax():
    imported = re.findall(r"(?:from|import) (jax[\w.]*)", TUTORIAL.read_text(encoding="utf-8"))
    assert set(imported) == {"jax", "jax.numpy", "jax.extend.core"}


def test_every_idea_has_a_page_and_a_line():
    page = (DOCS / "concepts" / "index.md").read_text(encoding="utf-8")
    ideas = re.findall(r"^\| \[[^\]]*\]\((\w+\.md)\)", page, re.MULTILINE)
    assert sorted(ideas) == sorted(
        p.name for p in (DOCS / "concepts").glob("*.md") if p.name != "index.md"
    )
    assert page.count("Six ideas") == (len(ideas) == 6)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_how_to_run_it_and_is_in_the_list(name):
    docstring = (
        ast.get_docstring(ast.parse((ROOT / "examples" / name).read_text(encoding="utf-8"))) or ""
    )
    assert f"Run: python examples/{name}" in docstring
    assert f"| [{name}]({name}) |" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


def test_pictures_of_the_gallery_are_small_and_lead_to_the_examples_that_the_script_draws():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(assets/gallery/(\w+)\.png\)", page)
    linked = re.findall(r"\*\*\[[^\]]+\]\(\.\./examples/(\S+\.py)\)\*\*", page)
    assert [Path(example).stem for example in linked] == shown
    assert set(linked) <= set(EXAMPLES)
    files = list((DOCS / "assets" / "gallery").iterdir())
    assert sorted(shown) == sorted(path.stem for path in files)
    assert max(path.stat().st_size for path in files) < 40_000
    script = ast.parse((ROOT / "scripts" / "gallery.py").read_text(encoding="utf-8"))
    drawn = {node.name for node in script.body if isinstance(node, ast.FunctionDef)}
    assert set(shown) <= drawn


def test_every_knob_is_on_the_page_on_tuning_with_its_default():
    page = (DOCS / "tuning.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    told = {}
    for _, names, defaults, *_ in rows:
        told |= dict(
            zip(
                names.replace("`", "").split(","), defaults.replace("`", "").split(","), strict=True
            )
        )
    told = {name.strip(): default.strip().strip('"') for name, default in told.items()}
    fields = {field.name: str(field.default) for field in dataclasses.fields(incrax.Tuning)}
    assert {name: told.get(name) for name in fields} == fields
    assert set(inspect.signature(incrax.incremental).parameters) - {"f"} <= set(told)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_of_a_command_is_on_the_page_on_commands(name):
    page = (DOCS / "command_line.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser(add_help=False)
    cli.COMMANDS[name].add_arguments(parser)
    assert f"`incrax {name}" in page
    assert {
        o for o in re.findall(r"--[a-z0-9-]+", parser.format_usage()) if f"`{o}" not in page
    } - {"--compare"} == set()


def test_the_page_on_logs_has_lines_and_functions_that_there_are():
    page = (DOCS / "logging.md").read_text(encoding="utf-8")
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    cells = re.findall(r"^\| (.+?) \| (?:DEBUG|INFO|WARNING) \|", page, re.MULTILINE)
    lines = [part for cell in cells for part in re.split(r"`(?:, `)?| ?\.\.\. ?", cell) if part]
    assert len(lines) > 10
    assert [line for line in lines if not any(line in text for text in files.values())] == []
    functions = re.findall(r"`(\w+\.py): (\w+)`", page)
    assert len(functions) == 2
    for file, name in functions:
        assert any(path.name == file and f"def {name}(" in text for path, text in files.items())


def test_every_file_that_the_guide_for_contributors_names_exists():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs|scripts|\.ci)/[\w./]+)`", page)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_words_of_the_glossary_are_in_order():
    terms, _, _ = (DOCS / "glossary.md").read_text(encoding="utf-8").partition("\n## ")
    words = [word.strip().lower() for word in WORDS.findall(terms)[2:]]
    assert len(words) > 80
    assert words == sorted(words)


def test_whoever_publishes_the_site_says_where():
    """Its address and the repository's are not in the project; the version is that of the package."""
    assert 'site_url: !ENV [INCRAX_SITE_URL, ""]' in SITE
    assert 'repo_url: !ENV [INCRAX_REPO_URL, ""]' in SITE
    assert 'config.copyright = f"incrax {found[1]}"' in (
        ROOT / "scripts" / "site_links.py"
    ).read_text(encoding="utf-8")


def test_nothing_is_fetched_when_the_site_is_read():
    """Neither fonts nor scripts nor styles of others."""
    assert "font: false" in SITE
    assert re.findall(r"https?://", SITE) == []
    assert (
        re.findall(r"url\(|@import", (DOCS / "assets" / "site.css").read_text(encoding="utf-8"))
        == []
    )
