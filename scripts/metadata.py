"""What only whoever publishes knows: the addresses of the repository and of the site.

A hook of hatchling, which asks it whenever a wheel or a source distribution is built. It reads the
variables that `mkdocs.yml` reads: INCRAX_REPO_URL and INCRAX_SITE_URL. Without them there are no
project URLs, and links of the README stay relative.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r'(\]\(|href=")(?!\w+:|#)')
PICTURE = re.compile(r'(src=")(?!\w+:)')


class Metadata(MetadataHookInterface):
    """`readme` and `urls` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in both."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("INCRAX_REPO_URL", "").rstrip("/")
        site = os.environ.get("INCRAX_SITE_URL", "")
        urls = {"Documentation": site} if site else {}
        if repository:
            text = with_addresses(text, repository, f"v{metadata['version']}")
            urls["Repository"] = repository
            urls["Changelog"] = f"{repository}/blob/v{metadata['version']}/CHANGELOG.md"
            urls["Issues"] = f"{repository}/issues"
        metadata["urls"] = urls
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_addresses(text: str, repository: str, tag: str) -> str:
    """Links and pictures of a page of the repository, for a page that is shown elsewhere."""
    text = PICTURE.sub(rf"\g<1>{repository}/raw/{tag}/", text)
    return LINK.sub(rf"\g<1>{repository}/blob/{tag}/", text)
