"""The `rollforward` command: one file per group of commands. Importing it loads neither Spark nor Kafka nor SQL."""
