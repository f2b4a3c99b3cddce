"""Entry point of a driver's process, started detached: launches the JVM first, then imports what the driver is made of."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress

import structlog

from pipelines.engine import jvm
from pipelines.names import require_name, spark_folder
from pipelines.settings import AT_ONCE, load_settings
from statestore import allocator, logs
from statestore.errors import EXIT_FENCED, Fenced, RollforwardError, text_of

log = structlog.get_logger()
EXIT_FAILED = 4


def main() -> None:
    """Run one pipeline in this process; ends it with 0, `EXIT_FENCED` or `EXIT_FAILED`."""
    parser = argparse.ArgumentParser(prog="rollforward-driver")
    parser.add_argument("pipeline")
    parser.add_argument("--until-end", action="store_true")
    arguments = parser.parse_args()
    logs.json_to_stderr()
    code = 0
    try:
        run(arguments.pipeline, until_end=arguments.until_end)
    except Fenced as error:
        log.warning("fenced", pipeline=arguments.pipeline, error=str(error))
        code = EXIT_FENCED
    except RollforwardError as error:
        log.error("driver failed", pipeline=arguments.pipeline, error=str(error), kind=type(error).__name__)
        code = EXIT_FAILED
    except Exception as error:
        # Spark's and py4j's own, a killed JVM among them.
        log.exception("driver failed", pipeline=arguments.pipeline, error=text_of(error), kind=type(error).__name__)
        code = EXIT_FAILED
    # On a full disk neither goes.
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.flush()
    # Threads that wait for the JVM must not keep the process.
    os._exit(code)


def run(name: str, *, until_end: bool) -> None:
    """Launch the JVM, import the driver meanwhile, run it and print the figures. Raises what ended it early.

    The JVM is launched later, or never, where Spark starts when it is needed.
    """
    settings = load_settings()
    allocator.give_back_often()
    work = spark_folder(settings.home, require_name(name, "pipeline"))
    if settings.spark_start == AT_ONCE:
        jvm.launch(settings, work)
    try:
        # Takes about as long as the JVM.
        from pipelines.pipeline_driver import run_pipeline

        print(json.dumps(run_pipeline(name, settings, until_end=until_end)), flush=True)
    finally:
        jvm.end()
        jvm.remove_files(work)


if __name__ == "__main__":
    main()
