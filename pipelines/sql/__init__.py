"""The SQL front end: ksqlDB's dialect becomes trees (`tree.py`), and these `pipelines.plan` values."""

from pipelines.sql.error import SqlError
from pipelines.sql.pipeline import Pipeline, parse_pipeline
from pipelines.sql.printer import print_tree
from pipelines.sql.statements import Parsed, parse_script, parse_statement

__all__ = ["Parsed", "Pipeline", "SqlError", "parse_pipeline", "parse_script", "parse_statement", "print_tree"]
