"""Loops over records, compiled: Numba makes machine code of a Python function when it is first called.

The code is kept in files beside the module, or in the user's cache where that folder is read-only, so it is made once
and not by every process. Where no file can be written, or one is damaged, the process makes its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np
import numpy.typing as npt
import structlog
from numba import types
from numba.core.caching import FunctionCache

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function as machine code, for each combination of its arguments' types. Other threads run meanwhile.

    No index is checked, and integers are 64 bits wide.
    """
    made: Any = numba.njit(nogil=True)(function)
    try:
        # What `cache=True` does, but for damaged files.
        made._cache = _Kept(function)
    except RuntimeError as error:
        log.debug("machine code is not kept", function=function.__qualname__, error=str(error))
    return cast(Callable[P, T], made)


class _Kept(FunctionCache):
    """Machine code in files. Numba syncs none of them, so after a power loss one may be anything.

    They are pickles: reading a damaged one can raise any exception, and so can writing, which reads the index first.
    """

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except Exception as error:
            log.info("kept machine code cannot be read", function=self._name, error=str(error))
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            super().save_overload(signature, data)
        except Exception as error:
            log.info("machine code cannot be kept", function=self._name, error=str(error))


def inlined(function: Callable[P, T]) -> Callable[P, T]:
    """The function as a part of the compiled ones that call it: a call of its own would count references to arrays."""
    return cast(Callable[P, T], numba.njit(inline="always")(function))


def external(file: str, symbol: str, result: Any, *arguments: Any) -> Any:
    """A C function of a shared library, or of what that is linked with, for compiled code. Types are Numba's."""
    address = ctypes.cast(ctypes.PyDLL(file)[symbol], ctypes.c_void_p).value
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, result(*arguments))


# Of the C library, which is known without being asked for.
memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))
memcmp: Any = types.ExternalFunction("memcmp", types.int32(types.intp, types.intp, types.intp))


def fixed(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The array, not to be written to: Arrow's columns are partly so and partly not, and each is compiled for anew."""
    array = array.view()
    array.flags.writeable = False
    return array
