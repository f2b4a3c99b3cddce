"""A store server on a machine of its own: `python -m pipelines.store_server --listen tls://10.0.0.7:9400 --states /data`.

It serves one pipeline's drivers, one after the other, and outlives them. Kafka and snapshots are configured as for a
driver, by `rollforward.toml` and the environment; token, certificate and key as `statestore/channel.py` says.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipelines.settings import load_settings
from statestore import logs
from statestore.config import RocksConfig, ServerConfig
from statestore.errors import RollforwardError
from statestore.server import serve


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="rollforward-store-server", description=__doc__)
    parser.add_argument("--listen", required=True, help="tls://host:port, as drivers and workers reach it")
    parser.add_argument("--states", type=Path, required=True, help="folder of the stores on this machine")
    arguments = parser.parse_args()
    logs.json_to_stderr()
    try:
        settings = load_settings()
        config = ServerConfig(
            arguments.listen,
            arguments.listen,
            settings.kafka_config(),
            RocksConfig(),
            transactions=settings.transactions,
            snapshots=settings.snapshot_config(),
            states=arguments.states.absolute(),
        )
        serve(config)
    except RollforwardError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
