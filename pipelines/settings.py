"""Configuration: `rollforward.toml`, overridden by `ROLLFORWARD_…` variables, read once and passed down.

Kafka client settings may hold secrets: they stay in memory and in the environment of our own processes, and never go
into files, logs or metadata.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from statestore.config import KafkaConfig, ObjectsConfig, SnapshotConfig
from statestore.errors import InvalidConfig

FILE = "rollforward.toml"
OFF = "off"
AT_ONCE: Final = "at-once"
# What stands before a relative file: one in memory is none.
_RELATIVE_SQLITE = re.compile(r"^sqlite(\+\w+)?:///(?!/|:memory:|file:|\?|$)")


class AlertRoute(BaseModel):
    """Alerts with these labels start this job for the pipeline that a text with their labels names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    match: dict[str, str]
    job: Literal["recover_pipeline", "launch_pipeline", "snapshot_pipelines", "collect_snapshots", "none"]
    pipeline: str = "{pipeline}"
    restart: bool = False


class Settings(BaseSettings):
    """Every setting; relative paths are relative to the working directory."""

    # What is wrong may be a secret in the wrong place.
    model_config = SettingsConfigDict(
        env_prefix="ROLLFORWARD_", env_nested_delimiter="__", extra="forbid", hide_input_in_errors=True
    )

    home: Path = Field(Path(".rollforward"), description="data folder of the local stack, states, logs and metastore")
    bootstrap_servers: str = Field("", description="Kafka; empty: the local stack's broker")
    kafka: dict[str, str] = Field(
        {}, repr=False, description="librdkafka settings for every client, e.g. security.protocol"
    )
    state_dir: Path | None = Field(None, description="local stores; default: <home>/state")
    service: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,100}$")] = Field(
        "default", description="name of this service: of its command topic, and the transactional id of its writers"
    )
    metastore_url: str = Field("", description="SQLAlchemy URL of the metastore's database; default: sqlite in <home>")
    spark_master: str = Field("local[2]", description="Spark master; local[n] with n no larger than the cores")
    spark_conf: dict[str, str] = Field(
        {},
        description="Spark settings, laid over ours; leave adaptive execution, ANSI mode, time zone and task failures alone",
    )
    spark_driver_host: str = Field("127.0.0.1", description="address under which a cluster's workers reach the driver")
    spark_driver_memory: str = Field("1g", description="heap of the driver's JVM")
    java_home: Path | None = Field(None, description="Java 17 or newer; default: found by itself")
    class_archive: Path | None = Field(None, description="the JVM's class archive; default: made at the first start")
    store_servers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="store server processes; one per core")
    store_server_addresses: list[str] = Field(
        [], description="tls://host:port of store servers on machines of their own; none: started by each driver"
    )
    tasks: Annotated[int, Field(ge=1, le=1024)] = Field(4, description="state partitions of a new query")
    replication_factor: int = Field(-1, description="of topics that deploy creates; -1: the broker's default")
    batch_interval_s: Annotated[float, Field(gt=0)] = Field(0.5, description="a batch begins no more often than this")
    max_records_per_batch: Annotated[int, Field(ge=1)] = Field(4_000_000, description="bound of one batch's input")
    max_bytes_per_batch: Annotated[int, Field(ge=1)] = Field(
        512 * 1024 * 1024,
        description="and in bytes of values, by their size in the batch before; of the first, in a sample",
    )
    spark_start: Literal["at-once", "when-needed"] = Field(
        AT_ONCE,
        description="start Spark with the driver, or when a batch first needs it (docs/operations.md says of which queries)",
    )
    small_batch_records: Annotated[int, Field(ge=0)] = Field(
        30_000,
        description="a batch of no more is computed by the driver itself, without a Spark job, where a query allows it",
    )
    small_batch_bytes: Annotated[int, Field(gt=0)] = Field(
        64 * 1024 * 1024, description="and of no more bytes of values, since its driver holds all of them"
    )
    target_batch_s: Annotated[float, Field(gt=0)] = Field(
        1.0, description="time a batch shall take while there is more input than that"
    )
    catch_up_batch_s: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="time a batch may take behind a backlog of ten times that, to catch up sooner; 0: target_batch_s",
    )
    batch_attempts: Annotated[int, Field(ge=1)] = Field(5, description="tries of one batch before the driver gives up")
    on_error: Literal["dead-letter", "stop"] = Field(
        "dead-letter",
        description="a record with which an expression fails: to the dead letters, or stop the pipeline; of queries "
        "whose WITH does not say",
    )
    poisoned_records_max: Annotated[int, Field(ge=1)] = Field(
        100, description="of one batch: one with as many records that fail ends behind the last of them"
    )
    answer_timeout_s: Annotated[float, Field(gt=0)] = Field(
        20.0,
        description="a store server or JVM that is silent, or a Spark worker that is stopped, for so long is killed and replaced",
    )
    accept_loss: bool = Field(
        False, description="go on where source records were deleted before they were read, or lost after it"
    )
    transactions: bool = Field(True, description="off: no exactly-once, for comparison only")
    request_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        60.0, description="longest wait for one answer of Kafka"
    )

    metrics: bool = Field(True, description="every driver serves its figures for Prometheus on loopback")
    spark_ui: bool = Field(
        False,
        description="serve Spark's own page of jobs and stages, linked from `status` and Dagster; on spark_driver_host",
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="at this port; 0: a free one")
    otlp_endpoint: str = Field(
        "", description="OpenTelemetry traces of every batch go here, as http://host:4318/v1/traces; empty: none"
    )
    observe_every_s: Annotated[float, Field(ge=0)] = Field(
        30.0,
        description="Dagster, which forgets nothing, is shown one batch of each query in this time; 0: every batch",
    )
    owners: list[str] = Field([], description="of the assets in Dagster: `team:NAME` or an e-mail address")
    alertmanager_url: str = Field("", description="where alerts are asked for; empty: the local stack's, if it runs")
    alert_routes: list[AlertRoute] = Field([], description="which alert starts which job; empty: ours, docs/alerts.md")
    alert_webhook_url: str = Field(
        "", description="the local stack's Alertmanager tells alerts here too: <rollforward serve>/alerts"
    )
    check_lag_records_max: Annotated[int, Field(ge=0)] = Field(
        1_000_000, description="Dagster's check `lag` fails above this"
    )
    check_output_age_s_max: Annotated[float, Field(gt=0)] = Field(
        300.0, description="check `fresh` fails when records wait and no batch was finished for this long"
    )
    check_snapshot_age_s_max: Annotated[float, Field(gt=0)] = Field(
        3600.0,
        description="check `snapshot_age` fails for a task with batches that have been in no snapshot for longer",
    )
    check_dead_letters_max: Annotated[int, Field(ge=0)] = Field(
        0, description="check `dead_letters` fails for more dead letters than this in the kept batches of a day"
    )
    snapshot_url: str = Field(
        "", description="snapshots: s3://bucket/prefix, file:///folder, or off; default: a folder in <home>"
    )
    snapshot_interval_s: Annotated[float, Field(ge=0)] = Field(600.0, description="between two snapshots; 0: no clock")
    snapshot_changelog_records: Annotated[int, Field(ge=0)] = Field(
        5_000_000, description="and after so much growth of a task's changelog; 0: not by growth"
    )
    snapshot_on_stop: bool = Field(True, description="take one before a planned stop")
    snapshot_keep: Annotated[int, Field(ge=1)] = Field(3, description="newest snapshots a collection always keeps")
    snapshot_retention_s: Annotated[float, Field(ge=0)] = Field(604_800.0, description="and those younger than this")
    snapshot_minimum_age_s: Annotated[float, Field(gt=0)] = Field(
        86_400.0, description="a collection deletes no file younger than this"
    )
    snapshot_pin_life_s: Annotated[float, Field(gt=0)] = Field(
        21_600.0, description="longest time of taking or restoring a snapshot; at most half of snapshot_minimum_age_s"
    )
    snapshot_bandwidth_bytes_per_s: Annotated[int, Field(ge=0)] = Field(
        0, description="bound of one server's transfers; 0: none"
    )
    snapshot_parallel: Annotated[int, Field(ge=1, le=64)] = Field(4, description="files that travel at once")
    archive_url: str = Field(
        OFF, description="archive of source topics as Parquet: s3://bucket/prefix, file:///folder, or off"
    )
    archive_file_records: Annotated[int, Field(ge=1)] = Field(
        200_000, description="records of one file at the most, which ends at 128 MiB of values as well"
    )
    s3_endpoint_url: str = Field("", description="an S3 server that is not Amazon's; the local stack's by default")
    s3_region: str = Field("", description="region; default: as boto3 finds it")
    s3_addressing: Literal["auto", "path", "virtual"] = Field("auto", description="how a bucket is addressed")
    s3_encryption: Literal["", "AES256", "aws:kms"] = Field("", description="encryption on the server's side")
    s3_kms_key_id: str = Field("", description="key of aws:kms")
    s3_credentials_file: str = Field("", description="AWS credentials file; default: boto3's own places")

    # Settings are handed on to processes that run in other folders.

    @field_validator("home", "state_dir", "java_home", "class_archive", mode="after")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("s3_credentials_file", mode="after")
    @classmethod
    def _absolute_file(cls, path: str) -> str:
        return path and str(Path(path).expanduser().absolute())

    @field_validator("metastore_url", mode="after")
    @classmethod
    def _absolute_database(cls, url: str) -> str:
        return _RELATIVE_SQLITE.sub(lambda found: f"{found[0]}{Path.cwd()}/", url)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, os.environ.get("ROLLFORWARD_CONFIG", FILE))
        return init_settings, env_settings, file

    @property
    def states(self) -> Path:
        """Folder of the local stores."""
        return self.state_dir or self.home / "state"

    @property
    def metastore(self) -> str:
        """SQLAlchemy URL of the metastore's projection and of what drivers report."""
        return self.metastore_url or f"sqlite:///{self.home / 'metastore.db'}"

    def snapshot_config(self) -> SnapshotConfig | None:
        """Where and when snapshots are taken; None when they are turned off."""
        if self.snapshot_url == OFF:
            return None
        objects = self._objects(self.snapshot_url or (self.home / "snapshots").as_uri())
        try:
            return SnapshotConfig(
                objects,
                interval_s=self.snapshot_interval_s,
                changelog_records=self.snapshot_changelog_records,
                keep=self.snapshot_keep,
                retention_s=self.snapshot_retention_s,
                minimum_age_s=self.snapshot_minimum_age_s,
                pin_life_s=self.snapshot_pin_life_s,
            )
        except ValueError as error:
            raise InvalidConfig(
                f"configuration is wrong: {error}", hint=f"correct {FILE} or the environment"
            ) from error

    def archive_config(self) -> ObjectsConfig | None:
        """Where source topics are archived; None where they are not."""
        return None if self.archive_url == OFF else self._objects(self.archive_url)

    def _objects(self, url: str) -> ObjectsConfig:
        return ObjectsConfig(
            url=url,
            endpoint_url=self.s3_endpoint_url,
            region=self.s3_region,
            addressing=self.s3_addressing,
            encryption=self.s3_encryption,
            kms_key_id=self.s3_kms_key_id,
            credentials_file=self.s3_credentials_file,
            parallel=self.snapshot_parallel,
            bandwidth_bytes_per_s=self.snapshot_bandwidth_bytes_per_s,
        )

    def kafka_config(self) -> KafkaConfig:
        """Kafka for our own clients."""
        if not self.bootstrap_servers:
            raise InvalidConfig(
                "no Kafka is configured",
                hint="start the local stack with `rollforward up`, or set bootstrap_servers in rollforward.toml",
            )
        return KafkaConfig(
            self.bootstrap_servers,
            dict(self.kafka),
            transaction_timeout_ms=int(self.request_timeout_s * 1000),
            request_timeout_s=self.request_timeout_s,
        )


def load_settings(**overrides: object) -> Settings:
    """Settings from file and environment. Raises `InvalidConfig` that names each wrong field, or a file that is not there."""
    named = os.environ.get("ROLLFORWARD_CONFIG")
    if named and not Path(named).exists():
        # The defaults would be another installation's.
        raise InvalidConfig("configuration file does not exist", file=named, hint="correct or unset ROLLFORWARD_CONFIG")
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidConfig(f"configuration is wrong: {wrong}", hint=f"correct {FILE} or the environment") from error
