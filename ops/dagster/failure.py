"""Our errors as Dagster shows them: the message as the run's failure, the facts as its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from infra.errors import InfraError
from ops.runbooks import page_of
from statestore.errors import RollforwardError


@contextmanager
def told_to_dagster() -> Iterator[None]:
    """Errors that this project raises on purpose become `Failure`s that Dagster does not retry; others pass."""
    try:
        yield
    except RollforwardError as error:
        fields = {**error.fields, **({"hint": error.hint} if error.hint else {})}
        raise _failure(error, {**fields, "runbook": page_of(error)}) from error
    except InfraError as error:
        raise _failure(error, {**error.facts, "hint": error.hint}) from error


def _failure(error: Exception, fields: dict[str, object]) -> dg.Failure:
    metadata = {name: value if isinstance(value, int | float | str) else str(value) for name, value in fields.items()}
    return dg.Failure(description=str(error), metadata={"error": type(error).__name__, **metadata}, allow_retries=False)
