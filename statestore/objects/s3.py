"""Objects in an S3 bucket, below a prefix. The only file that imports boto3.

Credentials come from boto3's own chain, or from profile `default` of a file that is named. botocore repeats what may pass (connections, 5xx, throttling with back-off).
Large files go in parts, in parallel, through one transfer manager, whose bandwidth limit therefore holds for all of
them together. It does not see uploads of less than a quarter MiB, and small downloads go past it: small files wait for a
limit of their own, at the same rate. `upload` knows no `If-None-Match`, so only small bodies are written conditionally.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.config import Config
from botocore.credentials import SharedCredentialProvider
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from s3transfer.exceptions import CancelledError, RetriesExceededError, S3UploadFailedError

from statestore.config import ObjectsConfig
from statestore.errors import InvalidConfig, RollforwardError, Unavailable
from statestore.objects.base import ObjectInfo, ObjectMissing, ObjectStore, UnfinishedUpload, require_key
from statestore.objects.throttle import Throttle

_MISSING = {"404", "NoSuchKey", "NotFound"}
_TAKEN = {"PreconditionFailed", "412"}
# Amazon answers so when two conditional writes of one key meet: asking again settles it.
_CONFLICT = {"ConditionalRequestConflict", "409", "OperationAborted"}
_REFUSED = {
    *("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "InvalidBucketName"),
    *("AuthorizationHeaderMalformed", "ExpiredToken", "PermanentRedirect", "InvalidRequest", "InvalidArgument"),
}
# Answers to more requests than the bucket takes just now; one to HEAD has no body and so no other code.
_THROTTLED = {"SlowDown", "ServiceUnavailable", "503", "TooManyRequests", "RequestLimitExceeded", "Throttling"}
_DELETE_MAX = 1000
_SMALL = 64 * 1024
# Uploads of less are not seen by the transfer manager's limit (s3transfer's `BandwidthLimitedStream`).
_UNSEEN = 256 * 1024
_CONFLICT_TRIES = 5
_PROFILE = "default"


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


class S3Objects(ObjectStore):
    """Objects of one bucket. The bucket has to exist."""

    def __init__(self, bucket: str, prefix: str, config: ObjectsConfig) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._where = config.endpoint_url or "aws"
        self.parallel = config.parallel
        self._extra = _encryption(config)
        self._throttle = Throttle(config.bandwidth_bytes_per_s)
        with self._errors("connect"):
            self._client = _client(config)
            self._transfers = create_transfer_manager(self._client, _transfer_config(config))

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _key(self, key: str) -> str:
        return self._prefix + require_key(key)

    @contextmanager
    def _errors(self, what: str, key: str = "") -> Iterator[None]:
        """S3's errors become ours here and nowhere else."""
        try:
            yield
        except ClientError as error:
            raise self._client_error(what, key, error) from error
        except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
            raise InvalidConfig(
                "no credentials for object storage",
                error=error,
                hint="give them as boto3 takes them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
            ) from error
        except (BotoCoreError, S3UploadFailedError, RetriesExceededError, CancelledError, OSError) as error:
            raise self._unavailable(what, key, error) from error

    def _client_error(self, what: str, key: str, error: ClientError) -> RollforwardError:
        code = _code(error)
        if code in _MISSING:
            return ObjectMissing("object is missing", key=key, url=self.url)
        if code in _REFUSED:
            return InvalidConfig(
                f"object storage refuses us: {what}",
                url=self.url,
                endpoint=self._where,
                code=code,
                error=error,
                hint="check bucket, credentials and region",
            )
        if code in _THROTTLED:
            return Unavailable(
                f"object storage asks us to slow down: {what}",
                url=self.url,
                key=key,
                endpoint=self._where,
                error=error,
                hint="lower snapshot_parallel, or raise what the storage allows",
            )
        return self._unavailable(what, key, error)

    def _unavailable(self, what: str, key: str, error: Exception) -> Unavailable:
        return Unavailable(
            f"object storage does not answer: {what}",
            url=self.url,
            key=key,
            endpoint=self._where,
            error=error,
            hint="check that it runs and can be reached",
        )

    def put(self, key: str, body: bytes) -> None:
        with self._errors("put", key):
            self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=body, **self._extra)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        for attempt in range(1, _CONFLICT_TRIES + 1):
            try:
                self._client.put_object(
                    Bucket=self._bucket, Key=self._key(key), Body=body, IfNoneMatch="*", **self._extra
                )
                return True
            except ClientError as error:
                if _code(error) in _CONFLICT and attempt < _CONFLICT_TRIES:
                    time.sleep(0.1 * attempt)
                elif _code(error) in _TAKEN:
                    # The one who took it may be an attempt of our own whose answer was lost.
                    return self._holds(key, body)
                else:
                    return self._settle(key, body, self._client_error("put_if_absent", key, error))
            except (BotoCoreError, OSError) as error:
                return self._settle(key, body, self._unavailable("put_if_absent", key, error))
        raise AssertionError("the last attempt answers or raises")

    def _holds(self, key: str, body: bytes) -> bool:
        try:
            return self.get(key) == body
        except ObjectMissing:
            # Deleted in between: it was somebody's, and it is not ours now.
            return False

    def _settle(self, key: str, body: bytes, doubt: RollforwardError) -> bool:
        """After an error the object may be there all the same: what is read back decides; without an answer, the error."""
        if isinstance(doubt, InvalidConfig) or not self._holds(key, body):
            raise doubt
        return True

    def get(self, key: str) -> bytes:
        with self._errors("get", key):
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._key(key))["Body"].read()
            return body

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._errors("head", key):
                about = self._client.head_object(Bucket=self._bucket, Key=self._key(key))
        except ObjectMissing:
            return None
        return ObjectInfo(key, about["ContentLength"], about["LastModified"].timestamp())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with self._errors("list", prefix):
            for page in pages:
                for found in page.get("Contents", []):
                    key = found["Key"].removeprefix(self._prefix)
                    yield ObjectInfo(key, found["Size"], found["LastModified"].timestamp())

    def delete(self, keys: Iterable[str]) -> None:
        names = [self._key(key) for key in keys]
        for start in range(0, len(names), _DELETE_MAX):
            objects = [{"Key": name} for name in names[start : start + _DELETE_MAX]]
            with self._errors("delete"):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            failed = [error for error in answer.get("Errors", []) if error.get("Code") not in _MISSING]
            if failed:
                raise Unavailable(
                    "objects could not be deleted", url=self.url, failed=len(failed), error=failed[0].get("Message")
                )

    def refresh(self, key: str) -> bool:
        name = self._key(key)
        try:
            with self._errors("refresh", key):
                # A copy onto itself, which S3 only takes when something of it is replaced.
                self._client.copy_object(
                    Bucket=self._bucket,
                    Key=name,
                    CopySource={"Bucket": self._bucket, "Key": name},
                    MetadataDirective="REPLACE",
                    **self._extra,
                )
        except ObjectMissing:
            return False
        return True

    def upload(self, path: Path, key: str) -> None:
        with self._errors("upload", key):
            size = path.stat().st_size
            if size < _UNSEEN:
                self._throttle.take(size)
            self._transfers.upload(str(path), self._bucket, self._key(key), extra_args=dict(self._extra)).result()

    def download(self, key: str, path: Path, size: int | None = None) -> None:
        with self._errors("download", key):
            if size is not None and size <= _SMALL:
                self._throttle.take(size)
                # The transfer manager would ask for its size first. Logs of a store at rest are empty.
                path.write_bytes(self.get(key) if size else b"")
                return
            self._transfers.download(self._bucket, self._key(key), str(path)).result()

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        with self._errors("list uploads", prefix):
            for page in pages:
                for found in page.get("Uploads", []):
                    key = found["Key"].removeprefix(self._prefix)
                    yield UnfinishedUpload(key, found["UploadId"], found["Initiated"].timestamp())

    def abort(self, upload: UnfinishedUpload) -> None:
        with self._errors("abort upload", upload.key):
            try:
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._prefix + upload.key, UploadId=upload.id
                )
            except ClientError as error:
                if _code(error) != "NoSuchUpload":
                    raise

    def close(self) -> None:
        self._transfers.shutdown()
        self._client.close()


def _client(config: ObjectsConfig) -> Any:
    return boto3.Session(botocore_session=_session(config.credentials_file)).client(
        "s3",
        endpoint_url=config.endpoint_url or None,
        region_name=config.region or None,
        config=Config(
            s3={"addressing_style": config.addressing},
            retries={"mode": "standard", "total_max_attempts": config.attempts},
            connect_timeout=config.timeout_s,
            read_timeout=config.timeout_s,
            # Each transfer of a part holds one connection.
            max_pool_connections=2 * config.parallel + 4,
        ),
    )


def _session(credentials_file: str) -> botocore.session.Session:
    if not credentials_file:
        return botocore.session.Session()
    # A profile by name, or the environment's keys would go first, and its AWS_PROFILE would have to be in this file.
    core = botocore.session.Session(profile=_PROFILE)
    core.set_config_variable("credentials_file", credentials_file)
    # A role or a sign-on of that name in ~/.aws/config would go before the file's key, too.
    key = SharedCredentialProvider(credentials_file, _PROFILE).load()
    if key is not None:
        core.set_credentials(key.access_key, key.secret_key, key.token)
    return core


def _transfer_config(config: ObjectsConfig) -> TransferConfig:
    return TransferConfig(
        multipart_threshold=config.part_bytes,
        multipart_chunksize=config.part_bytes,
        max_concurrency=2 * config.parallel,
        max_bandwidth=config.bandwidth_bytes_per_s or None,
    )


def _encryption(config: ObjectsConfig) -> dict[str, str]:
    extra = {"ServerSideEncryption": config.encryption, "SSEKMSKeyId": config.kms_key_id}
    return {name: value for name, value in extra.items() if value}
