"""`query`: look into a store."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, progress, say, table
from ops.cli.past import At, AtBatch, require_one, time_ms
from pipelines.jsonvalue import dump
from statestore.store import Isolation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.deploy import DeployedQuery
    from pipelines.query import Row, StoreReader
    from pipelines.registry import Registry
    from pipelines.settings import Settings

_TABLE_ROWS = 1000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward query carrier_delays --key UA[/]\n\n"
        """[bold]rollforward query flights.route_days --key '["JFK", "LAX", 2013, 1, 1]'[/]\n\n"""
        "[bold]rollforward query carrier_delays --all --json[/]\n\n"
        "[bold]rollforward query carrier_delays --key UA --at-batch 120[/]\n\n"
        "The past is read from a snapshot and the changelog, in a folder of its own; the pipeline goes on."
    )(query)


def query(
    store: Annotated[str, typer.Argument(metavar="STORE", help="STORE, or PIPELINE.STORE where two have the name.")],
    key: Annotated[
        str | None, typer.Option("--key", help="One key: the value, or a JSON list or object for several columns.")
    ] = None,
    lower: Annotated[str | None, typer.Option("--from", help="First key of a range, included.")] = None,
    upper: Annotated[str | None, typer.Option("--to", help="Last key of a range, included.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every entry.")] = False,
    isolation: Annotated[
        Isolation, typer.Option(help="read_uncommitted also sees the batch that is not committed yet.")
    ] = Isolation.READ_COMMITTED,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many rows.")] = None,
    at_batch: AtBatch = None,
    at: At = None,
    json: Json = False,
) -> None:
    """Read a store by key, by range, or all of it. Keys are in the order of their bytes within a task."""
    if sum((key is not None, lower is not None or upper is not None, everything)) != 1:
        raise typer.BadParameter("give one of --key, --from with --to, or --all")
    if (lower is None) != (upper is None):
        raise typer.BadParameter("give both --from and --to")
    require_one(at_batch, at)
    from pipelines.lookup import range_bound, typed_key
    from pipelines.query import find_store

    settings = settings_of_here()
    with registry_of(settings) as registry, ExitStack() as stack:
        _, deployed = find_store(registry, store)
        reader = stack.enter_context(_reader(deployed, settings, registry, at_batch, time_ms(at)))
        if key is not None:
            rows = reader.find(typed_key(deployed.query, key), isolation)
        else:
            low, high = (text if text is None else range_bound(deployed.query, text) for text in (lower, upper))
            rows = reader.scan(low, high, isolation)
        if json:
            for row in islice(rows, limit):
                answer(row.to_json())
        else:
            _show(rows, limit)


@contextmanager
def _reader(
    deployed: DeployedQuery, settings: Settings, registry: Registry, batch: int | None, at_ms: int | None
) -> Iterator[StoreReader]:
    """Of the present, or of the past where a batch or a time is given."""
    from pipelines.past import PastReader, past_version
    from pipelines.query import StoreReader

    if batch is None and at_ms is None:
        yield StoreReader(deployed, settings, registry)
        return
    with (
        progress("Building the version") as tell,
        past_version(deployed, settings, batch=batch, at_ms=at_ms, tell=tell) as version,
    ):
        tell("batch", str(version.cut.batch))
        yield PastReader(version, settings)


def _show(rows: Iterator[Row], limit: int | None) -> None:
    """A table in memory, so its length is bounded; `--json` is not."""
    bound = limit or _TABLE_ROWS
    shown = list(islice(rows, bound))
    if not shown:
        say("No entry.")
        return
    keys, values = list(shown[0].key), list(shown[0].value)
    table(
        [*keys, *values, "time"],
        [
            [*(row.key.get(k) for k in keys), *(_plain(row.value.get(v)) for v in values), _time(row.time_ms)]
            for row in shown
        ],
        thousands=False,
    )
    if limit is None and next(rows, None) is not None:
        say(f"The first {bound:,} entries. All of them: --json, or --limit N")


def _plain(value: Any) -> Any:
    if isinstance(value, list | dict):
        return dump(value)
    return round(value, 4) if isinstance(value, float) else value


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
