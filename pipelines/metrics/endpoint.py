"""The address at which a driver is scraped, and the file by which Prometheus finds it.

    <home>/metrics/<pipeline>.json     [{"targets": ["127.0.0.1:<port>"], "labels": {"pipeline": "<pipeline>"}}]

Written atomically when the endpoint answers. A driver that dies leaves it, so that its death shows as a target that is
down; the next driver writes its own over it, and a planned stop deletes it. Loopback only: whoever wants the figures
elsewhere puts a proxy with TLS in front.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from pipelines.settings import Settings

log = structlog.get_logger()
HOST = "127.0.0.1"


def targets_folder(home: Path) -> Path:
    """Where the drivers of a home say at which port each is scraped."""
    return home / "metrics"


class Endpoint:
    """The endpoint of one pipeline's driver."""

    def __init__(self, pipeline: str, settings: Settings, registry: CollectorRegistry) -> None:
        self._pipeline = pipeline
        self._asked = settings.metrics_port
        self._registry = registry
        self._file = targets_folder(settings.home) / f"{pipeline}.json"
        self._server: tuple[WSGIServer, Thread] | None = None
        self._content = ""

    def open(self) -> int | None:
        """Listen; gives the port. None, never an error, if the port is taken: the stream goes on without."""
        try:
            self._server = start_http_server(self._asked, HOST, self._registry)
        except OSError as error:
            log.warning("metrics are not served", pipeline=self._pipeline, port=self._asked, error=str(error))
            return None
        port: int = self._server[0].server_port
        labels = {"pipeline": self._pipeline}
        self._content = json.dumps([{"targets": [f"{HOST}:{port}"], "labels": labels}])
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = self._file.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(self._content, encoding="utf-8")
        beside.replace(self._file)
        return port

    def close(self, *, forget: bool) -> None:
        """Stop listening; with `forget` nobody is to look here again, unless a newer driver has said so."""
        if self._server is None:
            return
        server, thread = self._server
        server.shutdown()
        server.server_close()
        thread.join(timeout=1.0)
        self._server = None
        if forget and self._file.exists() and self._file.read_text(encoding="utf-8") == self._content:
            self._file.unlink(missing_ok=True)
