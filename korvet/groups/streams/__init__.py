"""Streams groups (KIP-1071): the broker assigns the tasks of Kafka Streams, and creates the topics that they need."""
