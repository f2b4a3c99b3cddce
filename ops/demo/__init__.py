"""The demo: real flights through the whole of it, killed twice, every result compared with another computation."""
