"""JSON of single values, as the results in Kafka have it (Spark's `to_json`).

decimal   a number with all its digits      bytes   in base64      a double that is no number   "NaN", "Infinity", "-Infinity"
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from decimal import Decimal
from typing import Any


def dump(value: Any) -> str:
    """The text, in characters as they are. Raises `TypeError` for a value that JSON has no form of."""
    match value:
        case Decimal():
            return f"{value:f}"
        case bytes():
            return f'"{b64encode(value).decode()}"'
        case float() if math.isnan(value):
            return '"NaN"'
        case float() if math.isinf(value):
            return '"Infinity"' if value > 0 else '"-Infinity"'
        case dict():
            return "{" + ",".join(f"{dump(str(name))}:{dump(part)}" for name, part in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
