"""The cases are run by `test_cases.py`; the plugin, where it is installed, must not run them again."""

from __future__ import annotations

collect_ignore = ["cases"]
