"""Pages of the Dagster UI as a person uses them in a browser: the asset graph, figures over time, a backfill, a run.

What is on a page is awaited by its words; what is true is asked of Dagster's own interface, since pixels are no witness.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from infra.errors import InfraError

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# Animations of graph and plots are over after this; nothing tells their end.
_DRAWING_MS = 2_500
_POLL_S = 1.0
_ASSETS = "{ assetNodes { assetKey { path } groupName isPartitioned repository { name location { name } } } }"
_BACKFILLS = "{ partitionBackfillsOrError(limit: 20) { ... on PartitionBackfills { results { id status } } } }"
_RUNS = """query Runs($filter: RunsFilter!) { runsOrError(filter: $filter, limit: 1) {
  ... on Runs { results { runId status } } } }"""
_STATES = "query State($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) { ... on AssetNode { %s } } }"
_CHECKS = """assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization {
  status evaluation { metadataEntries { label ... on IntMetadataEntry { intValue } } } } } } }"""


@dataclass(frozen=True)
class Backfill:
    """A backfill that has ended; `figures` are what its check has counted, in keys."""

    run: str
    figures: dict[str, int]


class Dagster:
    """A Dagster webserver in one page of a browser, and the assets of one pipeline."""

    def __init__(self, page: Page, url: str, pipeline: str) -> None:
        self.page = page
        self.url = url.rstrip("/")
        answer = self._ask(_ASSETS)
        self.nodes: list[dict[str, Any]] = [n for n in answer["assetNodes"] if n["groupName"] == pipeline]
        if not self.nodes:
            hint = "deploy it, and reload the definitions"
            raise InfraError("dagster shows no such pipeline", pipeline=pipeline, url=url, hint=hint)

    def _ask(self, query: str, **variables: Any) -> Any:
        body = {"query": query, "variables": variables}
        answer = self.page.request.post(f"{self.url}/graphql", data=body).json()
        if "data" not in answer:
            hint = "look at the webserver's log"
            raise InfraError("dagster refuses a question", url=self.url, error=json.dumps(answer)[:300], hint=hint)
        return answer["data"]

    # Looking.

    def graph(self) -> None:
        """The asset graph of the pipeline's group, unfolded."""
        node = self.nodes[0]
        repository, location = node["repository"]["name"], node["repository"]["location"]["name"]
        group = quote(f"{repository}@{location}:{node['groupName']}", safe="")
        self.page.goto(f"{self.url}/asset-groups?expanded={group}")
        for asset in self.nodes:
            self.page.get_by_text(asset["assetKey"]["path"][-1], exact=True).first.wait_for()
        self._settle()

    def plots(self, path: list[str], *figures: str) -> None:
        """An asset's figures over time."""
        self._asset(path)
        self.page.get_by_role("button", name="Plots").click()
        for figure in figures:
            self.page.get_by_text(figure, exact=True).first.wait_for()
        self.page.locator("canvas").first.wait_for()
        self._settle()

    def asset(self, path: list[str], *words: str) -> None:
        """An asset's page with these words on it."""
        self._asset(path)
        for word in words:
            self.page.get_by_text(word, exact=True).first.wait_for()
        self._settle()

    def text_of_run(self, run: str, entry: str) -> Locator:
        """A text among the metadata of a run's events, opened as a person does to read it; gives what it is shown in."""
        self.page.goto(f"{self.url}/runs/{run}")
        row = self.page.locator("tr", has=self.page.get_by_text(entry, exact=True)).last
        row.get_by_text("[Show Markdown]").click()
        self._settle()
        return self.page.get_by_role("dialog")

    def picture(self, picture: Path, *, height: int) -> Path:
        """What the page shows now, in a window so high: what is below the fold is in panes that scroll by themselves."""
        width = 1400
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_timeout(_DRAWING_MS)
        self.page.screenshot(path=picture)
        return picture

    def asset_of(self, *, ends_with: str = "", partitioned: bool = False) -> list[str]:
        """The key of the pipeline's first asset of a kind."""
        for node in self.nodes:
            path: list[str] = node["assetKey"]["path"]
            if node["isPartitioned"] == partitioned and path[-1].endswith(ends_with):
                return path
        hint = "take a pipeline with a table that is grouped by time"
        raise InfraError("pipeline has no such asset", ends_with=ends_with, partitioned=partitioned, hint=hint)

    def newest_run(self, job: str) -> str:
        """The id of a job's newest successful run."""
        found = self._ask(_RUNS, filter={"pipelineName": job, "statuses": ["SUCCESS"]})["runsOrError"]["results"]
        if not found:
            raise InfraError("no such run has succeeded", job=job, url=self.url, hint="kill the driver, and wait")
        return str(found[0]["runId"])

    # Doing.

    def choose_partitions(self, path: list[str], partitions: str) -> Locator:
        """Open the dialog that materializes partitions, and choose some; gives the button that launches."""
        self._asset(path)
        self.page.get_by_role("button", name="Materialize").first.click()
        # Dagster begins with the newest partitions alone.
        self.page.get_by_role("button", name="Show all partitions").click()
        box = self.page.get_by_placeholder("ex: ")
        box.fill(partitions)
        box.press("Enter")
        self._settle()
        return self.page.get_by_role("button", name="Launch backfill")

    def backfill(self, launch: Locator, path: list[str], *, timeout_s: float) -> Backfill:
        """Press the button and wait for the end. Raises InfraError if it ends otherwise than well."""
        before = {found["id"] for found in self._backfills()}
        launch.click()
        deadline = time.monotonic() + timeout_s
        while True:
            new = [found for found in self._backfills() if found["id"] not in before]
            states = {found["status"] for found in new}
            if states and states <= {"COMPLETED_SUCCESS"}:
                return self._ended(path, new[0]["id"])
            if time.monotonic() > deadline or any("FAILED" in state or "CANCELED" in state for state in states):
                hint = "look at its run in Dagster"
                raise InfraError("backfill did not end well", asset="/".join(path), states=sorted(states), hint=hint)
            time.sleep(_POLL_S)

    def _backfills(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._ask(_BACKFILLS)["partitionBackfillsOrError"]["results"]
        return found

    def _ended(self, path: list[str], backfill: str) -> Backfill:
        tags = [{"key": "dagster/backfill", "value": backfill}]
        (run,) = self._ask(_RUNS, filter={"tags": tags})["runsOrError"]["results"]
        (check,) = self._ask(_STATES % _CHECKS, path=path)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        entries = check["executionForLatestMaterialization"]["evaluation"]["metadataEntries"]
        return Backfill(run["runId"], {e["label"]: e["intValue"] for e in entries if e.get("intValue") is not None})

    def _asset(self, path: list[str]) -> None:
        self.page.goto(f"{self.url}/assets/{'/'.join(quote(part) for part in path)}")
        self.page.get_by_role("button", name="Materialize").first.wait_for()

    def _settle(self) -> None:
        """Wait until nothing loads: the page asks again every few seconds, so silence alone may never come."""
        self.page.get_by_text("Loading").first.wait_for(state="hidden")
        self.page.wait_for_timeout(_DRAWING_MS)
