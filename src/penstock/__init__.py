"""Penstock: a Kafka-compatible streaming log whose only disk is object storage."""
