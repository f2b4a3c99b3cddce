"""`verify`: are the stores what was committed?"""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli.context import registry_of, settings_of_here
from ops.cli.options import Json, PipelineName
from ops.cli.output import answer, progress, say, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward verify flights --sample 1[/]\n\n[bold]rollforward verify flights --changelog --json[/]\n\n"
        "Keys are named in hexadecimal. A store that differs: stop the pipeline, move the task's folder "
        "(<home>/state/PIPELINE/QUERY/TASK) away, and start it: it is restored. docs/runbooks/DataCorrupted.md says more."
    )(verify)


def verify(
    pipeline: PipelineName,
    sample: Annotated[
        float | None, typer.Option("--sample", min=0.01, max=100, help="Compare so many per cent of the keys.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="With --snapshot: compare every key, whatever the digests say.")
    ] = False,
    changelog: Annotated[
        bool, typer.Option("--changelog", help="Compare with the changelog key by key, whatever the digest says.")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Compare with the newest snapshot and the changelog's tail instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare every local store with the digest that its newest batch has committed, while the pipeline runs or not.

    Where a digest differs, or only a sample is wanted, store and changelog are compared key by key. Exits with 1 if one
    differs.
    """
    if sample is not None and full:
        raise typer.BadParameter("give --sample or --full, not both")
    if changelog and snapshot:
        raise typer.BadParameter("give --changelog or --snapshot, not both")
    from ops.verification import Against, verify_all

    against: Against = "snapshot" if snapshot else "changelog" if changelog else "digest"
    settings = settings_of_here()
    with registry_of(settings) as registry, progress(f"Verifying {pipeline}") as tell:
        row, percent = registry.pipeline(pipeline), sample or 100.0
        verified = verify_all(row, settings, tell, percent=percent, against=against, full=full)
    differing = [v for v in verified if v.differs]
    if json:
        answer({"pipeline": pipeline, "equal": not differing, "tasks": [v.to_json() for v in verified]})
    else:
        table(
            ("task", "batch", "against", "keys compared", "changed since", "differ", "digest"),
            [
                (v.task, v.batch, v.against, v.keys, v.changed_since, v.mismatch_count, v.store_digest[:16])
                for v in verified
            ],
        )
        for found in differing:
            if found.digest_differs:
                say(f"{found.task}: the digest of batch {found.batch} is not the one that was committed with it.")
            table(("task", "key", "in the store"), [(found.task, m.key, m.kind) for m in found.mismatches])
        if not verified:
            say("There is no local store.")
    if differing:
        raise typer.Exit(1)
