"""An archive of the classes that a driver's JVM loads: with it a start takes about half the CPU.

Owns one file per Java, Spark and what is run for it. It is made once on a machine by a short, orderly run of what every driver
does (`training`), in a process of its own, since the JVM writes the archive when it ends. The JVM itself checks that an
archive fits and starts without one that does not, so a wrong or damaged one costs time and nothing else.

Nothing of Spark is imported here: whoever starts a driver looks for its archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import structlog

from pipelines.settings import Settings

log = structlog.get_logger()
_TIMEOUT_S = 180.0
_TRAINING = "pipelines.engine.training"


def archive_path(settings: Settings, folder: Path) -> Path:
    """Where the archive for these settings lies in `folder`, made or not."""
    release = (settings.java_home / "release") if settings.java_home is not None else None
    java = release.read_text() if release is not None and release.exists() else str(settings.java_home)
    spark = find_spec("pyspark")
    assert spark is not None
    training = find_spec(_TRAINING)
    assert training is not None and training.origin is not None
    trained = Path(training.origin).read_text()
    identity = json.dumps([java, metadata.version("pyspark"), spark.origin, trained])
    return folder / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def make_archive(settings: Settings, target: Path) -> None:
    """Make the archive. Where this Java cannot, `target` is left empty, which a JVM passes over. Kill it at any moment."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".training-", dir=target.parent) as work:
        made = Path(work) / target.name
        command = [sys.executable, "-m", _TRAINING, str(made)]
        environment = {
            **os.environ,
            "ROLLFORWARD_JAVA_HOME": "" if settings.java_home is None else str(settings.java_home),
        }
        try:
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            output = (getattr(error, "stderr", None) or b"")[-1000:].decode(errors="replace")
            hint = f"to try again delete {target}"
            log.warning("drivers start without class archive", error=str(error), output=output, hint=hint)
            made.touch()
        made.replace(target)
