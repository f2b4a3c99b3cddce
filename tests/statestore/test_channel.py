"""Between machines: only over TLS, only with the token, only where the secrets are in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.ports import free_port
from statestore import channel
from statestore.client import StoreClient
from statestore.config import KafkaConfig, RocksConfig, ServerConfig
from statestore.errors import InvalidConfig, Unavailable
from statestore.server import StoreServer
from tests.support.certificates import secrets


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that listens with TLS and owns no task."""
    for name, value in secrets(tmp_path / "secrets").items():
        monkeypatch.setenv(name, value)
    address = f"tls://127.0.0.1:{free_port()}"
    server = StoreServer(ServerConfig("s", address, KafkaConfig("127.0.0.1:1"), RocksConfig(), states=tmp_path))
    yield address
    server.shutdown()


def ping(address: str) -> dict:
    with StoreClient(address, timeout_s=5) as client:
        return client.act("ping")


def test_who_has_token_and_authority_is_served(address: str) -> None:
    assert ping(address)["pid"] > 0
    with StoreClient(address) as client:
        assert client.restoring() == []


def test_another_token_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(channel.TOKEN, "another")
    with pytest.raises(Unavailable, match="token is missing or wrong"):
        ping(address)
    with StoreClient(address, timeout_s=5) as client, pytest.raises(Unavailable, match="token is missing or wrong"):
        client.read("q-0", epoch=0, batch=0)


def test_a_server_of_another_authority_is_not_trusted(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(channel.CA, secrets(tmp_path / "other")[channel.CA])
    with pytest.raises(Unavailable):
        ping(address)


@pytest.mark.parametrize("name", [channel.TOKEN, channel.CA])
def test_a_missing_secret_is_named(address: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(InvalidConfig, match=name):
        ping(address)


@pytest.mark.parametrize("name", [channel.TOKEN, channel.CERTIFICATE, channel.KEY])
def test_a_server_does_not_listen_without_its_secrets(address: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(InvalidConfig, match=name):
        channel.server_arguments(address)
