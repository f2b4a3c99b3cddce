"""S3 alone: credentials, addressing, encryption, doubt, throttling, and a server that is killed in the middle."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from statestore.config import ObjectsConfig, SnapshotConfig
from statestore.errors import InvalidConfig, Unavailable
from statestore.objects.base import UnfinishedUpload
from statestore.objects.s3 import S3Objects
from statestore.snapshots.collect import collect
from statestore.snapshots.layout import TaskLayout
from statestore.snapshots.repository import Repository
from tests.support.s3 import Body, RunningServer, S3ProxyServer, SlowDowns

BUCKET = "rollforward"


def store_of(server: RunningServer, **changed: object) -> S3Objects:
    config = replace(server.config, **changed)  # type: ignore[arg-type]
    return S3Objects(BUCKET, uuid.uuid4().hex, config)


def test_a_wrong_secret_is_refused_with_a_hint(s3proxy: S3ProxyServer, tmp_path: Path) -> None:
    wrong = tmp_path / "credentials"
    right = Path(s3proxy.config.credentials_file).read_text()
    wrong.write_text(right[:-6] + "wrong\n")
    with pytest.raises(InvalidConfig, match=r"object storage refuses us: put.*SignatureDoesNotMatch"):
        store_of(s3proxy, credentials_file=str(wrong)).put("a", b"")


def test_no_credentials_at_all_are_told(
    s3proxy: S3ProxyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidConfig, match="no credentials"):
        store_of(s3proxy, credentials_file=str(tmp_path / "none")).put("a", b"")


def test_credentials_come_from_the_environment(s3proxy: S3ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = dict(
        line.split(" = ") for line in Path(s3proxy.config.credentials_file).read_text().splitlines() if " = " in line
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", lines["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", lines["aws_secret_access_key"])
    store = store_of(s3proxy, credentials_file="")
    store.put("a", b"x")
    assert b"x" == store.get("a")


@pytest.mark.parametrize("profile", ["", "production"])
def test_the_key_of_a_file_that_is_named_signs_whatever_the_environment_says(
    s3proxy: S3ProxyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    theirs = tmp_path / "config"
    theirs.write_text("[default]\nrole_arn = arn:aws:iam::1:role/theirs\ncredential_source = Environment\n")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "theirs",
        "AWS_SECRET_ACCESS_KEY": "theirs",
        "AWS_SESSION_TOKEN": "theirs",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(theirs),
        **({"AWS_PROFILE": profile} if profile else {}),
    }.items():
        monkeypatch.setenv(name, value)
    store = store_of(s3proxy)
    store.put("a", b"x")
    assert b"x" == store.get("a")


def test_a_missing_bucket_is_told(s3proxy: S3ProxyServer) -> None:
    with pytest.raises(InvalidConfig, match="NoSuchBucket"):
        S3Objects("nowhere", "", s3proxy.config).put("a", b"")


@pytest.mark.parametrize(
    ("addressing", "host", "path"),
    [("path", "127.0.0.1", f"/{BUCKET}/p/a"), ("virtual", f"{BUCKET}.s3.example.org", "/p/a")],
)
def test_buckets_are_addressed_by_path_or_by_host(
    s3proxy: S3ProxyServer, addressing: str, host: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3proxy.config.endpoint_url if addressing == "path" else "http://s3.example.org"
    sent = _requests(
        S3Objects(BUCKET, "p", replace(s3proxy.config, attempts=1, addressing=addressing, endpoint_url=endpoint)),
        "PutObject",
    )
    assert f"{host}" in sent["url"] and sent["url"].endswith(path)


@pytest.mark.parametrize("operation", ["PutObject", "CreateMultipartUpload", "CopyObject", "conditional PutObject"])
def test_encryption_is_asked_for_on_every_write(s3proxy: S3ProxyServer, operation: str, tmp_path: Path) -> None:
    """A part has none of its own: it is encrypted as its upload was begun."""
    config = replace(s3proxy.config, attempts=1, part_bytes=PART, encryption="aws:kms", kms_key_id="key 1")
    store = S3Objects(BUCKET, "p", config)
    calls = _every_call(store, tmp_path)
    names = {"PutObject": "put", "CreateMultipartUpload": "upload", "CopyObject": "refresh"}
    call = calls[names.get(operation, "put_if_absent")]
    headers = _requests(store, operation.rpartition(" ")[2], call)["headers"]
    assert "aws:kms" == headers["x-amz-server-side-encryption"]
    assert "key 1" == headers["x-amz-server-side-encryption-aws-kms-key-id"]


def _requests(store: S3Objects, operation: str, call: Callable[[], object] | None = None) -> dict[str, Any]:
    """The request that a call, by default a put, would send; it is stopped on its way out."""
    seen: dict[str, Any] = {}

    def stop(request: Any, **_: Any) -> None:
        seen.update(url=request.url, headers={k.lower(): _text(v) for k, v in request.headers.items()})
        raise EndpointConnectionError(endpoint_url=request.url)

    store._client.meta.events.register(f"before-send.s3.{operation}", stop)
    with pytest.raises(Unavailable):
        call() if call else store.put("a", b"x")
    return seen


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_conditional_put_whose_answer_is_lost_is_settled_by_reading_back(server: RunningServer, lost: str) -> None:
    store = store_of(server, attempts=1)
    _lose(store, lost)
    if lost == "answer":
        assert store.put_if_absent("a", b"mine")
        assert not store.put_if_absent("a", b"theirs")
    else:
        with pytest.raises(Unavailable):
            store.put_if_absent("a", b"mine")
        assert store.head("a") is None


def _lose(store: S3Objects, what: str) -> None:
    """Lose the next conditional put, or its answer, as a broken connection does."""
    pending = [True]

    def before(request: Any, **_: Any) -> None:
        if what == "request" and pending and pending.pop():
            raise EndpointConnectionError(endpoint_url=request.url)

    def after(**_: Any) -> None:
        if what == "answer" and pending and pending.pop():
            raise ReadTimeoutError(endpoint_url="lost")

    store._client.meta.events.register("before-send.s3.PutObject", before)
    store._client.meta.events.register("after-call.s3.PutObject", after)


def test_our_own_repeated_request_that_meets_our_first_is_a_success(server: RunningServer) -> None:
    store = store_of(server)
    body = b"write id 7"
    store.put("a", body)
    # What botocore's second attempt would be told after an answer that was lost.
    assert store.put_if_absent("a", body)


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_transfers_survive_a_server_killed_in_the_middle(server: RunningServer, direction: str, tmp_path: Path) -> None:
    store = store_of(server, part_bytes=5 * 1024 * 1024, bandwidth_bytes_per_s=24 * 1024 * 1024)
    body = os.urandom(48 * 1024 * 1024)
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(body)
    if direction == "upload":
        _killing(server, lambda: store.upload(source, "large"))
        assert len(body) == store.head("large").bytes  # type: ignore[union-attr]
        store.download("large", target)
    else:
        store.upload(source, "large")
        _killing(server, lambda: store.download("large", target))
    assert body == target.read_bytes()


def _killing(server: RunningServer, work: Callable[[], None]) -> None:
    """Do the work; kill the server while it runs and start it again. Work that died of it is begun again, as callers do."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        for _ in range(3):
            try:
                work()
                outcome.append(None)
                return
            except Unavailable as error:
                outcome.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    time.sleep(0.7)
    assert worker.is_alive(), "the transfer was over before the kill"
    server.kill()
    server.start()
    worker.join(120)
    assert outcome and outcome[-1] is None, outcome


def test_a_server_that_is_away_is_unavailable(s3proxy: S3ProxyServer) -> None:
    store = store_of(s3proxy, endpoint_url="http://127.0.0.1:9", attempts=2)
    started = time.monotonic()
    for call in (lambda: store.get("a"), lambda: store.head("a"), lambda: list(store.list("a"))):
        with pytest.raises(Unavailable, match="does not answer"):
            call()
    assert time.monotonic() - started < 60


class _Meeting:
    """Lets requests of an operation go in pairs only: one that is alone for too long is an error."""

    def __init__(self, store: S3Objects, operation: str) -> None:
        self.ranges: list[str] = []
        self._pair = threading.Barrier(2, timeout=30)
        store._client.meta.events.register(f"before-send.s3.{operation}", self._meet)

    def _meet(self, request: Any, **_: Any) -> None:
        self.ranges.append(_text(request.headers.get("Range", "")))
        self._pair.wait()


def _counted(store: S3Objects) -> Counter[str]:
    counts: Counter[str] = Counter()

    def count(event_name: str, **_: Any) -> None:
        counts[event_name.rpartition(".")[2]] += 1

    store._client.meta.events.register("before-send.s3", count)
    return counts


def test_a_large_file_goes_in_parts_several_at_once(server: RunningServer, tmp_path: Path) -> None:
    store = store_of(server, part_bytes=PART, parallel=1)
    body = os.urandom(4 * PART)
    (tmp_path / "in").write_bytes(body)
    counts = _counted(store)
    _Meeting(store, "UploadPart")
    store.upload(tmp_path / "in", "large")
    assert {"CreateMultipartUpload": 1, "UploadPart": 4, "CompleteMultipartUpload": 1} == counts
    got = _Meeting(store, "GetObject")
    store.download("large", tmp_path / "out", len(body))
    assert [f"bytes={n * PART}-{'' if n == 3 else (n + 1) * PART - 1}" for n in range(4)] == sorted(
        got.ranges, key=lambda text: int(text[6:].partition("-")[0])
    )
    assert body == (tmp_path / "out").read_bytes()


def test_files_go_several_at_once(server: RunningServer, tmp_path: Path) -> None:
    store = store_of(server, parallel=2)
    names = ["a", "b", "c", "d"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 70_000)
    _Meeting(store, "PutObject")
    store.upload_all([(tmp_path / name, name) for name in names], lambda _path, _key: None)
    _Meeting(store, "GetObject")
    store.download_all([(tmp_path / f"{name}.back", name, 70_000) for name in names], lambda _path, _key: None)
    assert names == [(tmp_path / f"{name}.back").read_text()[-1] for name in names]


@pytest.mark.parametrize("direction", ["up", "down"])
def test_the_bandwidth_limit_holds_for_all_transfers_together(
    s3proxy: S3ProxyServer, direction: str, tmp_path: Path
) -> None:
    unlimited = store_of(s3proxy)
    store = S3Objects(BUCKET, unlimited._prefix, replace(s3proxy.config, bandwidth_bytes_per_s=3 * 1024 * 1024))
    files = [(tmp_path / name, name) for name in ("a", "b", "c")]
    for path, _ in files:
        path.write_bytes(os.urandom(3 * 1024 * 1024))
    unlimited.upload_all(files, lambda _path, _key: None)
    started = time.monotonic()
    if direction == "up":
        store.upload_all(files, lambda _path, _key: None)
    else:
        store.download_all([(path, key, 3 * 1024 * 1024) for path, key in files], lambda _path, _key: None)
    # Three seconds; the limit is that of a moving average, and what the first moment lets through is not much.
    assert time.monotonic() - started > 2.0


@pytest.mark.parametrize("direction", ["up", "down"])
def test_the_bandwidth_limit_holds_for_many_small_files(s3proxy: S3ProxyServer, direction: str, tmp_path: Path) -> None:
    unlimited = store_of(s3proxy)
    store = S3Objects(BUCKET, unlimited._prefix, replace(s3proxy.config, bandwidth_bytes_per_s=400_000))
    files = [(tmp_path / str(number), str(number)) for number in range(13)]
    for path, _ in files:
        path.write_bytes(os.urandom(50_000))
    unlimited.upload_all(files, lambda _path, _key: None)
    started = time.monotonic()
    if direction == "up":
        store.upload_all(files, lambda _path, _key: None)
    else:
        store.download_all([(path, key, 50_000) for path, key in files], lambda _path, _key: None)
    # All but the first wait for their turn.
    assert time.monotonic() - started > 12 * 50_000 / 400_000


def _every_call(store: S3Objects, folder: Path) -> dict[str, Callable[[], object]]:
    """One call of each sort, each on objects of its own but for those that read `there`."""
    (folder / "large").write_bytes(b"x" * (PART + 1))
    return {
        "put": lambda: store.put("put", b"x"),
        "put_if_absent": lambda: store.put_if_absent("absent", b"x"),
        "get": lambda: store.get("there"),
        "head": lambda: store.head("there"),
        "list": lambda: list(store.list("")),
        "refresh": lambda: store.refresh("there"),
        "delete": lambda: store.delete(["nothing"]),
        "upload": lambda: store.upload(folder / "large", "large"),
        "download": lambda: store.download("there", folder / "there"),
    }


PART = 5 * 1024 * 1024
OPERATIONS = {
    *("PutObject", "GetObject", "HeadObject", "ListObjectsV2", "CopyObject", "DeleteObjects"),
    "CreateMultipartUpload",
}


def test_calls_outlast_a_throttled_bucket_by_waiting(server: RunningServer, tmp_path: Path) -> None:
    """A client that asked again at once would have used up its attempts long before the bucket takes requests again."""
    store = store_of(server, part_bytes=PART)
    store.put("there", b"x")
    slow = SlowDowns(store, for_s=1.0)
    calls = _every_call(store, tmp_path)
    started = time.monotonic()
    with ThreadPoolExecutor(len(calls)) as workers:
        done = dict(zip(calls, workers.map(lambda call: call(), calls.values()), strict=True))
    assert time.monotonic() - started >= 1.0
    assert set(slow.refused) >= OPERATIONS
    assert (True, b"x", True) == (done["put_if_absent"], done["get"], done["refresh"])
    assert (PART + 1, b"x") == (store.head("large").bytes, (tmp_path / "there").read_bytes())  # type: ignore[union-attr]


def test_a_bucket_that_stays_throttled_is_unavailable_in_bounded_time(s3proxy: S3ProxyServer, tmp_path: Path) -> None:
    store = store_of(s3proxy, part_bytes=PART, attempts=3)
    store.put("there", b"x")
    slow = SlowDowns(store, chance=1.0)
    calls = _every_call(store, tmp_path)

    def refused(call: Callable[[], object]) -> str:
        with pytest.raises(Unavailable) as found:
            call()
        return str(found.value)

    started = time.monotonic()
    with ThreadPoolExecutor(len(calls)) as workers:
        messages = list(workers.map(refused, calls.values()))
    # Two pauses of at most one and two seconds; a conditional put reads back.
    assert time.monotonic() - started < 30
    assert all("slow down" in message and "snapshot_parallel" in message for message in messages), messages
    # Put and the conditional one; get and its reading back; head, and the download's question.
    twice = dict.fromkeys(("PutObject", "GetObject", "HeadObject"), 6)
    assert dict.fromkeys(OPERATIONS, 3) | twice == slow.refused


def _begin(store: S3Objects, key: str) -> str:
    """An uploader begins, sends a part and dies; gives the upload's id."""
    where = {"Bucket": BUCKET, "Key": store._prefix + key}
    upload: str = store._client.create_multipart_upload(**where)["UploadId"]
    store._client.upload_part(**where, UploadId=upload, PartNumber=1, Body=b"x" * PART)
    return upload


def test_an_upload_that_nobody_finishes_is_found_and_freed(server: RunningServer) -> None:
    store = store_of(server)
    begun = {key: _begin(store, key) for key in ("t-1/files/a", "t-1/files/b", "t-10/files/a")}
    assert [] == list(store.list(""))
    found = list(store.unfinished("t-1/"))
    assert [(key, begun[key]) for key in ("t-1/files/a", "t-1/files/b")] == [(u.key, u.id) for u in found]
    assert all(abs(u.begun_at_s - time.time()) < 60 for u in found)
    # Aborting twice is harmless.
    for upload in (found[0], found[0]):
        store.abort(upload)
    assert [found[1]] == list(store.unfinished("t-1/"))
    assert [0, 1] == [_parts(store, upload) for upload in found]


def _parts(store: S3Objects, upload: UnfinishedUpload) -> int:
    where = {"Bucket": BUCKET, "Key": store._prefix + upload.key, "UploadId": upload.id}
    try:
        return len(store._client.list_parts(**where).get("Parts", []))
    except ClientError as error:
        assert "NoSuchUpload" == error.response["Error"]["Code"]
        return 0


def test_collection_aborts_old_uploads_and_leaves_the_one_that_runs(server: RunningServer, tmp_path: Path) -> None:
    store = store_of(server, part_bytes=PART)
    repository = Repository(store, TaskLayout("p/q/id/0/", "id"))
    config = SnapshotConfig(ObjectsConfig("file:///unused"), minimum_age_s=1200, pin_life_s=600)
    old = {_begin(store, repository.layout.file("a" * 64)), _begin(store, repository.layout.file("b" * 64))}
    elsewhere = _begin(store, "p/q/id/10/files/a")
    listed = store.unfinished

    def aged(prefix: str) -> Iterator[UnfinishedUpload]:
        """Some as if their uploaders had died an hour ago."""
        return (replace(u, begun_at_s=u.begun_at_s - 3600 * (u.id in {*old, elsewhere})) for u in listed(prefix))

    store.unfinished = aged  # type: ignore[method-assign]
    (tmp_path / "large").write_bytes(b"y" * (2 * PART))
    sending, collected = threading.Event(), threading.Event()

    def hold(**_: Any) -> None:
        sending.set()
        assert collected.wait(60)

    store._client.meta.events.register("before-send.s3.UploadPart", hold)
    with ThreadPoolExecutor(1) as workers:
        running = workers.submit(store.upload, tmp_path / "large", repository.layout.file("c" * 64))
        assert sending.wait(60)
        assert 2 == collect(repository, config, dry_run=True).uploads_aborted
        assert 4 == len(list(store.unfinished("p/")))
        assert 2 == collect(repository, config).uploads_aborted
        collected.set()
        running.result(60)
    assert 2 * PART == store.head(repository.layout.file("c" * 64)).bytes  # type: ignore[union-attr]
    assert [elsewhere] == [u.id for u in store.unfinished("p/")]
    assert 0 == collect(repository, config).uploads_aborted


def test_collection_goes_on_where_uploads_may_not_be_listed(s3proxy: S3ProxyServer) -> None:
    store = store_of(s3proxy)

    def deny(request: Any, **_: Any) -> Any:
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        return AWSResponse(request.url, 403, {"Content-Type": "application/xml"}, Body(body))

    store._client.meta.events.register("before-send.s3.ListMultipartUploads", deny)
    config = SnapshotConfig(ObjectsConfig("file:///unused"), minimum_age_s=1200, pin_life_s=600)
    repository = Repository(store, TaskLayout("p/q/id/0/", "id"))
    assert 0 == collect(repository, config).uploads_aborted
