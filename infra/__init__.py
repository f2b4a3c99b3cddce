"""The local stack as code: Java, jars, a Kafka broker and Dagster, started, found again and stopped."""
