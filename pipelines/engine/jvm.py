"""The driver's JVM: what it is told, and its launch beside the driver's own imports.

Java takes seconds to start, and so does Python with all that a driver imports: little is imported here.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

import psutil
import structlog
from pyspark import SparkConf, SparkContext

from pipelines.engine.early import beside
from pipelines.names import SPARK_SOCKETS, socket_folder, spark_socket_folder
from pipelines.processes import remove_left
from pipelines.settings import Settings
from statestore.errors import Unavailable

log = structlog.get_logger()
# Planning runs once a batch, decoding and hashing for every record. With the JVM's own thresholds the optimising
# compiler spends more CPU on planning code at start than the first minutes of work do; ten times higher, a start took
# 30 to 40 per cent less CPU and the loops over records are compiled all the same.
JIT = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# How long the end of a launch is waited for.
_END_S = 5.0
_SOCKET_PATH_MAX = 107
# Spark names a socket in our folder with `/.` and a UUID and `.sock`, and a few more to be safe.
_SOCKET_NAME = 44
_MAIN = "org.apache.spark.deploy.SparkSubmit"
# There is one JVM a process: Spark keeps it in a variable of its class.
_launching = threading.Lock()
_launched: Future[None] | None = None
_ended = False


def spark_conf(settings: Settings, work: Path) -> SparkConf:
    """Spark's configuration. Makes `work` for Spark's own files, and says in the environment what Spark reads there."""
    (work / "tmp").mkdir(parents=True, exist_ok=True, mode=0o700)
    # Without this Spark starts the first `python3` on the path, which knows none of our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.java_home is not None:
        os.environ["JAVA_HOME"] = str(settings.java_home)
    os.environ["SPARK_LOCAL_IP"] = settings.spark_driver_host
    return SparkConf().setMaster(settings.spark_master).setAll(list(_options(settings, work).items()))


def launch(settings: Settings, work: Path) -> Future[None]:
    """Launch the JVM of this process beside the caller, if nobody has; the session that is started next uses it.

    What is given is done when the JVM has answered, and raises what its launch failed of: nobody is to launch another.
    Raises `Unavailable` when the process ends.
    """
    global _launched
    with _launching:
        if _ended:
            raise Unavailable("no jvm is launched any more: the driver ends")
        if _launched is None:
            conf = spark_conf(settings, work)
            _launched = beside("jvm-launch", lambda: SparkContext._ensure_initialized(conf=conf))
        return _launched


def end() -> None:
    """Kill the JVM of this process and Spark's workers: they keep nothing, and one that is stopped would outlive us.

    Also a JVM that has never answered: whoever launches one has a temporary folder until then, and removes it when the
    JVM has died. None is launched afterwards.
    """
    global _ended
    with _launching:
        _ended = True
    deadline = time.monotonic() + _END_S
    while True:
        ours = psutil.Process().children()
        jvms = [child for child in ours if _is_jvm(child)]
        for process in [*jvms, *(worker for each in jvms for worker in _below(each))]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if _launched is None or _launched.done() or time.monotonic() > deadline:
            psutil.wait_procs(jvms, timeout=_END_S)
            return
        wait([_launched], timeout=0.1)


def _is_jvm(process: psutil.Process) -> bool:
    """Also of the scripts that become one."""
    with suppress(psutil.NoSuchProcess):
        return any(part == _MAIN or part.endswith("/spark-submit") for part in process.cmdline())
    return False


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def remove_files(work: Path) -> None:
    """Remove Spark's own files of this process, whose session is over."""
    for folder in (work, spark_socket_folder()):
        shutil.rmtree(folder, ignore_errors=True)


def _options(settings: Settings, work: Path) -> dict[str, str]:
    options = {
        # Collects with all cores and costs the work between collections nothing: a fifth less CPU than the default. The
        # young generation begins small and grows with the work: by default the JVM gives it a third of a GB at once,
        # which it is hours in filling where most batches are small. Its C library gives free memory back every ten seconds,
        # as that of drivers and store servers does (`allocator.py`); Spark makes older JVMs pass over what they do not know.
        # The figures it keeps for jstat, twenty times a second, are a third of what it costs while nothing is to be done.
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:NewSize=32m -XX:TrimNativeHeapInterval=10000 -XX:-UsePerfData",
        # The default options: `spark_conf` may set other extraJavaOptions without losing these.
        "spark.driver.defaultJavaOptions": f"{JIT} {_shared_classes(settings)}",
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.host": settings.spark_driver_host,
        "spark.driver.bindAddress": settings.spark_driver_host,
        # A full collection of what little lives, a tenth of a second. The first takes memory of its own, and with half an
        # hour between them, as by default, the process was as large as it gets after hours only.
        "spark.cleaner.periodicGC.interval": "5min",
        "spark.ui.enabled": str(settings.spark_ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # Division by zero and bad casts give NULL, as in ksqlDB; integers cast to big-endian bytes.
        "spark.sql.ansi.enabled": "false",
        # A map that is given a key twice keeps the last value, as in ksqlDB.
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        # A coalesced shuffle would send a key's rows to another task than the hash says.
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "false",
        "spark.task.maxFailures": "1",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # With a limit in bytes Spark adds up the size of all vectors after every row: a fifth of all samples. Jobs of large
        # rows set one while they run (`job.py`).
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        # Checksums of shuffled rows guard against stages that compute something else when retried; a batch is retried
        # whole.
        "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
        # And those of its files only tell why a fetch failed.
        "spark.shuffle.checksum.enabled": "false",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "tmp"),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "pipelines.engine.worker_daemon",
        # What SQL gives its workers, given to all: a daemon is shared by workers of one environment only.
        "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
        "spark.shuffle.compress": "false",
        **(_worker_sockets() if settings.spark_master.startswith("local") else {}),
        **settings.spark_conf,
    }
    # What Java unpacks and Spark keeps beside its own folders goes with `work`, however the JVM ends and whoever sets these.
    options["spark.driver.defaultJavaOptions"] += f" -Dderby.system.home={work} -Djava.io.tmpdir={work / 'tmp'}"
    return options


def _worker_sockets() -> dict[str, str]:
    """Makes the JVM talk to its Python workers over unix sockets, in a private folder of this process.

    Over TCP a task's first bytes wait 40 ms for a delayed acknowledgement. Folders of processes that were killed are
    removed here. Workers on other machines keep TCP, and so do those of a process whose TMPDIR is too long for a socket.
    """
    remove_left(socket_folder(), SPARK_SOCKETS)
    folder = spark_socket_folder()
    if len(os.fsencode(folder)) + _SOCKET_NAME > _SOCKET_PATH_MAX:
        log.info("python workers are reached by TCP, which is slower: TMPDIR is too long", folder=str(folder))
        return {}
    folder.mkdir(mode=0o700, exist_ok=True)
    # Not of a driver, which ends without.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def _shared_classes(settings: Settings) -> str:
    """Options that use the class archive; without one the JVM goes on as if none were named."""
    if settings.class_archive is None:
        return ""
    return f"-XX:SharedArchiveFile={settings.class_archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
