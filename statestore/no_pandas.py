"""Arrow without pandas: a process that makes no frames does not load it.

Arrow imports pandas at its first conversion wherever it is installed, and it is, since Spark asks for it. That takes more
than a second of CPU and 50 MB in each process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ImportError("pandas is kept out of this process")
        return None


def keep_pandas_out() -> None:
    """Let Arrow look for pandas now and not find it: it asks only once. `import pandas` works afterwards as ever.

    Does nothing where pandas is loaded already.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
