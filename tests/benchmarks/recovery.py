"""How long an empty disk takes to come back: `python -m tests.benchmarks.recovery [--keys N]`.

One task with N keys of 100 bytes in all, on the broker and the S3 server of a local stack of its own. The same task
is recovered from the whole changelog, from a snapshot in a folder, and from the same snapshot in S3; then one key in a
hundred changes and a second snapshot is taken. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from infra.stack import Stack
from statestore.config import ObjectsConfig, SnapshotConfig
from statestore.planning.plan import Way
from tests.support.task import TaskWorld

BATCH = 250_000
KEY, VALUE = 16, 76


def value() -> bytes:
    """Half of it compresses, as rows of counters and texts do."""
    return os.urandom(VALUE // 2) + b"x" * (VALUE // 2)


def filled(world: TaskWorld, keys: int) -> None:
    """Commit the keys in random order, as a stream meets them."""
    names = [b"%016d" % number for number in range(keys)]
    random.Random(1).shuffle(names)
    for start in range(0, keys, BATCH):
        world.commit({name: value() for name in names[start : start + BATCH]})


def timed_open(world: TaskWorld, way: Way) -> dict[str, Any]:
    """Recover on an empty disk; the way must be the expected one."""
    world.close()
    shutil.rmtree(world.spec.folder)
    began = time.monotonic()
    opened = world.open()
    seconds = time.monotonic() - began
    assert opened.plan.way is way, opened.plan
    return {"seconds": round(seconds, 3), "estimated_seconds": round(opened.plan.seconds, 3)}


def measure(keys: int, folder: Path, stack: Stack) -> dict[str, Any]:
    """All figures of one run."""
    status = stack.status()
    kafka = status.bootstrap_servers or ""
    s3 = ObjectsConfig(
        "s3://rollforward/bench",
        endpoint_url=status.s3_endpoint or "",
        region="us-east-1",
        addressing="path",
        credentials_file=str(stack.s3.credentials_file),
    )
    stores = {"local": ObjectsConfig((folder / "objects").as_uri()), "s3": s3}
    plain = TaskWorld(kafka, "bench", folder / "state", None)
    plain.open()
    filled(plain, keys)
    # The first measures, the second uses what was measured for its estimate.
    found: dict[str, Any] = {"keys": keys, "full_replay": [timed_open(plain, Way.FULL_REPLAY) for _ in range(2)]}
    plain.close()
    for name, objects in stores.items():
        world = TaskWorld(kafka, "bench", folder / "state", SnapshotConfig(objects, interval_s=0, changelog_records=0))
        world.open()
        first = world.snapshot()
        back = [timed_open(world, Way.SNAPSHOT) for _ in range(2)]
        changed = random.Random(2).sample(range(keys), keys // 100)
        world.commit({b"%016d" % number: value() for number in changed})
        found[name] = {"first": first, "recover": back, "second": world.snapshot()}
        world.close()
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as name:
        stack = Stack(Path(name) / "stack")
        stack.up(components=["kafka", "s3"])
        try:
            print(json.dumps(measure(arguments.keys, Path(name), stack)))
        finally:
            stack.down(wipe=True)


if __name__ == "__main__":
    main()
