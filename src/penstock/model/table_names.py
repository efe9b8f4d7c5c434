"""What a topic's table is called: the pipeline makes it so, and retention waits for it."""

import re
from typing import Final

TABLE_WRITER_PREFIX: Final = "table:"
"""Begins the id of the writer of a table's dead letters. It is remembered for ever: so long the
table names the last ones, and nothing else tells that they were written."""
_DEFAULT_NAMESPACE: Final = "penstock"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


def table_name(topic: str, configured: str) -> str:
    """`namespace.table`.

    Args:
        configured: `penstock.table.name`, or what a person says instead; "": nothing.
    """
    name = configured or _NO_NAME.sub("_", topic)
    return name if "." in name else f"{_DEFAULT_NAMESPACE}.{name}"
