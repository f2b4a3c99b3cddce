"""Pictures of the user interface for the documentation: the asset graph, and a store with its figures over time.

    python -m ops.dagster.screenshots <pipeline> [<folder>] (--home <data folder of the local stack> | --url <dagster
    url>)

Playwright drives the Chromium of the system; it downloads no browser.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from infra.errors import InfraError
from infra.stack import Stack

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path("docs/images")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TIMEOUT_MS = 60_000
# Animations of graph and plots are over after this; nothing tells their end.
_DRAWING_MS = 1_500
_ASSETS = "{ assetNodes { assetKey { path } groupName repository { name location { name } } } }"


def take_screenshots(dagster_url: str, pipeline: str, folder: Path = FOLDER) -> list[Path]:
    """Writes `assets.png` and `store.png` into the folder; gives their paths.

    Raises InfraError if there is no browser, if Dagster does not answer, or if it does not know the pipeline.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        raise InfraError("no chromium on the path", hint="install it, on Debian with `apt-get install chromium`")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise InfraError("playwright is not installed", hint="install the development dependencies") from None
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
            page = browser.new_page(viewport={"width": 1600, "height": 1000}, device_scale_factor=1.5)
            page.set_default_timeout(_TIMEOUT_MS)
            nodes = _nodes(page, dagster_url.rstrip("/"), pipeline)
            pictures = [
                _graph(page, dagster_url.rstrip("/"), nodes, folder / "assets.png"),
                _store(page, dagster_url.rstrip("/"), nodes, folder / "store.png"),
            ]
            browser.close()
    except Error as error:
        hint = "look whether Dagster answers there, then try again"
        raise InfraError(
            "the page could not be taken", url=dagster_url, error=error.message.splitlines()[0], hint=hint
        ) from error
    return pictures


def _nodes(page: Page, url: str, pipeline: str) -> list[dict[str, Any]]:
    """Dagster's own word on the pipeline's assets: for what is and is not there, pixels are no witness."""
    answer = page.request.post(f"{url}/graphql", data={"query": _ASSETS}).json()
    nodes: list[dict[str, Any]] = [n for n in answer["data"]["assetNodes"] if n["groupName"] == pipeline]
    if not nodes:
        hint = "deploy it, and reload the definitions"
        raise InfraError("dagster shows no such pipeline", pipeline=pipeline, url=url, hint=hint)
    return nodes


def _graph(page: Page, url: str, nodes: list[dict[str, Any]], picture: Path) -> Path:
    """The asset graph of the pipeline's group, unfolded."""
    node = nodes[0]
    repository, location = node["repository"]["name"], node["repository"]["location"]["name"]
    group = quote(f"{repository}@{location}:{node['groupName']}", safe="")
    page.goto(f"{url}/asset-groups?expanded={group}")
    for asset in nodes:
        page.get_by_text(asset["assetKey"]["path"][-1], exact=True).first.wait_for()
    _settle(page)
    page.screenshot(path=picture)
    return picture


def _store(page: Page, url: str, nodes: list[dict[str, Any]], picture: Path) -> Path:
    """The first store's page with the plots of its figures."""
    path = next(node["assetKey"]["path"] for node in nodes if node["assetKey"]["path"][-1].endswith("_store"))
    # The plots are below the fold, in a pane that scrolls by itself.
    page.set_viewport_size({"width": 1600, "height": 1900})
    page.goto(f"{url}/assets/{'/'.join(quote(part) for part in path)}")
    page.get_by_role("button", name="Plots").click()
    page.get_by_text("state keys", exact=True).first.wait_for()
    page.locator("canvas").first.wait_for()
    _settle(page)
    page.screenshot(path=picture)
    return picture


def _settle(page: Page) -> None:
    """Wait until nothing loads: the page asks again every few seconds, so silence alone may never come."""
    page.get_by_text("Loading").first.wait_for(state="hidden")
    page.wait_for_timeout(_DRAWING_MS)


def main() -> int:
    """Entry point; 0 if all pictures were taken."""
    parser = argparse.ArgumentParser(prog="screenshots", description="Pictures of Dagster for the documentation.")
    parser.add_argument("pipeline")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--home", type=Path, help="data folder of a running local stack")
    where.add_argument("--url", help="address of a running Dagster webserver")
    arguments = parser.parse_args()
    try:
        url = arguments.url or Stack(arguments.home).status().dagster_url
        if url is None:
            raise InfraError("dagster does not run", home=arguments.home, hint="start it with `rollforward up`")
        for picture in take_screenshots(url, arguments.pipeline, arguments.folder):
            print(picture)
    except InfraError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
