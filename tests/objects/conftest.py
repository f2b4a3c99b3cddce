"""One prefix a test on the session's servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.config import ObjectsConfig
from statestore.objects.base import ObjectStore
from statestore.objects.open import open_objects
from tests.support.s3 import RunningServer


@pytest.fixture(params=["s3proxy", "ministack"])
def server(request: pytest.FixtureRequest) -> RunningServer:
    found: RunningServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["local", "s3proxy", "ministack"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """An empty store of each kind."""
    if request.param == "local":
        config = ObjectsConfig((tmp_path / "objects").as_uri())
    else:
        config = request.getfixturevalue(request.param).under(f"{uuid.uuid4().hex}/deep")
    store = open_objects(config)
    yield store
    store.close()
