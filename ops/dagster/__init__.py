"""What people see in Dagster and what Dagster does by itself: assets, observations, recovery runs.

Dagster owns nothing here. What is desired and what was seen stands in the registry, the truth in Kafka, and drivers
live outside of runs; so Dagster's own storage may be deleted, and only history is lost.
"""
