"""A driver's process launches its JVM before it imports what it is made of, and Spark's session uses that one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipelines import driver
from pipelines.driver import EXIT_FAILED
from pipelines.settings import Settings
from statestore import allocator
from statestore.errors import InvalidInput

SLOW = {"pyarrow", "sqlalchemy", "sqlglot", "confluent_kafka"}
LAUNCHED = """
import sys
from pathlib import Path
from pipelines.engine import jvm
from pipelines.settings import load_settings
work = Path(sys.argv[1])
options = {"spark.driver.defaultJavaOptions": sys.argv[2]} if sys.argv[2] else {}
settings = load_settings(bootstrap_servers="unused:1", spark_conf=options)
jvm.launch(settings, work).result(60)
from pyspark import SparkContext
launched = SparkContext._gateway.proc.pid
from pipelines.engine.spark import start_session
session = start_session(settings, "launched", work)
print(launched == session.sparkContext._gateway.proc.pid, session.conf.get("spark.driver.memory"))
print(session._jvm.System.getProperty("java.io.tmpdir"), session._jvm.org.apache.spark.util.Utils.createTempDir().getPath())
"""
BROKEN = """
import sys
from pipelines import driver
class Lost(Exception):
    def __str__(self):
        raise ConnectionRefusedError
def broken(*_, **__):
    raise {"bug": ZeroDivisionError, "lost": Lost}[sys.argv[1]]("all of it")
driver.run = broken
driver.main()
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def test_what_is_imported_before_the_launch_is_quick() -> None:
    found = run("-c", "import sys, pipelines.driver; print(*sys.modules)")
    assert set() == SLOW & set(found.stdout.split()), found.stderr


@pytest.mark.parametrize("java_options", ["", "-XX:TieredStopAtLevel=1"])
def test_the_session_uses_the_jvm_that_was_launched(machine: Settings, tmp_path: Path, java_options: str) -> None:
    found = run("-c", LAUNCHED, str(tmp_path), java_options, ROLLFORWARD_JAVA_HOME=str(machine.java_home))
    about, folders = found.stdout.splitlines()
    assert f"True {machine.spark_driver_memory}" == about, found.stderr
    # What Spark or a library of it leaves when the JVM is killed is removed with the driver's folder.
    java, spark = map(Path, folders.split())
    assert java == tmp_path / "tmp" and spark.is_relative_to(java)


def test_a_driver_gives_memory_back_as_its_servers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    giving: list[None] = []
    monkeypatch.setattr(allocator, "give_back_often", lambda: giving.append(None))
    with pytest.raises(InvalidInput):
        driver.run("../p", until_end=True)
    assert [None] == giving


def test_a_name_that_is_none_ends_the_process_before_it_makes_anything(tmp_path: Path) -> None:
    found = run("-m", "pipelines.driver", "../p", ROLLFORWARD_HOME=str(tmp_path / "home"))
    assert EXIT_FAILED == found.returncode
    assert "pipeline name is not allowed" in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("which", "kind", "error"),
    [("bug", "ZeroDivisionError", "all of it"), ("lost", "Lost", "Lost('all of it')")],
)
def test_what_nobody_expected_is_logged_with_its_place_also_where_it_cannot_say_what_it_is(
    which: str, kind: str, error: str
) -> None:
    found = run("-c", BROKEN, which)
    assert EXIT_FAILED == found.returncode
    line = json.loads(found.stderr)
    told = [line[key] for key in ("event", "pipeline", "kind", "error")]
    assert ["driver failed", which, kind, error] == told
    assert "in broken" in line["exception"]


def test_a_driver_that_fails_early_leaves_no_files(machine: Settings, tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {
        "ROLLFORWARD_HOME": str(home),
        "ROLLFORWARD_JAVA_HOME": str(machine.java_home),
        "ROLLFORWARD_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "ROLLFORWARD_REQUEST_TIMEOUT_S": "2",
        "ROLLFORWARD_SPARK_START": "at-once",
    }
    # Of its own, since other tests' drivers come and go in everybody's; and short, for sockets.
    with tempfile.TemporaryDirectory(prefix="rf-") as temporary:
        found = run("-m", "pipelines.driver", "unknown", TMPDIR=temporary, **environment)
        assert EXIT_FAILED == found.returncode
        (sockets,) = Path(temporary).glob("rollforward-*")
        assert not list((home / "spark").iterdir())
        assert not list(sockets.glob("spark-*"))
