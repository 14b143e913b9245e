"""Whether torch.compile's own backend can be tested on this machine."""

from __future__ import annotations

import pytest
from torch._inductor import cpp_builder, exc


def cpp_compiler() -> str | None:
    try:
        return cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return None


needs_compiler = pytest.mark.skipif(
    cpp_compiler() is None,
    reason="NO C++ COMPILER on this machine: torch.compile(backend='inductor') IS NOT TESTED; install g++",
)
