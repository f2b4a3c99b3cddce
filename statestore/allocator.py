"""The C library's allocator, told now and then to give back what is free.

RocksDB makes a memtable of pieces of 1 MiB and frees them all when it is flushed. glibc takes them from its heaps, each
thread's from another, and from between what lives long; so a heap's end is seldom free, and by itself it gives back
nothing else: after hours the process has the most that every heap has ever had. A driver's many threads have a heap
each, too. Giving back takes a millisecond or two.
The other way, a fixed `M_MMAP_THRESHOLD`, would also make every large array of a batch new memory that is touched page
by page.
"""

from __future__ import annotations

import ctypes
import threading
import time

EVERY_S = 10.0


def give_back() -> None:
    """Give free pages of all heaps back to the system. Does nothing with other C libraries than glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def give_back_often() -> None:
    """`give_back` every ten seconds, by a thread that lasts as long as the process."""

    def often() -> None:
        while True:
            time.sleep(EVERY_S)
            give_back()

    threading.Thread(target=often, daemon=True, name="allocator").start()
