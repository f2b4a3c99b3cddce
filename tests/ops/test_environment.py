"""Every process of a service sees the same world, whoever starts it and wherever it runs."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from infra import ports
from infra.dagster import DAEMON, WEBSERVER, Dagster
from ops.cli.context import stack_environment
from ops.environment import on_local_stack
from pipelines.settings import Settings, load_settings
from statestore.errors import InvalidConfig


def test_dagster_has_the_credentials_and_proxies_of_who_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {
        "AWS_PROFILE": "production",
        "AWS_SHARED_CREDENTIALS_FILE": "/etc/aws",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "127.0.0.1",
        "REQUESTS_CA_BUNDLE": "/etc/ca.pem",
    }
    for name, value in {**theirs, "SOMETHING_ELSE": "secret"}.items():
        monkeypatch.setenv(name, value)
    dagster = Dagster(home=tmp_path, logs=tmp_path, records=tmp_path)
    for process in (DAEMON, WEBSERVER):
        environment = dagster._spec(process, "m", {}).env
        assert theirs.items() <= environment.items()
        assert "SOMETHING_ELSE" not in environment


def test_relative_files_are_the_same_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "mine.toml").write_text('service = "mine"\n')
    monkeypatch.setenv("ROLLFORWARD_CONFIG", "mine.toml")
    monkeypatch.setenv("ROLLFORWARD_STORE_CA", "ca.pem")
    files = {"java_home": "java", "class_archive": "classes.jsa", "s3_credentials_file": "creds"}
    settings = load_settings(home="home", metastore_url="sqlite:///meta.db?timeout=5", **files)
    for name, value in stack_environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    # Dagster has all that the file says, and does not miss it.
    (here / "mine.toml").unlink()
    dagster = load_settings()
    assert "mine" == dagster.service
    assert {name: str(here / file) for name, file in files.items()} == {
        name: str(getattr(dagster, name)) for name in files
    }
    assert f"sqlite:///{here}/meta.db?timeout=5" == dagster.metastore_url
    assert str(here / "ca.pem") == stack_environment(dagster)["ROLLFORWARD_STORE_CA"]


@pytest.mark.parametrize(
    "url", ["", "sqlite:////var/meta.db", "sqlite://", "sqlite:///:memory:", "postgresql://host/rollforward"]
)
def test_a_database_that_is_no_relative_file_is_left_as_it_is(url: str) -> None:
    assert url == Settings(metastore_url=url).metastore_url


def test_the_local_bucket_is_the_local_stacks_also_while_its_server_is_away(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, snapshot_url="s3://rollforward/snapshots")
    assert settings == on_local_stack(settings)
    ports.keep(tmp_path / "s3", {"s3": 20_001})
    found = on_local_stack(settings)
    assert ("http://127.0.0.1:20001", "path") == (found.s3_endpoint_url, found.s3_addressing)
    assert str(tmp_path / "s3" / "credentials") == found.s3_credentials_file
    elsewhere = Settings(home=tmp_path, snapshot_url="s3://mine/snapshots")
    assert elsewhere == on_local_stack(elsewhere)


def test_a_secret_in_the_wrong_place_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rollforward.toml"
    file.write_text('"sasl.password" = "hunter2"\n[kafka]\n')
    monkeypatch.setenv("ROLLFORWARD_CONFIG", str(file))
    monkeypatch.setenv("ROLLFORWARD_KAFKA", '{"sasl.password": 12345678}')
    with pytest.raises(InvalidConfig, match=r"sasl\.password: Extra inputs") as raised:
        load_settings()
    # With all causes, as Dagster keeps what its ticks have met.
    told = "".join(traceback.format_exception(raised.value))
    assert "ValidationError" in told
    assert not [secret for secret in ("hunter2", "12345678") if secret in told]
