"""Committed versions of the past: which of them can be reached, how one is built, and what is made of it."""
