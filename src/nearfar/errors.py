"""The exception for problems that users can fix, and the command that installs a missing package."""

from __future__ import annotations

import re
from pathlib import Path

from nearfar.formatting import clean_text

LONGEST = 2000
# The last phrase is from oneDNN, which computes convolutions on the CPU. It does not give the reason, but for a network
# that has worked before, the reason is that memory could not be allocated.
OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "could not create a primitive",
)


class NearfarError(Exception):
    r"""A problem with a file, a folder or a configuration that the user can fix.

    The message is one line that names the file, the problem and the fix; commands print it without a traceback. Invalid
    function arguments raise ValueError instead.

    >>> str(NearfarError("a\x1b[31m.csv: line 1\n  is bad"))
    'a\\x1b[31m.csv: line 1 is bad'
    """

    def __init__(self, message: str) -> None:
        # file names and parser messages may contain line breaks and terminal control codes
        line = " ".join(part.strip() for part in message.splitlines())
        line = clean_text(line)
        super().__init__(line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception from Python, NumPy or torch means that memory could not be allocated.

    On the CPU, torch raises a RuntimeError. On a GPU, it raises an OutOfMemoryError, a subclass of RuntimeError.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in OUT_OF_MEMORY)


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an optional extra, such as "web".

    In a source tree or an editable install, the command is `pip install -e '.[extra]'`. Otherwise, the command names
    the packages themselves, because nearfar is not on a package index.
    """
    project = Path(__file__).parents[2]
    if (project / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in {project}"
    from importlib import metadata  # here, because it imports many modules, and every command imports this one

    required = [
        re.fullmatch(r"([^;]+?)\s*;\s*extra == ['\"](.+)['\"]", line) for line in metadata.requires("nearfar") or ()
    ]
    return " ".join(["pip install", *(f"'{match[1]}'" for match in required if match and match[2] == extra)])
