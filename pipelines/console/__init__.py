"""Statements one by one: a session, what executes it, and what it answers."""
