"""How glibc holds large blocks, for the embedded server and for every process that reads and writes records.

By default it maps each block of 128 KiB and more by itself and gives it back at once: for a record of a long sample the
kernel then clears and hands out fresh pages at every copy, which costs more than the copies. Kept in the heap, the same
pages are used again.
"""

from __future__ import annotations

import ctypes
import functools
import os

__all__ = ["ENVIRONMENT", "keep_large_blocks"]

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = 64 * 2**20, 256 * 2**20, 16 * 2**20

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_THRESHOLD),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD),
    "MALLOC_TOP_PAD_": str(TOP_PAD),
}
"""The same for a process that is about to start."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


@functools.cache
def keep_large_blocks() -> bool:
    """Sets this process's thresholds, unless its environment sets any; whether there was such a malloc to set."""
    if ENVIRONMENT.keys() & os.environ.keys():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    options = ((_M_MMAP_THRESHOLD, MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, TRIM_THRESHOLD), (_M_TOP_PAD, TOP_PAD))
    taken = [mallopt(option, value) for option, value in options]
    return all(taken)
