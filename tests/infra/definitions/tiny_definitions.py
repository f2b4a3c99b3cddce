"""The smallest definitions that Dagster loads; the test of the stack starts them by name."""

import os

import dagster


@dagster.asset
def broker_address() -> str:
    return os.environ["ROLLFORWARD_BOOTSTRAP_SERVERS"]


defs = dagster.Definitions(assets=[broker_address])
