"""The C library's allocator, told to give back what is free.

RocksDB makes a memtable of pieces of 1 MiB and frees them all when it is flushed. glibc takes them from its heaps, each
thread's from another, and from between what lives long; so a heap's end is seldom free, and by itself it gives back
nothing else: after hours the process has the most that every heap has ever had. So pieces of that size are mapped each
for itself, and unmapped when they are freed; glibc does so anyway until the first is freed, and then never again. What is
smaller lies in the heaps, of which a driver's many threads have one each, and free pages of them are given back often:
that takes a millisecond or two.
"""

from __future__ import annotations

import ctypes
import threading
import time

EVERY_S = 10.0
# A piece of a memtable.
_MAPPED_BYTES = 1024 * 1024
_M_MMAP_THRESHOLD = -3


def give_back() -> None:
    """Give free pages of all heaps back to the system. Does nothing with other C libraries than glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def give_back_often() -> None:
    """Map large pieces each for itself, and `give_back` every ten seconds, by a thread that lasts as long as the process."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)

    def often() -> None:
        while True:
            time.sleep(EVERY_S)
            give_back()

    threading.Thread(target=often, daemon=True, name="allocator").start()
