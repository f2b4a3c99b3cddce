"""A driver's figures for Prometheus: which ones there are, where they come from, how they are asked for."""
