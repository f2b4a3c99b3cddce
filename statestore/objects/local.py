"""Objects as files below one folder.

A body is written to a temporary file in `<root>/.tmp`, synced, and then renamed (put) or linked (put_if_absent: a link
fails where the name exists) to its place, so that a file under its own name is whole, whoever is killed when. What is
left in `.tmp` for a day is swept. The folder survives a kill of any process, and, as files and their folders are
synced, power loss.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from statestore.errors import InvalidConfig, Unavailable
from statestore.objects.base import ObjectInfo, ObjectMissing, ObjectStore, require_key
from statestore.objects.throttle import Throttle

_CHUNK = 1024 * 1024
_SWEEP_AFTER_S = 86_400.0


class LocalObjects(ObjectStore):
    """Objects below `root`, which the first write makes, for its user alone. Safe for many processes at once."""

    def __init__(self, root: Path, *, parallel: int = 4, bandwidth_bytes_per_s: int = 0) -> None:
        self._root = root.absolute()
        self._temporary = self._root / ".tmp"
        self._throttle = Throttle(bandwidth_bytes_per_s)
        self.parallel = parallel
        with self._errors("open"):
            self._sweep()

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def _path(self, key: str) -> Path:
        return self._root / require_key(key)

    def _sweep(self) -> None:
        """Remove what killed writers have left."""
        for left in self._temporary.glob("*"):
            # A writer that lives may just have placed it.
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _SWEEP_AFTER_S:
                    left.unlink()

    @contextmanager
    def _errors(self, what: str, key: str = "") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if what in ("get", "download"):
                raise ObjectMissing("object is missing", key=key, root=self._root) from error
            raise self._failed(what, key, error) from error
        except PermissionError as error:
            raise InvalidConfig(
                f"object folder refuses us: {what}", root=self._root, error=error, hint="make the folder ours to write"
            ) from error
        except OSError as error:
            raise self._failed(what, key, error) from error

    def _failed(self, what: str, key: str, error: OSError) -> Unavailable:
        return Unavailable(
            f"object folder failed: {what}", root=self._root, key=key, error=error, hint="look at its disk"
        )

    @contextmanager
    def _new_file(self) -> Iterator[Path]:
        """A name for a temporary file, which is gone afterwards."""
        # One after the other: folders above the last have the mode that they would have anyway.
        for folder in (self._root, self._temporary):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._temporary / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def put(self, key: str, body: bytes) -> None:
        path = self._path(key)
        with self._errors("put", key), self._new_file() as temporary:
            _write(temporary, body)
            self._place(temporary, path)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        path = self._path(key)
        with self._errors("put_if_absent", key), self._new_file() as temporary:
            _write(temporary, body)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return path.read_bytes() == body
            _sync(path.parent)
            return True

    def _place(self, temporary: Path, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)
        _sync(path.parent)

    def get(self, key: str) -> bytes:
        with self._errors("get", key):
            return self._path(key).read_bytes()

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with self._errors("head", key):
            try:
                about = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return ObjectInfo(key, about.st_size, about.st_mtime)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = self._root / prefix.rpartition("/")[0]
        with self._errors("list", prefix):
            if not self._root.exists():
                return
            # What is no folder must not look like an empty one.
            next(self._root.iterdir(), None)
            keys = sorted(path.relative_to(self._root).as_posix() for path in self._files(folder))
        for key in keys:
            # What was deleted since is not listed.
            if key.startswith(prefix) and (about := self.head(key)) is not None:
                yield about

    def _files(self, folder: Path) -> Iterator[Path]:
        """Everything below a folder but for temporary files. What may not be read must not look like what is empty."""
        for name, _, files in os.walk(folder, onerror=_raise_unless_missing):
            for path in (Path(name, file) for file in files):
                if path.is_file() and not path.is_relative_to(self._temporary):
                    yield path

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._errors("delete", key):
                self._path(key).unlink(missing_ok=True)

    def refresh(self, key: str) -> bool:
        with self._errors("refresh", key):
            try:
                os.utime(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def upload(self, path: Path, key: str) -> None:
        target = self._path(key)
        with self._errors("upload", key), self._new_file() as temporary:
            self._copy(path, temporary)
            _sync(temporary)
            self._place(temporary, target)

    def download(self, key: str, path: Path, size: int | None = None) -> None:
        with self._errors("download", key):
            self._copy(self._path(key), path)

    def _copy(self, source: Path, target: Path) -> None:
        if not self._throttle:
            shutil.copyfile(source, target)
        else:
            with source.open("rb") as reading, target.open("wb") as writing:
                while chunk := reading.read(_CHUNK):
                    self._throttle.take(len(chunk))
                    writing.write(chunk)


def _raise_unless_missing(error: OSError) -> None:
    """What was deleted since is not listed."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _write(path: Path, body: bytes) -> None:
    path.write_bytes(body)
    _sync(path)


def _sync(path: Path) -> None:
    """Make a file's content, or a folder's names, outlive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
