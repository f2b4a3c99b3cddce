"""The page of an error in docs/runbooks: that of its class, or of the nearest class of `statestore.errors` above it."""

from __future__ import annotations

from statestore.errors import RollforwardError

FOLDER = "docs/runbooks"


def page_of(error: RollforwardError) -> str:
    """The page's path in the repository; empty for an error of no class."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == RollforwardError.__module__)
    name = next(known, RollforwardError.__name__)
    return "" if name == RollforwardError.__name__ else f"{FOLDER}/{name}.md"
