"""Settings of the state stores and of the processes that own them, read once by the caller and passed down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from statestore.store import TransactionalMechanism


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
    log_bytes_max: size of the write-ahead log past which memtables are flushed. All of it is read again when a killed
        process is followed by another; smaller opens faster then and writes more, smaller files.
    entry_cache_bytes: entries that the task has written lately, kept as columns in front of RocksDB;
        0 for none. Less than 2 GiB.
    """

    write_buffer_bytes: int = 32 * 1024 * 1024
    block_cache_bytes: int = 32 * 1024 * 1024
    log_bytes_max: int = 12 * 1024 * 1024
    entry_cache_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 <= self.entry_cache_bytes < 1 << 31:
            raise ValueError("entry_cache_bytes must be from 0 to 2 GiB, which is more than a column can hold")


@dataclass(frozen=True)
class StoreSpec:
    """One store of a task: its name and its changelog topic with the topic id recorded at deploy.

    A windowed store has a retention: how long after a window's start, in stream time, the window can be read.
    """

    name: str
    changelog_topic: str
    changelog_topic_id: str
    retention_ms: int | None = None


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
    """One store server process. `transactions` off is for comparison only.

    address: the path of a unix socket or `tls://host:port`.
    states: folder of the stores on a machine of the server's own; None takes the folder that the driver names.
    """

    name: str
    address: str
    kafka: KafkaConfig
    rocks: RocksConfig
    transactions: bool = True
    snapshots: SnapshotConfig | None = None
    states: Path | None = None


@dataclass(frozen=True)
class ObjectsConfig:
    """Where snapshots lie and how they travel.

    url: `file:///folder` or `s3://bucket/prefix`. Credentials are found by boto3's own chain, never configured here.
    endpoint_url: of an S3 server that is not Amazon's. region: boto3's own choice when empty.
    addressing: `path` (server/bucket), `virtual` (bucket.server) or `auto`.
    encryption: server side, `AES256` or `aws:kms` with `kms_key_id`; empty leaves it to the bucket.
    credentials_file: an AWS credentials file beside the usual places, as the local stack writes one.
    parallel: files under way at once; more fill a fast network and take more memory (16 MiB or so each).
    part_bytes: files larger than this go in parts of this size.
    bandwidth_bytes_per_s: bound of all transfers of one process together; 0 is none. With S3 files below 256 KiB have
      a bound of their own of the same rate.
    attempts: of one request, with growing pauses between; timeout_s: longest silence within one.
    """

    url: str
    endpoint_url: str = ""
    region: str = ""
    addressing: str = "auto"
    encryption: str = ""
    kms_key_id: str = ""
    credentials_file: str = ""
    parallel: int = 4
    part_bytes: int = 16 * 1024 * 1024
    bandwidth_bytes_per_s: int = 0
    attempts: int = 6
    timeout_s: float = 30.0


@dataclass(frozen=True)
class SnapshotConfig:
    """When snapshots are taken, and for how long they are kept.

    interval_s: a task with new batches is snapshotted this often; shorter makes recovery's tail shorter and uploads
        more; 0 turns the clock off.
    changelog_records: and whenever its changelog has grown by so many offsets; 0 turns it off.
    keep: the newest so many snapshots of a task are never collected. retention_s: nor any younger than this.
    minimum_age_s: an unreferenced file younger than this is not deleted: it may belong to a snapshot being taken.
    pin_life_s: bound of taking a snapshot, of restoring and of collecting. At most half of `minimum_age_s`: a file is
        reused while it is younger than the other half, so it is too young to be deleted until the manifest is there.
    """

    objects: ObjectsConfig
    interval_s: float = 600.0
    changelog_records: int = 5_000_000
    keep: int = 3
    retention_s: float = 7 * 86_400.0
    minimum_age_s: float = 86_400.0
    pin_life_s: float = 6 * 3_600.0

    def __post_init__(self) -> None:
        if self.pin_life_s > self.minimum_age_s / 2:
            raise ValueError("pin_life_s must not exceed half of minimum_age_s")
        if self.keep < 1:
            # Without the newest one an empty disk would mean a replay of everything.
            raise ValueError("keep must be at least 1")


@dataclass(frozen=True)
class StoreDefaults:
    """What holds for every store of a pipeline that does not say otherwise.

    transactional: KIP-844 has it off. On, a crash costs a roll back instead of a full restore; off, writes are cheaper.
    mechanism: how a transactional store keeps its uncommitted writes apart.
    """

    transactional: bool = False
    mechanism: TransactionalMechanism = TransactionalMechanism.INDEXED_BATCH


@dataclass(frozen=True)
class StreamConfig:
    """One task of a program that reads Kafka in its own loop.

    application: name of the consumer group, prefix of the changelog topics and of the transactional id.
    partition: the task reads this partition of every topic of `inputs`, and its stores' changelogs have it.
    folder: where the local state of all of the application's tasks on this machine lives.
    commit_interval_ms: longer commits more at once; shorter shows results sooner and repeats less after a crash.
    uncommitted_bytes_max: what the task may keep in memory before it commits early, objects included, some 500 bytes
        a write beside its own; shared if tasks share a budget.
        A store with the mechanism AUTO has as much before it spills.
    exactly_once: off, results may come twice after a crash, and nothing fences an older owner.
    store_defaults: what holds for stores given as builders that do not say otherwise themselves.
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
    store_defaults: StoreDefaults = field(default_factory=StoreDefaults)
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
