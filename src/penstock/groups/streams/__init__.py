"""Streams groups (KIP-1071): the server divides the tasks of a Kafka Streams program."""
