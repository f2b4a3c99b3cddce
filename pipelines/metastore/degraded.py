"""When the log cannot be trusted: why, and what a person does then.

Degraded means: what was applied goes on to be read, nothing more is applied and no statement is accepted, so that a
damaged log never becomes an empty or a guessed metastore. It is found anew at each look at the log, so it ends when
the log is right again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statestore.errors import Unrecoverable


class Reason(StrEnum):
    """What is wrong with the log."""

    MISSING = "missing"
    REPLACED = "replaced"
    TRUNCATED = "truncated"
    SHORTER = "shorter"
    BROKEN = "broken"
    NEWER = "newer"


_RESTORE = (
    "restore the newest backup with `rollforward metastore restore FILE`, "
    "or write what this machine knows with `rollforward metastore restore --from-here`"
)
# Where the log may be as somebody wants it.
_RESTORE_OR_TAKE = f"{_RESTORE}; where it was restored to that on purpose, `rollforward metastore rebuild --accept-loss` takes it as it is"
_TEXTS = {
    Reason.MISSING: ("the command topic is gone", _RESTORE),
    Reason.REPLACED: ("the command topic was made again with other commands", _RESTORE_OR_TAKE),
    Reason.TRUNCATED: ("the first commands are gone from the log, and no checkpoint replaces them", _RESTORE),
    Reason.SHORTER: ("the log has lost commands at its end that are applied here", _RESTORE_OR_TAKE),
    Reason.BROKEN: ("a command does not follow the one before it: something is gone or was edited", _RESTORE),
    Reason.NEWER: (
        "the log has commands of a later program, which may change what statements mean",
        "upgrade this program; what it could read is applied",
    ),
}


@dataclass(frozen=True)
class Fault:
    """One finding. `detail` says where in the log."""

    reason: Reason
    detail: str = ""

    @property
    def text(self) -> str:
        """For people."""
        return f"{_TEXTS[self.reason][0]}: {self.detail}" if self.detail else _TEXTS[self.reason][0]

    @property
    def hint(self) -> str:
        """The way out."""
        return _TEXTS[self.reason][1]

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return {"reason": self.reason.value, "text": self.text, "hint": self.hint}

    def error(self, topic: str) -> MetastoreDegraded:
        """What a writer gets."""
        return MetastoreDegraded(f"metastore is degraded: {self.text}", topic=topic, hint=self.hint)


class MetastoreDegraded(Unrecoverable):
    """No statement is accepted until a person has put the log right."""
