"""A process that owns a task and does as it is told, so that a test can kill it at any step.

The first line of its input is a world, every other one a step: `{"do": "commit", "changes": {"key": "value"}}`. Each
step that is done is answered with a line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from statestore.config import ObjectsConfig, SnapshotConfig
from statestore.snapshots.collect import collect
from tests.support.task import TaskWorld


def main() -> None:
    about = json.loads(sys.stdin.readline())
    config = SnapshotConfig(**{**about["config"], "objects": ObjectsConfig(**about["config"]["objects"])})
    world = TaskWorld(about["kafka"], about["name"], Path(about["folder"]), config)
    world.spec = replace(world.spec, store=replace(world.spec.store, retention_ms=about["retention_ms"]))
    for line in sys.stdin:
        print(json.dumps(do(world, json.loads(line)), default=str), file=sys.__stdout__, flush=True)


def do(world: TaskWorld, step: dict[str, Any]) -> Any:
    """One step; gives its answer."""
    match step["do"]:
        case "open":
            return world.open().to_json()
        case "commit":
            return world.commit({key.encode(): value.encode() for key, value in step["changes"].items()})
        case "snapshot":
            return world.snapshot()
        case "finish":
            return world.finish(step["batch"])
        case "rewrite":
            world.finish(step["done"])
            return vars(world.rewrite(step["batch"], world.spec.folder.with_name("rewrite")))
        case "collect":
            return collect(world.repository, world.config).to_json()  # type: ignore[arg-type]
    raise ValueError(step["do"])


if __name__ == "__main__":
    main()
