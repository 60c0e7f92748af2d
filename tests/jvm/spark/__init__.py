"""Spark with jars of its own against Korvet: its Kafka source and sink, and Delta Lake."""
