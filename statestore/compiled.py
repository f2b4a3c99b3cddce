"""Loops over records, compiled: Numba makes machine code of a Python function when it is first called.

The code is kept in files beside the module, or in the user's cache where that folder is read-only, so it is made once
and not by every process. Where neither can be written, each process makes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function as machine code, for each combination of its arguments' types. Other threads run meanwhile.

    No index is checked, and integers are 64 bits wide.
    """
    made: Any
    try:
        made = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # There is no place for its files.
        made = numba.njit(nogil=True)(function)
    return cast(Callable[P, T], made)


def inlined(function: Callable[P, T]) -> Callable[P, T]:
    """The function as a part of the compiled ones that call it: a call of its own would count references to arrays."""
    return cast(Callable[P, T], numba.njit(inline="always")(function))


def fixed(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The array, not to be written to: Arrow's columns are partly so and partly not, and each is compiled for anew."""
    array = array.view()
    array.flags.writeable = False
    return array
