"""An archive in S3, whose server dies as well: between puts and within them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from pipelines.archive import open_archive
from pipelines.settings import Settings
from statestore.errors import DataCorrupted
from statestore.failpoints import arm, is_armed
from statestore.kafka.admin import Admin
from statestore.objects.open import open_objects
from tests.backfill.archiving import archive, cli, require_kafka_s, start_cli
from tests.backfill.visits import SQL, Visits
from tests.support.pipeline import PipelineUnderTest
from tests.support.s3 import S3ProxyServer
from tests.support.waiting import await_

# Of every partition.
RECORDS, FILES = 800, 40


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_record_is_archived_once_whatever_kills_archiver_and_server(
    in_s3: Settings, s3: S3ProxyServer, visits: Visits, points: Path, tmp_path: Path
) -> None:
    topic, settings = visits.topic, in_s3.model_copy(update={"archive_file_records": RECORDS // FILES})
    visits.send(2 * RECORDS)
    PipelineUnderTest(settings, topic, SQL.format(topic=topic)).close()

    def files() -> int:
        return sum(1 for path in (tmp_path / "s3").rglob("*.parquet") if topic in path.parts)

    # The archiver dies around a put.
    for point in ("archive.before-put", "archive.put"):
        arm(points, point, passes=1)
        assert cli(settings, "archive", topic, points=points) is None
        assert not is_armed(points, point)
    assert 0 < files() < 2 * FILES

    # The server is away before a put: the archiver ends and says so.
    arm(points, "archive.before-put", passes=1, with_signal="SIGSTOP")
    archiver = start_cli(settings, "archive", topic, points=points)
    await_("archiver stops", lambda: psutil.Process(archiver.pid).status() == psutil.STATUS_STOPPED)
    s3.kill()
    os.kill(archiver.pid, signal.SIGCONT)
    out, told = archiver.communicate(timeout=240)
    assert archiver.returncode > 0
    assert "object storage does not answer" in out + told
    s3.start()

    # It dies while puts are at work and comes back, again and again: the archiver goes on, or the next one does.
    for _ in range(2):
        goal = min(files() + 8, 2 * FILES)
        archiver = start_cli(settings, "archive", topic)
        await_("files are put", lambda goal=goal: files() >= goal)  # type: ignore[misc]
        s3.kill()
        s3.start()
        archiver.communicate(timeout=240)

    archive(settings, topic)
    assert [(0, RECORDS, 0), (0, RECORDS, 0)] == archive(settings, topic)
    step = RECORDS // FILES
    for partition in (0, 1):
        # Whoever was killed, files begin where one that lived would have put them.
        assert [(at, at + step) for at in range(0, RECORDS, step)] == require_kafka_s(settings, topic, partition)


def test_what_is_half_written_is_no_file_of_the_archive(in_s3: Settings, visits: Visits) -> None:
    visits.send(300)
    archive(in_s3, visits.topic)
    config = in_s3.archive_config()
    assert config is not None
    kept = open_archive(config, Admin(in_s3.kafka_config()).describe([visits.topic])[visits.topic])
    pieces, objects = kept.pieces(0), open_objects(config)
    # S3Proxy lists under such a name what it has of a put, also when it was killed in it.
    objects.put(f"{pieces[-1].key}-5f1c7d1e-2b3a", b"PAR1")
    assert pieces == kept.pieces(0)
    assert [(0, 150, 0), (0, 150, 0)] == archive(in_s3, visits.topic)
    objects.put(f"{pieces[-1].key.rpartition('/')[0]}/other.parquet", b"PAR1")
    with pytest.raises(DataCorrupted, match="not ours"):
        kept.pieces(0)
