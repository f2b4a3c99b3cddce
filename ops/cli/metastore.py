"""`metastore …`: the command log itself: look, save, restore, compact."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.context import settings_of_here
from ops.cli.options import Json
from ops.cli.output import answer, say, table
from statestore.errors import Unavailable

if TYPE_CHECKING:
    from pipelines.metastore.backup import Turned
    from pipelines.metastore.rows import Applied, Aside

_STATEMENT_SHOWN = 80


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="The metastore's command log: look at it, save and restore it, compact it.",
        epilog="Every accepted statement is a command in one Kafka topic; the database only shows what the log says.",
    )
    group.command(
        epilog="[bold]rollforward metastore log --newest 5[/]\n\n[bold]rollforward metastore log --set-aside[/]"
    )(log)
    group.command(epilog="[bold]rollforward metastore outcome 3f0c…[/]")(outcome)
    group.command(
        epilog="[bold]rollforward metastore checkpoint[/]\n\nA start then reads the checkpoint, not all history."
    )(checkpoint)
    group.command(epilog="[bold]rollforward metastore backup metastore.backup[/]")(backup)
    group.command(
        epilog="[bold]rollforward metastore restore metastore.backup[/]\n\n[bold]rollforward metastore restore --from-here[/]"
    )(restore)
    group.command(
        epilog="[bold]rollforward metastore rebuild[/]\n\n[bold]rollforward metastore rebuild --accept-loss[/]"
    )(rebuild)
    app.add_typer(group, name="metastore")


def log(
    newest: Annotated[int, typer.Option(min=1, max=100_000, help="So many of the newest commands.")] = 20,
    set_aside: Annotated[bool, typer.Option("--set-aside", help="What could not be applied instead.")] = False,
    json: Json = False,
) -> None:
    """Show the newest commands, and whether the log can be trusted. Without Kafka those that were seen last."""
    from pipelines.metastore.embedded import for_a_look, metastore

    fault, away = None, None
    with metastore(for_a_look(settings_of_here())) as opened:
        try:
            fault = opened.refresh()
        except Unavailable as error:
            away = error
        position = opened.projection.position()
        aside = opened.projection.set_aside()
        commands = opened.projection.commands(newest=newest)
        topic = opened.log.topic_name
    if json:
        answer(
            {
                "topic": topic,
                "sequence": position.head.sequence,
                "degraded": None if fault is None else fault.to_json(),
                "unavailable": None if away is None else str(away),
                "commands": [command._asdict() for command in commands],
                "set_aside": [row._asdict() for row in aside],
            }
        )
        return
    if set_aside:
        _show_aside(aside)
    else:
        _show_commands(commands)
    say(f"\n{topic}: {position.head.sequence} commands, {len(aside)} set aside" + (" (--set-aside)" if aside else ""))
    if fault is not None:
        say(f"DEGRADED: {fault.text}\n  hint: {fault.hint}")
    if away is not None:
        say(f"AS IT WAS SEEN LAST: {away}")


def _show_commands(commands: list[Applied]) -> None:
    table(
        ("command", "time", "kind", "pipeline", "statement", "key"),
        [(str(c.sequence), _moment(c.at_ms), c.kind, c.pipeline, _short(c.statement), c.key) for c in commands],
    )


def _show_aside(rows: list[Aside]) -> None:
    table(
        ("command", "offset", "error", "content"),
        [(str(row.sequence), str(row.offset), row.error, _short(row.value)) for row in rows],
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _STATEMENT_SHOWN else f"{line[: _STATEMENT_SHOWN - 1]}…"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def outcome(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The statement's idempotency key.")], json: Json = False
) -> None:
    """Tell whether a statement is in the log. If it is not, no earlier sending will put it there any more."""
    from pipelines.metastore.embedded import metastore

    with metastore(settings_of_here()) as opened:
        found = opened.outcome(key)
    if json:
        answer({"key": key, "in_log": found is not None, "command": None if found is None else found._asdict()})
    elif found is None:
        say("It is not in the log: send it again.")
    else:
        say(f"It is in the log, as command {found.sequence}: {_short(found.statement)}")


def checkpoint(json: Json = False) -> None:
    """Write everything that is defined as a checkpoint, and delete the commands before it."""
    from pipelines.metastore.embedded import metastore

    with metastore(settings_of_here()) as opened:
        written = opened.checkpoint()
        start, _ = opened.log.bounds()
    if json:
        answer({**written.to_json(), "log_begins_at": start})
    else:
        say(f"Command {written.sequence} is a checkpoint; the log begins at offset {start} now.")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Where to; an old one is replaced.")],
    json: Json = False,
) -> None:
    """Save the whole log to a file."""
    from pipelines.metastore.embedded import metastore

    with metastore(settings_of_here()) as opened:
        saved = opened.backup(file)
    fault = saved.fault
    told: dict[str, Any] = {"file": str(file), "records": len(saved.records), "bytes": file.stat().st_size}
    if json:
        answer({**told, "degraded": None if fault is None else fault.to_json()})
        return
    say(f"{len(saved.records)} commands are in {file}.")
    if fault is not None:
        say(f"The log is damaged, and the file is as it is: {fault.text}")


def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", exists=True, dir_okay=False, help="A backup of this service.")
    ] = None,
    from_here: Annotated[bool, typer.Option("--from-here", help="What this machine's database knows instead.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Replace the log: delete the command topic, make it again, and write the backup in one transaction.

    Commands that are in the log and not in the backup are lost. Running pipelines go on if the backup has their deployment
    and wants them to run; others end, and are named before you are asked. Another machine with a database of its own that
    had applied more keeps that until `metastore rebuild --accept-loss` is run there.
    """
    from pipelines.metastore.embedded import metastore

    if (file is None) == (not from_here):
        raise typer.BadParameter("give a FILE, or --from-here")
    with metastore(settings_of_here()) as opened:
        turned = None if file is None else opened.turned_by(file)
        if turned is not None:
            _warn(turned)
        if not yes and not typer.confirm("The command topic will be deleted and made again. Go on?", err=True):
            raise typer.Exit(1)
        if file is None:
            opened.restore_from_here()
        else:
            opened.restore_backup(file)
        position = opened.projection.position()
    if json:
        turns = {} if turned is None else {"ended": turned.ends, "to_run_again": list(turned.begins)}
        answer({"sequence": position.head.sequence, **turns})
    else:
        say(f"The log is whole again, up to command {position.head.sequence - 1}. Servers pick it up by themselves.")


def _warn(turned: Turned) -> None:
    """Beside the question, which is on stderr as well."""
    for name, why in turned.ends.items():
        typer.echo(f"Pipeline {name} will end: {why}.", err=True)
    for name in turned.begins:
        typer.echo(f"Pipeline {name} is to run again, by the backup: Dagster starts it.", err=True)


def rebuild(
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Take a log that lacks commands applied here, as after a restore elsewhere. Pipelines that it does not "
            "have, or does not want to run, end.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make this machine's database anew from the log. A log that lacks applied commands is refused."""
    from pipelines.metastore.embedded import metastore

    with metastore(settings_of_here()) as opened:
        fault = opened.rebuild(accept_loss=accept_loss)
        if fault is not None:
            raise fault.error(opened.log.topic_name)
        sequence = opened.projection.position().head.sequence
    if json:
        answer({"sequence": sequence})
    else:
        say(f"{sequence} commands are applied.")
