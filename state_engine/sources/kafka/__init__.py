"""``KafkaSource``: records of Kafka's topics, by ranges of offsets."""
