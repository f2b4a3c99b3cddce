"""What travels between a store server and its clients beside Arrow data: commands and errors, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from statestore import errors
from statestore.config import StoreSpec, TaskSpec

_KINDS: dict[str, type[errors.RollforwardError]] = {
    kind.__name__: kind
    for kind in (
        errors.Fenced,
        errors.TaskCorrupted,
        errors.Unavailable,
        errors.InvalidInput,
        errors.InvalidConfig,
        errors.FormatUnsupported,
        errors.DataCorrupted,
        errors.Unrecoverable,
        errors.InvariantBroken,
        errors.InvalidStateStore,
    )
}


def dumps(**fields: Any) -> bytes:
    """A command or an answer."""
    return json.dumps(fields, separators=(",", ":"), default=str).encode()


def loads(raw: Any) -> dict[str, Any]:
    """Inverse of `dumps`."""
    fields: dict[str, Any] = json.loads(bytes(raw))
    return fields


def to_flight(error: errors.RollforwardError) -> flight.FlightServerError:
    """Our error as one that Flight carries."""
    fields = {name: str(value) for name, value in error.fields.items()}
    detail = dumps(kind=type(error).__name__, message=error.message, hint=error.hint, fields=fields)
    return flight.FlightServerError(str(error), detail)


def from_flight(error: Exception) -> errors.RollforwardError:
    """What a Flight call raised as our error; `Unavailable` for a server that is gone."""
    detail = getattr(error, "extra_info", b"")
    if detail:
        try:
            fields = loads(detail)
            kind = _KINDS.get(fields["kind"], errors.Unavailable)
            return kind(fields["message"], hint=fields["hint"], **fields["fields"])
        except (ValueError, KeyError):
            pass
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return errors.Unavailable("store server does not answer", error=first_line)


def task_to_fields(spec: TaskSpec) -> dict[str, Any]:
    """A task as plain values."""
    store = {
        "name": spec.store.name,
        "topic": spec.store.changelog_topic,
        "topic_id": spec.store.changelog_topic_id,
        "retention_ms": spec.store.retention_ms,
    }
    return {
        "pipeline": spec.pipeline,
        "query": spec.query,
        "number": spec.number,
        "tasks": spec.tasks,
        "batches_topic": spec.batches_topic,
        "output_topic": spec.output_topic,
        "dead_letter_topic": spec.dead_letter_topic,
        "store": store,
        "folder": str(spec.folder),
    }


def task_from_fields(fields: dict[str, Any]) -> TaskSpec:
    """Inverse of `task_to_fields`."""
    store = fields["store"]
    return TaskSpec(
        **{
            **fields,
            "store": StoreSpec(store["name"], store["topic"], store["topic_id"], store["retention_ms"]),
            "folder": Path(fields["folder"]),
        }
    )
