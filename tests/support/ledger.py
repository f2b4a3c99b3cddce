"""What a log of CREATE and DROP must look like, against what the clients were told, and that projections equal it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipelines.metastore.command import Command, decode
from pipelines.metastore.service import Metastore
from pipelines.settings import Settings


@dataclass(frozen=True)
class Told:
    """A client's last word on a statement: `sequence` is None where it was refused."""

    key: str
    sequence: int | None


def create(name: str, topic: str, column: str = "a") -> str:
    """A stream over a topic that is there."""
    return f"CREATE STREAM {name} (k STRING KEY, {column} INT) WITH (kafka_topic='{topic}', value_format='json');"


def drawn(choose: random.Random, topic: str) -> str:
    """A statement that may be refused: one of few names is created or dropped."""
    name = f"s{choose.randrange(3)}"
    return choose.choice([create(name, topic), f"DROP STREAM {name};"])


def commands(metastore: Metastore) -> list[Command]:
    """All of the log."""
    return [decode(record.value) for record in metastore.log.read(*metastore.log.bounds())]


def differences(found: list[Command], told: Iterable[Told]) -> list[str]:
    """What is wrong: a statement twice, a wrong answer, a CREATE of what is there or a DROP of what is not."""
    at = {command.key: command.sequence for command in found}
    problems = [] if len(at) == len(found) else ["a key is in the log twice"]
    problems += [f"sequences {[c.sequence for c in found]}"] * ([c.sequence for c in found] != list(range(len(found))))
    problems += [
        f"{one.key} was told {one.sequence}, is at {at.get(one.key)}" for one in told if one.sequence != at.get(one.key)
    ]
    present: set[str] = set()
    for command in found:
        [name] = command.names
        created = command.statement.startswith("CREATE")
        if created == (name in present):
            problems.append(f"{command.key}: {command.statement} with {sorted(present)}")
        present ^= {name}
    return problems


def equals_a_replay(settings: Settings, folder: Path) -> bool:
    """Whether a server's database shows what an empty one shows that is made from the log."""
    folder.mkdir()
    shown = Metastore(settings)
    replayed = Metastore(settings.model_copy(update={"metastore_url": f"sqlite:///{folder / 'replayed.db'}"}))
    try:
        assert shown.refresh() is None
        assert replayed.restore() is None
        return shown.projection.rows() == replayed.projection.rows()
    finally:
        shown.close()
        replayed.close()
