"""The SQL front end: text in a subset of ksqlDB's dialect becomes `pipelines.plan` values."""

from pipelines.sql.error import SqlError
from pipelines.sql.pipeline import Pipeline, parse_pipeline

__all__ = ["Pipeline", "SqlError", "parse_pipeline"]
