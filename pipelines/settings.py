"""Configuration: `rollforward.toml`, overridden by `ROLLFORWARD_…` variables, read once and passed down.

Kafka client settings may hold secrets: they stay in memory and in the environment of our own processes, and never go
into files, logs or metadata.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from statestore.config import KafkaConfig
from statestore.errors import InvalidConfig

FILE = "rollforward.toml"


class Settings(BaseSettings):
    """Every setting; relative paths are relative to the working directory."""

    model_config = SettingsConfigDict(env_prefix="ROLLFORWARD_", env_nested_delimiter="__", extra="forbid")

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
    spark_conf: dict[str, str] = Field({}, description="Spark settings, laid over ours")
    spark_driver_memory: str = Field("1g", description="heap of the driver's JVM")
    java_home: Path | None = Field(None, description="Java 17 or newer; default: found by itself")
    connector_jars: str = Field("", description="class path of Spark's Kafka connector; default: resolved by itself")
    store_servers: Annotated[int, Field(ge=1, le=64)] = Field(2, description="store server processes; one per core")
    tasks: Annotated[int, Field(ge=1, le=1024)] = Field(4, description="state partitions of a new query")
    replication_factor: int = Field(-1, description="of topics that deploy creates; -1: the broker's default")
    batch_interval_s: Annotated[float, Field(gt=0)] = Field(1.0, description="a batch begins no more often than this")
    max_records_per_batch: Annotated[int, Field(ge=1)] = Field(1_000_000, description="bound of one batch's input")
    batch_attempts: Annotated[int, Field(ge=1)] = Field(5, description="tries of one batch before the driver gives up")
    transactions: bool = Field(True, description="off: no exactly-once, for comparison only")
    request_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        60.0, description="longest wait for one answer of Kafka"
    )

    @field_validator("home", "state_dir", mode="after")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

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
    """Settings from file and environment. Raises `InvalidConfig` that names each wrong field."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidConfig(f"configuration is wrong: {wrong}", hint=f"correct {FILE} or the environment") from error
