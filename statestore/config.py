"""Settings of the state stores and of the processes that own them, read once by the caller and passed down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class KafkaConfig:
    """How to reach Kafka.

    bootstrap_servers: `host:port[,host:port]`.
    client: any librdkafka setting (`security.protocol`, `sasl.password`, …), given to every client; never logged.
    transaction_timeout_ms: a transaction lasts as long as sending a batch takes, and the broker aborts it after this.
        Longer survives slower brokers; shorter unblocks `read_committed` readers sooner when an owner is gone for good.
    request_timeout_s: bound of one call that waits for Kafka, its retries included, before it is `Unavailable`.
    """

    bootstrap_servers: str
    client: dict[str, str] = field(default_factory=dict, repr=False)
    transaction_timeout_ms: int = 60_000
    request_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.request_timeout_s * 1000 > self.transaction_timeout_ms:
            # A commit that is still retried after the broker has aborted the transaction can only fail.
            raise ValueError("request_timeout_s must not exceed transaction_timeout_ms")


@dataclass(frozen=True)
class RocksConfig:
    """How RocksDB is tuned, per task.

    write_buffer_bytes: size of one memtable; larger takes more memory and makes fewer, larger files.
    block_cache_bytes: cache of uncompressed blocks of the task.
    """

    write_buffer_bytes: int = 32 * 1024 * 1024
    block_cache_bytes: int = 32 * 1024 * 1024


@dataclass(frozen=True)
class StoreSpec:
    """One store of a task: its name and its changelog topic with the topic id recorded at deploy."""

    name: str
    changelog_topic: str
    changelog_topic_id: str


@dataclass(frozen=True)
class TaskSpec:
    """Everything a server needs to own one task. `folder` is the task's alone."""

    pipeline: str
    query: str
    number: int
    tasks: int
    batches_topic: str
    output_topic: str
    dead_letter_topic: str
    store: StoreSpec
    folder: Path

    @property
    def name(self) -> str:
        """The task id, `<query>-<n>`."""
        return f"{self.query}-{self.number}"

    @property
    def transactional_id(self) -> str:
        """`<pipeline>-<task id>`."""
        return f"{self.pipeline}-{self.name}"


@dataclass(frozen=True)
class ServerConfig:
    """One store server process. `socket` is the path of its unix socket, `transactions` off is for comparison only."""

    name: str
    socket: Path
    kafka: KafkaConfig
    rocks: RocksConfig
    transactions: bool = True


@dataclass(frozen=True)
class StreamConfig:
    """One task of a program that reads Kafka in its own loop.

    application: name of the consumer group, prefix of the changelog topics and of the transactional id.
    partition: the task reads this partition of every topic of `inputs`, and its stores' changelogs have it.
    folder: where the local state of all of the application's tasks on this machine lives.
    commit_interval_ms: longer commits more at once; shorter shows results sooner and repeats less after a crash.
    uncommitted_bytes_max: what the task may keep in memory before it commits early; shared if tasks share a budget.
        A store with the mechanism AUTO has as much before it spills.
    exactly_once: off, results may come twice after a crash, and nothing fences an older owner.
    positions_in_changelog: changelog records carry their store's position, so that it survives the loss of the disk;
        costs some 100 bytes a record.
    """

    application: str
    kafka: KafkaConfig
    inputs: tuple[str, ...]
    partition: int
    folder: Path
    commit_interval_ms: int = 100
    uncommitted_bytes_max: int = 64 * 1024 * 1024
    exactly_once: bool = True
    positions_in_changelog: bool = False
    rocks: RocksConfig = field(default_factory=RocksConfig)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ValueError("a task has at least one input topic")

    @property
    def transactional_id(self) -> str:
        """`<application>-<partition>`."""
        return f"{self.application}-{self.partition}"

    @property
    def task_folder(self) -> Path:
        """The task's own folder."""
        return self.folder / self.application / str(self.partition)
