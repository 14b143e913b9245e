"""HTML pages made with the package's Jinja2 templates. Values are escaped by default."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from nearfar import __version__
from nearfar.files import atomic
from nearfar.formatting import counted


def render(template: str, **values: Any) -> Markup:
    """Render a template and return it as markup.

    Args:
        template: Path within the package, such as "report/templates/report.html".
        values: Variables of the template. Strings are escaped unless they are `Markup`.
    """
    return Markup(_environment().get_template(template).render(**values))


def write_html(path: Path, template: str, **values: Any) -> Path:
    """Render a template to a file atomically and return the file's path."""
    text = render(template, **values)
    with atomic(path) as draft:
        # names of samples may come from file names that are not valid UTF-8
        draft.write_text(text, encoding="utf-8", errors="replace")
    return path


def allow_breaks(name: str) -> Markup:
    """Escape a name and insert <wbr> where it may wrap, because long names without spaces do not wrap otherwise.

    >>> str(allow_breaks("101.White_Pelican"))
    '101.<wbr>White_<wbr>Pelican'
    """
    return Markup(re.sub(r"(?<=[_./-])(?=[^_./-])", "<wbr>", escape(name)))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nearfar", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(allow_breaks=allow_breaks, counted=counted, thousands="{:,}".format)
    environment.globals.update(read_asset=_read_asset, version=__version__)
    return environment


def _read_asset(path: str) -> Markup:
    """Return the text of a style sheet or script of the package, to embed it in a page."""
    return Markup(files("nearfar").joinpath(path).read_text(encoding="utf-8"))
