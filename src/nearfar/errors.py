"""The one error for data and files: a single line that names the file, what is wrong in it, and the cure."""

from __future__ import annotations


class NearfarError(Exception):
    """Something in a file, a folder or a configuration that the user can put right.

    The command prints it without a traceback. Wrong arguments from code are ValueErrors.
    """
