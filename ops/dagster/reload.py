"""Telling a running Dagster that a pipeline was deployed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

_WORKSPACE = "{ workspaceOrError { ... on Workspace { locationEntries { name } } } }"
_RELOAD = """mutation Reload($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) {
    __typename ... on WorkspaceLocationEntry { loadStatus locationOrLoadError { __typename } } } }"""


def reload_definitions(dagster_url: str, *, timeout_s: float = 30.0) -> bool:
    """Reload every code location of the webserver; True if all loaded. False, never an error, if it does not answer.

    The webserver's assets change. Its daemon refreshes its own copy once a minute, which no sensor of ours depends on.
    """
    try:
        found = _ask(dagster_url, _WORKSPACE, {}, timeout_s)["workspaceOrError"]["locationEntries"]
        answers = [_ask(dagster_url, _RELOAD, {"name": entry["name"]}, timeout_s) for entry in found]
        loaded = [answer["reloadRepositoryLocation"]["locationOrLoadError"]["__typename"] for answer in answers]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(loaded) and all(kind == "RepositoryLocation" for kind in loaded)


def _ask(dagster_url: str, query: str, variables: dict[str, str], timeout_s: float) -> dict[str, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{dagster_url.rstrip('/')}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        data: dict[str, Any] = json.load(response)["data"]
        return data
