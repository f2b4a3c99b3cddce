"""Prometheus and Alertmanager as part of the stack: fetched without root, started, repeated, stopped without a rest."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import jars, tools
from infra.errors import InfraError
from infra.monitoring import ALERTMANAGER, PROMETHEUS, Monitored
from infra.stack import MONITORING, Stack
from infra.tools import ToolMissing
from ops.cli.stack import monitored
from pipelines.settings import Settings

pytestmark = pytest.mark.usefixtures("leftovers")


def answer(url: str) -> object:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def test_both_start_with_our_rules_and_find_drivers_by_their_files(
    stack: Stack, leftovers: Callable[[], list[int]]
) -> None:
    tools.fetch(stack.cache)
    watched = monitored(Settings(home=stack.home, metastore_url=""))
    first = stack.up(components=[MONITORING], monitored=watched)
    assert {PROMETHEUS, ALERTMANAGER} == set(first.started)
    assert first.prometheus_url and first.alertmanager_url
    [group] = answer(f"{first.prometheus_url}/api/v1/rules")["data"]["groups"]  # type: ignore[index]
    assert 10 == len(group["rules"])
    assert [] == answer(f"{first.alertmanager_url}/api/v2/alerts")
    again = stack.up(components=[MONITORING], monitored=watched)
    assert () == again.started
    assert first.prometheus_url == again.prometheus_url
    down = stack.down()
    assert (None, None) == (down.prometheus_url, down.alertmanager_url)
    assert [] == leftovers()


def test_a_machine_without_them_is_told_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    stack = Stack(tmp_path / "home", cache=tmp_path / "cache")
    assert not stack.monitoring.installed()
    with pytest.raises(ToolMissing, match="rollforward up --fetch-monitoring"):
        stack.monitoring.start(Monitored(tmp_path, tmp_path / "rules.yml"))
    with pytest.raises(ToolMissing, match="apt-get"):
        tools.fetch(tmp_path / "cache")
    assert [] == [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and path.name.startswith(".prom")]


def test_fetched_programs_are_used_where_none_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = jars.default_cache()
    tools.fetch(cache)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    for name in (tools.PROMETHEUS, tools.ALERTMANAGER, tools.PROMTOOL):
        found = tools.find(name, cache)
        assert found is None or found.is_relative_to(cache)
    with pytest.raises(InfraError, match="no-such-program"):
        tools.require("no-such-program", cache)
