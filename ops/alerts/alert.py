"""One alert, as Alertmanager's API lists it (`GET /api/v2/alerts`) and as its webhook sends it (payload version 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from statestore.errors import InvalidInput


@dataclass(frozen=True)
class Alert:
    """Times are in seconds since 1970. `fingerprint` is the hash of the labels: the same for every episode.

    `ended_at` is None while it fires: the API's end of a firing alert is a time-out in the future, not an end.
    """

    fingerprint: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: float
    ended_at: float | None = None
    muted: bool = False

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.labels.get("alertname", "")


def from_api(alerts: Any) -> list[Alert]:
    """The answer of `/api/v2/alerts`: all firing, silenced and inhibited ones among them as muted.

    Raises `InvalidInput` for anything else.
    """
    return [_read(entry, ended=False, muted=_muted(entry)) for entry in _list(alerts)]


def from_webhook(payload: Any) -> list[Alert]:
    """A webhook's body: firing and resolved ones. Silenced ones are not sent. Raises `InvalidInput`."""
    entries = payload.get("alerts") if isinstance(payload, dict) else None
    return [_read(entry, ended=entry.get("status") == "resolved", muted=False) for entry in _list(entries)]


def _list(entries: Any) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput("not alerts", hint="send what Alertmanager sends: its API version 2, its webhook version 4")
    return entries


def _muted(entry: dict[str, Any]) -> bool:
    status = entry.get("status") or {}
    return bool(status.get("silencedBy") or status.get("inhibitedBy") or status.get("state") == "suppressed")


def _read(entry: dict[str, Any], *, ended: bool, muted: bool) -> Alert:
    try:
        return Alert(
            fingerprint=str(entry["fingerprint"]),
            labels={str(name): str(value) for name, value in entry["labels"].items()},
            annotations={str(name): str(value) for name, value in (entry.get("annotations") or {}).items()},
            starts_at=_seconds(entry["startsAt"]),
            ended_at=_seconds(entry["endsAt"]) if ended else None,
            muted=muted,
        )
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise InvalidInput("not an alert", error=repr(error), hint="send what Alertmanager sends") from error


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
