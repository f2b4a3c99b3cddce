"""The job on a Spark standalone cluster: see `docs/faults.md`."""
