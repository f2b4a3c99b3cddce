"""What stands in the way of a pipeline, found before it does: this machine, Kafka, storage, what is deployed."""
