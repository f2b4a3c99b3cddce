"""`rollforward serve` as people run it: a process that answers over HTTP."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from ops.environment import driver_environment
from pipelines.settings import Settings
from tests.support.waiting import await_

TOKEN = "a-token-for-tests-only"
ANSWER_S = 180


class Server:
    """One server; `start` it, kill it, `start` it again. Its database and its other settings stay the same."""

    def __init__(self, settings: Settings, folder: Path, **environment: str) -> None:
        self.settings = settings
        self._log = folder / f"server-{id(self)}.log"
        self._environment = {
            **driver_environment(settings),
            "ROLLFORWARD_API_TOKEN": TOKEN,
            "ROLLFORWARD_CONFIG": "/dev/null",
            **environment,
        }
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {TOKEN}"
        self._threads = ThreadPoolExecutor(64)
        self.start()

    def start(self) -> None:
        """Start the process; it answers when this returns."""
        command = [sys.executable, "-m", "ops.cli.main", "serve", "--port", "0"]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"(http://\S+)", line)
        assert found, line + self.tail()
        self.url = found[1]

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.http.get(self.url + path, timeout=ANSWER_S, **options)

    def post(self, statement: str, pipeline: str = "", key: str = "") -> requests.Response:
        headers = {"Idempotency-Key": key} if key else {}
        body = {"statement": statement, "pipeline": pipeline}
        return self.http.post(self.url + "/statements", json=body, headers=headers, timeout=ANSWER_S)

    def sending(self, statement: str, pipeline: str = "", key: str = "") -> Future[requests.Response]:
        """`post` in a thread: the answer, or that the server has died."""
        return self._threads.submit(self.post, statement, pipeline, key)

    def await_ready(self) -> None:
        await_("ready", lambda: self.get("/ready").status_code == 200)

    def await_error(self, *texts: str) -> None:
        """It is not ready and says one of these."""
        await_(f"error {texts}", lambda: any(text in (self._unready()["error"] or "") for text in texts))

    def await_degraded(self, reason: str) -> str:
        """It is not ready for this reason; gives the way out that it names."""
        await_(f"degraded {reason}", lambda: (self._unready()["degraded"] or {}).get("reason") == reason)
        return str(self._unready()["degraded"]["hint"])

    def _unready(self) -> dict[str, Any]:
        answer = self.get("/ready")
        found: dict[str, Any] = answer.json()
        assert found["ready"] == (answer.status_code == 200), answer.text
        return {"error": None, "degraded": None} if found["ready"] else found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def again(self) -> None:
        """Start it anew behind its end, and wait until it is ready."""
        self.process.wait(ANSWER_S)
        self.process.communicate()
        self.start()
        self.await_ready()

    def close(self) -> None:
        if self.process.returncode is None:
            # A stopped process dies of this as well.
            self.kill()
        self._threads.shutdown()
        self.http.close()

    def tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-30:])
