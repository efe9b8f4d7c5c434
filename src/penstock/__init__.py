"""Penstock: a Kafka-compatible streaming log whose only disk is object storage."""

from penstock.version import VERSION as __version__  # noqa: N811 - the name that tools ask for

__all__ = ["__version__"]
