"""What a type lets be None and a test knows to be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(found: T | None) -> T:
    """What was found. Fails the test where that is nothing."""
    assert found is not None
    return found
