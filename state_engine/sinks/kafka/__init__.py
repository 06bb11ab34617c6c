"""``KafkaSink``: outputs into a topic of Kafka, exactly once."""
