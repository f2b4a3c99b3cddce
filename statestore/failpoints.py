"""Named points between the steps of a protocol, where a test may kill or stop the process.

A point is armed by a file of its name in the folder `ROLLFORWARD_FAILPOINTS` names; the file holds how often to pass
before firing, and the signal. Reaching an armed point takes the file away first, so a point fires once however many
processes reach it and however often they are restarted. Without that variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

FOLDER = os.environ.get("ROLLFORWARD_FAILPOINTS")

# In the order in which one batch meets them. The crash test kills at every one.
SERVER_POINTS = (
    "own.before-init",
    "own.after-init",
    "recover.before-replay",
    "recover.in-replay",
    "recover.after-replay",
    "stage.in-stream",
    "stage.closed",
    "commit.before-begin",
    "commit.begun",
    "commit.in-produce",
    "commit.produced",
    "commit.delivered",
    "commit.position-sent",
    "commit.committed",
    "apply.before-write",
    "apply.written",
    "apply.before-answer",
)
DRIVER_POINTS = (
    "driver.owned",
    "driver.before-plan",
    "driver.planned",
    "driver.job-done",
    "driver.ahead",
    "driver.some-committed",
    "driver.all-committed",
    "driver.before-done-commit",
    "driver.done",
)
# Before each of a pipeline's queries is owned.
START_POINTS = ("driver.before-own",)
# Of a Spark worker: the server has the whole attempt, and Spark does not know it yet.
WORKER_POINTS = ("worker.staged",)
# Met only where a driver computes a batch itself.
SMALL_POINTS = ("driver.small",)
# Met only where a period is computed again.
RECOMPUTE_POINTS = ("driver.recomputed",)
# Of a run that archives a topic.
ARCHIVE_POINTS = ("archive.before-put", "archive.put")
# Met only where an expression fails of a record.
REFUSE_POINTS = ("driver.refused",)
# Of a store of any task, in the order of one transaction that spills and one recovery.
SPILL_POINTS = ("spill.begun", "spill.in", "spill.done")
# Of every space that goes, in whatever step it does.
DROP_POINTS = ("drop.unlisted", "drop.flushed", "drop.dropped")
INDEXED_POINTS = ("indexed.before-write", "indexed.written", "indexed.dropped")
SECONDARY_POINTS = (
    "secondary.synced",
    "secondary.commit-file-unnamed",
    "secondary.commit-file-written",
    "secondary.in-copy",
    "secondary.before-last-write",
    "secondary.copied",
    "secondary.in-drop",
    "secondary.dropped",
    "secondary.commit-file-deleted",
    "secondary.emptied",
)
SECONDARY_OPENING_POINTS = ("secondary.roll-forward", "secondary.discarded")
STORE_RESTORE_POINTS = ("restore.before-write", "restore.written", "restore.ended")
STORE_POINTS = (
    *SPILL_POINTS,
    *INDEXED_POINTS,
    *SECONDARY_POINTS,
    *SECONDARY_OPENING_POINTS,
    *STORE_RESTORE_POINTS,
    *DROP_POINTS,
)
# In the order in which one snapshot, one restore, one collection meets them.
SNAPSHOT_POINTS = (
    "snapshot.before-copy",
    "snapshot.copied",
    "snapshot.hashed",
    "snapshot.pinned",
    "snapshot.in-upload",
    "snapshot.uploaded",
    "snapshot.manifest-put",
    "snapshot.unpinned",
)
RESTORE_POINTS = (
    "restore.pinned",
    "restore.in-download",
    "restore.downloaded",
    "restore.before-rename",
    "restore.renamed",
)
# In the order in which loading a changelog meets them; only a program's task copies what it has.
LOAD_COPY_POINTS = ("load.copied",)
# And lets go of segments that what it has loaded has left behind.
LOAD_EXPIRE_POINTS = ("load.expired",)
LOAD_POINTS = ("load.in-build", "load.loaded", "load.built", "load.before-rename", "load.renamed")
COLLECT_POINTS = (
    "collect.marked",
    "collect.listed",
    "collect.in-manifests",
    "collect.manifests-deleted",
    "collect.pins-read",
    "collect.in-files",
    "collect.files-deleted",
    "collect.uploads-aborted",
)
# In the order in which a version of the past is built.
PAST_POINTS = ("past.in-tail", "past.built")
# In the order in which another version is made the committed one.
REWRITE_POINTS = (
    "rewrite.owned",
    "rewrite.opened",
    "rewrite.in-produce",
    "rewrite.position-sent",
    "rewrite.before-commit",
    "rewrite.committed",
)
CLONE_POINTS = ("clone.deployed", "clone.marked")
ROLLBACK_POINTS = ("rollback.before-delete",)
# In the order in which one statement meets them, then those of rarer work on the log.
METASTORE_POINTS = (
    "statement.before-init",
    "statement.initialised",
    "statement.begun",
    "statement.caught-up",
    "statement.validated",
    "statement.produced",
    "statement.committed",
    "projection.before-write",
    "projection.written",
    "statement.applied",
)
CHECKPOINT_POINTS = ("checkpoint.part-sent", "checkpoint.sent", "checkpoint.committed", "checkpoint.trimmed")
LOG_RESTORE_POINTS = ("restore.deleted", "restore.created", "restore.sent", "restore.committed")
# Of a program's own loop (`StreamTask`), in the order of one opening and one commit.
PROGRAM_POINTS = (
    "program.before-init",
    "program.after-init",
    "program.in-restore",
    "program.restored",
    "program.claimed",
    "program.taken",
    "program.before-commit",
    "program.cache-flushed",
    "program.before-begin",
    "program.begun",
    "program.in-send",
    "program.sent",
    "program.delivered",
    "program.offsets-sent",
    "program.committed",
    "program.in-apply",
    "program.applied",
)
ALL_POINTS = (
    *SMALL_POINTS,
    *REFUSE_POINTS,
    *RECOMPUTE_POINTS,
    *ARCHIVE_POINTS,
    *SERVER_POINTS,
    *DRIVER_POINTS,
    *START_POINTS,
    *WORKER_POINTS,
    *STORE_POINTS,
    *PROGRAM_POINTS,
    *SNAPSHOT_POINTS,
    *RESTORE_POINTS,
    *LOAD_COPY_POINTS,
    *LOAD_EXPIRE_POINTS,
    *LOAD_POINTS,
    *COLLECT_POINTS,
    *PAST_POINTS,
    *REWRITE_POINTS,
    *CLONE_POINTS,
    *ROLLBACK_POINTS,
    *METASTORE_POINTS,
    *CHECKPOINT_POINTS,
    *LOG_RESTORE_POINTS,
)


def arm(folder: Path, name: str, *, passes: int = 0, with_signal: str = "SIGKILL") -> None:
    """Make the point `name` send the signal to the process that reaches it for the `passes + 1`-th time.

    SIGSTOP lets a test bring in a rival and then let the process go on (SIGCONT).
    """
    if name not in ALL_POINTS:
        raise ValueError(f"no failpoint is named {name}")
    (folder / name).write_text(f"{passes} {signal.Signals[with_signal].name}")


def is_armed(folder: Path, name: str) -> bool:
    """True until the point has fired."""
    return (folder / name).exists()


def reach(name: str) -> None:
    """Send this process the armed signal if the point is armed and its passes are used up."""
    if FOLDER is None:
        return
    point = Path(FOLDER, name)
    try:
        count, name_of_signal = point.read_text().split()
        passes = int(count)
    except (FileNotFoundError, ValueError):
        return
    if passes > 0:
        point.write_text(f"{passes - 1} {name_of_signal}")
        return
    point.unlink(missing_ok=True)
    die(signal.Signals[name_of_signal])


def die(by: signal.Signals = signal.SIGKILL) -> None:
    """Send this process the signal; a state machine within one process puts an exception in its place."""
    os.kill(os.getpid(), by)
