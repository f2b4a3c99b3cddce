"""The watch goes on looking after the others when it has killed one that was silent."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from pipelines.engine.watch import Watch
from tests.support.waiting import await_

SILENCE_S = 0.4


class Servers:
    """Counts how often they were looked after."""

    def __init__(self) -> None:
        self.looks = 0

    def end_silent(self) -> None:
        self.looks += 1


class SilentJvm:
    """A process that answers no question."""

    def __init__(self) -> None:
        self.proc = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.never = threading.Event()

    @property
    def jvm(self) -> Any:
        self.never.wait()


def test_behind_a_silent_jvm_the_servers_are_looked_after() -> None:
    servers, gateway = Servers(), SilentJvm()
    watch = Watch(servers, answer_timeout_s=SILENCE_S)  # type: ignore[arg-type]
    try:
        watch.also_jvm(gateway)
        watch.start()
        await_("the end of the jvm", lambda: gateway.proc.poll() is not None, 30)
        looks = servers.looks
        await_("more looks", lambda: servers.looks >= looks + 3, 30)
    finally:
        watch.close()
        gateway.never.set()
        gateway.proc.kill()
        gateway.proc.wait()
