"""Pieces of one buffer as a column, copied by Arrow: no index for every byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]


def between(data: pa.Buffer, begins: Places, stops: Places, kind: pa.DataType) -> pa.Array:
    """The bytes between each begin and stop as texts or bytes. They lie one after the other, and all within `data`."""
    # They and what lies between them are an array of all bytes; they are every second entry of it.
    offsets = np.stack([begins, stops], axis=1).astype(np.int32)
    everything = pa.Array.from_buffers(kind, max(0, offsets.size - 1), [None, pa.py_buffer(offsets), data])
    return everything.take(pa.array(np.arange(0, offsets.size, 2, dtype=np.int32)))
