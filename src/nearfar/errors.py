"""The one error for data and files: a single line that names the file, what is wrong in it, and the cure."""

from __future__ import annotations

LONGEST = 2000


class NearfarError(Exception):
    r"""Something in a file, a folder or a configuration that the user can put right.

    The command prints it without a traceback. Wrong arguments from code are ValueErrors.

    >>> str(NearfarError("a\x1b[31m.csv: line 1\n  is bad"))
    'a\\x1b[31m.csv: line 1 is bad'
    """

    def __init__(self, message: str) -> None:
        # names of files and parsers' messages may hold line breaks, and bytes that a terminal would obey
        line = " ".join(part.strip() for part in message.splitlines())
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}")
