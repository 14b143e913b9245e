"""For the site: examples of docstrings become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Paragraphs that begin with >>> are fenced; Markdown would make quotations of them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and not obj.is_alias:
            paragraphs = re.split(r"\n\s*\n", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(fenced, paragraphs))


def fenced(paragraph: str) -> str:
    return f"```pycon\n{paragraph}\n```" if paragraph.startswith(">>>") else paragraph
