"""What a task's commit says beside its input offsets: who made it, and where its stores stand.

The note is the metadata of the consumer group's offsets, so it becomes true with the transaction that commits them:

    {"v":1,"owner":"<who>","number":<n-th commit>,"stores":{"<store>":["<changelog topic id>",<next offset>]}}

A task reads it after it has fenced older owners, and knows then which version of its stores is committed. About 60
stores fit into the 4096 bytes that the broker allows. Offsets that another program has committed have no note.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from statestore.version import ChangelogPosition

_VERSION = 1


@dataclass(frozen=True)
class CommitNote:
    """`number` grows by one with every commit of the task, whoever makes it."""

    owner: str = ""
    number: int = 0
    stores: dict[str, ChangelogPosition] = field(default_factory=dict)

    def encode(self) -> str:
        """As text."""
        stores = {name: [at.topic_id, at.offset] for name, at in self.stores.items()}
        fields = {"v": _VERSION, "owner": self.owner, "number": self.number, "stores": stores}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> CommitNote | None:
        """None for what is no note, or one of another version."""
        try:
            fields = json.loads(text)
            if fields["v"] != _VERSION:
                return None
            stores = {
                name: ChangelogPosition(topic_id, offset) for name, (topic_id, offset) in fields["stores"].items()
            }
            return cls(fields["owner"], fields["number"], stores)
        except (ValueError, TypeError, KeyError):
            return None
