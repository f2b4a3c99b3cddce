"""`archive`: copy source topics to object storage as Parquet, before Kafka deletes their records."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, progress, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward archive[/]\n\n[bold]rollforward archive flights[/]\n\n"
        'It needs archive_url = "s3://bucket/prefix" or "file:///folder" in rollforward.toml. Dagster does the same every '
        "hour: assets <topic>_archive."
    )(archive)


def archive(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="Whose source topics; default: those of all pipelines.")
    ] = None,
    json: Json = False,
) -> None:
    """Add to the archive what the source topics have got since the last time. Backfills and `bootstrap` read it."""
    from ops.archive import archive_all, source_topics

    settings = settings_of_here()
    with registry_of(settings) as registry, progress("Archiving") as tell:
        done = archive_all(source_topics(registry, pipeline), settings, tell)
    if json:
        answer({"archive_url": settings.archive_url, "partitions": [one.to_json() for one in done]})
        return
    table(
        ("topic", "partition", "from offset", "to offset", "records now", "files now"),
        [(one.topic, one.partition, one.first, one.end, one.records, one.files) for one in done],
    )
