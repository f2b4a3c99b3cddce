"""Runs a plan: the way of one batch, in the order of the files' first lines.

decode → (Spark SQL: filter, key, pre-aggregate, shuffle) → read → (Spark SQL: merge, having, encode) → write → commit
"""
