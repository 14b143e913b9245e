"""The error for data, files and configurations, and a hint for missing packages."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

LONGEST = 2000


class NearfarError(Exception):
    r"""A problem with a file, a folder or a configuration that the user can fix.

    The message is one line that names the file, the problem and the fix; commands print it without a traceback. Invalid
    function arguments raise ValueError instead.

    >>> str(NearfarError("a\x1b[31m.csv: line 1\n  is bad"))
    'a\\x1b[31m.csv: line 1 is bad'
    """

    def __init__(self, message: str) -> None:
        # file names and messages of parsers may contain line breaks and terminal control codes
        line = " ".join(part.strip() for part in message.splitlines())
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}")


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an extra, such as "web".

    In a source tree or an editable install, the command is `pip install -e '.[extra]'`. Otherwise it lists the
    packages, because nearfar itself is not on a package index.
    """
    project = Path(__file__).parents[2]
    if (project / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in {project}"
    required = [
        re.fullmatch(r"([^;]+?)\s*;\s*extra == ['\"](.+)['\"]", line) for line in metadata.requires("nearfar") or ()
    ]
    return " ".join(["pip install", *(f"'{match[1]}'" for match in required if match and match[2] == extra)])
