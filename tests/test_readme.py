"""The README and the pages: their code prints what they show, commands are those of CI, names and
links exist.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import logging
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import incrax

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
"""The list of every public name, in one line each."""
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)\)")
INSTALL = re.compile(r"/pip['\"]? install (?:-q )?'\.\[(\w+)\]'")
PYTEST = re.compile(r"-m pytest (.*)")


def blocks(page: str = "README.md") -> list[tuple[str, str]]:
    """(language, text) of every fenced block."""
    return [
        (match[1], match[2]) for match in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    ]


def shell_commands() -> list[str]:
    return [line for language, text in blocks() if language == "sh" for line in text.splitlines()]


def pytest_options(text: str) -> list[str]:
    """Options of the test command, without those that only report."""
    found = PYTEST.search(text)
    assert found, text
    return [word for word in shlex.split(found[1]) if not word.startswith("--durations")]


def public_names() -> list[str]:
    listed = getattr(incrax, "__all__", None)
    names = vars(incrax) if listed is None else listed
    return [
        n for n in names if not n.startswith("_") and not isinstance(getattr(incrax, n), ModuleType)
    ]


# --- code -----------------------------------------------------------------------------------------


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md"))),
]
WITH_CODE = [page for page in PAGES if "python" in dict(blocks(page))]
"""Blocks marked `python` run; code of others, and what needs a cluster, is marked `py`."""


@pytest.fixture
def own_log():
    """What a page does to the log is undone."""
    logger = logging.getLogger("incrax")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


LEARNED = ("docs/slices.md", "docs/coming_from/nimble.md", "docs/coming_from/gen.md")
"""Pages that show what was learned of some ten calls: measured seconds decide that, and on a
machine that does other things they may say another thing.
"""
MAX_TRIES = 6


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_prints_what_the_page_shows(page):
    """Blocks run in order in one namespace; `...` in the output stands for anything."""
    for _ in range(MAX_TRIES - 1 if page in LEARNED else 0):
        with contextlib.suppress(AssertionError):
            check_page(page)
            return
    check_page(page)


def check_page(page):
    """Run a page's blocks, and compare what they print."""
    checker = doctest.OutputChecker()
    namespace: dict[str, object] = {}
    compared = 0
    found = blocks(page)
    for number, (language, text) in enumerate(found):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            filename = f"<{page}, block {number}>"
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
            exec(compile(text, filename, "exec"), namespace)
        if (
            number + 1 < len(found)
            and found[number + 1][0] == "text"
            and is_next(page, text, found[number + 1][1])
        ):
            expected, actual = stripped(found[number + 1][1]), stripped(printed.getvalue())
            assert checker.check_output(expected, actual, doctest.ELLIPSIS), (
                f"{text}\n--- printed\n{actual}"
            )
            compared += 1
    assert compared >= 1


def is_next(page: str, code: str, output: str) -> bool:
    """Whether nothing but a blank line stands between two blocks."""
    return f"```python\n{code}```\n\n```text\n{output}```" in (ROOT / page).read_text(
        encoding="utf-8"
    )


def stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


def test_the_first_example_is_the_program_that_it_names():
    program = (ROOT / "examples" / "groups.py").read_text(encoding="utf-8")
    (code,) = [text for language, text in blocks() if language == "py"]
    assert code in program


# --- commands -------------------------------------------------------------------------------------


def test_there_are_two_commands_one_for_the_demo_and_one_for_the_tests():
    demo, tests = shell_commands()
    for command in (demo, tests):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert INSTALL.findall(demo) == ["demo"]
    assert demo.endswith("&& .venv/bin/incrax demo")
    assert INSTALL.findall(tests) == ["test"]


def test_the_commands_are_those_that_ci_runs():
    demo, tests = shell_commands()
    assert INSTALL.findall(CI)[0] == INSTALL.findall(tests)[0]
    assert pytest_options(tests) == pytest_options(CI)
    assert re.search(r'/bin/incrax" demo', CI)
    assert (
        f"incrax[{INSTALL.findall(demo)[0]}]" in EXTRAS["test"]
    )  # what the demo needs is installed there too


def test_every_extra_that_the_page_names_exists():
    assert set(re.findall(r"\.\[(\w+)\]", README)) <= set(EXTRAS)


# --- names and links ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_has_a_line(name):
    assert re.search(rf"^\| `{name}[`(]", NAMES, re.MULTILINE)


def test_every_public_method_has_a_line():
    methods = [name for name in vars(incrax.Incremental) if not name.startswith("_")]
    assert len(methods) >= 7
    for name in methods:
        assert f"`Incremental.{name}" in NAMES


def test_every_name_in_the_table_exists():
    for name in re.findall(r"^\| `([A-Za-z_.]+)", NAMES, re.MULTILINE):
        value = incrax
        for part in name.split("."):
            value = getattr(value, part)


@pytest.mark.parametrize("page", [*PAGES, "tests/seeds/README.md"])
def test_every_relative_link_exists(page):
    path = ROOT / page
    links = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_module_of_the_engine_has_its_place_in_the_pipeline():
    page = (ROOT / "docs" / "design" / "pipeline.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "incrax"
    names = [
        ".".join(path.relative_to(source).with_suffix("").parts) for path in source.rglob("*.py")
    ]
    engine = [
        n for n in names if "__" not in n and not n.startswith(("demo", "cli", "primitives."))
    ]
    assert [name for name in engine if f"`{name}`" not in page] == []


def test_every_test_that_the_page_of_the_seeds_names_exists():
    folder = ROOT / "tests" / "seeds"
    written = {
        name
        for path in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    named = set(
        re.findall(r"`(test_[a-z]\w+)`", (folder / "README.md").read_text(encoding="utf-8"))
    )
    assert named == written


def test_the_front_door_is_short():
    """A window of a laptop, but for the picture; what does not fit belongs on a page of its own."""
    assert len(README.split()) < 460
    assert len(README.splitlines()) < 60
    (code,) = [text for language, text in blocks() if language == "py"]
    assert sum(bool(line.strip()) for line in code.splitlines()) == 12


def test_the_page_names_no_machine():
    """No absolute path and no host."""
    assert re.findall(r"(?:^|[\s`'\"(=])/\w+", README) == []
    assert re.findall(r"\w+://\S+|localhost|\b\d+\.\d+\.\d+\.\d+\b", README) == []


def test_the_front_door_is_one_picture_and_no_special_planner():
    (picture,) = re.findall(r'<img src="([^"]+)"', README)
    assert (ROOT / picture).is_file()
    assert "![" not in README
    assert "planner=" not in README


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(incrax.__version__)}$", citation, re.MULTILINE)
