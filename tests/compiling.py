"""Skip tests of the inductor backend of torch.compile if there is no C++ compiler."""

from __future__ import annotations

import pytest
from torch._inductor import cpp_builder, exc


def find_cpp_compiler() -> str | None:
    try:
        return cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return None


needs_compiler = pytest.mark.skipif(
    find_cpp_compiler() is None,
    reason="NO C++ COMPILER on this machine: torch.compile(backend='inductor') IS NOT TESTED; install g++",
)
