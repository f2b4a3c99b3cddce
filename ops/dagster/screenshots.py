"""Pictures of the user interface for the documentation; for one of them a backfill is launched as a person does it.

    python -m ops.dagster.screenshots <pipeline> [<folder>] (--home <data folder of the local stack> | --url <dagster
    url>) [--partitions '[2013-01-01...2013-01-14]']

    assets.png              the pipeline's asset graph
    table.png               a table's page with its figures over time
    store.png               a store's
    recovery.png            what the newest recovery run says of its incident
    backfill-launch.png     partitions are chosen
    backfill.png            the asset after the backfill has ended

Playwright drives the Chromium of the system; it downloads no browser.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from infra.errors import InfraError
from infra.stack import Stack
from ops.dagster.pages import Dagster

FOLDER = Path("docs/images")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TIMEOUT_MS = 120_000
_BACKFILL_S = 900.0
PARTITIONS = "[2013-01-01...2013-01-14]"


def take_screenshots(
    dagster_url: str, pipeline: str, folder: Path = FOLDER, partitions: str = PARTITIONS
) -> list[Path]:
    """Writes the pictures into the folder; gives their paths.

    Raises InfraError if there is no browser, if Dagster does not answer, if it does not know the pipeline, or if the
    backfill does not end well.
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
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(_TIMEOUT_MS)
            pictures = _all(Dagster(page, dagster_url, pipeline), folder, partitions)
            browser.close()
    except Error as error:
        hint = "look whether Dagster answers there, then try again"
        raise InfraError(
            "the page could not be taken", url=dagster_url, error=error.message.splitlines()[0], hint=hint
        ) from error
    return pictures


def _all(dagster: Dagster, folder: Path, partitions: str) -> list[Path]:
    pictures = []
    dagster.graph()
    pictures.append(dagster.picture(folder / "assets.png", height=900))
    timed = dagster.asset_of(partitioned=True)
    store = dagster.asset_of(ends_with="_store")
    dagster.plots([*store[:-1], store[-1].removesuffix("_store")], "records per second", "lag")
    pictures.append(dagster.picture(folder / "table.png", height=2100))
    dagster.plots(store, "state keys")
    pictures.append(dagster.picture(folder / "store.png", height=1600))
    summary = dagster.text_of_run(dagster.newest_run("recover_pipeline"), "summary")
    pictures.append(folder / "recovery.png")
    summary.screenshot(path=pictures[-1])
    launch = dagster.choose_partitions(timed, partitions)
    pictures.append(dagster.picture(folder / "backfill-launch.png", height=860))
    done = dagster.backfill(launch, timed, timeout_s=_BACKFILL_S)
    print(f"backfill of {'/'.join(timed)}, run {done.run}: {done.figures}", file=sys.stderr)
    dagster.asset(timed, "equal")
    pictures.append(dagster.picture(folder / "backfill.png", height=1150))
    return pictures


def main() -> int:
    """Entry point; 0 if all pictures were taken."""
    parser = argparse.ArgumentParser(prog="screenshots", description="Pictures of Dagster for the documentation.")
    parser.add_argument("pipeline")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument(
        "--partitions", default=PARTITIONS, help="which ones are computed again, as Dagster writes them"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--home", type=Path, help="data folder of a running local stack")
    where.add_argument("--url", help="address of a running Dagster webserver")
    arguments = parser.parse_args()
    try:
        url = arguments.url or Stack(arguments.home).status().dagster_url
        if url is None:
            raise InfraError("dagster does not run", home=arguments.home, hint="start it with `rollforward up`")
        for picture in take_screenshots(url, arguments.pipeline, arguments.folder, arguments.partitions):
            print(picture)
    except InfraError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
