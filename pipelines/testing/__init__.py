"""Pipelines checked without Kafka: statements and records in, records out, compared with what was expected."""
