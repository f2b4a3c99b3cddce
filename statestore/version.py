"""The stores of one task in one RocksDB, and the version they stand at.

Every store is a column family; the family `checkpoint` holds one JSON document: format, batch, plan, how many tasks the
query had, and per store the changelog's topic id and next offset. Changes and checkpoint go in with one write, so what is
read back is always one committed version, complete, with the offsets that belong to it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from statestore.config import RocksConfig
from statestore.errors import FormatUnsupported, InvalidConfig, TaskCorrupted
from statestore.rocks.database import Database
from statestore.rocks.errors import is_damage
from statestore.spaces.base import CHECKPOINT, OWN_SPACES, Changes

FORMAT = 1
_KEY = b"checkpoint"
# How long a store may look damaged to who reads it beside its owner.
_DAMAGED_S = 1.0


@dataclass(frozen=True)
class ChangelogPosition:
    """Where a store stands in its changelog: `offset` is the next to read."""

    topic_id: str
    offset: int


@dataclass(frozen=True)
class Checkpoint:
    """A committed version. `batch` is -1 before the first batch.

    `written_at_ms` is wall time since the epoch, of a moment before anything behind the batch was committed: what was deleted
    since then is younger.
    `plan` is the hash of the plan that the batch ran under and `tasks` how many the query had; empty and 0 where they
    were not written down, as in stores of before there were these fields. `digest` is the position's, None without one:
    it tells the batch from another of its number.
    """

    batch: int
    stores: dict[str, ChangelogPosition] = field(default_factory=dict)
    written_at_ms: int = 0
    format: int = FORMAT
    plan: str = ""
    tasks: int = 0
    digest: str | None = None


def _parse(raw: bytes, folder: Path) -> Checkpoint:
    try:
        fields = json.loads(raw)
        found = fields["format"]
        if found != FORMAT:
            raise FormatUnsupported("local store has another format", folder=folder, found=found, supported=FORMAT)
        stores = {name: ChangelogPosition(**position) for name, position in fields.pop("stores").items()}
        return Checkpoint(**fields, stores=stores)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TaskCorrupted("checkpoint is unreadable", folder=folder, error=error) from error


def checkpoint_entries(checkpoint: Checkpoint) -> tuple[str, Changes]:
    """Space and entries by which a write makes `checkpoint` the committed version."""
    return CHECKPOINT, [(_KEY, json.dumps(asdict(checkpoint), separators=(",", ":")).encode())]


class TaskDatabase:
    """The RocksDB of one task. Raises `InvalidConfig` for a store of a name under which its data would be lost."""

    def __init__(self, folder: Path, stores: list[str], config: RocksConfig, *, read_only: bool = False) -> None:
        for taken in OWN_SPACES.intersection(stores):
            hint = "deploy its query under another name"
            raise InvalidConfig("store has the name of a family that is kept beside stores", store=taken, hint=hint)
        self.folder = folder
        self.database = Database(folder, [*stores, CHECKPOINT], config, read_only=read_only)

    @classmethod
    def beside(cls, folder: Path, stores: list[str], config: RocksConfig) -> TaskDatabase:
        """For reading, whoever else has it open: an owner that deletes files meanwhile makes it look damaged for a moment.

        Raises `TaskCorrupted` for one that stays so.
        """
        again = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, TaskCorrupted) and is_damage(error)),
            stop=stop_after_delay(_DAMAGED_S),
            wait=wait_fixed(0.02),
            reraise=True,
        )
        return again(cls, folder, stores, config, read_only=True)

    def checkpoint(self) -> Checkpoint | None:
        """The version the stores stand at; None for a new folder. Raises `FormatUnsupported`, `TaskCorrupted`."""
        raw = self.database.get(CHECKPOINT, _KEY)
        return None if raw is None else _parse(raw, self.folder)

    def entries(self, checkpoint: Checkpoint) -> tuple[str, Changes]:
        """`checkpoint_entries`."""
        return checkpoint_entries(checkpoint)

    def close(self) -> None:
        """Release the folder."""
        self.database.close()


def wipe(folder: Path) -> None:
    """Delete a task's local state. It is a cache: the changelog has it all."""
    if folder.exists():
        shutil.rmtree(folder)
