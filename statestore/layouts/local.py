"""Keys of entries that are a task's own: they belong to the task that wrote them, whatever their bytes hash to.

9 bytes   0xFF: no UTF-8 text, no integer or double of 8 bytes begins so, also before the start of a window, which is not
          negative; bytes are no keys in the KAFKA format, and base64 in the others
n bytes   whatever the task calls the entry
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

PREFIX = b"\xff" * 9


def local_keys(names: pa.BinaryArray) -> pa.BinaryArray:
    """The keys of entries that are called so."""
    return pc.binary_join_element_wise(pa.scalar(PREFIX, pa.binary()), names, pa.scalar(b"", pa.binary()))


def is_local(key: bytes) -> bool:
    """Whether the key is of such an entry."""
    return key.startswith(PREFIX)


def are_local(keys: pa.BinaryArray) -> pa.BooleanArray:
    """Which of the keys are of such entries."""
    return pc.starts_with(keys, PREFIX)
