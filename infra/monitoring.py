"""Prometheus and Alertmanager of one home, as two processes of our own.

Owns `<home>/monitoring`: `prometheus.yml` and `alertmanager.yml`, written anew at each start, the ports (`ports.json`,
kept so that links stay good), and both programs' data. Prometheus finds the drivers by the files in a folder, evaluates
the rules it is given and sends alerts to Alertmanager, which keeps them in memory: what it knew is gone when it
restarts, and comes again with Prometheus' next sending, here within RESEND_S. Both may be killed at any time.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infra import ports, process, tools
from infra.files import write_atomic
from infra.process import ProcessSpec

PROMETHEUS, ALERTMANAGER = "prometheus", "alertmanager"
START_TIMEOUT_S = 30.0
STOP_GRACE_S = 5.0
PROBE_TIMEOUT_S = 1.0
RESEND_S = 5
RETENTION = "15d"


@dataclass(frozen=True)
class Monitored:
    """What is watched: the folder of the drivers' target files, the rules, and who is told beside those who ask.

    `webhook_url` gets every alert with the token in `webhook_token_file`; empty: nobody. `interval_s` is for scrapes
    and rules.
    """

    targets: Path
    rules: Path
    webhook_url: str = ""
    webhook_token_file: Path | None = None
    interval_s: int = 5


@dataclass(frozen=True)
class Monitoring:
    """Both programs of one folder; `records` and `logs` are folders for one file each."""

    home: Path
    logs: Path
    records: Path
    cache: Path

    def installed(self) -> bool:
        """Whether both programs are on this machine."""
        return all(tools.find(name, self.cache) for name in (tools.PROMETHEUS, tools.ALERTMANAGER))

    def start(self, watched: Monitored, *, on_step: Callable[[str], None] | None = None) -> list[str]:
        """Starts whichever does not run and returns their names when both answer. Raises ToolMissing, StartFailed."""
        missing = [name for name in (ALERTMANAGER, PROMETHEUS) if not self._is_alive(name)]
        if not missing:
            return []
        programs = {
            PROMETHEUS: tools.require(tools.PROMETHEUS, self.cache),
            ALERTMANAGER: tools.require(tools.ALERTMANAGER, self.cache),
        }
        self._choose_ports(missing)
        self._write_config(watched)
        if on_step:
            on_step(f"starting {' and '.join(missing)}")
        try:
            for name in missing:
                spec = self._spec(name, programs[name])
                ready = partial(_ready, self.port(name))
                process.start_and_await(spec, ready, timeout_s=START_TIMEOUT_S, grace_s=STOP_GRACE_S)
        except BaseException:
            for name in missing:
                process.stop(self.record(name), grace_s=STOP_GRACE_S)
            raise
        return missing

    def stop(self) -> bool:
        """Stops both; tells whether any was running."""
        stopped = [process.stop(self.record(name), grace_s=STOP_GRACE_S) for name in (PROMETHEUS, ALERTMANAGER)]
        return any(stopped)

    def record(self, name: str) -> Path:
        """Where one of the two is remembered."""
        return self.records / f"{name}.json"

    def port(self, name: str) -> int | None:
        """The port of last time; None if there was none."""
        return ports.kept(self.home, name)

    def url(self, name: str) -> str | None:
        """The address; None if it was never started."""
        port = self.port(name)
        return f"http://{ports.HOST}:{port}" if port else None

    def _is_alive(self, name: str) -> bool:
        record = process.read_record(self.record(name))
        return record is not None and process.is_alive(record)

    def _choose_ports(self, missing: list[str]) -> None:
        # Prometheus knows Alertmanager by its port, and links know both.
        chosen = {name: port for name in (PROMETHEUS, ALERTMANAGER) if (port := self.port(name))}
        for name in missing:
            chosen[name] = ports.choose(None, chosen.get(name), component=name, avoid=chosen.values())
        ports.keep(self.home, chosen)

    def _write_config(self, watched: Monitored) -> None:
        # JSON is YAML: nothing has to be quoted by hand.
        interval = f"{watched.interval_s}s"
        prometheus = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(watched.rules)],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [f"{ports.HOST}:{self.port(ALERTMANAGER)}"]}]}]
            },
            "scrape_configs": [
                {
                    "job_name": "rollforward",
                    # A figure's own label `pipeline` stays; the target's is for `up`, which no driver says.
                    "honor_labels": True,
                    "file_sd_configs": [{"files": [str(watched.targets / "*.json")], "refresh_interval": interval}],
                }
            ],
        }
        receiver: dict[str, Any] = {"name": "rollforward"}
        if watched.webhook_url:
            hook: dict[str, Any] = {"url": watched.webhook_url, "send_resolved": True}
            if watched.webhook_token_file is not None:
                hook["http_config"] = {"authorization": {"credentials_file": str(watched.webhook_token_file)}}
            receiver["webhook_configs"] = [hook]
        alertmanager = {
            "route": {
                "receiver": "rollforward",
                "group_by": ["..."],
                "group_wait": "1s",
                "group_interval": interval,
                "repeat_interval": "1h",
            },
            "receivers": [receiver],
        }
        # A fetched Alertmanager looks here for them, an installed one where its package has put them.
        here = self.home / "alertmanager"
        here.unlink(missing_ok=True)
        here.symlink_to(tools.templates(self.cache))
        write_atomic(self.home / "prometheus.yml", json.dumps(prometheus, indent=2) + "\n")
        write_atomic(self.home / "alertmanager.yml", json.dumps(alertmanager, indent=2) + "\n")

    def _spec(self, name: str, program: Path) -> ProcessSpec:
        listen = f"{ports.HOST}:{self.port(name)}"
        words = [
            str(program),
            f"--web.listen-address={listen}",
            f"--web.external-url=http://{listen}",
            "--log.level=warn",
        ]
        if name == PROMETHEUS:
            words += [
                f"--config.file={self.home / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.home / 'prometheus-data'}",
                f"--storage.tsdb.retention.time={RETENTION}",
                f"--rules.alert.resend-delay={RESEND_S}s",
            ]
        else:
            words += [
                f"--config.file={self.home / 'alertmanager.yml'}",
                f"--storage.path={self.home / 'alertmanager-data'}",
                # No port for others of its kind.
                "--cluster.listen-address=",
            ]
        return ProcessSpec(
            name=name,
            command=tuple(words),
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd=self.home,
            log=self.logs / f"{name}.log",
            record=self.record(name),
        )


def _ready(port: int | None) -> bool:
    connection = http.client.HTTPConnection(ports.HOST, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
