"""Kafka's bytes: framing, headers, primitives and codecs."""
