"""Dagster's webserver and daemon as two processes of our own.

Owns `<home>/dagster` (DAGSTER_HOME): `dagster.yaml`, copied from the project at each start, and whatever Dagster keeps
there; the port is kept in `ports.json`, so that links and bookmarks stay good. Two processes start faster than `dagster
dev`, need 100 MB less, and end on SIGTERM. They are started as modules of the running interpreter, so they see its
packages; the webserver behind a gate that keeps other sites' pages out (`infra.webserver`). Both may be killed at any
time; Dagster's storage is its own.

Before the first start, and before the first one with another version of Dagster or another dagster.yaml, a third process
makes or migrates the storage alone and names both in the file `storage`: two that make it at once can mark it with two revisions, which
Dagster never opens again. Killed half-way, it is repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from infra import ports, process
from infra.errors import InfraError, StartFailed, indented
from infra.files import write_atomic
from infra.process import ProcessSpec

WEBSERVER = "dagster-webserver"
DAEMON = "dagster-daemon"
STORAGE = "dagster-storage"
# Importing definitions that bring Spark and pandas takes long on a loaded machine.
START_TIMEOUT_S = 120.0
# A long history takes its time to be migrated.
STORAGE_TIMEOUT_S = 1800.0
STOP_GRACE_S = 15.0
PROBE_TIMEOUT_S = 2.0
# The interpreter and the text are its arguments, so nothing of them is read by the shell.
MAKE_STORAGE = '"$0" -m dagster instance migrate && echo "$1" > storage'
LOCATIONS_QUERY = """{ workspaceOrError { __typename
  ... on Workspace { locationEntries { name loadStatus locationOrLoadError { __typename ... on PythonError { message errorChain { error { message } } } } } } } }"""
# Dagster gives a code server a minute to start a run's process, and fails the run of a machine that is busy with what
# the run is to mend. A sensor's tick that hangs is still given up as early as ever, since the next one does its work.
PATIENCE = {
    "DAGSTER_GRPC_TIMEOUT_SECONDS": "240",
    "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS": "60",
    "DAGSTER_SCHEDULE_GRPC_TIMEOUT_SECONDS": "60",
    "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "60",
}
# What any program needs to run as this user; everything else comes from the caller.
INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    # What traces are sent with, which their library reads by itself.
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_RESOURCE_ATTRIBUTES",
    # The way to object storage, for drivers that Dagster starts; proxies are read in either spelling.
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
# And its credentials: everything that AWS clients find in the environment.
INHERITED_PREFIX = "AWS_"


@dataclass(frozen=True)
class Dagster:
    """The two processes of one Dagster home; `records` and `logs` are folders for one file each."""

    home: Path
    logs: Path
    records: Path

    def start(
        self,
        *,
        module: str,
        config: Path,
        env: Mapping[str, str],
        port: int | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Starts whichever of the two does not run and returns their names when the webserver answers and both live.

        `module` holds the definitions; `config` is the dagster.yaml to use; `env` is added to a small inherited
        environment. A given `port` that is taken raises PortInUse; without one the port of last time is used if it is
        free. Raises StartFailed with the log's end.
        """
        missing = [name for name in (DAEMON, WEBSERVER) if not self.is_alive(name)]
        if WEBSERVER in missing:
            ports.keep(self.home, {"webserver": ports.choose(port, self.port, component=WEBSERVER)})
        if not missing:
            return []
        try:
            content = config.read_text(encoding="utf-8")
        except OSError as error:
            raise InfraError(
                "dagster's configuration cannot be read",
                file=config,
                reason=error,
                hint="name an existing dagster.yaml",
            ) from error
        write_atomic(self.home / "dagster.yaml", content)
        if len(missing) == 2 and not self._has_storage():
            if on_step:
                on_step("making the storage of runs and events")
            self._make_storage(module, env)
        if on_step:
            on_step(f"starting {' and '.join(missing)} on {self.url}")
        try:
            started = [(spec, process.start(spec)) for spec in (self._spec(name, module, env) for name in missing)]
            for spec, record in started:
                process.await_ready(spec, record, self.answers, timeout_s=START_TIMEOUT_S)
            for spec, record in started:
                # The webserver's answer says nothing about the daemon.
                process.await_ready(spec, record, partial(process.is_alive, record), timeout_s=0.0)
            self._refuse_unloadable(module)
        except BaseException:
            for name in missing:
                process.stop(self.record(name), grace_s=STOP_GRACE_S)
            raise
        return missing

    def stop(self) -> bool:
        """Stops both, the daemon first, which is the one that starts runs; tells whether any was running."""
        running = [process.stop(self.record(name), grace_s=STOP_GRACE_S) for name in (DAEMON, WEBSERVER, STORAGE)]
        return any(running)

    def answers(self) -> bool:
        """Whether the webserver answers `/server_info`."""
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=PROBE_TIMEOUT_S) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def load_error(self) -> str | None:
        """Why the webserver could not load the definitions; None if it could or is still at it."""
        body = json.dumps({"query": LOCATIONS_QUERY}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PROBE_TIMEOUT_S) as response:
            workspace = json.load(response)["data"]["workspaceOrError"]
        for entry in workspace.get("locationEntries", []):
            found = entry["locationOrLoadError"] or {}
            if found.get("__typename") == "PythonError":
                # The outermost says only that loading failed; the innermost says why.
                chain = [str(link["error"]["message"]) for link in found.get("errorChain") or []]
                return "\n".join([str(found["message"]), *chain])
        return None

    def is_alive(self, name: str) -> bool:
        """Whether one of the two runs."""
        record = process.read_record(self.record(name))
        return record is not None and process.is_alive(record)

    def record(self, name: str) -> Path:
        """Where one of the two is remembered."""
        return self.records / f"{name}.json"

    def log(self, name: str) -> Path:
        """Where one of the two writes."""
        return self.logs / f"{name}.log"

    @property
    def port(self) -> int | None:
        """The webserver's port of last time; None if there was none."""
        return ports.kept(self.home, "webserver")

    @property
    def url(self) -> str | None:
        """The address of the user interface; None if it was never started."""
        return f"http://{ports.HOST}:{self.port}" if self.port else None

    def _has_storage(self) -> bool:
        """Whether the storage was made, whole, by the Dagster that is installed now and as dagster.yaml names it now."""
        try:
            return (self.home / "storage").read_text(encoding="utf-8").strip() == self._storage()
        except (OSError, ValueError):
            return False

    def _storage(self) -> str:
        return f"{version('dagster')} {hashlib.sha256((self.home / 'dagster.yaml').read_bytes()).hexdigest()}"

    def _make_storage(self, module: str, env: Mapping[str, str]) -> None:
        """Makes the storage that dagster.yaml names, or migrates it; raises StartFailed with the log's end."""
        spec = self._spec(STORAGE, module, env)
        try:
            process.start_and_await(spec, self._has_storage, timeout_s=STORAGE_TIMEOUT_S)
        finally:
            process.stop(spec.record)

    def _refuse_unloadable(self, module: str) -> None:
        """Raises StartFailed when the definitions do not load: the webserver runs without them and would look healthy."""
        try:
            reason = self.load_error()
        except (OSError, ValueError, KeyError, TypeError):
            return
        if reason is not None:
            raise StartFailed(
                f"dagster cannot load the definitions:{indented(reason)}",
                module=module,
                hint="mend that module, then run the same again",
            )

    def _spec(self, name: str, module: str, env: Mapping[str, str]) -> ProcessSpec:
        words: tuple[str, ...]
        if name == STORAGE:
            words = ("/bin/sh", "-c", MAKE_STORAGE, sys.executable, self._storage())
        elif name == WEBSERVER:
            words = (sys.executable, "-m", "infra.webserver", "-m", module, "-h", ports.HOST, "-p", str(self.port))
        else:
            words = (sys.executable, "-m", "dagster._daemon", "run", "-m", module)
        inherited = {
            key: value for key, value in os.environ.items() if key in INHERITED or key.startswith(INHERITED_PREFIX)
        }
        return ProcessSpec(
            name=name,
            command=words,
            env={**inherited, **PATIENCE, "PYTHONUNBUFFERED": "1", **env, "DAGSTER_HOME": str(self.home)},
            cwd=self.home,
            log=self.log(name),
            record=self.record(name),
        )
