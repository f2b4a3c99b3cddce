"""Every figure that a driver gives Prometheus: its name with its unit, its labels, what it says. The one place for them.

`docs/metrics.md` is made from here: `python -m pipelines.metrics.catalogue > docs/metrics.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]
# Batches take tenths of a second to a minute, recoveries and snapshots up to an hour.
BATCH_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LONG_BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True)
class Metric:
    """One figure. Each has the label `pipeline` before its own `labels`; a counter's name ends with `_total`."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"rollforward_{name}", "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"rollforward_{name}_total", "counter", text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(f"rollforward_{name}", "histogram", text, labels, buckets)


DRIVER_STATE = _gauge("driver_state", "1 for the driver's state, 0 for the others", "state")
DRIVER_STARTED = _gauge("driver_started_timestamp_seconds", "when the driver began, in seconds since 1970")
DRIVER_MEMORY = _gauge("driver_memory_bytes", "resident memory of the driver and all below it")
GATHERED = _gauge("gathered_timestamp_seconds", "when the gathered figures were last brought together")

RECORDS = _counter("records", "input records in finished batches", "query")
DEAD_LETTERS = _counter("dead_letter_records", "records that went to the dead letters", "query")
LATE_RECORDS = _counter(
    "expired_window_record_drop",
    "late records, once for each window; Kafka Streams' expired-window-record-drop",
    "query",
)
CHANGED = _counter("changed_keys", "keys that batches changed", "query")
BATCHES = _counter("batches", "finished batches", "query")
BATCH_SECONDS = _histogram("batch_seconds", "from a batch's plan to its end", BATCH_BUCKETS_S, "query")
COMMIT_SECONDS = _histogram(
    "batch_commit_seconds", "commits of a batch's tasks, side by side", BATCH_BUCKETS_S, "query"
)
LAST_COMMIT = _gauge(
    "last_commit_timestamp_seconds", "when the newest batch was committed; 0 before the first", "query"
)
BATCH = _gauge("newest_batch", "number of the newest finished batch; -1 before the first", "query")
EPOCH = _gauge("driver_epoch", "the query's epoch: it rises with every driver", "query")
LAG = _gauge(
    "source_lag_records",
    "offsets of the source partition that no planned batch holds, also those that are no records",
    "query",
    "partition",
)
RECOMPUTE_RUNNING = _gauge(
    "recompute_running", "1 while a period is computed again, for which the stream waits; else 0", "query"
)

SERVER_UP = _gauge("store_server_up", "1 for a store server that answers, 0 for one that does not", "server")
TASK_RUNNING = _gauge("task_running", "1 for a task that is open, 0 for one that recovers or failed", "query", "task")
TASK_BATCH = _gauge("task_committed_batch", "the task's newest committed batch", "query", "task")
STORE_KEYS = _gauge("store_keys", "keys in the task's store, as RocksDB estimates", "query", "task")
STORE_BYTES = _gauge("store_bytes", "the task's store on disk and in memory tables", "query", "task")
STORE_MEMORY = _gauge(
    "store_memory_bytes",
    "memory that the task's store holds: its memtables, block_cache, table_readers (of RocksDB), and entry_cache",
    "query",
    "task",
    "part",
)
DISK_FREE = _gauge("state_disk_free_bytes", "free space of the disk that holds the stores")
DISK_SIZE = _gauge("state_disk_size_bytes", "size of the disk that holds the stores")

RECOVERIES = _counter("recoveries", "openings of a task, by the way that its plan took", "query", "way")
RECOVERY_SECONDS = _histogram("recovery_seconds", "one task's opening", LONG_BUCKETS_S, "query", "way")
RECOVERY_RECORDS = _counter("recovery_records", "changelog records replayed", "query")
RECOVERY_DONE = _gauge("recovery_done_ratio", "how far the opening under way is, 0 to 1", "query", "task")

SNAPSHOT_AGE = _gauge(
    "snapshot_age_seconds",
    "age of the task's newest snapshot, whoever took it; 0 while it holds all that is committed",
    "query",
    "task",
)
SNAPSHOT_SECONDS = _gauge("snapshot_seconds", "how long the task's newest snapshot took", "query", "task")
SNAPSHOT_BYTES = _gauge("snapshot_bytes", "bytes that the newest snapshot names", "query", "task")
SNAPSHOT_UPLOADED = _gauge("snapshot_uploaded_bytes", "bytes of them that had to travel", "query", "task")
SNAPSHOT_COPY = _gauge(
    "snapshot_copy_seconds",
    "how long the newest snapshot's copy took: a flush beside the task's work, then links, for which the task waits",
    "query",
    "task",
)
SNAPSHOT_LOSS = _gauge(
    "snapshot_throughput_loss_ratio",
    "part of its speed that the query loses in batches beside snapshots, against those between; below 0 it is noise",
    "query",
)

PARTS = {
    "The driver": (DRIVER_STATE, DRIVER_STARTED, DRIVER_MEMORY, GATHERED),
    "Batches of a query": (
        *(RECORDS, DEAD_LETTERS, LATE_RECORDS, CHANGED, BATCHES),
        *(BATCH_SECONDS, COMMIT_SECONDS, LAST_COMMIT, BATCH, EPOCH, LAG, RECOMPUTE_RUNNING),
    ),
    "Store servers, tasks and stores": (
        *(SERVER_UP, TASK_RUNNING, TASK_BATCH, STORE_KEYS, STORE_BYTES, STORE_MEMORY, DISK_FREE, DISK_SIZE),
    ),
    "Recovery": (RECOVERIES, RECOVERY_SECONDS, RECOVERY_RECORDS, RECOVERY_DONE),
    "Snapshots": (
        *(SNAPSHOT_AGE, SNAPSHOT_SECONDS, SNAPSHOT_BYTES, SNAPSHOT_UPLOADED),
        *(SNAPSHOT_COPY, SNAPSHOT_LOSS),
    ),
}
METRICS = tuple(metric for part in PARTS.values() for metric in part)

_HEAD = """# Metrics

Every driver serves its own figures, and those of its store servers, at `http://127.0.0.1:<port>/metrics`. The port is
in `rollforward status --json`, and with the pipeline's name in `<home>/metrics/<pipeline>.json`, which Prometheus reads
as service discovery (`file_sd_configs`). The file stays when a driver dies, so that its absence is seen (`up == 0`),
and goes with a planned stop. `metrics = false` in `rollforward.toml` turns it off, `metrics_port` fixes the port.

Each figure has the label `pipeline`. Those of batches, recoveries and snapshots are told when they happen; the others
are brought together every ten seconds, beside the stream: a scrape never waits for a store server or for Kafka.
"""


def document() -> str:
    """`docs/metrics.md`."""
    lines = [_HEAD]
    for title, metrics in PARTS.items():
        lines += [f"## {title}", "", "| name | kind | labels | what it says |", "|---|---|---|---|"]
        lines += [f"| `{m.name}` | {m.kind} | {', '.join(m.labels) or '–'} | {m.text} |" for m in metrics]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")
