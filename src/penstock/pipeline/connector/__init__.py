"""Topics as Spark DataFrames: docs/connector.md."""

from penstock.pipeline.connector.source import PenstockDataSource, register

__all__ = ["PenstockDataSource", "register"]
