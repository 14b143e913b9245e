"""MkDocs hooks for the site.

Files outside docs/ that a page links to are copied into the site under repository/, so that links work there as they do
in the repository. Markdown files become pages, and other files become text. A folder in the nav stands for all of its
pages.
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
RESULTS = "results/"
FIRST_RESULTS = {"Summary": "findings.md", "Training with the defaults": "training.md"}
RESULT_GROUPS = {
    "DRO": ("dro",),
    "PROFS": ("profs",),
    "BSPML": ("bspml",),
    "MPA": ("mpa",),
    "Proxy-ISA": ("proxy-isa", "plots"),
    "Fine-tuning": ("fine-tuning",),
    "Losses of pytorch-metric-learning": ("peer",),
}


def resolve_link(page: str, link: str) -> str:
    """Return the path in the repository that a link on a page of the site refers to."""
    source = page.removeprefix(OUTSIDE) if page.startswith(OUTSIDE) else f"docs/{page}"
    return normpath(join(dirname(source), link))


def site_path(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OUTSIDE + (path if path.endswith(".md") else f"{path}.txt")


def on_config(config: Any, **_: Any) -> None:
    for section in config.nav:
        for title, folder in section.items():
            if isinstance(folder, str) and folder.endswith("/"):
                pages = [f"{folder}{page.name}" for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
                section[title] = group_results(pages) if folder == RESULTS else pages


def group_results(pages: list[str]) -> list[Any]:
    """Return the nav entries of the result pages: the summary first, then one section per paper, then the rest."""
    entries: list[Any] = [{title: RESULTS + name} for title, name in FIRST_RESULTS.items() if RESULTS + name in pages]
    rest = [page for page in pages if page.removeprefix(RESULTS) not in FIRST_RESULTS.values()]
    for title, prefixes in RESULT_GROUPS.items():
        group = [page for page in rest if page.removeprefix(RESULTS).startswith(prefixes)]
        rest = [page for page in rest if page not in group]
        entries += [{title: group}] if group else []
    return entries + rest


def on_files(files: Files, config: Any, **_: Any) -> Files:
    pages = list(files.documentation_pages())
    for page in pages:  # the list grows in the loop, because copied pages have links too
        for path in (resolve_link(page.src_uri, link) for link in LINK.findall(page.content_string)):
            is_in_site = path.startswith("docs/") or files.get_file_from_path(site_path(path)) is not None
            if not is_in_site and (ROOT / path).is_file():
                text = (ROOT / path).read_text(encoding="utf-8")
                file = File.generated(config, site_path(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(file)
                pages += [file] if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.src_uri

    def rewrite(link: re.Match[str]) -> str:
        path = resolve_link(source, link[1])
        if not (ROOT / path).is_file() or (path.startswith("docs/") and not source.startswith(OUTSIDE)):
            return link[0]
        return f"]({relpath(site_path(path), dirname(source))}"

    return LINK.sub(rewrite, markdown)
