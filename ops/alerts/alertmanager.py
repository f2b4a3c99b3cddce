"""Asking Alertmanager what fires."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from ops.alerts.alert import Alert, from_api
from statestore.errors import InvalidInput, Unavailable

TIMEOUT_S = 3.0


def firing(url: str) -> list[Alert]:
    """Every alert that fires now, muted ones too. Raises `Unavailable` if Alertmanager does not answer as it should."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/api/v2/alerts", timeout=TIMEOUT_S) as response:
            return from_api(json.load(response))
    except (OSError, ValueError, InvalidInput) as error:
        hint = "see that it runs, and that alertmanager_url is right"
        raise Unavailable("Alertmanager does not answer", url=url, error=error, hint=hint) from error
