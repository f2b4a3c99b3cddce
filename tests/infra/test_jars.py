"""Jars: complete and pinned, or refused; nothing is started when they are there."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from infra import ivy, jars
from infra.errors import InfraError, JarsDamaged, JarsUnavailable
from infra.java import JavaHome

NO_JAVA = JavaHome(Path("/nonexistent"), 17, "test")


@pytest.fixture
def cache(tmp_path: Path, java: JavaHome) -> Path:
    """A cache of its own with the connector's jars in it."""
    folder = jars.resolve("connector", java)[0].parent
    shutil.copytree(folder, tmp_path / "jars" / folder.name)
    return tmp_path


def test_every_set_is_pinned_with_its_roots() -> None:
    for name, definition in jars.DEFINITIONS.items():
        pinned = {jar.coordinate for jar in jars.read_lock(name)}
        assert {str(root) for root in (*definition.roots, *definition.overrides)} <= pinned


def test_connector_brings_nothing_that_pyspark_ships() -> None:
    shipped = {path.name.rsplit("-", 1)[0] for path in ivy.ivy_jar().parent.glob("*.jar")}
    assert set() == {jar.file.rsplit("-", 1)[0] for jar in jars.read_lock("connector")} & shipped


def test_complete_cache_starts_no_java(cache: Path) -> None:
    found = jars.resolve("connector", NO_JAVA, cache=cache)
    assert [jar.file for jar in jars.read_lock("connector")] == [path.name for path in found]
    assert all(path.is_file() for path in found)


def test_tampered_and_missing_jars_alone_are_fetched_again(cache: Path, java: JavaHome) -> None:
    small, other, *_ = sorted(jars.resolve("connector", NO_JAVA, cache=cache), key=lambda path: path.stat().st_size)
    small.write_bytes(b"not a jar")
    other.unlink()
    steps: list[str] = []
    found = jars.resolve("connector", java, lambda step, detail: steps.append(detail), cache=cache)
    assert "fetching 2 of 4 jars of connector" == steps[0]
    assert found == jars.resolve("connector", NO_JAVA, cache=cache)
    assert {"connector.lock", found[0].parent.name} == {path.name for path in (cache / "jars").iterdir()}


def test_download_with_other_content_is_refused(cache: Path, java: JavaHome, tmp_path: Path) -> None:
    lock = json.loads(jars.LOCK_FILE.read_text())
    smallest = min(jars.resolve("connector", NO_JAVA, cache=cache), key=lambda path: path.stat().st_size).name
    entry = next(entry for entry in lock["connector"] if entry["file"] == smallest)
    entry["sha256"] = "0" * 64
    (tmp_path / "lock.json").write_text(json.dumps({"connector": [entry]}))
    with pytest.raises(JarsDamaged, match=f"jar=`{entry['coordinate']}` expected=`0000"):
        jars.resolve("connector", java, cache=tmp_path / "other", lock_file=tmp_path / "lock.json")
    assert ["connector.lock"] == [path.name for path in (tmp_path / "other" / "jars").iterdir()]


def test_failed_fetch_shows_the_log_and_leaves_nothing(java: JavaHome, tmp_path: Path) -> None:
    entry = {"file": "none-1.jar", "coordinate": "org.apache.kafka:kafka-clients:0.0.0-none", "sha256": "0" * 64}
    (tmp_path / "lock.json").write_text(json.dumps({"connector": [entry]}))
    with pytest.raises(JarsUnavailable, match="hint: check the network"):
        jars.resolve("connector", java, cache=tmp_path, lock_file=tmp_path / "lock.json")
    assert ["connector.lock"] == [path.name for path in (tmp_path / "jars").iterdir()]


def test_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(InfraError, match="known=`connector, kafka, maven, s3proxy`"):
        jars.resolve("spark", NO_JAVA)


def _resolve(cache: Path, java: JavaHome, said: multiprocessing.SimpleQueue) -> None:
    jars.resolve("connector", java, lambda step, detail: said.put(detail), cache=cache)
    said.put("done")


def test_two_processes_fetch_once(cache: Path, java: JavaHome) -> None:
    jars.resolve("connector", NO_JAVA, cache=cache)[0].unlink()
    context = multiprocessing.get_context("spawn")
    said = context.SimpleQueue()
    both = [context.Process(target=_resolve, args=(cache, java, said)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    words = []
    while not said.empty():
        words.append(said.get())
    assert ["connector is complete: 4 jars", "done", "done", "fetching 1 of 4 jars of connector"] == sorted(words)
