"""For the site: a file outside docs/ that a page links to comes along, so that links work there as in the repository.

Markdown becomes a page and anything else text, under repository/. A folder in the nav is all of its pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

LINK = re.compile(r"\]\(([^)#\s:]+)(?=[)#])")
ROOT = Path(__file__).parent.parent
OUTSIDE = "repository/"


def meant(page: str, link: str) -> str:
    """The path in the repository that a link means on a page of the site."""
    here = page.removeprefix(OUTSIDE) if page.startswith(OUTSIDE) else f"docs/{page}"
    return normpath(join(dirname(here), link))


def in_site(path: str) -> str:
    """Where a file of the repository stands in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTSIDE + (path if path.endswith(".md") else f"{path}.txt")


def on_config(config: Any, **_: Any) -> None:
    for section in config.nav:
        for title, folder in section.items():
            if isinstance(folder, str) and folder.endswith("/"):
                section[title] = [f"{folder}{page.name}" for page in sorted((ROOT / "docs" / folder).glob("*.md"))]


def on_files(files: Files, config: Any, **_: Any) -> Files:
    pages = list(files.documentation_pages())
    for page in pages:  # grows: what comes along has links too
        for path in (meant(page.src_uri, link) for link in LINK.findall(page.content_string)):
            known = path.startswith("docs/") or files.get_file_from_path(in_site(path)) is not None
            if not known and (ROOT / path).is_file():
                text = (ROOT / path).read_text(encoding="utf-8")
                file = File.generated(config, in_site(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(file)
                pages += [file] if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri

    def turned(link: re.Match[str]) -> str:
        path = meant(here, link[1])
        if not (ROOT / path).is_file() or (path.startswith("docs/") and not here.startswith(OUTSIDE)):
            return link[0]
        return f"]({relpath(in_site(path), dirname(here))}"

    return LINK.sub(turned, markdown)
