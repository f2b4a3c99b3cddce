"""Every name that a pipeline has in the world outside: topics, groups, folders. One place, so they cannot differ."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from statestore.errors import InvalidInput
from statestore.folders import OWNER

_NAME = re.compile(r"[a-z0-9_]+")
_OWNER = re.compile(rf"[a-z0-9_]+[/-]\d+{re.escape(OWNER)}")
SPARK_SOCKETS = "spark-"
METASTORE_PREFIX = "_rollforward_"


def require_name(name: str, what: str) -> str:
    """The name, if it is one: it becomes topics, groups and folders. `-` only ever separates."""
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise InvalidInput(f"{what} name is not allowed", name=name, hint="use up to 100 of a-z, 0-9 and _")
    return name


def command_topic(service: str) -> str:
    """The metastore's log."""
    return f"{METASTORE_PREFIX}{service}_commands"


def batches_topic(pipeline: str, query: str) -> str:
    """Plans and positions of a query."""
    return f"{pipeline}-{query}-batches"


def changelog_topic(pipeline: str, store: str) -> str:
    """Changes of a store."""
    return f"{pipeline}-{store}-changelog"


def dead_letter_topic(pipeline: str) -> str:
    """Records that could not be used."""
    return f"{pipeline}-dead-letters"


def own_topics(pipeline: str, queries: Iterable[str]) -> set[str]:
    """Topics that nobody else may write: state and dead letters. A query's one store has its name."""
    kept = {topic(pipeline, query) for query in queries for topic in (batches_topic, changelog_topic)}
    return {dead_letter_topic(pipeline), *kept}


def group(pipeline: str, query: str) -> str:
    """Consumer group under which a query's source offsets are committed."""
    return f"{pipeline}-{query}"


def driver_id(pipeline: str, query: str) -> str:
    """Transactional id of the query's driver."""
    return f"{pipeline}-{query}-driver"


def task_folder(states: Path, pipeline: str, query: str, task: int) -> Path:
    """Local state of a task."""
    return states / pipeline / query / str(task)


def is_state_folder(folder: Path) -> bool:
    """Whether it is a pipeline's, by the files of its tasks' owners: here, or as store servers of their own have it."""
    owners = (*folder.glob(f"*/*{OWNER}"), *folder.glob(f"*{OWNER}"))
    return any(_OWNER.fullmatch(str(owner.relative_to(folder))) for owner in owners)


def spark_folder(home: Path, pipeline: str) -> Path:
    """Spark's own files of this process, when it drives the pipeline."""
    return home / "spark" / f"{pipeline}-{os.getpid()}"


def socket_folder() -> Path:
    """Where store servers listen: short, because a unix socket's path is bounded; private to the user."""
    folder = Path(tempfile.gettempdir()) / f"rollforward-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InvalidInput(
            "socket folder belongs to somebody else", folder=folder, hint="set TMPDIR to a folder of yours"
        )
    folder.chmod(0o700)
    return folder


def spark_socket_folder() -> Path:
    """Where the JVM of this process and its Python workers meet."""
    return socket_folder() / f"{SPARK_SOCKETS}{os.getpid()}"


def socket_prefix(states: Path, pipeline: str) -> str:
    """First part of the names of a pipeline's sockets, the same for every driver of it on this machine."""
    return hashlib.sha256(f"{states}/{pipeline}".encode()).hexdigest()[:12]
