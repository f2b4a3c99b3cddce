"""Definitions that do not load."""

raise RuntimeError("these definitions are broken on purpose")
