"""What snapshots ask of object storage.

Keys are relative paths of letters, digits, `.`, `_` and `-`. An object appears whole or not at all, and a new key is
seen by the next `list`, `head` and `get` (S3 promises so since 2020, a file system anyway). Times are the storage's
own clock, never this machine's.

A conditional write whose answer was lost is in doubt, so `put_if_absent` reads back: the body must be the writer's
alone (carry a random id), and an equal body found afterwards means that the write was ours.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statestore.errors import InvalidInput, RollforwardError

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class ObjectMissing(RollforwardError):
    """There is no object of this key."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object: its size in bytes and when it was last written, in seconds since the epoch by the storage's clock."""

    key: str
    bytes: int
    modified_at_s: float


@dataclass(frozen=True)
class UnfinishedUpload:
    """An upload in parts that is under way, or whose uploader died; `begun_at_s` as `ObjectInfo.modified_at_s`."""

    key: str
    id: str
    begun_at_s: float


def require_key(key: str) -> str:
    """The key, if it is one: no part begins with a dot, so none leaves its root or meets a temporary file."""
    if not _KEY.fullmatch(key):
        raise InvalidInput("object key is not allowed", key=key)
    return key


class ObjectStore(ABC):
    """A flat map from keys to bodies. Every method may be called from any thread.

    Raises `Unavailable` when the storage does not answer within its attempts, `InvalidConfig` when it refuses us.
    """

    parallel: int = 4

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, for people; holds no secret."""

    @abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Write an object, replacing what was there."""

    @abstractmethod
    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Write an object unless the key exists; True if the object is there with this very body."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The body. Raises `ObjectMissing`."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """What `list` would say of the object; None if there is none."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in key order. A listing proposes: some servers list unfinished puts."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are missing are no error."""

    @abstractmethod
    def refresh(self, key: str) -> bool:
        """Make an object as young as if it were put again, without sending it; False if there is none."""

    @abstractmethod
    def upload(self, path: Path, key: str) -> None:
        """Write a file of any size as an object."""

    @abstractmethod
    def download(self, key: str, path: Path, size: int | None = None) -> None:
        """Write an object of any size to a file, which is not synced. Raises `ObjectMissing`.

        `size` is how many bytes it should have, where that is known: it only saves asking.
        """

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Uploads in parts to keys that begin with `prefix`; none where files do not go in parts.

        No listing of objects shows them, and their parts take space until they are aborted.
        """
        return iter(())

    def abort(self, upload: UnfinishedUpload) -> None:  # noqa: B027  (a folder has none)
        """Free the parts of an upload. One that has ended meanwhile is no error; one that is under way fails."""

    def close(self) -> None:  # noqa: B027  (a folder has none)
        """Release connections."""

    def upload_all(self, files: Sequence[tuple[Path, str]], on_file: Callable[[Path, str], None]) -> None:
        """Upload files, `parallel` at a time; `on_file` is told of each that has arrived."""

        def one(path: Path, key: str) -> None:
            self.upload(path, key)
            on_file(path, key)

        self._all(files, one)

    def download_all(self, files: Sequence[tuple[Path, str, int]], on_file: Callable[[Path, str], None]) -> None:
        """Download objects of known sizes to files, `parallel` at a time; `on_file` runs beside the other downloads."""

        def one(path: Path, key: str, size: int) -> None:
            self.download(key, path, size)
            on_file(path, key)

        self._all(files, one)

    def _all(self, files: Sequence[tuple[Any, ...]], one: Callable[..., None]) -> None:
        """Run every transfer; on the first failure those not begun are dropped and it is raised."""
        with ThreadPoolExecutor(max_workers=self.parallel, thread_name_prefix="transfer") as workers:
            running = [workers.submit(one, *file) for file in files]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in running:
                future.cancel()
            for future in done:
                future.result()
