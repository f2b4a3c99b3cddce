"""From a URL to the object store behind it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from statestore.config import ObjectsConfig
from statestore.errors import InvalidConfig
from statestore.objects.base import ObjectStore
from statestore.objects.local import LocalObjects

_S3 = "statestore.objects.s3"


def modules_of(config: ObjectsConfig) -> tuple[str, ...]:
    """What opening it imports, if that takes long."""
    return (_S3,) if urlsplit(config.url).scheme == "s3" else ()


def open_objects(config: ObjectsConfig) -> ObjectStore:
    """The store of `file:///folder` or `s3://bucket/prefix`. Raises `InvalidConfig` for another URL."""
    url = urlsplit(config.url)
    if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
        return LocalObjects(
            Path(unquote(url.path)), parallel=config.parallel, bandwidth_bytes_per_s=config.bandwidth_bytes_per_s
        )
    if url.scheme == "s3" and url.netloc:
        # boto3 takes a third of a second and 20 MB to import: only who needs it pays.
        from statestore.objects.s3 import S3Objects

        return S3Objects(url.netloc, url.path, config)
    raise InvalidConfig(
        "snapshot url is not one", url=config.url, hint="write file:///absolute/folder or s3://bucket/prefix"
    )
