"""From alerts to runs: what Alertmanager says becomes incidents, rows of our own, and each incident gets one run."""
