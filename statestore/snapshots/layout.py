"""Where everything of one task lies below the snapshot root.

    <pipeline>/<query>/<batches topic id>/<task>/manifests/<batch:020>.json   presence makes the snapshot exist
                                                 files/<sha256>               shared by the task's snapshots
                                                 pins/<id>.json               who needs which files now
                                                 marks/<id>.json              collections that are under way

The batches topic's id is in the path, so that a query that was made anew under an old name never meets old snapshots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from statestore.config import TaskSpec

_MANIFEST = re.compile(r"(\d{20})\.json")
_TASK = re.compile(r"[^/]+/(?P<query>[^/]+)/(?P<topic>id_[^/]+)/\d+/")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TaskLayout:
    """The keys of one task. `prefix` ends with a slash."""

    prefix: str
    batches_topic_id: str

    @property
    def manifests(self) -> str:
        """Prefix of the manifests."""
        return f"{self.prefix}manifests/"

    @property
    def files(self) -> str:
        """Prefix of the files."""
        return f"{self.prefix}files/"

    @property
    def pins(self) -> str:
        """Prefix of the pins."""
        return f"{self.prefix}pins/"

    @property
    def marks(self) -> str:
        """Prefix of the marks of collections."""
        return f"{self.prefix}marks/"

    def manifest(self, batch: int) -> str:
        """The manifest of a batch; zero-padded, so that keys are in the order of batches."""
        return f"{self.manifests}{batch:020}.json"

    def file(self, sha256: str) -> str:
        """A file by its content."""
        return f"{self.files}{sha256}"

    def batch_of(self, key: str) -> int | None:
        """The batch of a manifest's key; None for anything else that a server may list there."""
        match = _MANIFEST.fullmatch(key.removeprefix(self.manifests))
        return None if match is None else int(match[1])

    def sha256_of(self, key: str) -> str | None:
        """The content of a file's key; None for anything else, unfinished puts of some servers among it."""
        name = key.removeprefix(self.files)
        return name if _SHA256.fullmatch(name) else None


def layout_of(spec: TaskSpec, batches_topic_id: str) -> TaskLayout:
    """The layout of a task."""
    prefix = f"{pipeline_prefix(spec.pipeline)}{spec.query}/{topic_folder(batches_topic_id)}/{spec.number}/"
    return TaskLayout(prefix, batches_topic_id)


@dataclass(frozen=True)
class StoredTask:
    """A task that has objects. `topic_folder` is the part of the path that its batches topic's id gives."""

    query: str
    topic_folder: str
    prefix: str


def stored_tasks(keys: Iterable[str]) -> list[StoredTask]:
    """The tasks whose objects are among the keys, each once."""
    matches = (match for key in keys if (match := _TASK.match(key)) is not None)
    return list(dict.fromkeys(StoredTask(match["query"], match["topic"], match[0]) for match in matches))


def pipeline_prefix(pipeline: str) -> str:
    """Prefix of everything of a pipeline."""
    return f"{pipeline}/"


def topic_folder(topic_id: str) -> str:
    """A topic id as a part of a key: base64 as Java writes it, whatever the client does, and never a `-` first."""
    return f"id_{topic_id.replace('+', '-').replace('/', '_')}"
