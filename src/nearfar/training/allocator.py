"""Freed memory stays with the process.

glibc gives every large block back to the system and asks for it anew, and each new page costs a fault: a fifth of the
CPU time of training a network on pictures (EfficientNet-Lite0, 64 pictures of 112 pixels, two cores).
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt(3)
LARGE = 2**30
NEVER = -1


def keep_freed_memory() -> bool:
    """Let the process keep what it frees, for its own next use; false where the C library has no such setting.

    For commands that train and end. A server, or a notebook that goes on to other things, would hold its peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, LARGE)) and bool(mallopt(TRIM_THRESHOLD, NEVER))
