"""The names of topics' tables: the pipeline makes these, and retention waits for them."""

import re
from typing import Final

TABLE_WRITER_PREFIX: Final = "table:"
"""Begins the id of the writer of a table's dead letters. The writer is kept for ever: the table
names the last dead letters for ever, and only the writer shows that they were written."""
PIN_JOB: Final = "pin"
"""The kind of a job that reads a topic and its table as one; its name is the topic's id, 32
hexadecimal digits. While it is open, no retention of that topic is proposed."""
_DEFAULT_NAMESPACE: Final = "penstock"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


def table_name(topic: str, configured: str) -> str:
    """`namespace.table`.

    Args:
        configured: `penstock.table.name`, or what a person says instead; "": nothing.
    """
    name = configured or _NO_NAME.sub("_", topic)
    return name if "." in name else f"{_DEFAULT_NAMESPACE}.{name}"
