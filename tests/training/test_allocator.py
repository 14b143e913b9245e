"""Freed memory stays in the process: reusing a large block costs no page faults."""

import ctypes
import subprocess
import sys

import pytest

from nearfar.training import allocator

FAULTS = """
import resource, sys
import torch
import nearfar.training.trainer  # the heap of a process that trains
from nearfar.training.allocator import keep_freed_memory

assert sys.argv[1] == "as it is" or keep_freed_memory()

def use():
    torch.ones(16 * 2**20)  # 64 MB, 16,384 pages

for _ in range(30):  # the heap grows until an aligned block fits between small blocks
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_a_large_block_is_reused_without_page_faults() -> None:
    kept, as_it_is = faults("kept"), faults("as it is")
    assert kept < 100
    # huge pages, where the system has them, are few faults too
    assert as_it_is >= kept


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("asked the C library"))
    assert not allocator.keep_freed_memory()
