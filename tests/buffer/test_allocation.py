"""Large blocks stay in the heap, where their pages are used again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stream_rl.buffer.allocation import ENVIRONMENT

PROGRAM = """
import ctypes
from stream_rl.buffer.allocation import keep_large_blocks

class Figures(ctypes.Structure):  # struct mallinfo2 of malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

def mapped():
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Figures
    return mallinfo().hblks

set_ = keep_large_blocks()
before = mapped()
block = bytearray(2**20)
print(set_, mapped() - before)
"""


@pytest.mark.parametrize(("environment", "said"), [({}, "True 0"), (ENVIRONMENT, "False 0"), (
    {"MALLOC_MMAP_THRESHOLD_": "1000"}, "False 1")])  # fmt: skip
def test_a_block_of_a_mebibyte_is_not_mapped_by_itself(environment: dict[str, str], said: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == said
