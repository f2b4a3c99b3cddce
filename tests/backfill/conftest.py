"""A source topic, and where its archive is: a folder, or an S3 server as the local stack starts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.s3 import BUCKET
from pipelines.settings import Settings
from tests.backfill.visits import Visits
from tests.support.feed import create_topic
from tests.support.s3 import S3ProxyServer


@pytest.fixture
def visits(kafka: str, unique: str) -> Visits:
    create_topic(kafka, unique, partitions=2)
    return Visits(kafka, unique)


@pytest.fixture
def archiving(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with an archive of small files."""
    return settings.model_copy(
        update={"tasks": 2, "archive_url": (tmp_path / "archive").as_uri(), "archive_file_records": 100}
    )


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3ProxyServer]:
    server = S3ProxyServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def in_s3(archiving: Settings, s3: S3ProxyServer, unique: str) -> Settings:
    """Settings with an archive of small files in that server."""
    config = s3.config
    return archiving.model_copy(
        update={
            "archive_url": f"s3://{BUCKET}/{unique}",
            "s3_endpoint_url": config.endpoint_url,
            "s3_addressing": config.addressing,
            "s3_region": config.region,
            "s3_credentials_file": config.credentials_file,
        }
    )
