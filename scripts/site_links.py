"""Files beside `docs` on the site: each that a page links to becomes a page under `repository/`; and
the version at the foot of every page.

A hook of mkdocs. Markdown is shown as a page, anything else as code, a folder as its README or the
list of its files; links are rewritten to lead there. Pages link as they do in the repository, and
no address of it is needed.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "repository"
CODE = r"^```.*?^```$|`[^`\n]*`"
IMAGE = r"!\[[^\]]*\]\([^)]*\)"
TEXT = rf"\[(?:[^\[\]`]|`[^`]*`|{IMAGE})*\]"
PIECE = re.compile(
    rf"(?P<code>{CODE})|(?P<text>{TEXT})\((?P<link>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)
"""Code, or a link, whichever begins first: what looks like a link inside code is none."""
NAV = re.compile(rf"{PREFIX}/[\w./-]+")
README = "/README.md"
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh"}


VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The version of the package at the foot of every page."""
    found = VERSION.search((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    config.copyright = f"incrax {found[1]}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside `docs` that a page, or a page so added, links to."""
    waiting = [
        origin(uri) for uri in NAV.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    ]
    for file in files.documentation_pages():
        waiting += outside(f"docs/{file.src_uri}", file.content_string)
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path not in done:
            done.add(path)
            text = page_of(path)
            files.append(File.generated(config, address(path), content=text))
            waiting += outside(path, text)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of a page to files of the repository, as links between pages of the site."""
    here = page.file.src_uri
    return rewritten(markdown, origin(here), here)


def address(path: str) -> str:
    """The place in the site's sources of a file of the repository.

    A README is called after its folder: the theme would take it for the index of its section, and
    list it nowhere.
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(README):
        return f"{PREFIX}/{path.removesuffix(README)}.md"
    suffix = "/index.md" if (ROOT / path).is_dir() else "" if path.endswith(".md") else ".md"
    return f"{PREFIX}/{path}{suffix}"


def origin(src_uri: str) -> str:
    """The file of the repository that a page shows: the inverse of `address`."""
    if not src_uri.startswith(f"{PREFIX}/"):
        return f"docs/{src_uri}"
    path = src_uri.removeprefix(f"{PREFIX}/")
    if (ROOT / path).exists():
        return path
    path = (
        path.removesuffix("/index.md") if path.endswith("/index.md") else path.removesuffix(".md")
    )
    return f"{path}{README}" if (ROOT / f"{path}{README}").exists() else path


def target(path: str, link: str) -> str | None:
    """The file of the repository that a link of `path` leads to, or None if it is an address
    elsewhere or broken.
    """
    if "://" in link or link.startswith("mailto:"):
        return None
    folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
    found = posixpath.normpath(posixpath.join(folder, link))
    if (ROOT / f"{found}{README}").exists():
        return f"{found}{README}"
    return found if (ROOT / found).exists() else None


def outside(path: str, markdown: str) -> list[str]:
    """Files outside `docs` that a page links to."""
    found = [target(path, piece["link"]) for piece in PIECE.finditer(markdown) if piece["link"]]
    return [path for path in found if path is not None and not path.startswith("docs/")]


def rewritten(markdown: str, path: str, here: str) -> str:
    """Links to files of the repository, relative to the page `here`; code stays as it is."""

    def replaced(piece: re.Match[str]) -> str:
        found = target(path, piece["link"]) if piece["link"] else None
        if found is None:
            return piece[0]
        relative = posixpath.relpath(address(found), posixpath.dirname(here) or ".")
        return f"{piece['text']}({relative}{piece['anchor'] or ''})"

    return PIECE.sub(replaced, markdown)


def page_of(path: str) -> str:
    """The text of the page that shows a file or a folder."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(child.name for child in file.iterdir() if child.is_file())
        return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(file.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{language}\n{text}````\n"
