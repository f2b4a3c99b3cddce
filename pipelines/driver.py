"""Entry point of a driver's process, started detached: launches the JVM first, then imports what the driver is made of."""

from __future__ import annotations

import argparse
import os
import sys

import structlog

from pipelines.engine import jvm
from pipelines.names import require_name, spark_folder
from pipelines.processes import EXIT_FAILED
from pipelines.settings import load_settings
from statestore import logs
from statestore.errors import RollforwardError

log = structlog.get_logger()


def main() -> None:
    """Run one pipeline in this process, and end it with the code that `run_process` gives."""
    parser = argparse.ArgumentParser(prog="rollforward-driver")
    parser.add_argument("pipeline")
    parser.add_argument("--until-end", action="store_true")
    arguments = parser.parse_args()
    logs.json_to_stderr()
    code = run(arguments.pipeline, until_end=arguments.until_end)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that wait for the JVM must not keep the process.
    os._exit(code)


def run(name: str, *, until_end: bool) -> int:
    """Launch the JVM, import the driver meanwhile, and run it; gives the exit code."""
    try:
        settings = load_settings()
        work = spark_folder(settings.home, require_name(name, "pipeline"))
    except RollforwardError as error:
        log.error("driver failed", pipeline=name, error=str(error), kind=type(error).__name__)
        return EXIT_FAILED
    jvm.launch(settings, work)
    try:
        # Takes about as long as the JVM.
        from pipelines.pipeline_driver import run_process

        return run_process(name, settings, until_end=until_end)
    finally:
        jvm.remove_files(work)


if __name__ == "__main__":
    main()
