"""Applying commands about tables: how far each has followed its topic."""

from typing import Final

from penstock.state.answers import AnyAnswer, Done, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.writes import is_name
from penstock.state.numbers import are_int64, is_number
from penstock.state.pipeline_commands import DropTable, SaveTable
from penstock.state.tables import encode_json

TABLES_PER_TOPIC_MAX: Final = 100


def save_table(context: ApplyContext, command: SaveTable) -> AnyAnswer:
    """Replace what was known of the table."""
    tables = context.tables
    topic = tables.topics_by_id.get(command.topic_id)
    if topic is None:
        return Refused(Refusal.UNKNOWN_TOPIC, f"no topic has the id {command.topic_id.hex()}")
    partitions, offsets = command.offsets[::2], command.offsets[1::2]
    if (
        len(partitions) != len(offsets)
        or not all(is_number(number, 0, topic.partitions - 1) for number in partitions)
        or not all(map(is_number, offsets))
    ):
        return Refused(Refusal.MALFORMED, "offsets are pairs of a partition and its next offset")
    if not is_name(command.table) or not are_int64((command.snapshot_id,)):
        return Refused(Refusal.MALFORMED, f"table {command.table!r}")
    (others,) = tables.execute(
        "SELECT count(*) FROM table_progress WHERE topic_id = ? AND table_name != ?",
        (command.topic_id, command.table),
    ).fetchone()
    if others >= TABLES_PER_TOPIC_MAX:
        return Refused(Refusal.MALFORMED, f"{others} tables follow the topic already")
    known = sorted(dict(zip(partitions, offsets, strict=True)).items())
    tables.execute(
        "INSERT OR REPLACE INTO table_progress VALUES (?, ?, ?, ?, ?, ?)",
        (
            command.topic_id,
            command.table,
            encode_json(known),
            command.snapshot_id,
            command.state,
            context.time_ms,
        ),
    )
    return Done()


def drop_table(context: ApplyContext, command: DropTable) -> AnyAnswer:
    """Forget it."""
    context.tables.execute(
        "DELETE FROM table_progress WHERE topic_id = ? AND table_name = ?",
        (command.topic_id, command.table),
    )
    return Done()
